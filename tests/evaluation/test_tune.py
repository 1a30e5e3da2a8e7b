"""``tune``: what is tried, what is chosen on one half and judged on the other, what is refused."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scene_source import DigitScenes
from relprop.errors import OptionError
from relprop.evaluation import ImageTask, digit_scenes, evaluate, tune
from relprop.evaluation.tune import DEFAULTS, _halves, _settings
from relprop.runner.question import Question

MODEL = digit_scene_model()
MIOU = "segmentation: mIoU"


def test_a_setting_that_helps_is_found_and_judged_on_samples_that_did_not_choose_it():
    found = tune(MODEL, DigitScenes(20, seed=1), MIOU, method="attnlrp", evaluations=6)
    assert len(found.trials) == 6 and found.helps, found
    assert DEFAULTS in dict(found.trials) and found.chosen[0] in dict(found.trials)
    assert "better than the defaults" in str(found) and "rules" in found.best


@pytest.mark.slow
def test_what_is_best_is_what_a_table_says_of_the_same_settings():
    data = DigitScenes(12, seed=2)
    found = tune(MODEL, data, MIOU, method="lrp_gamma", evaluations=3)
    settings = dict(_settings("lrp_gamma", MODEL))
    rows = [(name, Question("lrp_gamma", settings[name])) for name, _ in found.trials]
    table = evaluate(ImageTask(MODEL, data, ("segmentation",)), rows)
    for name, number in found.trials:
        assert number == pytest.approx(table[name, MIOU].interval.mean, abs=1e-9)
    values = [number for _, number in found.trials]
    assert values == sorted(values, reverse=True)
    assert {"method": "lrp_gamma"} | settings[found.trials[0][0]] == found.best
    assert relprop.explain(MODEL, torch.rand(1, 1, 32, 32), **found.best).method == "lrp_gamma"


def test_where_lower_is_better_the_lowest_is_chosen_and_a_gain_is_positive():
    task = digit_scenes(8)
    found = tune(task.model, task.source, "positive perturbation", method="attnlrp", evaluations=3)
    values = [number for _, number in found.trials]
    assert values == sorted(values)
    if found.chosen == (DEFAULTS, DEFAULTS):
        assert found.gain.mean == 0 and not found.helps


def test_no_gain_is_a_result():
    found = tune(
        MODEL, DigitScenes(6, seed=3), MIOU, method="transformer_attribution", evaluations=2
    )
    assert found.gain.low <= found.gain.mean <= found.gain.high
    assert found.helps == (found.gain.low > 0)


def test_the_draw_is_that_of_the_seed():
    one, two = (tune(MODEL, DigitScenes(4, seed=1), MIOU, evaluations=4, seed=5) for _ in range(2))
    other = tune(MODEL, DigitScenes(4, seed=1), MIOU, evaluations=4, seed=6)
    assert one.trials == two.trials and dict(one.trials).keys() != dict(other.trials).keys()


def test_blocks_are_halved_by_their_numbers():
    blocks = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))
    model = torch.nn.ModuleDict(
        {
            "stem": torch.nn.Linear(2, 2),
            "blocks": torch.nn.ModuleList([torch.nn.Sequential(b) for b in blocks]),
        }
    )
    parts = _halves(model)
    assert parts["everywhere"] == ("stem", "blocks.0.0", "blocks.1.0", "blocks.2.0")
    assert parts["in the first blocks"] == ("blocks.0.0", "blocks.1.0")
    assert parts["in the last blocks"] == ("blocks.2.0",)
    assert _halves(torch.nn.ReLU()) == {}
    llm = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=20, n_positions=8))
    assert "transformer.h.1.mlp.c_fc" in _halves(llm)["in the last blocks"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "input_gradient"}, "no heads, layers, γ or ε"),
        ({"evaluations": 1}, "at least 2"),
        ({"samples": 3}, "3 samples: at least 2 and 4"),
        ({"metric": "segmentation: IoU"}, "has no 'IoU'"),
        ({"metric": "AOPC"}, "cannot be made of"),
        ({"method": "rollouts"}, "rollouts"),
        ({"evaluations": 2.5}, "evaluations=2.5: a whole number"),
        ({"samples": "4"}, "samples='4': a whole number"),
        ({"seed": [1]}, "seed=.1.: a whole number"),
        ({"metric": None}, "metric=None: a column's name, or a measure"),
    ],
)
def test_what_cannot_be_tuned_is_refused(given, said):
    asked = {"metric": MIOU, "evaluations": 2} | given
    with pytest.raises(OptionError, match=said):
        tune(MODEL, DigitScenes(4, seed=1), **asked)
