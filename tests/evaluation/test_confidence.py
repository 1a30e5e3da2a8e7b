"""Kendall-τ confidence: pairs counted by hand, the paper's lists of indices, refusals."""

import itertools

import pytest
import torch

from relprop.errors import InputError, OptionError, RelpropWarning
from relprop.evaluation import KendallConfidence, Metric

EXACT = 1e-9
ALL = torch.ones(1, 4)


def tau(a, b):
    """Of lists without ties: concordant pairs less discordant ones, over all."""
    pairs = list(itertools.combinations(range(len(a)), 2))
    return sum((1 if (a[i] - a[j]) * (b[i] - b[j]) > 0 else -1) for i, j in pairs) / len(pairs)


@pytest.mark.parametrize("protocol", ["corrected", "paper", "paper-code"])
def test_against_pairs(protocol):
    scores = torch.rand(5, 3, 7, dtype=torch.float64)
    content = torch.ones(5, 7)
    content[:, 0], content[3, 5:] = 0, 0
    found = KendallConfidence(protocol)(scores, [0, 1, 2, 0, 1], content=content)
    for i, target in enumerate([0, 1, 2, 0, 1]):
        lists = [s[content[i].bool()] for s in scores[i]]
        if protocol != "corrected":
            lists = [
                torch.tensor(sorted(range(len(s)), key=s.tolist().__getitem__, reverse=True))
                for s in lists
            ]
        others = [tau(lists[target].tolist(), lists[c].tolist()) for c in range(3) if c != target]
        assert found[i].item() == pytest.approx(sum(others) / 2, rel=EXACT, abs=EXACT)


def test_the_papers_lists_say_something_else():
    """Two classes that swap two tokens; that move one; that are opposites: τ of the scores is what
    it should be, τ of the index lists is another number."""
    agree = torch.tensor(
        [[[0.3, 0.9, 0.1, 0.6], [0.1, 0.9, 0.3, 0.6]]], dtype=torch.float64
    )  # lists 1302 and 1320
    assert KendallConfidence()(agree, [0], content=ALL).item() == pytest.approx(
        tau([0.3, 0.9, 0.1, 0.6], [0.1, 0.9, 0.3, 0.6]), rel=EXACT
    )
    assert KendallConfidence("paper")(agree, [0], content=ALL).item() == pytest.approx(
        tau([1, 3, 0, 2], [1, 3, 2, 0]), rel=EXACT
    )
    swap = torch.tensor([[[0.4, 0.3, 0.2, 0.1], [0.3, 0.2, 0.1, 0.4]]], dtype=torch.float64)
    turn = torch.tensor(
        [[[0.1, 0.4, 0.3, 0.2], [0.4, 0.1, 0.2, 0.3]]], dtype=torch.float64
    )  # opposite scores; lists 1230 and 0321
    assert KendallConfidence()(swap, [0], content=ALL).item() == pytest.approx(0, abs=EXACT)
    assert (
        KendallConfidence()(turn, [0], content=ALL).item()
        == -1
        != KendallConfidence("paper")(turn, [0], content=ALL).item()
    )


def test_a_class_agnostic_method_has_no_confidence():
    scores = torch.rand(2, 1, 6).expand(2, 3, 6)
    assert KendallConfidence()(scores, [0, 2], content=torch.ones(2, 6)).tolist() == pytest.approx(
        [1, 1], rel=EXACT
    )


def test_one_score_for_all_tokens():
    scores = torch.rand(2, 2, 4)
    scores[1, 0] = 0
    with pytest.warns(RelpropWarning, match="not defined for 1 of 2 samples"):
        found = KendallConfidence()(scores, [0, 0], content=torch.ones(2, 4))
    assert found.isnan().tolist() == [False, True]


WRONG = {
    "label": (
        torch.rand(1, 2, 4),
        [2],
        ALL,
        "labels: 2 of sample 0 is out of range, the model has 2 classes",
    ),
    "one class": (torch.rand(1, 1, 4), [0], ALL, "at least 2 are needed"),
    "one token": (
        torch.rand(1, 2, 4),
        [0],
        [[0, 0, 1, 0]],
        "sample 0 has fewer than 2 content tokens",
    ),
    "NaN": (torch.rand(1, 2, 4) * torch.nan, [0], ALL, "scores: 8 values are NaN"),
    "axes": (torch.rand(2, 4), [0], ALL, r"\(batch, classes, tokens\) is needed"),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused(case):
    scores, target, content, text = WRONG[case]
    with pytest.raises(InputError, match=text):
        KendallConfidence()(scores, target, content=content)


def test_what_it_says_of_itself():
    assert isinstance(KendallConfidence(), Metric) and not KendallConfidence().higher_is_better
    with pytest.raises(
        OptionError, match="protocol='code': one of 'corrected', 'paper', 'paper-code'"
    ):
        KendallConfidence("code")
