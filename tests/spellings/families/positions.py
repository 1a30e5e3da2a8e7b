"""Positions and class tokens: learned ones, fixed ones, added and put in front in every way."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.spellings.bases import CAUSAL, IDS, PLAIN, START
from tests.spellings.model import TOKENS
from tests.spellings.spelling import spell, spells

spell(
    "position",
    PLAIN,
    IDS,
    CAUSAL,
    embedding_of_arange=lambda x, t: x + F.embedding(torch.arange(x.shape[1]), t),
    index_of_arange=lambda x, t: x + t[torch.arange(x.shape[1])],
    slice_of_the_table=lambda x, t: x + t[: x.shape[1]],
    expanded=lambda x, t: x + t.expand(len(x), -1, -1),
    expanded_ids=lambda x, t: x + F.embedding(torch.arange(x.shape[1]).expand(len(x), -1), t),
)

spell(
    "position",
    PLAIN,
    table_first=lambda x, t: t + x,
    unsqueezed=lambda x, t: x + t.unsqueeze(0),
    repeated=lambda x, t: x + t.repeat(len(x), 1, 1),
    in_place=lambda x, t: (x * 1).add_(t),
    index_select=lambda x, t: x + t.index_select(0, torch.arange(x.shape[1])),
    gathered=lambda x, t: x + t.gather(0, torch.arange(x.shape[1])[:, None].expand_as(t)),
    narrowed=lambda x, t: x + t.narrow(0, 0, x.shape[1]),
    one_hot=lambda x, t: x + F.one_hot(torch.arange(x.shape[1])).to(x.dtype) @ t,
    one_hot_einsum=lambda x, t: (
        x + torch.einsum("np,pd->nd", torch.eye(x.shape[1], dtype=x.dtype), t)
    ),
    features_first=lambda x, t: (x.mT + t.T).mT,
    token_by_token=lambda x, t: torch.stack([x[:, i] + t[i] for i in range(x.shape[1])], 1),
    tokens_joined=lambda x, t: torch.cat([a + b for a, b in zip(x.split(1, 1), t, strict=True)], 1),
    written_by_token=lambda x, t: _written(x, t),
    added_by_token=lambda x, t: _added(x, t),
    added_by_slice=lambda x, t: _added_by_slice(x, t),
    baddbmm=lambda x, t: torch.baddbmm(
        x, torch.eye(len(t), dtype=x.dtype).expand(len(x), -1, -1), t.expand(len(x), -1, -1)
    ),
    linear_of_one_hot=lambda x, t: x + F.linear(torch.eye(len(t), dtype=x.dtype), t.T),
    addcmul=lambda x, t: torch.addcmul(x, t, torch.ones_like(t)),
    less_the_negative=lambda x, t: x - (-t),
    stacked=lambda x, t: torch.stack([x, t.expand_as(x)]).sum(0),
    scaled=lambda x, t: 2 * (x / 2 + t / 2),
    of_the_flattened=lambda x, t: (x.flatten(1) + t.flatten()).view_as(x),
    positions_by_cumsum=lambda x, t: x + t[torch.ones(x.shape[1], dtype=torch.long).cumsum(0) - 1],
    reversed_twice=lambda x, t: (x.flip(1) + t.flip(0)).flip(1),
    vmap=lambda x, t: torch.vmap(lambda s: s + t)(x),
    interpolated=lambda x, t: x + F.interpolate(t.T[None], size=x.shape[1], mode="nearest")[0].T,
    index_add=lambda x, t: x.index_add(
        1, torch.arange(x.shape[1]), t.expand(len(x), -1, -1).contiguous()
    ),
)


def _written(x, t):
    out = torch.zeros_like(x)
    for i in range(x.shape[1]):
        out[:, i] = x[:, i] + t[i]
    return out


def _added(x, t):
    out = x.clone()
    for i in range(x.shape[1]):
        out[:, i] += t[i]
    return out


def _added_by_slice(x, t):
    out = x.clone()
    out[:, :2] += t[:2]
    out[:, 2:].add_(t[2:])
    return out


@spells("position", PLAIN, CAUSAL)
class EmbeddingModule(nn.Module):
    """Positions by a module of their own, with the ids of positions as a buffer, as in BERT."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Embedding.from_pretrained(table, freeze=False)
        self.register_buffer("ids", torch.arange(16)[None])

    def forward(self, x):
        return x + self.table(self.ids[:, : x.shape[1]])


