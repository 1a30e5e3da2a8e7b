"""What is added at places by number or mask (``index_put_`` with ``accumulate=True``): the books
balance, and the scores are those of the same sum written with ``index_add`` or ``where``."""

import pytest
import torch
from torch import nn

import relprop
from relprop.rules import PRESETS
from tests.common.models import closeness, randomise

PLACES = torch.tensor([0, 2, 2, 4, 0, 2])
MASK = torch.tensor([True, False, True, True, False, True])
METHODS = {
    "transformer_attribution": {},
    "lrp": {"method": "lrp"},
    "lrp, paper": {"method": "lrp", "rules": "paper"},
    "attnlrp": {"method": "attnlrp"},
    "stable": {"rules": "stable"},
}


class Summed(nn.Module):
    """One attention over six tokens, and a sum by index behind it."""

    def __init__(self, change):
        super().__init__()
        self.embed, self.qkv, self.out = nn.Linear(3, 8), nn.Linear(8, 24), nn.Linear(8, 3)
        self.change = change
        self.register_buffer("places", PLACES.clone())
        self.register_buffer("mask", MASK.clone())

    def forward(self, x):
        x = self.embed(x)
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + (q @ k.mT / 8**0.5).softmax(-1) @ v
        return self.out(self.change(self, x).mean(1))


def at(y):
    return torch.arange(len(y))[:, None]


def put(y, indices, values):
    return y.clone().index_put_(indices, values, accumulate=True)


def into_a_view(m, y):
    y = y.clone()
    y[:, 1:].index_put_((at(y), m.places[None, :5]), y[:, :5] * 0.5, accumulate=True)
    return y


def masked_in_place(m, y):
    y = y.clone()
    y[0].index_put_((m.mask,), y[0, :4] * 0.5, accumulate=True)
    return y


#: How it is written, and another spelling of the same function.
SUMS = {
    "places that repeat": (
        lambda m, y: put(y, (at(y), m.places[None]), y * 0.5),
        lambda m, y: y.index_add(1, m.places, y * 0.5),
    ),
    "counted from the end": (
        lambda m, y: put(y, (at(y), m.places[None] - 6), y * 0.5),
        lambda m, y: y.index_add(1, m.places, y * 0.5),
    ),
    "onto zeros": (
        lambda m, y: put(torch.zeros_like(y), (at(y), m.places[None]), y),
        lambda m, y: torch.zeros_like(y).index_add(1, m.places, y),
    ),
    "one row for all": (
        lambda m, y: put(y, (at(y), m.places[None]), y[:, :1]),
        lambda m, y: y.index_add(1, m.places, y[:, :1].expand_as(y)),
    ),
    "a view": (
        into_a_view,
        lambda m, y: torch.cat([y[:, :1], y[:, 1:].index_add(1, m.places[:5], y[:, :5] * 0.5)], 1),
    ),
    "a mask, a value for all": (
        lambda m, y: put(y[0], (m.mask,), y[0, 0])[None],
        lambda m, y: y + torch.where(m.mask[None, :, None], y[:, :1], 0.0),
    ),
    "a mask, a number": (
        lambda m, y: put(y[0], (m.mask,), torch.tensor(2.0, dtype=y.dtype))[None],
        lambda m, y: y + torch.where(m.mask, 2.0, 0.0).to(y.dtype)[None, :, None],
    ),
    "a mask, a value for each place": (
        masked_in_place,
        lambda m, y: y.index_add(1, m.mask.nonzero()[:, 0], y[:, :4] * 0.5),
    ),
    "a mask and a number": (
        lambda m, y: put(y, (torch.zeros(1, dtype=torch.long), m.mask), y[0, :4] * 0.5),
        lambda m, y: y.index_add(1, m.mask.nonzero()[:, 0], y[:, :4] * 0.5),
    ),
}


def rows():
    """Every sum by every method; in the fast suite each by one."""
    for place, (name, (written, other)) in enumerate(SUMS.items()):
        for at, how in enumerate(METHODS):
            marks = () if at == place % len(METHODS) else pytest.mark.slow
            yield pytest.param(written, other, how, id=f"{name}-{how}", marks=marks)


@pytest.mark.parametrize(("written", "other", "how"), list(rows()))
def test_a_sum_by_index_balances_and_is_that_of_another_spelling(written, other, how):
    one, two = (randomise(Summed(change), 3).double().eval() for change in (written, other))
    samples = 1 if "mask" in written.__code__.co_names else 2
    x = torch.randn(samples, 6, 3, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        torch.testing.assert_close(one(x), two(x))
    mine, theirs = (relprop.explain(m, x, 1, ledger=True, **METHODS[how]) for m in (one, two))
    assert mine.ledger.balanced(1e-9) and theirs.ledger.balanced(1e-9)
    books = mine.ledger.totals()
    parts = (books[name] for name in ("reached", "absorbed", "lost", "unread"))
    if "method" in METHODS[how]:  # others stop at the attention maps
        torch.testing.assert_close(sum(parts), books["started"], rtol=1e-9, atol=1e-9)
    if "method" in METHODS[how] or samples == 2:  # the roll-up knows a mask's places as a write
        assert closeness(mine.scores, theirs.scores) <= 1e-9


def test_every_rule_set_balances_where_places_repeat():
    model = randomise(Summed(SUMS["places that repeat"][0]), 3).double().eval()
    x = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(1)).double()
    for name in PRESETS:
        if not name.startswith("reference"):  # the authors' stabiliser loses a little
            assert relprop.explain(
                model, x, 1, method="lrp", rules=name, ledger=True
            ).ledger.balanced(), name
