"""Scores that are the sum of several products of queries with keys (contents and positions apart)
are one product, of these beside each other."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    before_reshapes,
    emit,
    expanded,
    is_live,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    tensor_inputs,
)
from relprop.tracer.passes.sums.terms import added, is_scaled, is_sum, scale_of, terms_of


def join_scores(graph: fx.Graph) -> None:
    """Q K + P R right before a softmax → [Q, P] [K; R]."""
    for softmax in list(graph.nodes):
        if kind(softmax) is not Kind.SOFTMAX or not is_live(softmax):
            continue
        for total in list(_sums(operand(softmax))):
            if total._erased:
                continue
            terms = terms_of(total)
            there = [n for _, n in terms]
            once = [n for sign, n in terms if sign > 0 and there.count(n) == 1]
            parts = {n: p for n in once if (p := _score(n)) is not None}
            if len(parts) > 1:
                rest = [t for t in terms if t[1] not in parts]
                joined = _joined(total, [_laid_out(*p, n) for n, p in parts.items()])
                swap(total, added(total, [(1, joined), *rest]))


def _sums(scores: fx.Node) -> Iterator[fx.Node]:
    """The sums that scores are, but for numbers in front, masks and what is added."""
    left = [scores]
    while left:
        node = left.pop()
        if len(node.users) != 1:
            continue
        if is_sum(node):
            yield node
            left += [n for _, n in terms_of(node) if is_scaled(n)]
        elif is_scaled(node):
            left.append(operand(node))
        elif kind(node) is Kind.CHOICE:
            left += [n for n in tensor_inputs(node) if is_live(n)]


def _score(node: fx.Node) -> tuple[fx.Node, int] | None:
    """The product of two activations, none of them weights already, that a tensor is in whatever
    shape, or a multiple of it, and how many of its axes in front are both operands' own; ``None``
    if it is none."""
    single = len(node.users) == 1
    product = before_reshapes(operand(node) if is_scaled(node) else node, alone=True)
    if not is_call(product, aten.matmul) or len(product.users) != 1 or not single:
        return None
    (*batch, rows, columns), shape = shape_of(product), shape_of(node)
    if not all(is_live(x) and _is_activation(x) for x in arguments(product)):
        return None
    if shape[-2:] == [rows, columns]:
        return product, len(shape) - 2
    return (product, len(batch)) if shape[: len(batch)] == batch and shape[-1] == columns else None


def _is_activation(x: fx.Node) -> bool:
    while kind(x) in (Kind.RESHAPE, Kind.PERMUTE, Kind.EXPAND, Kind.PRODUCT, Kind.CHOICE):
        x = operand(x)
    return kind(x) is not Kind.SOFTMAX


def _laid_out(product: fx.Node, own: int, node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The queries and the keys of a product, the keys turned, with the axes that it is given
    afterwards: keys have the first of them, and the others are the queries' alone."""
    x, y = arguments(product)[:2]
    x = emit(node, aten.mul.Tensor, x, scale_of([node])) if is_scaled(node) else x
    last, batch, shape = rank(y) - 1, shape_of(product)[:-2], shape_of(node)
    keys = permuted(node, y, [*range(last - 1), last, last - 1])
    if batch == shape[:-2]:
        return x, keys
    x = expanded(node, x, [*batch, *shape_of(x)[-2:]])
    keys = expanded(node, keys, [*batch, *shape_of(keys)[-2:]])
    ahead = [*shape[:own], *[1] * (len(shape) - 2 - own)]
    wide = reshaped(node, x, [*shape[:-1], shape_of(x)[-1]])
    return wide, reshaped(node, keys, [*ahead, *shape_of(keys)[-2:]])


def _joined(at: fx.Node, parts: list[tuple[fx.Node, fx.Node]]) -> fx.Node:
    """One product of all that some products are of."""
    queries, keys = (_beside(at, [p[i] for p in parts]) for i in (0, 1))
    last = rank(keys) - 1
    turned = permuted(at, keys, [*range(last - 1), last, last - 1])
    return emit(at, aten.matmul.default, queries, turned)


def _beside(at: fx.Node, xs: list[fx.Node]) -> fx.Node:
    """Tensors beside each other along their features, each repeated where the others are longer."""
    ahead = torch.broadcast_shapes(*(tuple(shape_of(x)[:-1]) for x in xs))
    wide = [expanded(at, x, [*ahead, shape_of(x)[-1]]) for x in xs]
    return emit(at, aten.cat.default, wide, len(ahead))
