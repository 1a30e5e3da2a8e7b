"""Whole tensors that were laid side by side for a product with weights, which makes one number of
all of them: their sum, each times its weight (what all layers give, mixed)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.operations.vocabulary import grouped_linear
from relprop.tracer.editing import (
    applied,
    arguments,
    aten,
    before_reshapes,
    emit,
    is_live,
    joined,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
)
from relprop.tracer.passes.sums.terms import added

MOST_PARTS = 64


def part_layers(graph: fx.Graph) -> None:
    """Linear maps to one number of tensors that were laid along an axis for it → Σ w·x."""
    for node in list(graph.nodes):
        if not is_call(node, aten.linear, grouped_linear) or not is_live(node):
            continue
        weight = arguments(node)[1]
        if is_live(weight) or shape_of(weight)[-2] != 1:
            continue
        found = _laid(operand(node))
        if found is not None:
            swap(node, _weighed(node, *found))


def _weighed(node: fx.Node, whole: fx.Node, way: list[tuple[fx.Node, int]]) -> fx.Node:
    """The sum of a layer's parts, each times its weight, and its bias: where a part has one weight,
    they are added as they were before they were moved."""
    weight, *bias = arguments(node)[1:]
    axis, parts = arguments(whole)[1], joined(whole)
    row = before_reshapes(weight)
    row = row if rank(row) == 1 else weight
    factors = [emit(node, aten.select.int, row, rank(row) - 1, i) for i in range(len(parts))]
    if rank(weight) == 2:
        shape = shape_of(parts[0])
        parts = [reshaped(node, p, [*shape[:axis], *shape[axis + 1 :]]) for p in parts]
        total = reshaped(node, _sum(node, parts, [reshaped(node, f, []) for f in factors]), shape)
        total = _moved(node, total, way)
    else:
        parts = [_moved(node, p, way) for p in parts]
        total = _sum(node, [reshaped(node, p, shape_of(p)[:-1]) for p in parts], factors)
    given = [(1, b) for b in bias if b is not None]
    return added(node, [(1, reshaped(node, total, shape_of(node))), *given])


def _sum(at: fx.Node, parts: list[fx.Node], factors: list[fx.Node]) -> fx.Node:
    pairs = zip(parts, factors, strict=True)
    return added(at, [(1, emit(at, aten.mul.Tensor, *pair)) for pair in pairs])


def _laid(x: fx.Node) -> tuple[fx.Node, list[tuple[fx.Node, int]]] | None:
    """The ``cat`` of whole tensors that lie along a tensor's last axis, one at each place, and how
    it was moved: after each move they lie along this axis. ``None`` where it was not made so."""
    moves: list[fx.Node] = []
    while kind(x) in (Kind.RESHAPE, Kind.PERMUTE):
        moves.insert(0, x)
        x = operand(x)
    if not is_call(x, aten.cat) or not 1 < len(joined(x)) <= MOST_PARTS:
        return None
    parts, axis = joined(x), arguments(x)[1]
    if any(shape_of(p)[axis] != 1 for p in parts) or math.prod(shape_of(parts[0])) == 1:
        return None
    which = torch.arange(len(parts)).reshape(-1, *[1] * (rank(x) - axis - 1)).expand(shape_of(x))
    way: list[tuple[fx.Node, int]] = []
    for move in moves:
        which = applied(move, which)
        places = [i for i in range(which.dim()) if _lies_along(which, i)]
        if not places:
            return None
        axis = places[0]
        way.append((move, axis))
    return (x, way) if axis == which.dim() - 1 else None


def _lies_along(which: Tensor, axis: int) -> bool:
    """Whether the places of an axis are those of the parts, everywhere."""
    own = torch.arange(which.shape[axis]).reshape(-1, *[1] * (which.dim() - axis - 1))
    return which.shape[axis] > 1 and bool((which == own).all())


def _moved(at: fx.Node, part: fx.Node, way: list[tuple[fx.Node, int]]) -> fx.Node:
    """One part, moved as all of them were."""
    for move, axis in way:
        if kind(move) is Kind.PERMUTE:
            part = permuted(at, part, arguments(move)[1])
        else:
            shape = shape_of(move)
            part = reshaped(at, part, [*shape[:axis], 1, *shape[axis + 1 :]])
    return part
