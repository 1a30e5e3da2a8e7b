"""Sums by an index that brings no two numbers to one place, as writes; and sums at the places of a
mask, which are read, added to and written back, as sums."""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, argument, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    before_reshapes,
    emit,
    is_number,
    rank,
    reshaped,
    shape_of,
    swap,
)
from relprop.tracer.passes.sums.terms import added, terms_of
from relprop.tracer.passes.writes.by_index import accumulated


def write_sums(graph: fx.Graph) -> None:
    """What is added at each place once (JetMoe's experts, whose tokens were sorted) is written
    there; x[i] + v, written into x where i counts the true places of a mask (Mixtral as Mistral
    wrote it), is x and what adds v there."""
    for node in list(graph.nodes):
        if is_call(node, aten.index_add) and _adds_in_order(node):
            swap(node, _written(node))
        elif is_call(node, aten.index_put) and not argument(node, "accumulate"):
            _add_there(node)


def _adds_in_order(node: fx.Node) -> bool:
    """Whether the places are the order in which numbers are sorted: none of them stands there
    twice."""
    index = arguments(node)[2]
    sorts = kind(index) is Kind.OUTPUT and is_call(operand(index), aten.sort, aten.topk)
    return sorts and arguments(index)[1] == 1 and is_number(argument(node, "alpha") or 1, 1)


def _written(node: fx.Node) -> fx.Node:
    """``index_add`` as a write of what is there and what is added."""
    base, dim, index, source = arguments(node)[:4]
    indices = [*[None] * (dim % rank(node)), index]
    if not is_number(base, 0):
        source = emit(node, aten.add.Tensor, emit(node, aten.index.Tensor, base, indices), source)
    return emit(node, aten.index_put.default, base, indices, source)


def _add_there(node: fx.Node) -> None:
    base, indices, source = arguments(node)[:3]
    terms = terms_of(before_reshapes(source, alone=True))
    read = [t for t in terms if t[0] > 0 and is_call(t[1], aten.index)]
    read = [t for t in read if operand(t[1]) is base and arguments(t[1])[1] == indices]
    counted = all(index is not None and _is_column(index) for index in indices)
    if len(read) != 1 or len(terms) < 2 or not counted:
        return
    more = reshaped(node, added(node, [t for t in terms if t is not read[0]]), shape_of(read[0][1]))
    there = accumulated(node, base, indices, [*range(len(indices))], more)
    swap(node, emit(node, aten.add.Tensor, base, there))


def _is_column(places: fx.Node) -> bool:
    """Whether an index counts the true places of a mask along one of its axes."""
    whole = rank(places) == 1
    while kind(places) in (Kind.OUTPUT, Kind.RESHAPE):
        places = operand(places)
    counts = whole and is_call(places, aten.nonzero, aten.nonzero_numpy, aten.where)
    return counts and len(places.args) == 1
