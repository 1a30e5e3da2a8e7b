"""Cuts, sums and writes of no position at all, as a loop over sizes leaves them. What comes of it
is always the sum of tokens and positions."""

import torch
from torch.nn import functional as F

from tests.spellings.bases import PLAIN
from tests.spellings.model import TOKENS, WIDTH
from tests.spellings.spelling import spell, spells

spell(
    "position",
    PLAIN,
    cut_of_a_join=lambda x, t: x + t + torch.cat([x, t.expand_as(x)], 1)[:, 3:3].sum(1)[:, None],
    joined_first=lambda x, t: torch.cat([x[:, :0], x + t], 1),
    joined_between=lambda x, t: torch.cat([(x + t)[:, :3], x[:, 3:3], (x + t)[:, 3:]], 1),
    joined_features=lambda x, t: torch.cat([x + t, x[..., WIDTH:]], -1),
    joined_to_an_old_empty=lambda x, t: torch.cat([torch.tensor([], dtype=x.dtype), x + t], 1),
    split_with_none=lambda x, t: torch.cat([p + 0 for p in (x + t).split([2, 0, 3], 1)], 1),
    sum_of_none=lambda x, t: x + t + x[:, TOKENS:].sum(1, keepdim=True),
    product_of_none=lambda x, t: x + t * x[:, :0].prod(1, keepdim=True),
    matrix_over_none=lambda x, t: x + t + x[..., :0] @ x[..., :0].mT @ x,
    linear_of_none=lambda x, t: x + t + F.linear(x[..., :0], x.new_ones(WIDTH, 0)),
    einsum_over_none=lambda x, t: x + t + torch.einsum("btc,bsc->bts", x[..., :0], x[..., :0]) @ x,
    cut_of_the_padded=lambda x, t: x + t + F.pad(x, (0, 0, 1, 1))[:, 7:7].sum(1)[:, None],
    picked_none=lambda x, t: torch.cat([x + t, x[:, torch.empty(0, dtype=torch.long)]], 1),
    masked_none=lambda x, t: torch.cat([x + t, x[:, torch.zeros(TOKENS).bool()]], 1),
    rolled_by_cuts=lambda x, t: torch.cat([(x + t)[:, -TOKENS:], (x + t)[:, :-TOKENS]], 1),
    padded_by_none=lambda x, t: torch.cat([x + t, x.new_zeros(len(x), 0, WIDTH)], 1),
)


def _written(write):
    """``write`` is given a sum to write nothing into, and the tokens."""

    def way(x, t):
        out = x + t
        write(out, x)
        return out

    return way


def _of_none(x):
    return torch.empty(0, dtype=torch.long)


WRITES = {
    "number": lambda out, x: out[:, TOKENS:].fill_(1.0),
    "behind_0": lambda out, x: out[:, -2:0].fill_(7.0),
    "copied": lambda out, x: out[:, 2:2].copy_(x[:, 3:3]),
    "added": lambda out, x: out[:, 2:2].add_(x[:, 3:3]),
    "of_features": lambda out, x: out[..., WIDTH:].mul_(x[..., WIDTH:]),
    "by_steps": lambda out, x: out[:, TOKENS::2].copy_(x[:, TOKENS::2]),
    "by_two_slices": lambda out, x: out[:, 1:3, 4:4].copy_(x[:, 1:3, 4:4]),
    "narrowed": lambda out, x: out.narrow(1, TOKENS, 0).copy_(x.narrow(1, 0, 0)),
    "by_index": lambda out, x: out.index_put_((_of_none(x),), x[:0]),
    "index_add": lambda out, x: out.index_add_(1, _of_none(x), x[:, :0]),
    "index_copy": lambda out, x: out.index_copy_(1, _of_none(x), x[:, :0]),
    "index_fill": lambda out, x: out.index_fill_(1, _of_none(x), 3.0),
    "scatter": lambda out, x: out.scatter_(1, x[:, :0].long(), x[:, :0]),
    "scatter_add": lambda out, x: out.scatter_add_(1, x[:, :0].long(), x[:, :0]),
}
spell("position", PLAIN, **{f"written_{n}": _written(w) for n, w in WRITES.items()})


@spells("position", PLAIN)
def grown_from_nothing(x, t):
    out = x.new_zeros(len(x), 0, WIDTH)
    for i in range(TOKENS):
        out = torch.cat([out, (x + t)[:, i : i + 1]], 1)
    return out


@spells("position", PLAIN)
def layer_of_none(x, t):
    none = F.gelu(F.layer_norm(x[:, :0], (WIDTH,)))
    none = torch.softmax(none @ none.mT, -1) @ none
    return torch.cat([none, x + t], 1)
