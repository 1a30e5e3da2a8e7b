"""Products of matrices and vectors: one operator for all, and one for linear maps."""

from __future__ import annotations

from torch import fx

from relprop.operations import argument, is_call, operand
from relprop.tracer.editing import arguments, aten, emit, rank, reshaped, shape_of


def as_matmul(node: fx.Node) -> fx.Node | None:
    """``bmm``, ``mm``, ``mv``, ``dot`` and products with vectors → ``matmul`` of two matrices."""
    x, y = arguments(node)[:2]
    if rank(x) >= 2 and rank(y) >= 2:
        return None if is_call(node, aten.matmul) else emit(node, aten.matmul.default, x, y)
    left = reshaped(node, x, [1, *shape_of(x)]) if rank(x) == 1 else x
    right = reshaped(node, y, [*shape_of(y), 1]) if rank(y) == 1 else y
    made = emit(node, aten.matmul.default, left, right)
    return reshaped(node, made, shape_of(node))


def linear_of_matrix(node: fx.Node) -> fx.Node | None:
    """A weight that is a vector is a matrix of one row; operands stand in their places."""
    if not is_call(node, aten.linear):
        return None
    x, weight, bias = operand(node), arguments(node)[1], argument(node, "bias")
    if rank(weight) == 1:
        row = reshaped(node, weight, [1, *shape_of(weight)])
        given = [] if bias is None else [reshaped(node, bias, [1])]
        made = emit(node, aten.linear.default, x, row, *given)
        return reshaped(node, made, shape_of(node))
    wanted = (x, weight) if bias is None else (x, weight, bias)
    if node.args == wanted and not node.kwargs:
        return None
    return emit(node, aten.linear.default, *wanted)
