"""Numbers at the elements of any tensor, brought to the positions of the input that they are of."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.layout.following import indices, reaches_between
from relprop.layout.reach import with_rank
from relprop.tracer.editing import val
from relprop.tracer.labels import Labels
from relprop.tracer.order import Flow

#: The explained inputs by name, each with its axes of positions.
Leaves = Mapping[str, tuple[fx.Node, tuple[int, ...]]]


@dataclass(frozen=True)
class Places:
    """Where the elements of a tensor are in one input, by the narrowest way. ``spans``: along each
    axis of positions the first and the one after the last, (axes, 2, *shape), the shape's axes of
    length 1 where nothing changes along them; ``extent``: how long the input is along these axes;
    ``part``: how much of an element is this input's, (*shape).
    """

    spans: Tensor
    extent: tuple[int, ...]
    part: Tensor

    def brought(self, numbers: Tensor) -> Tensor:
        """Numbers at the elements, (batch, *the tensor's shape), summed over those of each
        position, (batch, positions): what is of several positions, in equal parts."""
        sizes = self.part.shape
        gone = [i + 1 for i, n in enumerate(sizes) if n == 1 and numbers.shape[i + 1] != 1]
        summed = numbers.sum(gone, keepdim=True) if gone else numbers
        terms: list[object] = [(summed * self.part.to(summed)).flatten(1), [0, 1]]
        for k, (span, length) in enumerate(zip(self.spans, self.extent, strict=True)):
            terms += [_members(span.flatten(1), length).to(summed), [1, k + 2]]
        found: Tensor = torch.einsum(*terms, [0, *range(2, len(self.extent) + 2)])
        return found.flatten(1)


def _members(span: Tensor, length: int) -> Tensor:
    """Which part of each element is each position's, (elements, positions)."""
    at = torch.arange(length, dtype=span.dtype)
    inside = ((span[0, :, None] <= at) & (at < span[1, :, None])).double()
    return inside / inside.sum(1, keepdim=True).clamp(min=1)


def places_of(
    nodes: Collection[fx.Node],
    leaves: Leaves,
    flow: Flow,
    attention: Collection[fx.Node],
    pairs: Mapping[fx.Node, tuple[fx.Node, fx.Node]],
) -> dict[fx.Node, tuple[dict[str, Places], ...]]:
    """Where the elements of some tensors are in each input, by name. ``attention``: the results of
    attention sites, which come from everywhere and say nothing where there is another way, a skip
    connection. ``pairs``: the tensors whose elements are of two tokens each, with the queries and
    the keys that are multiplied to make them: they are in two places."""
    roots = {leaf for leaf, _ in leaves.values()}

    def without(gone: Collection[fx.Node]) -> Flow:
        return Flow((n for n in flow.nodes if n not in gone), roots)

    single = [n for n in nodes if n not in pairs]
    alone = _placed(single, leaves, (without(attention), flow))
    found: dict[fx.Node, tuple[dict[str, Places], ...]] = {n: (p,) for n, p in alone.items()}
    if several := [n for n in nodes if n in pairs]:
        others = [{*attention, *(pairs[n][i] for n in several)} for i in (1, 0)]
        sides = [_placed(several, leaves, (without(gone),)) for gone in others]
        for node in several:
            both = tuple(side[node] for side in sides if side[node])
            found[node] = both or (_placed([node], leaves, (flow,))[node],)
    return found


def _placed(
    nodes: Sequence[fx.Node], leaves: Leaves, flows: Sequence[Flow]
) -> dict[fx.Node, dict[str, Places]]:
    """The places by the first of the flows that has any. An element that several inputs enter is of
    the one in which it is narrowest."""
    found: dict[fx.Node, dict[str, Places]] = {node: {} for node in nodes}
    for name, (leaf, axes) in leaves.items():
        extent = tuple(val(leaf).shape[axis] for axis in axes)
        for node, spans in _spans(nodes, leaf, axes, flows).items():
            fraction = torch.stack([_fraction(s, n) for s, n in zip(spans, extent, strict=True)])
            found[node][name] = Places(spans, extent, fraction.prod(0))
    return {node: _divided(places) for node, places in found.items()}


def _fraction(span: Tensor, length: int) -> Tensor:
    """How much of an axis a span covers; infinite where it is nowhere."""
    width = (span[1].clamp(max=length) - span[0].clamp(min=0)) / length
    return torch.where(width > 0, width, math.inf)


def _divided(places: Mapping[str, Places]) -> dict[str, Places]:
    """The elements divided among the inputs."""
    if not places:
        return {}
    every = torch.broadcast_tensors(*(p.part for p in places.values()))
    least = torch.stack(every).amin(0)
    own = [(fraction == least) & (least < math.inf) for fraction in every]
    count = torch.stack(own).sum(0).clamp(min=1)
    return {
        name: Places(p.spans.expand(*p.spans.shape[:2], *least.shape), p.extent, mine / count)
        for (name, p), mine in zip(places.items(), own, strict=True)
    }


def _spans(
    nodes: Sequence[fx.Node], leaf: fx.Node, axes: tuple[int, ...], flows: Sequence[Flow]
) -> dict[fx.Node, Tensor]:
    """The spans of the nodes that a leaf reaches, by the first of the flows in which it does."""
    found: dict[fx.Node, Tensor] = {}
    for flow in flows:
        left = [n for n in nodes if n not in found and flow.reaches(leaf, n)][::-1]
        labels = Labels()
        while left:
            known = {n: labels.constant(n) for n in indices(leaf, left[0], flow)}
            fixed = {n: v for n, v in known.items() if v is not None}
            along = [reaches_between(leaf, left[0], axis, flow, fixed) for axis in axes]
            for node in [n for n in left if n in along[0]]:
                rank = val(node).dim()
                reaches = torch.broadcast_tensors(*(with_rank(r[node], rank) for r in along))
                found[node] = torch.stack(reaches)[:, 2:]
            left = [n for n in left if n not in found]
    return found
