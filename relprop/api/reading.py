"""Whose tokens stand at an attention site's queries and keys: worked out by handing numbers down
from there through skip connections alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, fx

from relprop.api.run import Run
from relprop.interpreter.backward import propagate
from relprop.methods import Tokens
from relprop.operations import Kind, kind
from relprop.rollup import Stream, tokens_of
from relprop.tracer.axes import is_token
from relprop.tracer.editing import val
from relprop.tracer.program import Site

STRAIGHT = 1e-3


def readings(run: Run, streams: Sequence[Stream]) -> dict[fx.Node, tuple[Tokens, Tokens]]:
    """By contraction, whose tokens the queries and the keys of each chosen site are.

    Keys are followed from the site's values, queries from what the site's result is first added to:
    the residual stream that it updates. Values that depend on no input are nobody's.
    """
    receivers = {s.contraction: _receivers(run, s) for s in run.chosen}
    asked = dict.fromkeys(n for s in run.chosen for n in (s.values, *receivers[s.contraction]))
    found = _handed_down(run, streams, [n for n in asked if n in run.program.axes])
    nobody = Tokens((), False)
    return {
        s.contraction: (
            next((found[n] for n in receivers[s.contraction] if found[n].names), nobody),
            found.get(s.values, nobody),
        )
        for s in run.chosen
    }


def _receivers(run: Run, site: Site) -> list[fx.Node]:
    """What the site's result is added to, nearest first, before another site mixes it."""
    flow, contractions = run.session.flow, {s.contraction for s in run.program.sites}
    result, found = {site.contraction}, []
    for node in flow.nodes:
        if node in contractions or not any(i in result for i in flow.inputs[node]):
            continue
        result.add(node)
        others = [i for i in flow.inputs[node] if not flow.reaches(site.contraction, i)]
        if kind(node) is Kind.SUM:
            found += [
                o for o in others if tokens_of(run.program, o) == tokens_of(run.program, node)
            ]
    return found


def _handed_down(
    run: Run, streams: Sequence[Stream], nodes: list[fx.Node]
) -> dict[fx.Node, Tokens]:
    """Each node's token positions numbered, all handed down in one walk, a channel each."""
    plan = run.session.handing_down(tuple(nodes), run.sites, tuple(streams))
    contractions = {s.contraction for s in run.program.sites}
    plan = replace(plan, steps=tuple(s for s in plan.steps if s.node not in contractions))
    batch, device = run.inputs.batch, run.inputs.tensors[0].device
    values = {n: v for n, v in run.forward.values.items() if n in plan.keep}
    for n in plan.joined - set(values):  # where fields meet, only their shape is read
        values[n] = torch.zeros((), device=device).expand(
            *([batch] if n.meta["batched"] else []), *val(n).shape
        )
    fields = {
        n: _numbered(run, n, i, len(nodes), device).expand(batch, -1, *val(n).shape)
        for i, n in enumerate(nodes)
    }
    found = propagate(plan, values, fields, account=False).found
    read = {s.name: s.read(found[s.node]) for s in streams if s.node in found}
    return {
        n: _tokens(
            math.prod(tokens_of(run.program, n)), {name: r[:, i] for name, r in read.items()}
        )
        for i, n in enumerate(nodes)
    }


def _numbered(run: Run, node: fx.Node, channel: int, channels: int, device: torch.device) -> Tensor:
    """A field that has the numbers of ``node``'s token positions, from 1, in one channel."""
    shape, axes = val(node).shape, run.program.axes[node]
    sizes = [shape[i] if is_token(axis) else 1 for i, axis in enumerate(axes)]
    field = torch.zeros(channels + 1, *shape, dtype=torch.float64, device=device)
    field[channel] = torch.arange(
        1, math.prod(sizes) + 1, dtype=torch.float64, device=device
    ).reshape(sizes)
    field[-1] = 1
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
