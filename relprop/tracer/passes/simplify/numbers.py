"""Numbers: constant tensors of one number as that number, sums and products that change nothing."""

from __future__ import annotations

import torch
from torch import fx

from relprop.operations import Kind, is_call, kind, operand, packet
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_float,
    is_live,
    is_number,
    is_tensor,
    shape_of,
    val,
)

#: Of a tensor and a number.
_BOUNDS = {
    aten.maximum: aten.clamp_min.default,
    aten.fmax: aten.clamp_min.default,
    aten.minimum: aten.clamp_max.default,
    aten.fmin: aten.clamp_max.default,
}


def as_numbers(node: fx.Node, constants: Constants) -> fx.Node | None:
    """Constant tensors of one number as that number: in sums, products, quotients, and bounds."""
    if kind(node) not in (Kind.SUM, Kind.PRODUCT, Kind.QUOTIENT, Kind.EXTREMUM):
        return None
    if kind(node) is Kind.PRODUCT and arguments(node)[1] == 0 and is_live(node):
        return constants.full(node, 0)
    if len(node.args) != 2 or not all(is_tensor(x) for x in arguments(node)):
        return None
    a, b = arguments(node)
    if (number := _number(node, b, a, constants)) is not None:
        return emit(node, _BOUNDS.get(packet(node), node.target), a, number)
    if (number := _number(node, a, b, constants)) is None:
        return None
    if is_call(node, aten.sub):
        turned = (aten.neg.default, b) if number == 0 else (aten.rsub.Scalar, b, number)
        return emit(node, *turned)
    if is_call(node, aten.div):
        inverse = emit(node, aten.reciprocal.default, b)
        return emit(node, aten.mul.Tensor, inverse, number)
    return emit(node, _BOUNDS.get(packet(node), node.target), b, number)


def _number(node: fx.Node, x: fx.Node, other: fx.Node, constants: Constants) -> float | int | None:
    """The number that ``x`` is, if ``other`` alone makes the shape and the type of the result."""
    if x is other or is_live(x) or not _keeps(node, other):
        return None
    return constants.number(x)


def simpler_sum(node: fx.Node) -> fx.Node | None:
    """x + 0; a difference of what has the other sign already."""
    a, b = (*arguments(node), None)[:2]
    if is_tensor(a) and is_number(b, 0) and _keeps(node, a):
        return a
    if is_call(node, aten.add) and is_number(a, 0) and is_tensor(b) and _keeps(node, b):
        return b
    if is_call(node, aten.add, aten.sub) and (other := _negated(node, b)) is not None:
        op = aten.sub.Tensor if is_call(node, aten.add) else aten.add.Tensor
        return emit(node, op, a, other)
    if is_call(node, aten.add) and is_tensor(b) and (other := _negated(node, a)) is not None:
        return emit(node, aten.sub.Tensor, b, other)
    return None


def _negated(at: fx.Node, x: object) -> fx.Node | None:
    """−x of a tensor that is −y, or y times a number below 0."""
    found = multiple(x)
    if found is None or found[1] >= 0:
        return None
    y, c = found
    return y if c == -1 else emit(at, aten.mul.Tensor, y, -c)


def _keeps(node: fx.Node, x: fx.Node) -> bool:
    """Whether ``x`` could stand for ``node``: its shape and its type."""
    return shape_of(x) == shape_of(node) and val(x).dtype == val(node).dtype


def factor_of(node: object) -> tuple[fx.Node, float] | None:
    """x and c where a call is c·x for a number c."""
    if not isinstance(node, fx.Node) or len(node.args) < 2 or not is_tensor(arguments(node)[0]):
        return None
    x, c = operand(node), arguments(node)[1]
    if not isinstance(c, (int, float)) or val(node).dtype != val(x).dtype:
        return None
    if kind(node) is Kind.PRODUCT:
        return x, float(c)
    return (x, 1.0 / c) if kind(node) is Kind.QUOTIENT and c else None


