"""Whose tokens stand at an attention site's queries and keys: worked out by handing numbers down
from there through skip connections alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

from relprop.interpreter.batch import propagate
from relprop.operations import Kind, kind
from relprop.rollup import tokens_of
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.beginning import in_parts
from relprop.tracer.atoms import is_token
from relprop.tracer.editing import val
from relprop.tracer.program import Program, Site

STRAIGHT = 1e-3


@dataclass(frozen=True)
class Tokens:
    """Which inputs' tokens stand at the queries or the keys of a site, followed by skip
    connections: by name, and whether they are all the tokens of one input, ``exactly``, in order.
    No name: tokens of the model's own (learned queries)."""

    names: tuple[str, ...]
    exactly: bool


NOBODY = Tokens((), False)


def whose_tokens(at: AttentionStudy) -> dict[fx.Node, tuple[Tokens, Tokens]]:
    """By contraction, whose tokens the queries and the keys of each chosen site are.

    Keys are followed from the site's values, queries from what the site's result is first added to:
    the residual stream that it updates. Values that depend on no input are nobody's.
    """
    sites = at.needs.chosen
    receivers = {s.contraction: _receivers(at, s) for s in sites}
    nodes = dict.fromkeys(n for s in sites for n in (s.values, *receivers[s.contraction]))
    found = _handed_down(at, [n for n in nodes if n in at.program.axes])
    return {
        s.contraction: (
            next((found[n] for n in receivers[s.contraction] if found[n].names), NOBODY),
            found.get(s.values, NOBODY),
        )
        for s in sites
    }


def _receivers(at: AttentionStudy, site: Site) -> list[fx.Node]:
    """What the site's result is added to, nearest first, before another site mixes it."""
    flow, contractions = at.session.flow, {s.contraction for s in at.program.sites}
    result, found = {site.contraction}, list[fx.Node]()
    for node in flow.nodes:
        if node in contractions or not any(i in result for i in flow.inputs[node]):
            continue
        result.add(node)
        if kind(node) is Kind.SUM:
            tokens = tokens_of(at.program, node)
            others = [i for i in flow.inputs[node] if not flow.reaches(site.contraction, i)]
            found += [o for o in others if tokens_of(at.program, o) == tokens]
    return found


def _handed_down(at: AttentionStudy, nodes: list[fx.Node]) -> dict[fx.Node, Tokens]:
    """Each node's token positions numbered, all handed down in one walk, a channel each."""
    plan, _ = at.session.rollup(tuple(nodes), at.needs.sites, tuple(at.streams))
    contractions = {s.contraction for s in at.program.sites}
    plan = replace(plan, steps=tuple(s for s in plan.steps if s.node not in contractions))
    inputs = at.run.inputs
    batch, device = inputs.batch, inputs.tensors[0].device
    values = {n: v for n, v in at.run.forward.values.items() if n in plan.keep}
    fields = {
        n: in_parts(plan, n, numbered.expand(batch, *numbered.shape))
        for i, n in enumerate(nodes)
        for numbered in [_numbered(at.program, n, (i, len(nodes)), device)]
    }
    found = propagate(plan, values, fields, account=False).found
    read = {s.name: s.read(found[s.node]) for s in at.streams if s.node in found}
    return {
        n: _tokens(math.prod(tokens_of(at.program, n)), {k: r[:, i] for k, r in read.items()})
        for i, n in enumerate(nodes)
    }


def _numbered(
    program: Program, node: fx.Node, channel: tuple[int, int], device: torch.device
) -> Tensor:
    """A field that has the numbers of ``node``'s token positions, from 1, in one channel of
    several."""
    own, count = channel
    shape = val(node).shape
    sizes = [shape[i] if is_token(axis) else 1 for i, axis in enumerate(program.axes[node])]
    field = torch.zeros(count + 1, *shape, dtype=torch.float64, device=device)
    numbers = torch.arange(1, math.prod(sizes) + 1, dtype=torch.float64, device=device)
    field[own], field[-1] = numbers.reshape(sizes), 1
    return field


def _tokens(count: int, arrived: Mapping[str, Tensor]) -> Tokens:
    """Whose they are, by where the numbers 1 … ``count`` arrived, up to one factor; what is masked
    out on the way says nothing."""
    names = tuple(name for name, numbers in arrived.items() if bool(numbers.any()))
    if len(names) != 1 or arrived[names[0]].shape[1] != count:
        return Tokens(names, False)
    numbers = arrived[names[0]]
    ratios = (numbers / torch.arange(1, count + 1, dtype=numbers.dtype, device=numbers.device))[
        numbers != 0
    ]
    return Tokens(names, bool(ratios.max() - ratios.min() <= STRAIGHT / count * ratios.max()))
