"""Lanes that are pieces of one tensor, evenly spaced along an axis, filling a grid, or every k-th
position of an axis: that tensor, its pieces on a first axis. And positions of an axis, however
they were cut."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, fx

from relprop.operations import MOVES, is_call, kind, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_live,
    permuted,
    rank,
    reshaped,
    shape_of,
    tensor_inputs,
    val,
)
from relprop.tracer.labels import LARGEST, Labels
from relprop.tracer.passes.lanes.alike import Lanes

Grid = dict[int, tuple[int, int, int]]  # by axis: where boxes begin, how many, and how long


def pieces(at: fx.Node, nodes: Lanes) -> fx.Node | None:
    """The tensor that all lanes are pieces of, with these on a first axis."""
    if all(is_call(n, aten.select) for n in nodes):
        return _positions(at, nodes)
    if all(is_call(n, aten.slice) and arguments(n)[4] == 1 for n in nodes):
        return _boxes(at, nodes)
    return None


def picked(at: fx.Node, nodes: Lanes, labels: Labels) -> fx.Node | None:
    """Lanes that hold positions of one axis of a tensor, none of them twice, however they were cut
    from it: those positions, picked at once, the lanes on a first axis."""
    found = _numbered(nodes, labels)
    if found is None:
        return None
    source, numbers = found
    shape = shape_of(source)
    whole = torch.arange(math.prod(shape)).reshape(shape)
    for axis, size in enumerate(shape):
        lead, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        if size == 1 or numbers[0].numel() % (lead * inner):
            continue
        places = torch.stack([n.reshape(lead, -1, inner)[0, :, 0] for n in numbers])
        places = places // inner % size
        parts = zip(places, numbers, strict=True)
        if all(torch.equal(whole.index_select(axis, p).flatten(), n.flatten()) for p, n in parts):
            where = emit(at, Held(places))
            made = emit(at, aten.index.Tensor, source, [*[None] * axis, where])
            made = permuted(at, made, [axis, *(i for i in range(rank(made)) if i != axis)])
            return reshaped(at, made, [len(nodes), *shape_of(nodes[0])])
    return None


def _numbered(nodes: Lanes, labels: Labels) -> tuple[fx.Node, list[Tensor]] | None:
    """The tensor of which all lanes hold numbers that were only moved, none of them twice; and
    where each of them stands there."""
    inner, sources, left = set[fx.Node](), set[fx.Node](), list(nodes)
    while left:
        node = left.pop()
        if kind(node) not in MOVES:
            sources.add(node)
        elif node not in inner:
            inner.add(node)
            left += filter(is_live, tensor_inputs(node))
    if len(sources) != 1 or val(source := sources.pop()).numel() > LARGEST:
        return None
    known = {source: torch.arange(1, val(source).numel() + 1).reshape(shape_of(source))}
    for node in sorted(inner):
        pushed = labels.push(node, known)
        if pushed is None:
            return None
        known[node] = pushed
    numbers = [known[n].long() - 1 for n in nodes]
    beside = torch.cat([n.flatten() for n in numbers])
    once = bool((beside >= 0).all()) and beside.unique().numel() == beside.numel()
    return (source, numbers) if once else None


def _positions(at: fx.Node, nodes: Lanes) -> fx.Node | None:
    """Single positions of an axis: that axis in front."""
    x, dim = operand(nodes[0]), arguments(nodes[0])[1]
    places = [arguments(n)[2] for n in nodes]
    if any(arguments(n)[:2] != (x, dim) for n in nodes):
        return None
    if not all(isinstance(p, int) for p in places):
        return None
    x = _chosen(at, x, dim, places)
    return permuted(at, x, [dim, *(i for i in range(rank(x)) if i != dim)])


def _chosen(at: fx.Node, x: fx.Node, dim: int, places: Sequence[int]) -> fx.Node:
    """``x`` cut to some places of an axis, which follow one another, or are joined."""
    first, end = min(places), min(places) + len(places)
    if list(places) == list(range(first, end)):
        whole = (first, end) == (0, shape_of(x)[dim])
        return x if whole else emit(at, aten.slice.Tensor, x, dim, first, end, 1)
    cuts = [emit(at, aten.slice.Tensor, x, dim, p, p + 1, 1) for p in places]
    return emit(at, aten.cat.default, cuts, dim)


def _boxes(at: fx.Node, nodes: Lanes) -> fx.Node | None:
    """Boxes that fill a part of one tensor, in the order of a grid."""
    boxes = [_box(n) for n in nodes]
    x, dims = boxes[0][0], sorted(boxes[0][1])
    if any(base is not x or sorted(cuts) != dims for base, cuts in boxes):
        return None
    lengths = shape_of(nodes[0])
    starts = {d: sorted({cuts[d] for _, cuts in boxes}) for d in dims}
    if any(s != list(range(s[0], s[-1] + 1, lengths[d])) for d, s in starts.items()):
        return None
    order = _order_of([cuts for _, cuts in boxes], starts)
    grid = {d: (s[0], len(s), lengths[d]) for d, s in starts.items()}
    return None if order is None else _laid(at, x, order, grid)


def _order_of(corners: list[dict[int, int]], starts: dict[int, list[int]]) -> list[int] | None:
    """The axes of a grid, the last one first to be run through, if boxes stand in that order."""
    for order in itertools.permutations(sorted(starts)):
        grid = itertools.product(*(starts[d] for d in order))
        if [tuple(corner[d] for d in order) for corner in corners] == list(grid):
            return list(order)
    return None


def _laid(at: fx.Node, x: fx.Node, order: list[int], grid: Grid) -> fx.Node:
    """Boxes side by side along some axes, on a first axis."""
    shape: list[int] = []
    counts, rest = dict[int, int](), list[int]()
    for d, whole in enumerate(shape_of(x)):
        first, count, length = grid.get(d, (0, 1, whole))
        if (first, count * length) != (0, whole):
            x = emit(at, aten.slice.Tensor, x, d, first, first + count * length, 1)
        if d in grid:
            counts[d] = len(shape)
            shape.append(count)
        rest.append(len(shape))
        shape.append(length)
    apart = permuted(at, reshaped(at, x, shape), [*(counts[d] for d in order), *rest])
    count = math.prod(n for _, n, _ in grid.values())
    return reshaped(at, apart, [count, *shape_of(apart)[len(order) :]])


def _box(node: fx.Node) -> tuple[fx.Node, dict[int, int]]:
    """The tensor that slices cut, and by axis where they begin."""
    starts: dict[int, int] = {}
    while is_call(node, aten.slice) and arguments(node)[4] == 1:
        node, (dim, start) = operand(node), arguments(node)[1:3]
        starts[dim] = starts.get(dim, 0) + start
    return node, starts
