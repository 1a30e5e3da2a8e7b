"""Scores that are the sum of several products of queries with keys (contents and positions apart,
as LiLT has them) are one product, of these beside each other."""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    before_reshapes,
    emit,
    is_live,
    rank,
    reshaped,
    shape_of,
    swap,
)
from relprop.tracer.passes.sums.terms import added, is_scaled, is_sum, scale_of, terms_of


def join_scores(graph: fx.Graph) -> None:
    """Q K + P R right before a softmax → [Q, P] [K; R]."""
    for softmax in list(graph.nodes):
        if kind(softmax) is not Kind.SOFTMAX or not is_live(softmax):
            continue
        total = operand(softmax)
        if not is_sum(total) or len(total.users) != 1:
            continue
        terms = terms_of(total)
        parts = {n: p for sign, n in terms if sign > 0 and (p := _score(n)) is not None}
        if len(parts) > 1 and len({tuple(shape_of(p)[:-1]) for p in parts.values()}) == 1:
            rest = [t for t in terms if t[1] not in parts]
            swap(total, added(total, [(1, _joined(total, parts)), *rest]))


def _score(node: fx.Node) -> fx.Node | None:
    """The product of two activations, none of them weights already, that a tensor is, or a multiple
    of it; ``None`` if it is none."""
    product = operand(node) if is_scaled(node) else node
    product = before_reshapes(product, alone=True)
    if not is_call(product, aten.matmul) or len(product.users) != 1 or len(node.users) != 1:
        return None
    return product if all(is_live(x) and _is_activation(x) for x in arguments(product)) else None


def _is_activation(x: fx.Node) -> bool:
    while kind(x) in (Kind.RESHAPE, Kind.PERMUTE, Kind.EXPAND, Kind.PRODUCT, Kind.CHOICE):
        x = operand(x)
    return kind(x) is not Kind.SOFTMAX


def _joined(at: fx.Node, parts: dict[fx.Node, fx.Node]) -> fx.Node:
    """One product of all that some products are of."""
    queries, keys = [], []
    for n, product in parts.items():
        x, y = arguments(product)[:2]
        queries.append(emit(at, aten.mul.Tensor, x, scale_of([n])) if is_scaled(n) else x)
        keys.append(y)
    axes = rank(queries[0]) - 1, rank(keys[0]) - 2
    sides = [emit(at, aten.cat.default, xs, i) for xs, i in zip((queries, keys), axes, strict=True)]
    return reshaped(at, emit(at, aten.matmul.default, *sides), shape_of(at))
