"""Multiples of one tensor that are added are the tensor times the sum of what multiplies it; what
lies between two tensors, by a share that is a tensor, too: x + g⊙(y − x) and what ``lerp`` gives,
x⊙(1 − g) + y⊙g, are one (the gates of Mega and of EfficientViM)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_float,
    is_live,
    is_number,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.products.raising import is_mask
from relprop.tracer.passes.sums.terms import (
    Terms,
    added,
    folded,
    is_scaled,
    is_top,
    terms_of,
    without,
)


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


def raise_between(graph: fx.Graph) -> None:
    """Every form of what lies between two tensors → one."""
    for node in list(graph.nodes):
        if not node._erased and is_top(node) and (new := _of_difference(node, terms_of(node))):
            swap(node, new)


def _of_difference(at: fx.Node, terms: Terms) -> fx.Node | None:
    """x + g⊙(y − x) → x⊙(1 − g) + y⊙g; x − x⊙g → x⊙(1 − g)."""
    for sign, product in terms:
        for share, inner in _factors(product):
            for found in ([(1, inner)], terms_of(inner)):
                for x in [x for s, x in terms if s > 0 and (-sign, x) in found]:
                    if not shape_of(x) == shape_of(inner) == shape_of(product):
                        continue
                    rest = [(sign * s, y) for s, y in without(found, (-sign, x))]
                    made = [(1, emit(at, aten.mul.Tensor, x, _contrary(at, share)))]
                    if rest:
                        made.append((1, emit(at, aten.mul.Tensor, added(at, rest), share)))
                    return added(at, made + without(terms, (1, x), (sign, product)))
    return None


def _factors(product: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Both factors of a product that nothing else reads, each of them first; of one with a mask,
    none: it chooses."""
    if is_call(product, aten.mul) and len(product.users) == 1 and all(map(is_float, product.args)):
        a, b = arguments(product)
        if not any(is_live(n) and is_mask(n) for n in (a, b)):
            yield from ((a, b), (b, a))


def _contrary(at: fx.Node, share: fx.Node) -> fx.Node:
    """1 − g; of 1 − g, g."""
    return operand(share) if _is_rest(share) else emit(at, aten.rsub.Scalar, share, 1)


def _is_rest(share: fx.Node) -> bool:
    return is_call(share, aten.rsub) and is_number(arguments(share)[1], 1)
