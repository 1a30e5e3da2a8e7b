"""How the roll-up begins: the target is the mean over the tokens that it reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, fx

from relprop.interpreter.points import Points, Seed, whole
from relprop.numerics import per_count
from relprop.rollup import RollUpPlan
from relprop.rules.shares import Level, levelled
from relprop.tracer.calls import per_sample


def begun(plan: RollUpPlan, marked: Mapping[fx.Node, Seed]) -> dict[fx.Node, Seed]:
    """The fields that begin where a target reads: 1/n at each of the n tokens that it reads of what
    leads to one source, in every part of the plan. ``marked``: (batch, 2, ...), 1 at each element
    that is read."""
    starts = {n: begin for n, begin in plan.begins.items() if n in marked}
    read = {n: _tokens_read(marked[n], begin.level) for n, begin in starts.items()}
    found = dict(marked)
    for node, begin in starts.items():
        seed = marked[node]
        if begin.met:
            seed = per_sample(partial(levelled, level=begin.level), whole(seed))
        totals = [torch.stack([read[n] for n in same if n in read]).sum(0) for same in begin.alike]
        found[node] = _divided(seed, torch.stack(totals))
    return found


def in_parts(plan: RollUpPlan, node: fx.Node, field: Tensor) -> Tensor:
    """A field, (batch, channels + 1, ...), in every part that the plan has at a start."""
    numbers = field[:, :-1].repeat_interleave(parts_of(plan, node), 1)
    return torch.cat([numbers, field[:, -1:]], 1)


def parts_of(plan: RollUpPlan, node: fx.Node) -> int:
    """How many parts a field has where it begins."""
    return len(plan.begins[node].alike) if node in plan.begins else 1


def _tokens_read(seed: Seed, level: Level) -> Tensor:
    """How many tokens are read of each sample, (batch,)."""
    if level.mixed or not isinstance(seed, Points):
        fields = per_sample(partial(levelled, level=level), whole(seed))
        beside = [n for f in level.mixed for n, t in zip(f.sizes, f.tokens, strict=True) if not t]
        numbers: Tensor = fields[:, 0].flatten(1).sum(1) / math.prod(beside)
        return numbers
    axes = [a for i, a in enumerate(seed.index[1:]) if i not in level.plain]
    places = torch.stack([seed.index[0], *axes])
    tokens, inverse = torch.unique(places, dim=1, return_inverse=True)
    sums = seed.numbers.new_zeros(2, tokens.shape[1]).index_add(1, inverse, seed.numbers)
    numbers = per_count(sums[0], sums[1])
    return numbers.new_zeros(seed.shape[0]).index_add(0, tokens[0], numbers)


def _divided(seed: Seed, totals: Tensor) -> Seed:
    """A field in parts, each over its total: (parts, batch)."""
    factors = torch.where(totals > 0, 1 / torch.where(totals > 0, totals, 1), 0)
    if isinstance(seed, Points):
        numbers = seed.numbers[:1] * factors[:, seed.index[0]]
        return replace(seed, numbers=torch.cat([numbers, seed.numbers[1:]]))
    wide = factors.T.reshape(len(seed), -1, *[1] * (seed.dim() - 2))
    return torch.cat([seed[:, :1] * wide, seed[:, 1:]], 1)
