"""Rows that come back to their places, added there, each times a number of its own (what experts
make of their tokens, with the router's shares): one product of the rows with these numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import fx

from relprop.operations import Kind, argument, is_call, kind
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    before_reshapes,
    emit,
    is_live,
    is_number,
    is_tensor,
    joined,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.sums.terms import added, is_sum, is_top, terms_of, without

Pairs = list[tuple[fx.Node, fx.Node]]  # the number of each row, and the rows


@dataclass(frozen=True)
class _Rows:
    """Where each row comes (places, rows; truth values), the number of each (rows, 1) and the
    ``rows`` themselves."""

    there: fx.Node
    number: fx.Node
    rows: fx.Node


def weigh_rows(graph: fx.Graph, constants: Constants) -> None:
    """Σ g_r·x_r of the rows r that indices bring to a place → S x, where S has the number of a row
    at its place, and 0 elsewhere."""
    for node in list(graph.nodes):
        top = not node._erased and (is_top(node) or not _is_term(node))
        terms = terms_of(node) if top else []
        writes = {n: before_reshapes(n, alone=True) for sign, n in terms if sign > 0}
        found = {n: pairs for n, write in writes.items() if (pairs := _pairs(write)) is not None}
        if not found or len({_counts(writes[n]) for n in found}) > 1:
            continue
        parts = [_rows_of(node, writes[n], pairs, constants) for n, pairs in found.items()]
        there = _beside(node, [p.there for p in parts], 1)
        number = reshaped(node, _beside(node, [p.number for p in parts], 0), [1, -1])
        mask = emit(node, aten.to.dtype, there, val(node).dtype)
        shares = emit(node, aten.mul.Tensor, mask, number)
        made = emit(node, aten.matmul.default, shares, _beside(node, [p.rows for p in parts], 0))
        rest = without(terms, *((1, n) for n in found))
        swap(node, added(node, [*rest, (1, reshaped(node, made, shape_of(node)))]))


def _is_term(node: fx.Node) -> bool:
    """Whether a tensor, in whatever shape, is a term of a sum."""
    users = list(node.users)
    while len(users) == 1 and kind(users[0]) is Kind.RESHAPE:
        users = list(users[0].users)
    return len(users) == 1 and is_sum(users[0])


def _counts(write: fx.Node) -> tuple[int, int]:
    """How many places there are, and how many numbers at each."""
    return math.prod(shape_of(write)[:-1]), shape_of(write)[-1]


def _pairs(write: fx.Node) -> Pairs | None:
    """Of a call that nothing else reads and that adds rows at places of zeros, or writes them
    where a mask is true: the numbers of the rows and what they multiply; ``None`` of others."""
    values: fx.Node | None = None
    if not is_call(write, aten.index_add, aten.index_put, aten.where) or len(write.users) > 1:
        return None
    if not is_number(arguments(write)[2 if is_call(write, aten.where) else 0], 0):
        return None
    if is_call(write, aten.index_add) and is_number(argument(write, "alpha") or 1, 1):
        values = arguments(write)[3] if arguments(write)[1] == 0 and rank(write) == 2 else None
    elif _mask_of(write) is not None:
        values = before_reshapes(arguments(write)[1 if is_call(write, aten.where) else 2])
    if values is None or not is_live(values) or shape_of(values)[1:] != shape_of(write)[-1:]:
        return None
    rows = joined(values) if is_call(values, aten.cat) else [values]
    found = [pair for pair in map(_weighed, rows) if pair is not None]
    return found if len(found) == len(rows) else None


def _mask_of(write: fx.Node) -> fx.Node | None:
    """The mask of all axes but the last by which a call writes rows, or one row everywhere."""
    given = arguments(write)
    if is_call(write, aten.where):
        if not is_tensor(given[1]):
            return None
        one = math.prod(shape_of(given[1])) == shape_of(write)[-1]
        return given[0] if one and shape_of(given[0]) == [*shape_of(write)[:-1], 1] else None
    indices = given[1] if is_call(write, aten.index_put) else []
    masks = [i for i in indices if i is not None and val(i).dtype == torch.bool]
    alone = len(masks) == len(indices) == 1 and rank(masks[0]) == rank(write) - 1
    return masks[0] if alone else None


def _weighed(rows: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """One number for each row that depends on the input, and the rows that it multiplies; ``None``
    if they are no such product."""
    if not is_call(rows, aten.mul) or not all(map(is_tensor, arguments(rows))):
        return None
    number, x = sorted(arguments(rows), key=lambda n: shape_of(n)[-1:])
    apart = shape_of(number) == [shape_of(rows)[0], 1] and shape_of(x) == shape_of(rows)
    return (number, x) if apart and is_live(number) and is_live(x) else None


def _rows_of(at: fx.Node, write: fx.Node, pairs: Pairs, constants: Constants) -> _Rows:
    """The rows of one such call."""
    number, rows = (_beside(at, [pair[i] for pair in pairs], 0) for i in (0, 1))
    count, (places, _) = shape_of(rows)[0], _counts(write)
    if (mask := _mask_of(write)) is None:
        numbers = emit(at, Held(torch.arange(places, device=constants.device)[:, None]))
        index = reshaped(at, arguments(write)[2], [1, count])
        return _Rows(emit(at, aten.eq.Tensor, index, numbers), number, rows)
    column = reshaped(at, mask, [places, 1])
    if is_call(write, aten.where):
        return _Rows(column, number, rows)
    nth = emit(at, aten.cumsum.default, column, 0)  # how many are true up to here
    numbers = emit(at, Held(torch.arange(1, count + 1, device=constants.device)))
    one = emit(at, aten.eq.Tensor, nth, numbers)
    return _Rows(emit(at, aten.logical_and.default, one, column), number, rows)


def _beside(at: fx.Node, parts: list[fx.Node], axis: int) -> fx.Node:
    return parts[0] if len(parts) == 1 else emit(at, aten.cat.default, parts, axis)
