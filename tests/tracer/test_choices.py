"""What ids choose: which of it is a lookup, and what is refused."""

import pytest
import torch
from torch import nn

import relprop
from relprop.errors import TargetError
from relprop.tracer.passes.functions.known import known_function, line_of_known

WORDS, WIDTH = 5, 8
IDS = torch.tensor([[0, 3, 4, 1, 2, 3], [4, 4, 0, 2, 1, 0]])


class Model(nn.Module):
    """One attention over what ``embed`` gives for ids and a table."""

    def __init__(self, embed):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.table = embed, nn.Parameter(torch.randn(WORDS, WIDTH))
        self.query, self.key, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.place = nn.Parameter(torch.randn(6, WIDTH))

    def forward(self, ids):
        x = self.embed(ids, self.table) + self.place
        weights = (self.query(x) @ self.key(x).mT / WIDTH**0.5).softmax(-1)
        return self.head(weights @ x)[:, 0]


def scores(embed, ids=IDS, method="gradient_x_input"):
    return relprop.explain(Model(embed).double().eval(), ids, 1, method=method).scores


def of_its_place(ids, table):
    """What an id gets depends on its place."""
    there = ids == torch.arange(6) % WORDS
    return torch.where(there[..., None], table[0], table[1])


def of_the_next(ids, table):
    """What stands at a place depends on the next id, too."""
    larger = torch.maximum(ids, ids.roll(-1, 1))
    return torch.where((larger < 3)[..., None], table[0], table[1]) + torch.where(
        (ids < 3)[..., None], table[2], table[3]
    )


@pytest.mark.parametrize("embed", [of_its_place, of_the_next])
def test_what_does_not_depend_on_each_id_alone_is_refused(embed):
    with pytest.raises(TargetError, match="feed no embedding"):
        scores(embed)


def test_a_lookup_under_a_mask_stays_one():
    """No gradient passes where the mask is 0."""
    found = scores(lambda ids, t: t[ids] * (ids != 0)[..., None], method="input_gradient")
    assert torch.equal(found == 0, IDS == 0)


FROM_THE_LAST = [
    lambda ids, table: table[ids - WORDS],
    lambda ids, table: table[-(WORDS - ids)],
    lambda ids, table: table[torch.where(ids == 4, -1, ids)],
    lambda ids, table: table.mT[:, ids - WORDS].permute(1, 2, 0),
]


@pytest.mark.parametrize("embed", FROM_THE_LAST)
@pytest.mark.parametrize("method", ["transformer_attribution", "attnlrp"])
def test_numbers_below_0_count_rows_from_the_last(embed, method):
    want = scores(lambda ids, table: table[ids], method=method)
    torch.testing.assert_close(scores(embed, method=method), want, rtol=0, atol=1e-12)


def test_a_function_that_decides_at_one_number_is_no_other():
    """A mask of numbers that is inverted and filled (Pegasus-X): the same almost everywhere, and
    another where it is 1."""

    def hidden(x):
        inverted = 1 - x
        return inverted.masked_fill(inverted.bool(), torch.finfo(torch.float32).min)

    assert known_function(hidden) is None and line_of_known(hidden) is None
