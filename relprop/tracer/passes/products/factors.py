"""Products of products: a quotient of a quotient is a product, and factors that are functions of
one tensor stand together, so that a gate u·f(x)/g(x) is u times one function of x."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import fx

from relprop.operations import Kind, Value, is_call, kind
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_float,
    is_live,
    shape_of,
    swap,
    val,
)

Factors = list[tuple[int, fx.Node]]


def join_factors(graph: fx.Graph) -> None:
    """Regroup every product of three and more factors of which some are functions of one tensor."""
    for node in reversed(list(graph.nodes)):
        if node._erased or not is_product(node) or not is_live(node) or not is_outermost(node):
            continue
        factors, scale = factors_of(node)
        groups: dict[fx.Node, Factors] = {}
        for power, factor in factors:
            groups.setdefault(root_of(factor), []).append((power, factor))
        gated = any(_is_gate(root, g) for root, g in groups.items())
        apart = len(groups) > 1 and (gated or any(len(g) > 1 for g in groups.values()))
        if apart or _inverts_twice(node):
            swap(node, multiplied(node, [_group(node, r, g) for r, g in groups.items()], scale))


def is_product(node: object) -> TypeGuard[fx.Node]:
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
    below = arguments(node)[-1]
    if kind(node) is Kind.PRODUCT or not is_product(below) or len(below.users) != 1:
        return False
    return kind(below) is Kind.QUOTIENT or is_call(below, aten.reciprocal) or _inverse(below)


def _inverse(node: fx.Node) -> bool:
    """A number over a tensor."""
    x, *rest = arguments(node)
    number = bool(rest) and isinstance(rest[0], (int, float))
    return number and is_call(x, aten.reciprocal) and len(x.users) == 1


def factors_of(node: fx.Node) -> tuple[Factors, float]:
    """What a product multiplies (1) and divides by (-1), and its numbers as one."""
    factors: Factors = []
    scale = 1.0
    left: list[tuple[int, Value]] = [(1, node)]
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
            left += [*((other, p) for p in arguments(part)[1:2]), (first, arguments(part)[0])]
    return factors, scale


def root_of(node: fx.Node) -> fx.Node:
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
