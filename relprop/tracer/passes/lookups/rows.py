"""Rows of a table by their numbers, however they are fetched: ``W[ids]``, one-hot @ W →
embedding."""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_live,
    is_tensor,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.lookups.codes import are_ids, of_codes
from relprop.tracer.passes.lookups.columns import joined_columns
from relprop.tracer.passes.lookups.counted import from_the_first
from relprop.tracer.passes.simplify.rules import simplify


def raise_lookups(graph: fx.Graph, constants: Constants) -> None:
    """Every lookup in a table that depends on no input → ``embedding``, of all its numbers at once
    and as the model is given them."""

    def lookup(node: fx.Node) -> fx.Node | None:
        if kind(node) is Kind.INDEX:
            return _of_index(node)
        return of_codes(node, constants) if is_call(node, aten.linear) else None

    def columns(node: fx.Node) -> fx.Node | None:
        return joined_columns(node, constants.device)

    simple = False
    for rewrite in (lookup, columns, _as_given):
        for node in list(graph.nodes):
            if not node._erased and is_live(node) and (new := rewrite(node)) is not None:
                swap(node, reshaped(node, new, shape_of(node)))
                simple = False
        if not simple:
            simplify(graph, constants)
            simple = True


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


def _is_table(x: object) -> bool:
    return is_tensor(x) and not is_live(x) and rank(x) == 2 and val(x).is_floating_point()


def _of_index(node: fx.Node) -> fx.Node | None:
    """``W[ids]``, and ``W.T[:, ids]``, whose features come first."""
    table, indices = operand(node), list(arguments(node)[1])
    given = [i for i in indices if i is not None]
    if not _is_table(table) or len(given) != 1 or not are_ids(given[0]):
        return None
    ids = from_the_first(node, given[0], shape_of(table)[0 if indices[0] is not None else 1])
    if indices[0] is not None:
        return emit(node, aten.embedding.default, table, ids)
    made = emit(node, aten.embedding.default, permuted(node, table, [1, 0]), ids)
    return permuted(node, made, [rank(made) - 1, *range(rank(made) - 1)])
