"""Multiples of one tensor that are added: the tensor times the sum of what multiplies it."""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
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
from relprop.tracer.passes.sums.terms import added, folded, is_scaled, is_top, terms_of


def join_multiples(graph: fx.Graph) -> None:
    """x + x⊙w of parameters w, or of a norm x and any w → x⊙(1 + w)."""
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


def _multiple(node: fx.Node) -> tuple[fx.Node, fx.Node | float]:
    """The tensor of which a term is a multiple, feature by feature, and what multiplies it."""
    if is_scaled(node) and len(node.users) == 1 and kind(node) is Kind.PRODUCT:
        return operand(node), arguments(node)[1]
    if not is_call(node, aten.mul) or len(node.users) != 1 or not all(map(is_float, node.args)):
        return node, 1
    x, w = sorted(arguments(node), key=lambda n: (is_live(n), kind(n) is Kind.NORM), reverse=True)
    same = shape_of(x) == shape_of(node) and val(w).dtype == val(node).dtype
    scales = is_live(x) and (not is_live(w) or kind(x) is Kind.NORM)
    return (x, w) if scales and same else (node, 1)


def _multiplied(at: fx.Node, x: fx.Node, own: list[tuple[fx.Node | float, int]]) -> fx.Node:
    """A tensor times the sum of its factors."""
    number = sum(sign * w for w, sign in own if not isinstance(w, fx.Node))
    total = folded(at, [(sign, w) for w, sign in own if isinstance(w, fx.Node)])
    total = emit(at, aten.add.Tensor, total, number) if number else total
    return emit(at, aten.mul.Tensor, x, total)
