"""Rotary positions: pairs of features turned by an angle, however they are written."""

from __future__ import annotations

import itertools
import math
from typing import Any

from torch import fx

from relprop.operations import Kind, is_call, kind
from relprop.tracer.editing import (
    aten,
    emit,
    expanded,
    is_float,
    is_live,
    reshaped,
    shape_of,
    swap,
)
from relprop.tracer.passes.moves import rejoined
from relprop.tracer.passes.sums import is_sum, terms_of


def join_rotations(graph: fx.Graph) -> None:
    """Pairs turned one by one, (a·c − b·s, a·s + b·c) side by side → x·C + J(x)·S of the tensor x
    that holds them: the same sum for every way of writing a rotation."""
    for node in list(graph.nodes):
        if node._erased or not is_call(node, aten.cat) or not is_live(node):
            continue
        parts = [_turned_part(p) for p in node.args[0]]  # type: ignore[union-attr]
        if not 2 <= len(parts) <= 4 or any(p is None for p in parts):
            continue
        for order in itertools.product((0, 1), repeat=len(parts)):
            straight = [p[1][o] for p, o in zip(parts, order, strict=True)]  # type: ignore[index]
            whole = _whole(node, [(p[0], t) for p, t in zip(parts, straight, strict=True)])  # type: ignore[index]
            if whole is not None:
                other = [(p[0], p[1][1 - o]) for p, o in zip(parts, order, strict=True)]  # type: ignore[index]
                swap(
                    node,
                    _rotation(
                        node,
                        whole,
                        [(p[0], t) for p, t in zip(parts, straight, strict=True)],
                        other,
                    ),
                )  # type: ignore[index]
                break
    graph.eliminate_dead_code()


_Scaled = tuple[int, Any, Any]  # sign, what is scaled, what it is scaled with


def _turned_part(part: Any) -> tuple[fx.Node, list[_Scaled]] | None:
    """A part that is a sum of two scaled tensors: the part itself, and the two."""
    inner = part
    while kind(inner) is Kind.RESHAPE and len(inner.users) == 1:
        inner = inner.args[0]
    if not is_sum(inner) or len(inner.users) != 1:
        return None
    terms = terms_of(inner)
    scaled = [_scaled(sign, n) for sign, n in terms]
    if len(terms) != 2 or any(s is None for s in scaled):
        return None
    return part, scaled  # type: ignore[return-value]


def _scaled(sign: int, node: fx.Node) -> _Scaled | None:
    if kind(node) is not Kind.PRODUCT or len(node.users) != 1 or len(node.args) != 2:
        return None
    a, b = node.args
    if is_float(a) and is_float(b) and is_live(a) != is_live(b):
        return (sign, a, b) if is_live(a) else (sign, b, a)
    return None


def _whole(node: fx.Node, straight: list[tuple[fx.Node, _Scaled]]) -> fx.Node | None:
    """The tensor whose pieces the straight terms are, in their order along the axis that they are
    joined along."""
    pieces = []
    for part, (sign, x, _) in straight:
        if sign < 0:
            return None
        pieces.append(_like(node, x, part))
    if any(p is None for p in pieces):
        return None
    found = rejoined(emit(node, aten.cat.default, pieces, node.args[1]))
    return found if found is not None and not is_call(found, aten.cat) else None


def _like(at: fx.Node, x: Any, part: fx.Node) -> fx.Node | None:
    """A term of a part as it lies in the part: with its axis of length 1. Every k-th feature is one
    position of an axis of k."""
    if is_call(x, aten.slice) and x.args[4] > 1:
        whole, dim, start, _, step = x.args
        shape = shape_of(whole)
        if dim == len(shape) - 1 and shape[dim] % step == 0 and start < step:
            pairs = [*shape[:-1], shape[-1] // step, step]
            there = (u for u in whole.users if kind(u) is Kind.RESHAPE and shape_of(u) == pairs)
            rows = next(there, None) or reshaped(at, whole, pairs)  # one for all pieces
            x = emit(at, aten.select.int, rows, dim + 1, start)
    return (
        reshaped(at, x, shape_of(part))
        if math.prod(shape_of(x)) == math.prod(shape_of(part))
        else None
    )


def _factor_like(at: fx.Node, factor: fx.Node, x: Any, part: fx.Node) -> fx.Node:
    wide = expanded(at, factor, shape_of(x))
    return reshaped(at, wide, shape_of(part))


def _rotation(node: fx.Node, whole: fx.Node, straight: Any, other: Any) -> fx.Node:
    dim = node.args[1]
    first = emit(
        node, aten.cat.default, [_factor_like(node, c, x, p) for p, (_, x, c) in straight], dim
    )
    turned = []
    for part, (sign, x, _) in other:
        piece = _like(node, x, part)
        turned.append(piece if sign > 0 else emit(node, aten.neg.default, piece))
    second = emit(
        node, aten.cat.default, [_factor_like(node, c, x, p) for p, (_, x, c) in other], dim
    )
    sides = (
        emit(node, aten.mul.Tensor, whole, first),
        emit(node, aten.mul.Tensor, emit(node, aten.cat.default, turned, dim), second),
    )
    return emit(node, aten.add.Tensor, *sides)
