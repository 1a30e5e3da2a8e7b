"""Products of products: a quotient of a quotient is a product, and factors that are functions of
one tensor stand together, so that a gate u·f(x)/g(x) is u times one function of x."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from relprop.operations import Kind, argument, is_call, kind
from relprop.tracer.editing import aten, emit, is_float, is_live, shape_of, swap, val
from relprop.tracer.order import Flow
from relprop.tracer.passes.region import fits, flow_of
from relprop.tracer.passes.sums import added, folded, is_scaled, is_top, terms_of

Factors = list[tuple[int, fx.Node]]


def join_factors(graph: fx.Graph) -> None:
    """Regroup every product of three and more factors of which some are functions of one tensor."""
    for node in reversed(list(graph.nodes)):
        if node._erased or not is_product(node) or not is_live(node) or not is_outermost(node):
            continue
        factors, scale = factors_of(node)
        groups: dict[fx.Node, Factors] = {}
        for power, factor in factors:
            groups.setdefault(_root(factor), []).append((power, factor))
        gated = any(_is_gate(root, g) for root, g in groups.items())
        apart = len(groups) > 1 and (gated or any(len(g) > 1 for g in groups.values()))
        if apart or _inverts_twice(node):
            swap(node, multiplied(node, [_group(node, r, g) for r, g in groups.items()], scale))
    graph.eliminate_dead_code()


def join_multiples(graph: fx.Graph) -> None:
    """x + x⊙w of parameters w → x⊙(1 + w)."""
    for node in list(graph.nodes):
        if node._erased or not is_top(node):
            continue
        terms = terms_of(node)
        found = [(*_multiple(n), sign) for sign, n in terms]
        for x in dict.fromkeys(x for x, w, _ in found if isinstance(w, fx.Node)):
            own = [(w, sign) for y, w, sign in found if y is x]
            if len(own) > 1:
                rest = [t for t, (y, *_) in zip(terms, found, strict=True) if y is not x]
                swap(node, added(node, [(1, _multiplied(node, x, own)), *rest]))
                break
    graph.eliminate_dead_code()


def _multiple(node: fx.Node) -> tuple[fx.Node, fx.Node | float]:
    """The tensor of which a term is a multiple, feature by feature, and what multiplies it."""
    if is_scaled(node) and len(node.users) == 1 and kind(node) is Kind.PRODUCT:
        return node.args[:2]  # type: ignore[return-value]
    if not is_call(node, aten.mul) or len(node.users) != 1 or not all(map(is_float, node.args)):
        return node, 1
    x, w = sorted(node.args, key=is_live, reverse=True)
    same = shape_of(x) == shape_of(node) and val(w).dtype == val(node).dtype
    return (x, w) if is_live(x) and not is_live(w) and same else (node, 1)  # type: ignore[return-value]


def _multiplied(at: fx.Node, x: fx.Node, own: list[tuple[fx.Node | float, int]]) -> fx.Node:
    """A tensor times the sum of its factors."""
    number = sum(sign * w for w, sign in own if not isinstance(w, fx.Node))
    total = folded(at, [(sign, w) for w, sign in own if isinstance(w, fx.Node)])
    total = emit(at, aten.add.Tensor, total, number) if number else total
    return emit(at, aten.mul.Tensor, x, total)


def scale_inputs(graph: fx.Graph) -> None:
    """A linear map times a scale that its own input decides, (W·x)·s(x) → W·(x·s(x)): the scale of
    a norm stands where the norm is, however late it is applied."""
    flow = flow_of(graph)
    for node in flow.nodes:
        if node._erased or not is_product(node) or not is_outermost(node):
            continue
        factors, number = factors_of(node)
        for layer in [f for power, f in factors if power > 0 and _is_plain_linear(f)]:
            scales = [f for f in factors if _is_scale(flow, f[1], layer)]
            if scales and shape_of(layer) == shape_of(node):
                x, *weight = layer.args
                scaled = multiplied(node, [(1, x), *scales], 1.0)  # type: ignore[list-item]
                made = emit(node, aten.linear.default, scaled, *weight)
                rest = [f for f in factors if f not in scales and f[1] is not layer]
                swap(node, multiplied(node, [(1, made), *rest], number))
                break
    graph.eliminate_dead_code()


def _is_plain_linear(node: fx.Node) -> bool:
    """Whether a node is a linear map of its own, without a bias."""
    plain = is_call(node, aten.linear) and argument(node, "bias") is None
    return plain and len(node.users) == 1 and not is_live(node.args[1])


def _is_scale(flow: Flow, scale: fx.Node, layer: fx.Node) -> bool:
    """Whether ``scale`` is one number for all features, by statistics of the tensor that, but for
    constant factors, is the input of ``layer``."""
    x: Any = layer.args[0]
    if scale not in flow.index or shape_of(scale) != [*shape_of(x)[:-1], 1]:
        return False
    source = x
    while is_product(source) and sum(map(is_live, source.args[:2])) == 1:
        source = next(a for a in source.args if is_live(a))
    inside = flow.between(source, scale) if source in flow.index else []
    fit = all(flow.common_dominator([source, n]) is source and fits(n, source) for n in inside)
    return bool(inside) and fit and shape_of(source) == shape_of(x)


def is_product(node: Any) -> bool:
    """Whether a call is a product or a quotient in the type of its operands."""
    if not isinstance(node, fx.Node) or not is_float(node):
        return False
    if kind(node) not in (Kind.PRODUCT, Kind.QUOTIENT) and not is_call(node, aten.reciprocal):
        return False
    dtype, tensors = val(node).dtype, node.all_input_nodes
    return bool(tensors) and all(is_float(t) and val(t).dtype == dtype for t in tensors)


def is_outermost(node: fx.Node) -> bool:
    """Whether a product is no factor of another alone."""
    users = list(node.users)
    return len(users) > 1 or any(not is_product(u) for u in users)


def _inverts_twice(node: fx.Node) -> bool:
    """Whether something is divided by a quotient."""
    below = node.args[-1]
    if kind(node) is Kind.PRODUCT or not is_product(below) or len(below.users) != 1:  # type: ignore[union-attr]
        return False
    return kind(below) is Kind.QUOTIENT or is_call(below, aten.reciprocal) or _inverse(below)  # type: ignore[arg-type]


def _inverse(node: fx.Node) -> bool:
    """A number over a tensor."""
    x, *rest = node.args
    number = bool(rest) and isinstance(rest[0], (int, float))
    return number and is_call(x, aten.reciprocal) and len(x.users) == 1  # type: ignore[union-attr]


def factors_of(node: fx.Node) -> tuple[Factors, float]:
    """What a product multiplies (1) and divides by (-1), and its numbers as one."""
    factors: Factors = []
    scale = 1.0
    left: list[tuple[int, Any]] = [(1, node)]
    while left:
        power, part = left.pop()
        if isinstance(part, (int, float)):
            scale = scale * part if power > 0 else scale / part
        elif part is not node and (
            not is_product(part) or len(part.users) != 1 or not is_live(part)
        ):
            factors.append((power, part))
        else:
            first = -power if is_call(part, aten.reciprocal) else power
            other = -power if kind(part) is Kind.QUOTIENT else power
            left += [*((other, p) for p in part.args[1:2]), (first, part.args[0])]
    return factors, scale


def _root(node: fx.Node) -> fx.Node:
    """The tensor of which a factor is a function, element by element, with no other reader on the
    way."""
    chain = (Kind.FUNCTION, Kind.AFFINE, Kind.SUM, Kind.PRODUCT, Kind.QUOTIENT)
    while kind(node) in chain and len(node.users) == 1:
        above = [n for n in node.all_input_nodes if is_live(n)]
        if len(above) != 1 or shape_of(above[0]) != shape_of(node):
            break
        node = above[0]
    return node


def _is_gate(root: fx.Node, factors: Factors) -> bool:
    """Whether factors, all divisors, are a function of another tensor's features: u/f(v)."""
    own = [n for power, n in factors if power < 0 and n is not root]
    return len(own) == len(factors) and all(
        is_live(root) and shape_of(n) == shape_of(root) and shape_of(n)[-1:] != [1] for n in own
    )


def _group(at: fx.Node, root: fx.Node, factors: Factors) -> tuple[int, fx.Node]:
    """Factors as one; it is divided by if all of them are, unless their inverse is a function."""
    if all(power < 0 for power, _ in factors):
        below = multiplied(at, [(1, n) for _, n in factors], 1.0)
        gates = _is_gate(root, factors)
        return (1, emit(at, aten.reciprocal.default, below)) if gates else (-1, below)
    return 1, multiplied(at, factors, 1.0)


def multiplied(at: fx.Node, factors: Factors, scale: float) -> fx.Node:
    """Factors and a number as one product."""
    ordered = sorted(factors, key=lambda f: -f[0])
    power, total = ordered[0]
    if power < 0:
        total = emit(at, aten.reciprocal.default, total)
    for power, factor in ordered[1:]:
        total = emit(at, aten.mul.Tensor if power > 0 else aten.div.Tensor, total, factor)
    near = abs(scale - 1) < 4 * torch.finfo(torch.float64).eps
    return total if near else emit(at, aten.mul.Tensor, total, scale)
