"""The terms of a sum of sums, and the sum of terms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import TypeGuard

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.operations.vocabulary import sum_of
from relprop.tracer.editing import (
    arguments,
    aten,
    before_reshapes,
    drop_unused,
    emit,
    is_float,
    is_live,
    swap,
    val,
)

Terms = list[tuple[int, fx.Node]]


def terms_of(node: fx.Node) -> Terms:
    """The terms of a sum of sums, with their signs: sums that nothing else reads are part of it."""
    found: Terms = []
    left: Terms = [(1, node)]
    while left:
        sign, here = left.pop()
        alone = here is node or (isinstance(here, fx.Node) and len(here.users) == 1)
        if alone and is_call(here, aten.neg):
            left.append((-sign, operand(here)))
        elif alone and is_sum(here):
            turned = -sign if is_call(here, aten.sub) else sign
            left += [*((turned, other) for other in arguments(here)[:0:-1]), (sign, operand(here))]
        else:
            found.append((sign, here))
    return found


def without(terms: Terms, *gone: tuple[int, fx.Node]) -> Terms:
    """Terms but for some, each of these once."""
    left = list(terms)
    for term in gone:
        left.remove(term)
    return left


def is_sum(node: object) -> TypeGuard[fx.Node]:
    """Whether a node adds or subtracts two tensors or more of its own type."""
    if not isinstance(node, fx.Node) or kind(node) is not Kind.SUM or not is_float(node):
        return False
    return all(is_float(a) and val(a).dtype == val(node).dtype for a in arguments(node))


def is_top(node: fx.Node) -> bool:
    """Whether a sum is no term of another."""
    if not is_sum(node) or not is_live(node):
        return False
    user = next(iter(node.users)) if len(node.users) == 1 else None
    while is_call(user, aten.neg) and len(user.users) == 1:
        user = next(iter(user.users))
    return user is None or not is_sum(user)


def added(at: fx.Node, terms: Terms) -> fx.Node:
    """The sum of terms: of two, ``add`` or ``sub``; of more, one operation."""
    nodes = [n if sign > 0 else emit(at, aten.neg.default, n) for sign, n in terms]
    if len(nodes) == 1:
        return nodes[0]
    if len(nodes) > 2:
        return emit(at, sum_of, *nodes)
    (first, a), (second, b) = terms
    if first > 0:
        return emit(at, aten.add.Tensor if second > 0 else aten.sub.Tensor, a, b)
    return emit(at, aten.sub.Tensor, b, a) if second > 0 else emit(at, aten.add.Tensor, *nodes)


def join_terms(
    graph: fx.Graph,
    key: Callable[[fx.Node], Hashable],
    join: Callable[[fx.Node, list[fx.Node]], fx.Node | None],
) -> None:
    """In every sum, two terms or more that are added and have one ``key`` (``None``: none) → what
    ``join`` makes of them there, if anything."""
    for node in list(graph.nodes):
        if node._erased or not is_top(node):
            continue
        terms, groups = terms_of(node), defaultdict[Hashable, list[fx.Node]](list)
        for sign, n in terms:
            if sign > 0 and (found := key(n)) is not None:
                groups[found].append(n)
        several = [parts for parts in groups.values() if len(parts) > 1]
        joined = [(new, parts) for parts in several if (new := join(node, parts)) is not None]
        if joined:
            gone = {n for _, parts in joined for n in parts}
            rest = [(sign, n) for sign, n in terms if sign < 0 or n not in gone]
            swap(node, added(node, [*rest, *((1, new) for new, _ in joined)]))
    drop_unused(graph)


def is_scaled(node: fx.Node) -> bool:
    """Whether a call multiplies a tensor with a number."""
    scales = kind(node) in (Kind.PRODUCT, Kind.QUOTIENT) and len(node.args) == 2
    return scales and isinstance(arguments(node)[1], (int, float)) and is_float(arguments(node)[0])


def scale_of(way: list[fx.Node]) -> float:
    """The product of the numbers on a way."""
    scale = 1.0
    for n in way:
        if kind(n) is Kind.PRODUCT:
            scale *= arguments(n)[1]
        elif kind(n) is Kind.QUOTIENT:
            scale /= arguments(n)[1]
    return scale


def folded(at: fx.Node, terms: Terms) -> fx.Node:
    """The sum of terms, two at a time."""
    total: fx.Node | None = None
    for sign, n in terms:
        if total is None:
            total = n if sign > 0 else emit(at, aten.neg.default, n)
        else:
            total = emit(at, aten.add.Tensor if sign > 0 else aten.sub.Tensor, total, n)
    assert total is not None
    return total


def position(node: fx.Node) -> tuple[fx.Node, int, int] | None:
    """The tensor and the axis of which a call takes one position, and which."""
    node = before_reshapes(node)
    if is_call(node, aten.select) and isinstance(arguments(node)[2], int):
        return operand(node), *arguments(node)[1:]
    if is_call(node, aten.slice) and arguments(node)[3] == arguments(node)[2] + 1:
        return operand(node), *arguments(node)[1:3]
    return None