@spells("position", PLAIN)
class ParameterOfThreeAxes(nn.Module):
    """A parameter with an axis for samples, as in ViT."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table[None])

    def forward(self, x):
        return x + self.table


@spells("position", PLAIN)
class FeaturesFirst(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table.T.contiguous())

    def forward(self, x):
        return x + self.table.permute(1, 0)


@spells("position", PLAIN)
class LongerTable(nn.Module):
    """A table for longer inputs, of which the first rows are used, with an offset as in OPT."""

    def __init__(self, table):
        super().__init__()
        extra = torch.ones(2, table.shape[1], dtype=table.dtype)
        self.table = nn.Embedding.from_pretrained(torch.cat([extra, table, extra]), freeze=False)

    def forward(self, x):
        return x + self.table(torch.arange(x.shape[1], device=x.device) + 2)


@spells("position", PLAIN)
class Buffer(nn.Module):
    """Fixed positions: a buffer, as for sines and cosines."""

    def __init__(self, table):
        super().__init__()
        self.register_buffer("table", table[None], persistent=False)

    def forward(self, x):
        return x + self.table[:, : x.size(1)].requires_grad_(False)


@spells("position", PLAIN)
class RowAndColumn(nn.Module):
    """One part for every position and one for each: two tables are added before they meet x."""

    def __init__(self, table):
        super().__init__()
        self.all = nn.Parameter(table.mean(0))
        self.each = nn.Parameter(table - table.mean(0))

    def forward(self, x):
        return x + (self.all + self.each)


@spells("position", PLAIN)
class InTwoSteps(RowAndColumn):
    def forward(self, x):
        return x + self.all + self.each


@spells("position", PLAIN)
class InThreeSteps(RowAndColumn):
    """The part for every position comes last."""

    def forward(self, x):
        return x + self.each / 2 + self.each / 2 + self.all


# The class token.

spell(
    "begin",
    START,
    repeated=lambda x, c: torch.cat([c.repeat(len(x), 1, 1), x], 1),
    broadcast=lambda x, c: torch.cat([c.broadcast_to(len(x), 1, c.shape[-1]), x], dim=1),
    expanded_like=lambda x, c: torch.cat((c[None].expand(x.shape[0], 1, x.shape[2]), x), dim=-2),
    stacked_tokens=lambda x, c: torch.stack([c[0].expand_as(x[:, 0]), *x.unbind(1)], 1),
    concatenated=lambda x, c: torch.concatenate([c.tile(len(x), 1, 1), x], 1),
    concat=lambda x, c: torch.concat([c.expand(len(x), 1, -1), x], axis=1),
    times_ones=lambda x, c: torch.cat([c * torch.ones_like(x[:, :1]), x], 1),
    plus_zeros=lambda x, c: torch.cat([torch.zeros_like(x[:, :1]) + c, x], 1),
    padded_and_added=lambda x, c: F.pad(x, (0, 0, 1, 0)) + F.pad(c, (0, 0, 0, TOKENS)),
    padded_and_written=lambda x, c: _padded(x, c),
    written_into_zeros=lambda x, c: _into(x.new_zeros(len(x), x.shape[1] + 1, x.shape[2]), x, c),
    written_into_empty=lambda x, c: _into(x.new_empty(len(x), x.shape[1] + 1, x.shape[2]), x, c),
    behind_then_rolled=lambda x, c: torch.cat([x, c.expand(len(x), 1, -1)], 1).roll(1, 1),
    behind_then_flipped=lambda x, c: torch.cat([x.flip(1), c.expand(len(x), 1, -1)], 1).flip(1),
    where=lambda x, c: torch.where(
        (torch.arange(TOKENS + 1) == 0)[:, None], c, F.pad(x, (0, 0, 1, 0))
    ),
    where_not=lambda x, c: torch.where(
        torch.arange(TOKENS + 1)[:, None] > 0, F.pad(x, (0, 0, 1, 0), value=3.0), c
    ),
    where_behind_then_rolled=lambda x, c: torch.where(
        torch.arange(TOKENS + 1).eq(TOKENS)[:, None], c, F.pad(x, (0, 0, 0, 1))
    ).roll(1, 1),
    einsum_of_both=lambda x, c: (
        torch.einsum("pn,bnd->bpd", torch.eye(TOKENS + 1, dtype=x.dtype)[:, 1:], x)
        + F.pad(c, (0, 0, 0, TOKENS))
    ),
    index_copy=lambda x, c: F.pad(x, (0, 0, 1, 0)).index_copy(
        1, torch.tensor([0]), c.expand(len(x), 1, -1)
    ),
    index_add=lambda x, c: F.pad(x, (0, 0, 1, 0)).index_add(
        1, torch.tensor([0]), c.expand(len(x), 1, -1)
    ),
    slice_scatter=lambda x, c: torch.slice_scatter(
        c.expand(len(x), TOKENS + 1, -1), x, 1, 1, TOKENS + 1
    ),
    select_scatter=lambda x, c: torch.select_scatter(
        F.pad(x, (0, 0, 1, 0)), c.expand(len(x), -1), 1, 0
    ),
    vstacked_samples=lambda x, c: torch.stack([torch.vstack([c, s]) for s in x]),
    hstacked=lambda x, c: torch.hstack([c.expand(len(x), 1, -1), x]),
    features_first=lambda x, c: torch.cat([c.mT.expand(len(x), -1, 1), x.mT], -1).mT,
    vmap=lambda x, c: torch.vmap(lambda s: torch.cat([c, s]))(x),
    matmul_of_both=lambda x, c: (
        torch.eye(TOKENS + 1, TOKENS, dtype=x.dtype).roll(1, 0) @ x
        + F.one_hot(torch.zeros(1, dtype=torch.long), TOKENS + 1).mT.to(x.dtype) @ c
    ),
)


spell("begin", START, inference=True, copied_into_parts=lambda x, c: _copied(x, c))


def _padded(x, c):
    out = F.pad(x, (0, 0, 1, 0))
    out[:, 0] = c
    return out


def _into(out, x, c):
    out[:, 0] = c
    out[:, 1:] = x
    return out


def _copied(x, c):
    out = torch.zeros(len(x), x.shape[1] + 1, x.shape[2], dtype=x.dtype)
    first, rest = out.split([1, x.shape[1]], 1)
    first.copy_(c)
    rest.copy_(x)
    return out
