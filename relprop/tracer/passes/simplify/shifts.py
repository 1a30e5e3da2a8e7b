"""What is added to a whole row makes no difference to its softmax."""

from __future__ import annotations

import torch
from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_live,
    is_number,
    is_tensor,
    rank,
    shape_of,
)


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
    if kind(x) is Kind.LOG_SOFTMAX and arguments(x)[1] - rank(x) == dim:
        return operand(x)
    if is_call(x, aten.sigmoid):  # ½ + ½·tanh(x/2)
        half = emit(at, aten.mul.Tensor, operand(x), 0.5)
        return emit(at, aten.mul.Tensor, emit(at, aten.tanh.default, half), 0.5)
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
