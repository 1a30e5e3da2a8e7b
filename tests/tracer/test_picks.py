"""A token that is picked by its number, in whichever way; a mask of several is a sum."""

from functools import cache

import pytest
import torch

import relprop
from tests.tracer.test_choices import IDS, WIDTH, Model

KEPT = torch.arange(6) < torch.tensor([[6], [4]])


#: The last token that is no padding.
LAST = {
    "index": lambda x, m: x[torch.arange(len(x)), m.sum(1) - 1],
    "gather": lambda x, m: x.gather(1, (m.sum(1) - 1)[:, None, None].expand(-1, 1, WIDTH))[:, 0],
    "loop": lambda x, m: torch.stack([t[int(k.sum()) - 1] for t, k in zip(x, m, strict=True)]),
}


def kept(x, m):
    return (m[..., None] * x).sum(1)


class Last(Model):
    """The head reads the last token that is no padding."""

    def __init__(self, last):
        super().__init__(lambda ids, table: table[ids])
        self.last = last

    def forward(self, ids, kept):
        x = self.embed(ids, self.table) + self.place
        weights = (self.query(x) @ self.key(x).mT).masked_fill(~kept[:, None], -torch.inf)
        return self.head(self.last(x + weights.softmax(-1) @ x, kept))


@cache
def reading(last):
    """The model, once for all methods, so that it is captured once."""
    return Last(last).double().eval()


@pytest.mark.parametrize("method", ["transformer_attribution", "lrp", "attention_grad", "attnlrp"])
@pytest.mark.parametrize("name", LAST)
def test_the_last_token_is_picked(name, method):
    found = [
        relprop.explain(reading(way), (IDS, KEPT), 1, method=method).scores
        for way in (LAST["index"], LAST[name])
    ]
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-12)


def test_lengths_of_one_and_none_prove_nothing():
    """For lengths up to 1 the mask is true once."""

    class Lengths(Last):
        def forward(self, ids, lengths):
            return super().forward(ids, torch.arange(6) < lengths[:, None])

    model = Lengths(kept).double().eval()
    lengths = torch.tensor([1, 1])
    for given in (lengths, lengths + 2):
        found = relprop.explain(model, (IDS, given), 1, method="attnlrp").scores
        assert torch.equal(found != 0, torch.arange(6) < given[:, None])
