"""``python -m tools.rewritten``: what it says of a way that computes something else, and which ways
it names."""

import sys

import pytest
import torch

from tests.spellings.rewriting import WAYS
from tools import rewritten
from tools.sweep.command import chosen_subjects

NAME = "hf/bert/BertForSequenceClassification"


@pytest.fixture
def twice(monkeypatch):
    """A way that gives two times what it should."""
    way = (torch._C._nn.linear,), lambda own, *args: 2 * own(*args)
    monkeypatch.setitem(WAYS, "linear_twice", way)


def test_a_way_that_is_another_function_is_found_and_named_alone(twice):
    one = rewritten.usual(chosen_subjects("hf", NAME)[0])
    verdict = rewritten.verdict_of(one, ["gelu_written_out", "linear_twice", "norm_by_var_mean"])
    assert verdict.word == "FAILS" and "another function" in verdict.says
    assert rewritten.fewest(one, verdict).used == ("linear_twice",)


@pytest.mark.parametrize("more", [(), pytest.param(("--mixed",), marks=pytest.mark.slow)])
def test_the_exit_code_counts_what_differs_in_silence(monkeypatch, capsys, more):
    monkeypatch.setattr(sys, "argv", ["rewritten", "--only", NAME, "--draws", "2", *more])
    assert rewritten.main() == 0
    said = capsys.readouterr().out
    assert said.count("agree: ") == 2 and "2 agree" in said.splitlines()[-1]


def test_maps_that_differ_are_said_to(monkeypatch):
    one = rewritten.usual(chosen_subjects("hf", NAME)[0])
    wrong = {method: scores.flip(1) for method, scores in one.scores.items()}
    monkeypatch.setattr(rewritten, "explained", lambda *_: wrong)
    monkeypatch.setattr(rewritten, "rounding", lambda *_: dict.fromkeys(wrong, 0.0))
    verdict = rewritten.verdict_of(one, ["gelu_written_out"])
    assert verdict.word == "DIFFERS" and "rollout" in verdict.says
