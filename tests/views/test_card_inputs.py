"""Cards of sound, of series of numbers and of rows of tables: their numbers by hand."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForSequenceClassification,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

import relprop
from relprop.cards.answer import Answer, Said, _spoken
from relprop.cards.over_time import heard, silenced
from relprop.cards.recording import Recording, Sound
from relprop.cards.trials import COVERED, Deletion
from relprop.errors import InputError, OptionError
from tests.people.tabular import TabTransformer

COLUMNS = ["age", "income", "height", "debt"]
ROW = torch.tensor([[0.5, -1.25, 2.0, 38.0]])
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "classifier_proj_size": 16,
    "initializer_range": 0.3,
}


def listener():
    """A classifier of waveforms with random weights: a token every 80 samples."""
    torch.manual_seed(0)
    fronts = {"conv_dim": (32,) * 3, "conv_stride": (5, 4, 4), "conv_kernel": (10, 8, 8)}
    places = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
    labels = {"id2label": {0: "low", 1: "high"}}
    config = Wav2Vec2Config(**SMALL, **fronts, **places, **labels)
    return Wav2Vec2ForSequenceClassification(config).eval()


class Rows(nn.Module):
    """A token for every column of a table, and a class token before them."""

    def __init__(self):
        super().__init__()
        drawn = torch.Generator().manual_seed(1)
        self.weight, self.bias = (
            nn.Parameter(torch.randn(4, 16, generator=drawn)) for _ in range(2)
        )
        self.first = nn.Parameter(torch.randn(1, 1, 16, generator=drawn))
        torch.manual_seed(1)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)
        self.eval()

    def forward(self, x):
        x = x[:, :, None] * self.weight + self.bias
        x = torch.cat([self.first.expand(len(x), 1, 16), x], 1)
        return self.head(self.layers(x)[:, 0])


def recording(shares, unit="s", kind=Sound):
    return kind("x", np.asarray(shares, float)[None, None], None, 2.0, 2.0, unit, 0.0)


def test_where_in_time_a_map_lies():
    assert recording([1]).where(np.array([[1]])) == "0.00–2.00 s of the sound"
    half = Sound("x", np.ones((1, 1, 10)), None, 2.0, 8.0, "s", 0.6)
    assert half.where(half.shares[0]) is None
    assert "60% of the map lies in the silence" in half.sentence("it rests on", half.shares[0])
    assert "Nothing in the sound" in half.sentence("it rests on", -half.shares[0])
    one = recording([0, 0, 0.3, 0.8, 1, 0.3, 0, 0, 0, 0])
    assert one.where(one.shares[0]) == "0.60–1.00 s of the sound"
    assert one.strongest_at(0) == pytest.approx(0.45)
    assert recording([-1, 0, 0, 0]).where(np.array([[-1, 0, 0, 0]])) is None
    assert one.where(np.ones((2, 10))) is None
    steps = Recording("x", np.eye(8)[None, :1], None, 80, 80, "steps", 0.0)
    assert steps.where(steps.shares[0]) == "steps 0–9 of the recording"


def test_a_sounds_map_and_curve_are_the_models():
    sound = np.random.default_rng(0).standard_normal(8000).astype(np.float32)
    model, reader = listener(), Wav2Vec2FeatureExtractor()
    card = relprop.card(model, [sound], processor=reader)
    e = relprop.explain(model, [sound], processor=reader)
    values = reader([sound], sampling_rate=16_000, return_tensors="pt")
    (shown,) = card.answers[0].maps
    expected = (e.scores[0] / e.scores[0].abs().max()).double().numpy()
    assert np.allclose(shown.shares[0, 0], expected)
    assert (shown.length, shown.shown, shown.unit, shown.hidden) == (0.5, 0.5, "s", 0.0)
    assert card.answers[0].said[0].others[0][0] in ("low", "high")
    heat = torch.nn.functional.adaptive_avg_pool1d(e.scores.double(), 32)[0]
    gone = torch.zeros(32, dtype=torch.bool)
    gone[heat.argsort(descending=True)[: round(0.2 * 32)]] = True
    given = values["input_values"]
    mask = gone[(torch.arange(8000) * 32) // 8000]
    covered = torch.where(mask, given.mean(), given)
    with torch.no_grad():
        p = model(covered).logits.double().softmax(-1)[0, e.target[0]]
    assert card.checks.deletion.by_map[COVERED.index(0.2)] == pytest.approx(float(p), rel=1e-5)
    assert card.checks.deletion.parts == "sound" and isinstance(card.checks.control, float)


def test_a_speech_model_hears_silence_behind_the_words():
    torch.manual_seed(0)
    sizes = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 100}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    layers = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "init_std": 0.3}
    ids = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 3, "vocab_size": 64}
    config = WhisperConfig(**sizes, **heads, **layers, **ids, bos_token_id=1)
    model = WhisperForConditionalGeneration(config).eval()
    model.generation_config.suppress_tokens = model.generation_config.begin_suppress_tokens = None
    sound = np.random.default_rng(0).standard_normal(8000).astype(np.float32)
    reader = WhisperFeatureExtractor(chunk_length=2)
    card = relprop.card(model, [sound], processor=reader, max_new_tokens=3, checks=False)
    (shown,) = card.answers[0].maps
    assert shown.length == pytest.approx(2.0) and 0.5 <= shown.shown < 0.6
    assert len(shown.shares) == 3 and 0 < shown.hidden < 1
    page = card._html()
    assert "the silence behind it" in page and f"({shown.hidden:.0%} of the map)" in page
    assert "the sound" in card.answers[0].names() and not card.answers[0].words
    assert np.allclose(np.abs(shown.whole).max(), 1)
    assert re.search(r"rests mostly on the (sound|answer's own words) \(\d+%\)\.$", card.said)


def test_a_recording_without_a_clock_is_told_in_steps():
    card = relprop.card(listener(), torch.randn(1, 4000), checks=False)
    (shown,) = card.answers[0].maps
    assert (shown.kind, shown.unit, shown.length) == ("recording", "steps", 4000)
    assert "seconds" not in card._html()


def test_what_is_drawn_of_a_recording():
    wave = torch.zeros(1, 768 * 4)
    wave[0, 2000] = 1.0
    drawn = heard(wave)
    assert drawn.shape == (120, 768, 3)
    dark = (drawn[..., 0] < 200).sum(0)
    assert dark[500] >= 59 and dark[499] <= 3
    bands = heard(torch.eye(3))
    assert bands.shape[1] == 3 and bands[-1, 0, 0] == 0 and bands[0, 2, 0] == 0


def test_silence_is_the_mean_over_time():
    given = torch.arange(12.0).view(1, 2, 6)
    gone = torch.tensor([[True, False, False], [False, False, False]])
    found = silenced(given, 2, gone)
    assert torch.equal(found[1], given[0])
    assert found[0].tolist() == [[2.5, 2.5, 2, 3, 4, 5], [8.5, 8.5, 8, 9, 10, 11]]


def test_a_row_of_a_table_is_told_by_its_columns():
    model = Rows()
    card, e = relprop.card(model, ROW, columns=COLUMNS), relprop.explain(model, ROW)
    answer = card.answers[0]
    assert answer.words == ("age = 0.5", "income = -1.25", "height = 2", "debt = 38")
    assert [part.words for part in answer.parts] == [(0,), (1,), (2,), (3,)]
    scores = e.scores[0, e.source >= 0]
    assert np.allclose(answer.whole, scores / scores.abs().sum(), atol=1e-6)
    order = model(ROW)[0].argsort(descending=True).tolist()
    rival = relprop.targets.contrast(*order[:2])
    rather = relprop.explain(model, ROW, rival, method="attnlrp").scores[0]
    assert np.allclose(answer.said[0].against, rather / rather.abs().sum(), atol=1e-6)
    assert card.checks.deletion == "there is no neutral value to put in place of a number"
    unnamed = relprop.card(model, ROW, checks=False)
    assert unnamed.answers[0].words[1] == "column 1 = -1.25"
    named = relprop.card(model, ROW * 1000, columns=np.array(COLUMNS), checks=False)
    assert named.answers[0].words[3] == "debt = 38000"


@pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")  # its numbers go past attention
def test_only_columns_that_the_map_is_of_are_told():
    torch.manual_seed(0)
    row, names = (
        (torch.tensor([[1, 2, 0, 1]]), torch.randn(1, 3)),
        {"input_0": ["a", "b", "c", "d"]},
    )
    answer = relprop.card(TabTransformer().eval(), row, columns=names, checks=False).answers[0]
    assert answer.words == ("a = 1", "b = 2", "c = 0", "d = 1")
    assert len(answer.said[0].against) == len(answer.said[0].shares) == 4


def test_names_that_fit_no_table_are_refused():
    with pytest.raises(InputError, match="has 3 names, and 'input_0' has 4 columns"):
        relprop.card(Rows(), ROW, columns=COLUMNS[:3])
    with pytest.raises(OptionError, match="of the inputs 'input_0' are tables"):
        relprop.card(Rows(), ROW, columns={"rows": COLUMNS})
    with pytest.raises(OptionError, match="of the inputs none are tables"):
        relprop.card(listener(), torch.randn(1, 4000), columns=["a"])


def test_words_stand_where_their_maps_are_strongest_and_cover_no_other():
    shares = np.zeros((4, 1, 100))
    for step, at in enumerate((10, 70, 11, 40)):
        shares[step, 0, at] = 1
    one = Sound("x", shares, None, 5.0, 5.0, "s", 0.0)
    placed = one.placed(["one", "far", "two", ""])
    assert [(text, row) for text, _, row in placed] == [("one", 0), ("two", 1), ("far", 0)]
    assert [at for _, at, _ in placed] == pytest.approx([0.105, 0.115, 0.705])
    page = one.html("", ["one", "far", "two", ""])
    assert 'style="left:10.5%;top:0.0em">one' in page and 'left:11.5%;top:1.5em">two' in page
    assert re.findall(r"<span>([\d.]+)&nbsp;s", page) == ["0.00", "1.25", "2.50", "3.75", "5.00"]
    said = tuple(Said(text, ()) for text in ("<|notimestamps|>", "cat", ".", "[END]"))
    assert _spoken(Answer("", (), (), said, (), ())) == ["", "cat", "", ""]


def test_where_a_fifth_shows_nothing_the_largest_difference_is_told():
    by_map = (0.99, 0.99, 0.99, 0.99, 0.1, 0.0, 0.0)
    late = Deletion(by_map, ((0.99,) * 7,), "probability", "sound")
    assert late.sentence.endswith("The largest difference is at 60%: 0.00 and 0.99.")
    early = Deletion((0.99, 0.5, 0.2, 0.1, 0.0, 0.0, 0.0), ((0.99,) * 7,), "probability", "sound")
    never = Deletion((0.99,) * 7, ((0.98,) * 7,), "probability", "sound")
    assert "largest difference" not in early.sentence + never.sentence
