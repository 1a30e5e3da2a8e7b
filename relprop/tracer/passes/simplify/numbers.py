"""Numbers: constant tensors of one number as that number, sums and products that change nothing,
and what is added to a whole row of a softmax."""

from __future__ import annotations

import torch
from torch import fx

from relprop.operations import Kind, is_call, kind, operand, packet
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_float,
    is_live,
    is_number,
    is_tensor,
    rank,
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
        return None
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


def simpler_affine(node: fx.Node) -> fx.Node | None:
    """Of a difference, whose sign is turned."""
    x = arguments(node)[0]
    if is_call(node, aten.neg) and _is_difference(x):
        return emit(node, aten.sub.Tensor, *reversed(arguments(x)))
    return None


def _is_difference(x: fx.Node) -> bool:
    """Whether a call takes one tensor from another, for one reader."""
    alone = is_call(x, aten.sub) and is_float(x) and len(x.users) == 1
    return alone and all(map(is_tensor, arguments(x)))


def simpler_function(node: fx.Node) -> fx.Node | None:
    """The exponential of a logarithm that a softmax has in itself."""
    x = arguments(node)[0]
    if is_call(node, aten.exp) and kind(x) is Kind.LOG_SOFTMAX:
        return emit(node, aten.softmax.int, *arguments(x))
    return None


def unshifted_softmax(node: fx.Node) -> fx.Node | None:
    """What is the same along the axis makes no difference to a softmax, whatever is hidden."""
    x, dim = operand(node), arguments(node)[1]
    scores = _unshifted(node, x, dim - rank(x)) if shape_of(x)[dim] > 1 else None
    return None if scores is None else emit(node, node.target, scores, dim)


def _unshifted(at: fx.Node, x: object, dim: int) -> fx.Node | None:
    """A tensor without what is the same along an axis (counted from the last) and was added to it,
    or to a part of it, or taken away; ``None`` where there is no such thing."""
    if not is_tensor(x) or rank(x) < -dim:
        return None
    if kind(x) is Kind.SUM and len(x.args) == 2:
        for scores, shift, turned in _pairs(x):
            full = shape_of(scores) == shape_of(x) or (is_tensor(shift) and is_live(scores))
            if full and _same_along(shift, dim) and not _same_along(scores, dim):
                scores = expanded(at, _unshifted(at, scores, dim) or scores, shape_of(x))
                return emit(at, aten.neg.default, scores) if turned else scores
    given = arguments(x)
    made = {i: new for i in _parts(x, dim) if (new := _unshifted(at, given[i], dim)) is not None}
    return emit(at, x.target, *(made.get(i, a) for i, a in enumerate(given))) if made else None


def _parts(x: fx.Node, dim: int) -> list[int]:
    """The operands of a call that hand on what is the same along an axis."""
    given = arguments(x)
    if kind(x) is Kind.SUM and len(given) == 2:
        return [0, 1]
    if kind(x) in (Kind.PRODUCT, Kind.QUOTIENT):
        first = [0, 1] if kind(x) is Kind.PRODUCT else [0]
        return [i for i in first if all(_same_along(a, dim) for a in given if a is not given[i])]
    hides = is_call(x, aten.masked_fill) and is_number(given[2], -torch.inf)
    return [0] if hides or is_call(x, aten.neg) else []


def _pairs(x: fx.Node) -> list[tuple[fx.Node, object, bool]]:
    """Of a sum's two terms, what may have been shifted, by what, and whether it is taken away."""
    a, b = arguments(x)
    return [(a, b, False), (b, a, is_call(x, aten.sub))] if is_tensor(b) else [(a, b, False)]


def _same_along(x: object, dim: int) -> bool:
    """Whether a number, or a tensor, is the same all along an axis, for its shape alone."""
    return not is_tensor(x) or rank(x) < -dim or shape_of(x)[dim] == 1
