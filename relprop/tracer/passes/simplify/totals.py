"""Reductions along an axis that was only made for them."""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, is_call, kind, operand, packet
from relprop.tracer.editing import (
    arguments,
    aten,
    before_reshapes,
    dims_of,
    emit,
    joined,
    rank,
    reshaped,
    shape_of,
    val,
)

#: What a reduction of several tensors, laid along an axis for it, is of two of them.
_OF_TWO = {
    aten.sum: aten.add.Tensor,
    aten.mean: aten.add.Tensor,
    aten.prod: aten.mul.Tensor,
    aten.amax: aten.maximum.default,
    aten.amin: aten.minimum.default,
}


def simpler_total(node: fx.Node) -> fx.Node | None:
    """The sum, the product or the largest along an axis that tensors were laid along for it → of
    those tensors, unless they may be one tensor's positions, each treated alike (``total_of_parts``
    is told when they are not) or one cut from it; along axes of length 1 nothing is reduced."""
    x, op = operand(node), _OF_TWO.get(packet(node))
    if op is None or val(node).dtype != val(x).dtype or not rank(x):
        return None
    if all(shape_of(x)[d] == 1 for d in dims_of(node)):
        return reshaped(node, x, shape_of(node))
    parts = joined(x) if is_call(x, aten.cat) else []
    if any(kind(p) is Kind.SLICE for p in parts) or (len(parts) > 2 and _alike(parts)):
        return None
    return total_of_parts(node)


def _alike(parts: list[fx.Node]) -> bool:
    """Whether tensors come from calls of one operator, in whatever shape."""
    return len({before_reshapes(part).target for part in parts}) == 1


def total_of_parts(node: fx.Node) -> fx.Node | None:
    """A reduction along an axis that tensors were laid along for it → of those tensors."""
    x, op = operand(node), _OF_TWO.get(packet(node))
    if op is None or val(node).dtype != val(x).dtype or not is_call(x, aten.cat):
        return None
    dims, parts = dims_of(node), joined(x)
    if dims != [arguments(x)[1]]:
        return None
    if any(shape_of(p)[dims[0]] != 1 for p in parts) or len(parts) > 64:
        return None
    total = reshaped(node, parts[0], shape_of(node))
    for part in parts[1:]:
        total = emit(node, op, total, reshaped(node, part, shape_of(node)))
    return emit(node, aten.div.Tensor, total, len(parts)) if is_call(node, aten.mean) else total
