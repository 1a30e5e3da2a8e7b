"""The largest of parts of a tensor, where an operator has a name of its own for it."""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, kind
from relprop.tracer.editing import aten, emit, rank, shape_of, swap


def largest_of_stretches(node: fx.Node) -> None:
    """The values of adaptive max pools: the largest of so many stretches of each axis, one axis
    after the other."""
    x, counts = node.args[0], list(node.args[1])  # type: ignore[arg-type]
    if not all(kind(u) is Kind.OUTPUT and u.args[1] == 0 for u in node.users):
        return
    for dim, count in enumerate(counts, rank(x) - len(counts)):
        length = shape_of(x)[dim]
        bounds = [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
        parts = [x if count == 1 else emit(node, aten.slice.Tensor, x, dim, *b, 1) for b in bounds]
        tops = [emit(node, aten.amax.default, p, [dim], True) for p in parts]
        x = tops[0] if count == 1 else emit(node, aten.cat.default, tops, dim)
    for user in list(node.users):
        swap(user, x)  # type: ignore[arg-type]
