"""Sentence pairs: what is planted, what is marked, what is deleted."""

import importlib.util

import pytest
import torch

from examples import minilm
from tools.known_answers.sentences import TRUTH, Sentences, pairs, without


def test_each_pair_shares_one_phrase_and_no_topic():
    drawn = pairs(200, 3)
    assert drawn == pairs(200, 3) != pairs(200, 4) and len(set(drawn)) == 200
    for pair in drawn:
        for side, sentence in enumerate(pair.sentences):
            assert sentence.count(pair.phrase) == 1
            words = sentence.split()
            marked = [w for w, m in zip(words, pair.marked(side), strict=True) if m]
            assert marked == pair.phrase.split()[1:]


def test_words_are_deleted_by_their_numbers():
    assert without("one two three two", torch.tensor([1, 2])) == "one two"


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec(minilm.PACKAGE) is None, reason="the extra minilm is not installed"
)
def test_the_real_model_finds_the_phrase():
    study = Sentences(6, 5)
    study.methods = {"attnlrp": {"method": "attnlrp"}, "deeplift": {"method": "deeplift"}}
    numbers = [value for unit in range(6) for value in study(unit)]

    def mean(row, column):
        found = [v.number for v in numbers if (v.row, v.column) == (row, column)]
        return sum(found) / len(found)

    assert mean("attnlrp", "share on the phrase") > 0.5 > mean("uniform", "share on the phrase")
    assert mean(TRUTH, "share on the phrase") == 1
    falls = "fall of the cosine"
    assert mean("attnlrp", falls) > 0.2 > mean("random", falls)
