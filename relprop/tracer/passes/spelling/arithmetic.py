"""Sums and products in one call, such as ``lerp`` and ``addbmm``, as the sums and products that
they are, where PyTorch's own definition has another form, or none."""

from __future__ import annotations

import math

from torch import fx

from relprop.operations import argument, is_call, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_float,
    is_number,
    is_tensor,
    rank,
    reshaped,
    shape_of,
    val,
)


def sum_with_factor(node: fx.Node) -> fx.Node | None:
    """``add(a, b, alpha=k)`` → ``a + k·b``."""
    alpha = argument(node, "alpha")
    if alpha in (None, 1) or not is_tensor(arguments(node)[1]):
        return None
    return emit(
        node, node.target, operand(node), emit(node, aten.mul.Tensor, arguments(node)[1], alpha)
    )


def difference(node: fx.Node) -> fx.Node | None:
    """``rsub(a, b)`` of two tensors is b − a."""
    x, other, alpha = operand(node), arguments(node)[1], argument(node, "alpha")
    if not is_tensor(other):
        return None
    x = x if alpha in (None, 1) else emit(node, aten.mul.Tensor, x, alpha)
    return emit(node, aten.sub.Tensor, other, x)


def _scaled(node: fx.Node, x: fx.Node, factor: float | None) -> fx.Node:
    return x if factor in (None, 1) else emit(node, aten.mul.Tensor, x, factor)


def products_added(node: fx.Node) -> fx.Node:
    """``addbmm``, of which PyTorch has no definition: β·c + α·Σ (a @ b)."""
    extra, a, b = arguments(node)[:3]
    total = emit(node, aten.sum.dim_IntList, emit(node, aten.matmul.default, a, b), [0])
    total, beta = _scaled(node, total, argument(node, "alpha")), argument(node, "beta")
    return total if beta == 0 else emit(node, aten.add.Tensor, _scaled(node, extra, beta), total)


def exponential(node: fx.Node) -> fx.Node | None:
    """2ˣ and bˣ of a number b > 0 → exp(x·ln b)."""
    base, x = (2.0, operand(node)) if is_call(node, aten.exp2) else arguments(node)[:2]
    if not isinstance(base, (int, float)) or base <= 0 or not is_float(x):
        return None
    return emit(node, aten.exp.default, emit(node, aten.mul.Tensor, x, math.log(base)))


def between(node: fx.Node) -> fx.Node:
    """``lerp(a, b, w)`` → (1 − w)·a + w·b; of a tensor with itself, that tensor. PyTorch's own
    definition chooses between two forms by w."""
    a, b, weight = operand(node), operand(node, 1), arguments(node)[2]
    if a is b:
        return a
    if not is_tensor(weight):
        parts = (_scaled(node, a, 1 - weight), _scaled(node, b, weight))
        return emit(node, aten.add.Tensor, *parts)
    rest = emit(node, aten.rsub.Scalar, weight, 1)
    parts = (emit(node, aten.mul.Tensor, a, rest), emit(node, aten.mul.Tensor, b, weight))
    return emit(node, aten.add.Tensor, *parts)


def step(node: fx.Node) -> fx.Node:
    """``heaviside(x, y)`` → whether x > 0, and y where it is 0: comparisons, of which PyTorch has
    no derivative. (PyTorch's own definition writes numbers into masks.)"""
    x, middle = arguments(node)[:2]
    test = aten.ge.Scalar if is_number(middle, 1) else aten.gt.Scalar
    above = emit(node, aten.to.dtype, emit(node, test, x, 0), val(node).dtype)
    if is_number(middle, 0) or is_number(middle, 1):
        return above
    return emit(node, aten.where.self, emit(node, aten.eq.Scalar, x, 0), middle, above)


def cosine(node: fx.Node) -> fx.Node | None:
    """``cosine_similarity(x, y)`` → Σ x/max(‖x‖, ε) · y/max(‖y‖, ε): two norms and a product.
    (PyTorch's own definition takes the larger of squares, whose norm has no rule.)"""
    pair, dim, eps = arguments(node)[:2], argument(node, "dim"), argument(node, "eps")
    width, units = rank(node) + 1, []
    for x in pair:
        x = reshaped(node, x, [1] * (width - rank(x)) + shape_of(x))
        size = emit(node, aten.linalg_vector_norm.default, x, 2, [dim], True)
        units.append(emit(node, aten.div.Tensor, x, emit(node, aten.clamp_min.default, size, eps)))
    return emit(node, aten.sum.dim_IntList, emit(node, aten.mul.Tensor, *units), [dim])
