"""Every sum of products as the operation that the rules know, however it is called."""

from __future__ import annotations

import math

from torch import fx

from relprop.operations import MOVES, Kind, argument, is_call, kind, of, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_float,
    is_live,
    is_of_masks,
    is_picked,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.products.factors import Factors, factors_of, is_product, multiplied
from relprop.tracer.passes.products.letters import Product, letters_of
from relprop.tracer.passes.products.operators import as_linear, product_of, repeats


def raise_products(graph: fx.Graph, *, spreads: bool) -> None:
    """Every sum of products with something that depends on no input → a linear map of the rest;
    sums of elementwise products of two activations → matrix products. ``spreads``: a number times
    a row of weights is a linear map of one number, too (and not the scale of a norm)."""
    _pair_factors(graph)
    for node in list(graph.nodes):
        if not is_live(node) or not is_float(node) or node._erased:
            continue
        new = _activations_as_weight(node) if kind(node) is Kind.LINEAR else _raised(node, spreads)
        if new is not None:
            swap(node, reshaped(node, new, shape_of(node)))


def _pair_factors(graph: fx.Graph) -> None:
    """Of what is summed, what weighs it and what is weighed become two factors: a softmax times
    values times a mask, a number or a gate (SeFT, attention pooling with padding), in any order."""
    for node in list(graph.nodes):
        product = operand(node) if kind(node) is Kind.TOTAL else None
        if not is_product(product) or not is_live(product) or len(product.users) > 1:
            continue
        factors, scale = factors_of(product)
        if len(factors) + (scale != 1) < 3 or any(power < 0 for power, _ in factors):
            continue
        groups: dict[tuple[bool, ...], Factors] = {}
        for factor in factors:
            groups.setdefault(_spread(factor[1], product), []).append(factor)
        weights = [spread for spread, g in groups.items() if any(_is_softmax(n) for _, n in g)]
        if len(groups) == 2 and len(weights) == 1 and any(weights[0]):
            weight = multiplied(product, groups.pop(weights[0]), scale)
            (values,) = groups.values()
            both = [(1, weight), (1, multiplied(product, values, 1.0))]
            swap(product, multiplied(product, both, 1.0))


def _spread(factor: fx.Node, product: fx.Node) -> tuple[bool, ...]:
    """Along which axes of a product a factor is one for all."""
    longer = rank(product) - rank(factor)
    alike = [s == 1 or r == 0 for s, r in zip(shape_of(factor), repeats(factor), strict=True)]
    return tuple(
        a and n > 1 for a, n in zip([True] * longer + alike, shape_of(product), strict=True)
    )


def _is_softmax(node: fx.Node) -> bool:
    while kind(node) in MOVES - {Kind.JOIN} or kind(node) is Kind.CAST:
        node = operand(node)
    return kind(node) is Kind.SOFTMAX


def is_mask(x: fx.Node | None) -> bool:
    """Whether a tensor is one of truth values or whole numbers, cast and moved."""
    while is_float(x) and (kind(x) in MOVES or kind(x) in (Kind.CAST, Kind.AFFINE)):
        x = next((n for n in x.all_input_nodes if is_live(n)), None)
    return not is_float(x)


def _activations_as_weight(node: fx.Node) -> fx.Node | None:
    """``linear`` of two activations → their matrix product."""
    x, weight, *bias = arguments(node)
    if not is_call(node, aten.linear) or not is_live(weight) or is_picked(weight):
        return None
    made = emit(node, aten.matmul.default, x, permuted(node, weight, [1, 0]))
    return emit(node, aten.add.Tensor, made, *bias) if bias else made


def _raised(node: fx.Node, spreads: bool) -> fx.Node | None:
    p = letters_of(node)
    if p is None or not (is_live(p.x) or is_live(p.w)) or val(p.x).dtype != val(p.w).dtype:
        return None
    if is_live(p.x) and is_live(p.w):
        picked = [is_picked(n) for n in (p.x, p.w)]
        if sum(picked) != 1 or is_call(node, aten.mul):
            if kind(node) is Kind.CONVOLUTION:
                return _with_channels(node, product_of(node, p))
            return _of_mean(node, product_of(node, p)) if kind(node) is Kind.TOTAL else None
        p = p.turned() if picked[0] else p
    p = p if is_live(p.x) else p.turned()
    if is_of_masks(p.w):
        return None
    if is_call(node, aten.mul) and not (spreads and _makes_features(p)):
        return None
    made = as_linear(node, p)
    if made is None and kind(node) is Kind.CONVOLUTION:  # a factor for each channel
        factors = reshaped(node, p.w, [shape_of(node)[1], *[1] * of(node).axes])
        made = emit(node, aten.mul.Tensor, operand(node), factors)
    if made is None:
        return None
    return _of_mean(node, _with_channels(node, made))


def _with_channels(node: fx.Node, made: fx.Node) -> fx.Node:
    """What a convolution adds to every channel, added."""
    bias = argument(node, "bias") if kind(node) is Kind.CONVOLUTION else None
    if bias is None:
        return made
    channels = reshaped(node, bias, [-1, *[1] * of(node).axes])
    return emit(node, aten.add.Tensor, reshaped(node, made, shape_of(node)), channels)


def _of_mean(node: fx.Node, made: fx.Node) -> fx.Node:
    """A mean of products is their sum over their number."""
    if not is_call(node, aten.mean):
        return made
    count = math.prod(shape_of(operand(node))) // max(math.prod(shape_of(node)), 1)
    return emit(node, aten.div.Tensor, made, count)


def _makes_features(p: Product) -> bool:
    """Whether an elementwise product spreads ``x`` along axes that only the weight has: a linear
    map of one number."""
    x, w = (
        dict(zip(axes, shape_of(n), strict=True)) for n, axes in ((p.x, p.x_axes), (p.w, p.w_axes))
    )
    strides = dict(zip(p.w_axes, repeats(p.w), strict=True))
    return any(w.get(c, 1) > 1 == x.get(c, 1) and strides[c] != 0 for c in p.out)
