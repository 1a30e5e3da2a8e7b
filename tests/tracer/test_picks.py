"""One token that a mask is true at is picked by its number; a mask of several is a sum."""

from functools import cache

import pytest
import torch

import relprop
from relprop.operations import Kind, kind
from relprop.tracer.editing import is_live
from tests.tracer.test_choices import IDS, WIDTH, Model

KEPT = torch.arange(6) < torch.tensor([[6], [4]])


#: The last token that is no padding.
LAST = {
    "index": lambda x, m: x[torch.arange(len(x)), m.sum(1) - 1],
    "gather": lambda x, m: x.gather(1, (m.sum(1) - 1)[:, None, None].expand(-1, 1, WIDTH))[:, 0],
    "one-hot product": lambda x, m: (_code(x, m)[:, None] @ x)[:, 0],
    "one-hot sum": lambda x, m: (_code(x, m)[..., None] * x).sum(1),
    "comparison": lambda x, m: (_is_last(x, m)[..., None] * x).sum(1),
    "count": lambda x, m: (((m.cumsum(1) == m.sum(1)[:, None]) & m)[..., None] * x).sum(1),
    "one-hot einsum": lambda x, m: torch.einsum("bn,bnd->bd", _code(x, m), x),
    "loop": lambda x, m: torch.stack([t[int(k.sum()) - 1] for t, k in zip(x, m, strict=True)]),
}


def _code(x, kept):
    return torch.nn.functional.one_hot(kept.sum(1) - 1, x.shape[1]).to(x.dtype)


def _is_last(x, kept):
    return torch.arange(x.shape[1]) == kept.sum(1)[:, None] - 1


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


#: Masks of several places, or of numbers other than 0 and 1, if only for some inputs.
SEVERAL = {
    "kept": lambda x, m: (m[..., None] * x).sum(1),
    "the first two": lambda x, m: ((m.cumsum(1) <= 2)[..., None] * x).sum(1),
    "the last of each run": lambda x, m: ((m & ~m.roll(-1, 1))[..., None] * x).sum(1),
    "twice": lambda x, m: ((_is_last(x, m) * 2)[..., None] * x).sum(1),
    "all but one": lambda x, m: x.masked_fill(_is_last(x, m)[..., None], 0).sum(1),
    "minus": lambda x, m: torch.einsum("bs,bsd->bd", -_is_last(x, m).to(x), x),
}


def picks(last):
    graph = relprop.trace(reading(last), (IDS, KEPT)).graph
    return any(kind(n) in (Kind.GATHER, Kind.INDEX) and is_live(n) for n in graph.nodes)


@pytest.mark.parametrize("name", SEVERAL)
def test_a_mask_of_several_is_a_sum(name):
    assert picks(LAST["comparison"])
    assert not picks(SEVERAL[name])


def test_lengths_of_one_and_none_prove_nothing():
    """For lengths up to 1 the mask is true once."""

    class Lengths(Last):
        def forward(self, ids, lengths):
            return super().forward(ids, torch.arange(6) < lengths[:, None])

    model = Lengths(SEVERAL["kept"]).double().eval()
    lengths = torch.tensor([1, 1])
    for given in (lengths, lengths + 2):
        found = relprop.explain(model, (IDS, given), 1, method="attnlrp").scores
        assert torch.equal(found != 0, torch.arange(6) < given[:, None])


def test_where_nothing_is_picked_there_are_zeros():
    """The mask of what is read is another than that of the keys."""
    read = KEPT & torch.tensor([[True], [False]])

    class Read(Last):
        def forward(self, ids, kept, read):
            self.read = read
            return super().forward(ids, kept)

    def found(way):
        model = Read(lambda x, m: way(x, model.read)).double().eval()
        return relprop.explain(model, (IDS, KEPT, read), 1, method="attnlrp").scores

    by_comparison = found(LAST["comparison"])
    assert not by_comparison[1].any()
    by_index = found(lambda x, m: LAST["index"](x, m) * m.any(1, keepdim=True))
    torch.testing.assert_close(by_comparison, by_index)


def test_positions_in_a_buffer_pick_as_others_do():
    """The buffer's numbers are part of what is known; when they change, so does what is picked."""
    held = Last(None)
    held.register_buffer("places", torch.arange(6))
    held.last = lambda x, m: ((held.places == m.sum(1)[:, None] - 1)[..., None] * x).sum(1)
    held, indexed = held.double().eval(), Last(LAST["index"]).double().eval()

    def scores(model):
        return relprop.explain(model, {"ids": IDS, "kept": KEPT}, 1).scores

    torch.testing.assert_close(scores(held), scores(indexed))
    held.places += 1
    indexed.last = lambda x, m: x[torch.arange(len(x)), m.sum(1) - 2]
    torch.testing.assert_close(scores(held), scores(indexed))
