"""Rows of a table by their numbers, however they are fetched, are an embedding: ``W[ids]``; columns
of ids, each with a table of its own, side by side (TabTransformer's), are one lookup in one table,
in which each column's rows stand behind those of the columns before."""

from __future__ import annotations

from itertools import groupby

import torch
from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_live,
    is_number,
    is_tensor,
    joined,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    tensor_inputs,
    val,
)
from relprop.tracer.passes.simplify.rules import simplify
from relprop.tracer.passes.sums.terms import position


def raise_lookups(graph: fx.Graph, constants: Constants) -> None:
    """Every lookup in a table that depends on no input → ``embedding``, of all its numbers at once
    and as the model is given them."""

    def columns(node: fx.Node) -> fx.Node | None:
        return _joined(node, constants.device)

    simple = False
    for rewrite in (_of_index, columns, _as_given):
        for node in list(graph.nodes):
            if not node._erased and is_live(node) and (new := rewrite(node)) is not None:
                swap(node, reshaped(node, new, shape_of(node)))
                simple = False
        if not simple:
            simplify(graph, constants)
            simple = True


def _of_index(node: fx.Node) -> fx.Node | None:
    """``W[ids]``, and ``W.T[:, ids]``, whose features come first."""
    if kind(node) is not Kind.INDEX:
        return None
    table, indices = operand(node), list(arguments(node)[1])
    given = [i for i in indices if i is not None]
    is_table = not is_live(table) and rank(table) == 2 and val(table).is_floating_point()
    if not is_table or len(given) != 1 or not _are_ids(given[0]):
        return None
    ids = from_the_first(node, given[0], shape_of(table)[0 if indices[0] is not None else 1])
    if indices[0] is not None:
        return emit(node, aten.embedding.default, table, ids)
    made = emit(node, aten.embedding.default, permuted(node, table, [1, 0]), ids)
    return permuted(node, made, [rank(made) - 1, *range(rank(made) - 1)])


def _are_ids(x: fx.Node) -> bool:
    """Whether a tensor holds whole numbers that depend on an input."""
    whole = is_tensor(x) and is_live(x) and not val(x).is_floating_point()
    return whole and val(x).dtype != torch.bool


def _as_given(node: fx.Node) -> fx.Node | None:
    """The lookup of numbers in another shape → the lookup of the numbers, in that shape."""
    if kind(node) is not Kind.EMBEDDING:
        return None
    table, ids = arguments(node)[:2]
    again = arguments(ids)[1] if is_call(ids, aten.remainder) else None
    inner = operand(ids) if again is not None else ids
    if kind(inner) is not Kind.RESHAPE or isinstance(again, fx.Node):
        return None
    numbers = operand(inner)
    if again is not None:
        numbers = emit(node, aten.remainder.Scalar, numbers, again)
    return emit(node, aten.embedding.default, table, numbers)


def _joined(node: fx.Node, device: torch.device) -> fx.Node | None:
    """A ``cat`` in which rows of one table, or of several for places of one tensor of ids, are
    looked up together; ``None`` where there are none."""
    if not is_call(node, aten.cat) or arguments(node)[1] == rank(node) - 1:
        return None
    parts, dim = joined(node), arguments(node)[1]
    if len({table for p in parts if (table := _table(p)) is not None}) == 1:
        one = all(_table(p) is not None for p in parts)
        return _together(node, parts, dim, device) if one else None
    made: list[fx.Node] = []
    for column, run in groupby(parts, _column):
        lookups = list(run)
        several = column is not None and len(set(map(_table, lookups))) > 1
        made += [_together(node, lookups, dim, device)] if several else lookups
    if len(made) == len(parts):
        return None
    return made[0] if len(made) == 1 else emit(node, aten.cat.default, made, dim)


def _lookup(part: fx.Node) -> fx.Node:
    """What a part of a ``cat`` lays out."""
    return operand(part) if kind(part) is Kind.RESHAPE else part


def _table(part: fx.Node) -> fx.Node | None:
    """In which table whole rows are looked up."""
    found = _lookup(part)
    whole = kind(found) is Kind.EMBEDDING and shape_of(found)[-1] == shape_of(part)[-1]
    return operand(found) if whole else None


def _column(part: fx.Node) -> tuple[fx.Node, int] | None:
    """Of which ids, and along which axis of them, one place is looked up in a table."""
    table = _table(part)
    place = None if table is None or is_live(table) else position(operand(_lookup(part), 1))
    return place[:2] if place is not None and place[0].op == "placeholder" else None


def _together(at: fx.Node, parts: list[fx.Node], dim: int, device: torch.device) -> fx.Node:
    """The lookups as one."""
    tables = [operand(_lookup(p)) for p in parts]
    ahead: dict[fx.Node, int] = {}
    for table in tables:
        ahead.setdefault(table, sum(shape_of(t)[0] for t in ahead))
    pieces = [reshaped(at, operand(_lookup(p), 1), shape_of(p)[:-1]) for p in parts]
    ids = emit(at, aten.cat.default, pieces, dim)
    if len(ahead) == 1:
        return emit(at, aten.embedding.default, tables[0], ids)
    steps = [ahead[t] for t, p in zip(tables, pieces, strict=True) for _ in range(shape_of(p)[dim])]
    shape = [-1] + [1] * (rank(ids) - dim - 1)
    own = emit(at, Held(torch.tensor(steps, dtype=val(ids).dtype, device=device).reshape(shape)))
    table = emit(at, aten.cat.default, list(ahead), 0)
    return emit(at, aten.embedding.default, table, emit(at, aten.add.Tensor, ids, own))


#: What only brings numbers to other places, or makes them whole.
_MOVES = frozenset(
    (
        *(Kind.RESHAPE, Kind.PERMUTE, Kind.EXPAND, Kind.SELECT, Kind.SLICE, Kind.JOIN),
        *(Kind.SHIFT, Kind.REPEAT, Kind.SPLIT, Kind.OUTPUT, Kind.CAST),
    )
)


def from_the_first(at: fx.Node, ids: fx.Node, count: int) -> fx.Node:
    """Numbers of ``count`` rows, those below 0, which count from the last, counted from the first,
    as an embedding counts them."""
    return ids if _are_counted(ids) else emit(at, aten.remainder.Scalar, ids, count)


def _are_counted(ids: fx.Node) -> bool:
    """Whether numbers are those of an input, or places and counts, wherever they are brought and
    however they are multiplied and added: those are not below 0."""
    if kind(ids) is Kind.OUTPUT and kind(operand(ids)) is Kind.PICK:
        return is_number(arguments(ids)[1], 1)
    if ids.op == "placeholder" or kind(ids) is Kind.COUNT or is_call(ids, aten.remainder):
        return True
    if kind(ids) in (Kind.PRODUCT, Kind.QUOTIENT) or is_call(ids, aten.add):
        given = (*ids.args, *ids.kwargs.values())
        if any(isinstance(n, (int, float)) and n < 0 for n in given):
            return False
    elif kind(ids) not in _MOVES:
        return False
    return all(map(_are_counted, tensor_inputs(ids)))
