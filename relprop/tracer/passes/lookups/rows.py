"""Rows of a table by their numbers, however they are fetched: ``W[ids]``, one-hot @ W →
embedding."""

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
    expanded,
    is_live,
    is_tensor,
    joined,
    permuted,
    rank,
    reshaped,
    rows_at,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.lookups.codes import are_ids, ids_of, of_codes
from relprop.tracer.passes.lookups.columns import joined_columns
from relprop.tracer.passes.lookups.counted import from_the_first
from relprop.tracer.passes.products.operators import repeats
from relprop.tracer.passes.simplify.rules import simplify

BAGS = (aten._embedding_bag, aten._embedding_bag_forward_only)


def raise_lookups(graph: fx.Graph, constants: Constants) -> None:
    """Every lookup in a table that depends on no input → ``embedding``, of all its numbers at once
    and as the model is given them."""

    def lookup(node: fx.Node) -> fx.Node | None:
        if kind(node) is Kind.INDEX:
            return _of_index(node)
        if kind(node) is Kind.GATHER:
            return _of_gather(node)
        if kind(node) is Kind.OUTPUT:
            return _of_bag(node, constants)
        if kind(node) is Kind.MATMUL:
            return _picked(node, constants)
        return of_codes(node, constants) if is_call(node, aten.linear) else None

    columns = partial(joined_columns, device=constants.device)
    simple = False
    for rewrite in (lookup, columns, _joined, _as_given):
        for node in list(graph.nodes):
            if not node._erased and is_live(node) and (new := rewrite(node)) is not None:
                swap(node, reshaped(node, new, shape_of(node)))
                simple = False
        if not simple:
            simplify(graph, constants)
            simple = True


def _joined(node: fx.Node) -> fx.Node | None:
    """Lookups in one table, joined → a lookup of the numbers, joined."""
    if not is_call(node, aten.cat) or arguments(node)[1] == rank(node) - 1:
        return None
    parts, dim = joined(node), arguments(node)[1]
    found = [operand(p) if kind(p) is Kind.RESHAPE else p for p in parts]
    if any(kind(f) is not Kind.EMBEDDING for f in found) or len({operand(f) for f in found}) > 1:
        return None
    if any(shape_of(p)[-1] != shape_of(node)[-1] for p in (*parts, *found)):
        return None
    table, ids = operand(found[0]), [arguments(f)[1] for f in found]
    again = arguments(ids[0])[1] if is_call(ids[0], aten.remainder) else None
    if all(is_call(i, aten.remainder) and arguments(i)[1] == again for i in ids):
        ids = [operand(i) for i in ids]
    else:
        again = None
    pieces = [reshaped(node, i, shape_of(p)[:-1]) for i, p in zip(ids, parts, strict=True)]
    numbers = emit(node, aten.cat.default, pieces, dim)
    if again is not None:
        numbers = emit(node, aten.remainder.Scalar, numbers, again)
    return emit(node, aten.embedding.default, table, numbers)


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


def _of_gather(node: fx.Node) -> fx.Node | None:
    """Whole rows: the index is the same along the row, and along every other axis the table is."""
    table, dim, index = arguments(node)[:3]
    if not is_tensor(table) or is_live(table) or not val(table).is_floating_point():
        return None
    if not are_ids(index) or rank(table) < 2:
        return None
    lengths, axis = shape_of(table), dim % rank(table)
    alike = [s == 1 or r == 0 for s, r in zip(lengths, repeats(table), strict=True)]
    row = [i for i in range(rank(table)) if i != axis and not alike[i]]
    if len(row) != 1 or repeats(index)[row[0]] or shape_of(index)[row[0]] != lengths[row[0]]:
        return None
    rows, ids = table, _once(node, index, row[0])
    for i in reversed(range(len(lengths))):
        rows = rows if i in (axis, row[0]) else emit(node, aten.select.int, rows, i, 0)
    rows = rows if axis < row[0] else permuted(node, rows, [1, 0])
    made = emit(node, aten.embedding.default, rows, ids)
    order = [*range(rank(ids))]
    return permuted(node, made, [*order[: row[0]], rank(ids), *order[row[0] :]])


def _once(node: fx.Node, x: fx.Node, axis: int) -> fx.Node:
    """A tensor without an axis along which it is only repeated."""
    shape = shape_of(x)
    if kind(x) is Kind.EXPAND and rank(operand(x)) == len(shape):
        shape[axis] = 1
        x = expanded(node, operand(x), shape)
    return emit(node, aten.select.int, x, axis, 0)


def _picked(node: fx.Node, constants: Constants) -> fx.Node | None:
    """The product of zeros with one 1 each and an activation → the rows that are picked of it."""
    codes, x = arguments(node)[:2]
    if not is_live(x) or shape_of(codes)[:-2] != shape_of(x)[:-2]:
        return None
    ids = ids_of(codes, constants)
    if ids is None:
        return None
    return rows_at(node, x, rank(node) - 2, reshaped(node, ids, shape_of(node)[:-1]))
