"""Deviations, sizes and distances."""

from __future__ import annotations

from torch import fx

from relprop.operations import argument, operand
from relprop.tracer.editing import arguments, aten, emit, rank, shape_of, val

#: Numbers in all differences of vectors whose distances are written out.
MOST_DIFFERENCES = 1 << 26


def deviation(node: fx.Node) -> fx.Node | None:
    """``std`` in its one overload. A deviation stays one: torch's has a slope of 0 where all values
    are equal, the root of a variance has none."""
    if node.target is aten.std.correction:
        return None
    dims, unbiased = argument(node, "dim"), argument(node, "unbiased")
    return emit(
        node,
        aten.std.correction,
        operand(node),
        None if isinstance(dims, bool) else dims,
        correction=1 if unbiased is None else int(unbiased),
        keepdim=bool(argument(node, "keepdim")),
    )


def sum_of_sizes(node: fx.Node) -> fx.Node | None:
    """‖x‖₁ is Σ |x|."""
    if argument(node, "ord") != 1 or argument(node, "dtype") is not None:
        return None
    x, dim = operand(node), argument(node, "dim")
    dims = [dim] if isinstance(dim, int) else dim or list(range(rank(x)))
    size = emit(node, aten.abs.default, x)
    return emit(node, aten.sum.dim_IntList, size, dims, bool(argument(node, "keepdim")))


def distances(node: fx.Node) -> fx.Node | None:
    """``cdist(x, y)`` → the lengths of all differences, where these are not too many to be made."""
    x, y, *more = arguments(node)
    if val(node).numel() * shape_of(x)[-1] > MOST_DIFFERENCES:
        return None
    x, y = (emit(node, aten.unsqueeze.default, n, rank(n) - i) for n, i in ((x, 1), (y, 2)))
    power = more[0] if more else 2.0
    return emit(
        node, aten.linalg_vector_norm.default, emit(node, aten.sub.Tensor, x, y), power, [-1]
    )