def simpler_product(node: fx.Node) -> fx.Node | None:
    """Factors that are 1, and factors of factors."""
    found = factor_of(node)
    if found is None or not val(node).is_floating_point():
        return None
    x, c = found
    if c == 1:
        return x
    inner = multiple(x)
    if inner is None or len(x.users) != 1:
        return _scaled_linear(node, x, c)
    y, d = inner
    if _is_one(c * d):
        return y
    return emit(node, aten.mul.Tensor, y, c * d)


def _is_one(c: float) -> bool:
    """Whether a number is 1 but for rounding."""
    return abs(c - 1) < 4 * torch.finfo(torch.float64).eps


def multiple(node: object) -> tuple[fx.Node, float] | None:
    """x and c where a call is c·x for a number c, or −x."""
    if is_call(node, aten.neg) and is_float(node):
        return operand(node), -1.0
    return factor_of(node)


def linear_of_scaled(node: fx.Node) -> fx.Node | None:
    """A linear map of c·x whose matrix is divided by c → of x."""
    found = multiple(operand(node)) if is_call(node, aten.linear) else None
    weight = None if found is None else taken_back(node, arguments(node)[1], found[1])
    if found is None or weight is None:
        return None
    return emit(node, aten.linear.default, found[0], weight, *arguments(node)[2:])


def _scaled_linear(node: fx.Node, layer: fx.Node, number: float) -> fx.Node | None:
    """A number times a linear map whose matrix and bias are divided by it → the map without."""
    if not is_call(layer, aten.linear) or len(layer.users) != 1:
        return None
    given = [w if w is None else taken_back(node, w, number) for w in arguments(layer)[1:]]
    if any(
        new is None and w is not None for w, new in zip(arguments(layer)[1:], given, strict=True)
    ):
        return None
    return emit(node, aten.linear.default, operand(layer), *given)


def taken_back(at: fx.Node, weight: fx.Node, number: float) -> fx.Node | None:
    """``number`` times a weight that was divided by it, in whatever layout."""
    way: list[fx.Node] = []
    while kind(weight) in (Kind.RESHAPE, Kind.PERMUTE):
        way.append(weight)
        weight = operand(weight)
    found = multiple(weight)
    if is_live(weight) or found is None or not _is_one(number * found[1]):
        return None
    made = found[0]
    for move in reversed(way):
        made = emit(at, move.target, made, *arguments(move)[1:])
    return made


def simpler_affine(node: fx.Node) -> fx.Node | None:
    """Of a sign that is turned twice, or of a difference."""
    x = arguments(node)[0]
    if is_call(node, aten.neg) and is_call(x, aten.neg):
        return operand(x)
    if is_call(node, aten.neg) and _is_difference(x):
        return emit(node, aten.sub.Tensor, *reversed(arguments(x)))
    return _scaled_linear(node, x, -1.0) if is_call(node, aten.neg) else None


def _is_difference(x: fx.Node) -> bool:
    """Whether a call takes one tensor from another, for one reader."""
    alone = is_call(x, aten.sub) and is_float(x) and len(x.users) == 1
    return alone and all(map(is_tensor, arguments(x)))


def simpler_function(node: fx.Node) -> fx.Node | None:
    """The exponential of a logarithm, or of a multiple of one."""
    x = arguments(node)[0]
    if is_call(node, aten.exp) and is_call(x, aten.log):
        return operand(x)
    if is_call(node, aten.exp) and (found := factor_of(x)) is not None:
        inner, c = found
        if is_call(inner, aten.log) or kind(inner) is Kind.LOG_SOFTMAX:
            base = (
                operand(inner)
                if is_call(inner, aten.log)
                else emit(node, aten.softmax.int, *arguments(inner))
            )
            return emit(node, aten.pow.Tensor_Scalar, base, c)
    if is_call(node, aten.exp) and kind(x) is Kind.LOG_SOFTMAX:
        return emit(node, aten.softmax.int, *arguments(x))
    if is_call(node, aten.log) and kind(x) is Kind.SOFTMAX:
        return emit(node, aten.log_softmax.int, *arguments(x))
    return None
