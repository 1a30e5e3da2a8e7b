"""One number of a row that is found by way of all of them: the last of running sums is their sum
(Mamba 2), what a mask of the largest picks is the largest (DeepSpeed's experts)."""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, argument, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    before_reshapes,
    emit,
    rank,
    reshaped,
    shape_of,
    swap,
)


def raise_totals(graph: fx.Graph) -> None:
    """Every such sum and every such largest number → ``sum`` and ``amax``."""
    for node in list(graph.nodes):
        if _is_last_of_sums(node):
            x, axis = arguments(operand(node))[:2]
            total = emit(node, aten.sum.dim_IntList, x, [axis % rank(x)], True)
            swap(node, reshaped(node, total, shape_of(node)))
        elif (x := _masked_by_its_largest(node)) is not None:
            swap(node, reshaped(node, emit(node, aten.amax.default, x, [-1]), shape_of(node)))


def _is_last_of_sums(node: fx.Node) -> bool:
    """Whether a call picks the last of running sums."""
    if kind(node) not in (Kind.SELECT, Kind.SLICE) or kind(operand(node)) is not Kind.SCAN:
        return False
    sums, axis, first = arguments(node)[:3]
    axis, size = axis % rank(sums), shape_of(sums)[axis]
    alone = kind(node) is Kind.SELECT or shape_of(node)[axis] == 1
    return alone and first % size == size - 1 and argument(sums, "dim") % rank(sums) == axis


def _masked_by_its_largest(node: fx.Node) -> fx.Node | None:
    """x, where a call is x·m for each row of x, and m is 1 at the row's largest and 0 elsewhere."""
    if not is_call(node, aten.matmul) or shape_of(node)[-2:] != [1, 1]:
        return None
    x, mask = (before_reshapes(n) for n in arguments(node))
    while kind(mask) in (Kind.CAST, Kind.RESHAPE):
        mask = operand(mask)
    if not is_call(mask, aten.one_hot) or not is_call(operand(mask), aten.argmax):
        return None
    largest = operand(mask)
    own = operand(largest) is x and argument(largest, "dim") in (-1, rank(x) - 1)
    return x if own and shape_of(mask) == shape_of(x) else None
