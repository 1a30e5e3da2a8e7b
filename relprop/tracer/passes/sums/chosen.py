"""Choices that are written as sums: what a mask of zeros and ones leaves of one tensor, and what is
left of another where it leaves nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import torch
from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.constants import Constants
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
from relprop.tracer.passes.functions.masked import Kept, kept
from relprop.tracer.passes.sums.terms import Terms, added, is_top, terms_of, without


def raise_choices(graph: fx.Graph, constants: Constants) -> None:
    """x·m → x where the mask m is not 0, else 0; x·(1 − m) + y·m and x + m·(y − x) → a choice."""
    for node in list(graph.nodes):
        if not node._erased and is_top(node):
            _of_differences(node, constants)
    for node in list(graph.nodes):
        if not node._erased and is_top(node):
            _of_rest(node, constants)
    for node in list(graph.nodes):
        if is_call(node, aten.mul) and (part := _part(node, constants)) is not None:
            swap(node, emit(node, aten.masked_fill.Scalar, part.x, part.hidden(node), 0.0))
    for node in list(graph.nodes):
        if not node._erased and is_top(node):
            _join(node, constants)


def _part(node: fx.Node, constants: Constants) -> Kept | None:
    """What a call keeps of a tensor as large as its result; of products those with a mask that
    depends on an input."""
    part = kept(node, constants) if is_live(node) and is_float(node) else None
    if part is None or shape_of(part.x) != shape_of(node) or val(part.x).dtype != val(node).dtype:
        return None
    fixed = is_call(node, aten.mul) and not (is_live(part.x) and is_live(part.condition))
    return None if fixed else part


def _of_differences(node: fx.Node, constants: Constants) -> None:
    """x + m·(y − x) → y where the mask m is not 0, else x."""
    terms = terms_of(node)
    for sign, product in terms:
        part = _part(product, constants) if len(product.users) == 1 else None
        inner = [] if part is None else terms_of(part.x)
        for x in [x for s, x in terms if s > 0 and (-sign, x) in inner]:
            rest = [(sign * s, y) for s, y in without(inner, (-sign, x))]
            if part is None or not rest or shape_of(x) != shape_of(product):
                continue
            other = added(node, rest)
            if shape_of(other) == shape_of(x):
                left = without(terms, (1, x), (sign, product))
                swap(node, added(node, [*left, (1, _choice(node, replace(part, x=other), x))]))
                return


def _of_rest(node: fx.Node, constants: Constants) -> None:
    """x − x·m → x where the mask m is 0, else 0."""
    terms = terms_of(node)
    for sign, product in terms:
        part = _part(product, constants) if sign < 0 and len(product.users) == 1 else None
        if part is not None and (1, part.x) in terms and is_call(product, aten.mul):
            contrary = replace(part, negated=not part.negated)
            left = emit(node, aten.masked_fill.Scalar, part.x, contrary.hidden(node), 0.0)
            swap(node, added(node, [(1, left), *without(terms, (1, part.x), (sign, product))]))
            return


def _literal(part: Kept) -> tuple[fx.Node, bool, tuple[tuple[int, ...], ...]]:
    """What a condition comes down to, whether its contrary, and how it is laid out."""
    node, negated, laid = part.condition, part.negated, list[tuple[int, ...]]()
    while True:
        if _is_contrary(node):
            negated = not negated
        elif kind(node) is Kind.RESHAPE or (kind(node) is Kind.EXPAND and laid):
            laid += [tuple(shape_of(node)), tuple(shape_of(operand(node)))]
        elif kind(node) not in (Kind.CAST, Kind.EXPAND) and not _compares(node, aten.ne):
            return node, negated, tuple(laid)
        node = operand(node)


def _is_contrary(node: fx.Node) -> bool:
    """Whether a call makes a mask's contrary of it."""
    if is_call(node, aten.rsub):
        return is_number(arguments(node)[1], 1)
    return is_call(node, aten.logical_not, aten.bitwise_not) or _compares(node, aten.eq)


def _compares(node: fx.Node, how: object) -> bool:
    """Whether a call asks whether a mask is 0, or is not."""
    return is_call(node, how) and is_number(arguments(node)[1], 0)  # type: ignore[arg-type]


def _join(node: fx.Node, constants: Constants) -> None:
    """Two terms of which each is there where the other is not → a choice; of x and of a term that
    is there in some places → a choice between x and their sum."""
    terms: Terms = terms_of(node)
    alone = [t for t in terms if t[0] > 0 and len(t[1].users) == 1]
    parts = [(t, part) for t in alone if (part := _part(t[1], constants)) is not None]
    parts = [(t, part) for t, part in parts if shape_of(part.x) == shape_of(node)]
    for (first, one), (second, other) in combinations(parts, 2):
        base, negated, laid = _literal(one)
        if _literal(other) == (base, not negated, laid):
            left = without(terms, first, second)
            swap(node, added(node, [*left, (1, _choice(node, one, other.x))]))
            return
    if len(terms) == 2 and len(parts) == 1:
        ((first, one),) = parts
        ((sign, x),) = (t for t in terms if t is not first)
        if sign > 0 and is_live(x) and shape_of(x) == shape_of(node):
            whole = added(node, [(1, x), (1, one.x)])
            swap(node, _choice(node, replace(one, x=whole), x))


def _choice(node: fx.Node, one: Kept, other: fx.Node) -> fx.Node:
    """What is kept where it is, and another tensor where it is not."""
    shown = one.condition
    if val(shown).dtype != torch.bool:
        shown = emit(node, aten.ne.Scalar, shown, 0)
    both = (other, one.x) if one.negated else (one.x, other)
    return emit(node, aten.where.self, shown, *both)
