"""Linear maps whose matrices a router picks for each row."""

from __future__ import annotations

import math

from torch import fx

from relprop.operations import Kind, argument, integers, is_call, kind, operand
from relprop.operations.vocabulary import grouped_linear, routed_linear
from relprop.tracer.editing import (
    arguments,
    aten,
    before_reshapes,
    emit,
    is_live,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
)


def route_rows(graph: fx.Graph) -> None:
    """A linear map of groups of one row, whose matrices are picked from a few by numbers that
    depend on the input → the map of rows, each by its own expert. Matrices are not copied then."""
    for node in list(graph.nodes):
        if is_call(node, grouped_linear) and (new := _routed(node)) is not None:
            swap(node, reshaped(node, new, shape_of(node)))


def _routed(node: fx.Node) -> fx.Node | None:
    x, weight, bias = (*arguments(node), None)[:3]
    picked = _picked(weight, shape_of(weight)[1:]) if rank(x) == 3 and shape_of(x)[1] == 1 else None
    if picked is None:
        return None
    tables, experts = picked
    biases = None if bias is None else _picked(bias, shape_of(bias)[2:])
    if bias is not None and (biases is None or not _same(biases[1], experts)):
        return None
    rows = reshaped(node, x, [shape_of(x)[0], shape_of(x)[2]])
    given = None if biases is None else biases[0]
    return emit(node, routed_linear, rows, tables, given, reshaped(node, experts, [-1]))


def _picked(copies: fx.Node, shape: list[int]) -> tuple[fx.Node, fx.Node] | None:
    """The tables of a ``shape`` of which ``copies`` has one for every row, and the numbers of
    these; ``None`` where they are anything else."""
    turned, x, count = False, copies, shape_of(copies)[0]
    while kind(x) in (Kind.RESHAPE, Kind.PERMUTE):
        if kind(x) is Kind.PERMUTE:
            if not _turns(x) or math.prod(shape_of(x)[:-2]) != count:
                return None
            turned = not turned
        x = operand(x)
    indices = row_numbers(x)
    if indices is None or math.prod(shape_of(indices)) != count or not is_live(indices):
        return None
    table = operand(x)
    if is_live(table):
        return None
    size = shape_of(table)[0]
    if not turned:
        return reshaped(x, table, [size, *shape]), indices
    return permuted(x, reshaped(x, table, [size, *reversed(shape)]), [0, 2, 1]), indices


def row_numbers(x: fx.Node) -> fx.Node | None:
    """Which parts of a tensor, along its first axis, a call picks; ``None`` if it does not."""
    if kind(x) is Kind.EMBEDDING:
        ids: fx.Node = argument(x, "indices")
        return ids
    indices: list[fx.Node] = arguments(x)[1] if is_call(x, aten.index) else []
    return indices[0] if len(indices) == 1 else None


def _turns(x: fx.Node) -> bool:
    """Whether a permutation swaps the last two axes."""
    *first, a, b = integers(x, "dims")
    return first == list(range(len(first))) and (a, b) == (rank(x) - 1, rank(x) - 2)


def _same(a: fx.Node, b: fx.Node) -> bool:
    return before_reshapes(a) is before_reshapes(b)
