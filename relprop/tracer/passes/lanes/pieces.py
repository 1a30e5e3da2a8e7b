"""Lanes that hold numbers of one tensor, none of them twice, however they were cut from it: that
tensor, so laid out."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from relprop.operations import MOVES, kind
from relprop.operations.vocabulary import Held
from relprop.tracer.editing import aten, emit, is_live, shape_of, tensor_inputs, val
from relprop.tracer.labels import LARGEST, Labels
from relprop.tracer.passes.lanes.alike import Lanes
from relprop.tracer.passes.products.splits import placed
from relprop.tracer.passes.simplify.layouts import reordered


def one_after_another(at: fx.Node, nodes: Lanes, dim: int, labels: Labels) -> fx.Node | None:
    """The lanes along an axis."""
    found = _numbered(nodes, labels)
    return None if found is None else _laid(at, found[0], torch.cat(found[1], dim))


def on_first_axis(at: fx.Node, nodes: Lanes, labels: Labels) -> fx.Node | None:
    """The lanes on a first axis."""
    found = _numbered(nodes, labels)
    return None if found is None else _laid(at, found[0], torch.stack(found[1]))


def _laid(at: fx.Node, source: fx.Node, places: Tensor) -> fx.Node | None:
    """The numbers of a tensor that stand in ``places``: a box of it, its axes in another order, or
    some positions of one axis."""
    made = placed(at, source, places)
    return _picked(at, source, places) if made is None else made


def _picked(at: fx.Node, source: fx.Node, places: Tensor) -> fx.Node | None:
    """Some positions of one axis of ``source``, in whatever order, the axes in another order."""
    whole = torch.arange(val(source).numel()).reshape(shape_of(source))
    for axis, along in enumerate(torch.unravel_index(places.flatten(), whole.shape)):
        order = torch.tensor(list(dict.fromkeys(along.tolist())))
        numbers, slots = whole.index_select(axis, order).flatten().sort()
        if torch.equal(numbers, places.flatten().sort().values):
            where = [*[None] * axis, emit(at, Held(order))]
            chosen = emit(at, aten.index.Tensor, source, where)
            made = reordered(at, chosen, slots[torch.searchsorted(numbers, places)])
            if made is not None:
                return made
    return None


def _numbered(nodes: Lanes, labels: Labels) -> tuple[fx.Node, list[Tensor]] | None:
    """The nearest tensor of which all lanes hold numbers that were only moved, none of them twice;
    and where each of them stands there."""
    moves, left = set[fx.Node](), set(nodes)
    while len(left) > 1:
        node = max(left)
        if kind(node) not in MOVES:
            return None
        left.remove(node)
        moves.add(node)
        left |= set(filter(is_live, tensor_inputs(node)))
    source = left.pop()
    if val(source).numel() > LARGEST:
        return None
    known = {source: torch.arange(1, val(source).numel() + 1).reshape(shape_of(source))}
    for node in sorted(moves):
        pushed = labels.push(node, known)
        if pushed is None:
            return None
        known[node] = pushed
    numbers = [known[n].long() - 1 for n in nodes]
    beside = torch.cat([n.flatten() for n in numbers])
    once = bool((beside >= 0).all()) and beside.unique().numel() == beside.numel()
    return (source, numbers) if once else None
