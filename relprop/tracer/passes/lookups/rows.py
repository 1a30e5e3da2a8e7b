"""Rows of a table by their numbers, however they are fetched: ``W[ids]`` → embedding."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, fx

from relprop.operations import Kind, argument, is_call, kind, operand
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
from relprop.tracer.passes.lookups.columns import joined_columns
from relprop.tracer.passes.lookups.counted import from_the_first
from relprop.tracer.passes.simplify.rules import simplify

BAGS = (aten._embedding_bag, aten._embedding_bag_forward_only)


def raise_lookups(graph: fx.Graph, constants: Constants) -> None:
    """Every lookup in a table that depends on no input → ``embedding``, of all its numbers at once
    and as the model is given them."""

    def lookup(node: fx.Node) -> fx.Node | None:
        if kind(node) is Kind.INDEX:
            return _of_index(node)
        if kind(node) is Kind.OUTPUT:
            return _of_bag(node, constants)
        return None

    columns = partial(joined_columns, device=constants.device)
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


def _are_ids(x: object) -> bool:
    """Whether a tensor holds whole numbers that depend on an input."""
    return (
        is_tensor(x)
        and is_live(x)
        and not val(x).is_floating_point()
        and val(x).dtype != torch.bool
    )


def _is_table(x: object) -> bool:
    return is_tensor(x) and not is_live(x) and rank(x) == 2 and val(x).is_floating_point()


def _of_index(node: fx.Node) -> fx.Node | None:
    """``W[ids]``, and ``W.T[:, ids]``, whose features come first."""
    table, indices = operand(node), list(arguments(node)[1])
    given = [i for i in indices if i is not None]
    if not _is_table(table) or len(given) != 1 or not _are_ids(given[0]):
        return None
    ids = from_the_first(node, given[0], shape_of(table)[0 if indices[0] is not None else 1])
    if indices[0] is not None:
        return emit(node, aten.embedding.default, table, ids)
    made = emit(node, aten.embedding.default, permuted(node, table, [1, 0]), ids)
    return permuted(node, made, [rank(made) - 1, *range(rank(made) - 1)])


def _of_bag(node: fx.Node, constants: Constants) -> fx.Node | None:
    """Sums and means of as many rows for every bag → of rows that are looked up."""
    bag = operand(node)
    if arguments(node)[1] != 0 or not is_call(bag, *BAGS) or not _is_table(operand(bag)):
        return None
    mode, scale = argument(bag, "mode"), argument(bag, "per_sample_weights")
    size = _size_of_bags(bag, constants)
    if size is None or mode > 1 or argument(bag, "padding_idx") not in (None, -1):
        return None
    shape = [shape_of(node)[0], size]
    ids = reshaped(node, argument(bag, "indices"), shape)
    rows = emit(node, aten.embedding.default, operand(bag), ids)
    if scale is not None:
        rows = emit(node, aten.mul.Tensor, rows, reshaped(node, scale, [*shape, 1]))
    return emit(node, (aten.sum.dim_IntList, aten.mean.dim)[mode], rows, [1])


def _size_of_bags(bag: fx.Node, constants: Constants) -> int | None:
    """How many numbers each bag has, if all have as many."""
    starts = constants.value(argument(bag, "offsets"))
    count = shape_of(argument(bag, "indices"))[0]
    if not isinstance(starts, Tensor) or not len(starts) or not count:
        return None
    ends = [] if argument(bag, "include_last_offset") else [count]
    bounds = torch.tensor([*starts.tolist(), *ends])
    sizes = set(bounds.diff().tolist())
    whole = bounds[0] == 0 and bounds[-1] == count
    return sizes.pop() if whole and len(sizes) == 1 else None
