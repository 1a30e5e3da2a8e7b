"""The books are the same however many tensors are summed together."""

import pytest
import torch

import relprop
from relprop.interpreter import accounts
from tests.common.rows import diagonal
from tests.methods.table import made

MODELS = ("ViT", "T5", "DETR")
#: How many numbers are summed together at most.
BOUNDS = {"each by itself": 0, "few together": 200, "all together": 2**40}


def explained(name):
    model, inputs, target = made(name)
    return relprop.explain(model, inputs, target, method="lrp")


@pytest.mark.parametrize(("bounds", "name"), diagonal(BOUNDS, MODELS))
def test_books_do_not_depend_on_what_is_summed_together(monkeypatch, name, bounds):
    want = explained(name)
    monkeypatch.setattr(accounts, "TOGETHER", BOUNDS[bounds])
    got = explained(name)
    for stream in got.streams:
        assert torch.equal(got[stream].scores, want[stream].scores)
    assert len(got.ledger.accounts) == len(want.ledger.accounts) > 20
    for mine, theirs in zip(got.ledger.accounts, want.ledger.accounts, strict=True):
        assert mine.key == theirs.key
        exact = 1e-12 * theirs.absolute.max().clamp(min=1e-300)
        for part in ("arrived", "absolute", "to_inputs", "unread", "residual"):
            assert (getattr(mine, part) - getattr(theirs, part)).abs().max() <= exact, part
        for part in ("absorbed", "lost"):
            one, other = getattr(mine, part), getattr(theirs, part)
            assert one.keys() == other.keys()
            assert all((one[k] - other[k]).abs().max() <= exact for k in one), part
