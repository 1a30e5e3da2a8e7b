"""Where the rows of a softmax are in all that is made of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor, fx

from relprop.operations import ELEMENTWISE, Kind, argument, integers, kind, operand
from relprop.tracer.editing import arguments, dims_of, rank, val
from relprop.tracer.follow import follow
from relprop.tracer.labels import Labels, rows

#: Where a softmax's rows are: the axis they lie along, or the row of every element.
Rows = int | Tensor
#: What an operation may be for the rows of a softmax to be its rows still.
KEEPS_ROWS = ELEMENTWISE | {Kind.SOFTMAX, Kind.NORM, Kind.BATCH_NORM}


def rows_below(softmax: fx.Node, labels: Labels) -> dict[fx.Node, Rows]:
    """Where the rows of a softmax are in all that is made of it, up to the products they enter: by
    the axis they lie along, or, where moves shear or cut them, by labels."""

    def after(node: fx.Node, keys: Mapping[fx.Node, Rows]) -> Rows | None:
        if node.op != "call_function" or kind(node) is Kind.MATMUL:
            return None
        return rows_after(node, [i for i in node.all_input_nodes if i in keys], keys, labels)

    axis: int = argument(softmax, "dim") % rank(softmax)
    return follow(softmax.graph.nodes, {softmax: axis}, after)


def rows_after(
    node: fx.Node, sources: list[fx.Node], keys: Mapping[fx.Node, Rows], labels: Labels
) -> Rows | None:
    """Where the softmax's rows are after ``node``: their axis, or every element's row; ``None``
    where they do not survive."""
    source, keeps = sources[0], kind(node) in KEEPS_ROWS
    at = keys[source]
    if isinstance(at, int):
        axis = axis_after(node, source, at)
        if keeps or (axis is not None and len(sources) == 1):
            return axis
        if _stays_in_its_row(node, source, at, labels):
            return at
    elif keeps and getattr(val(node), "shape", None) == at.shape:
        return at
    marked = {
        s: m if isinstance(m := keys[s], Tensor) else rows(tuple(val(s).shape), m) for s in sources
    }
    return labels.push(node, marked)


def _stays_in_its_row(node: fx.Node, source: fx.Node, axis: int, labels: Labels) -> bool:
    """Whether whole rows are picked (adaptive token sampling, in vit-pytorch), or elements along
    the rows, or these put at places of their rows among zeros, by an index that may depend on the
    input."""
    if kind(node) is Kind.INDEX and source is operand(node):
        places = [(i, index) for i, index in enumerate(arguments(node)[1]) if index is not None]
        return len(places) == 1 and val(places[0][1]).dim() == 1 and places[0][0] != axis
    if kind(node) not in (Kind.GATHER, Kind.WRITE, Kind.INDEXED_SUM):
        return False
    dim, base = argument(node, "dim"), operand(node)
    if not isinstance(dim, int):
        return False
    if dim % rank(node) != axis:
        one_for_all = val(argument(node, "index")).stride(axis) == 0
        return kind(node) is Kind.GATHER and source is base and one_for_all
    if kind(node) is Kind.GATHER:
        return source is base
    zeros = None if source is base else labels.constant(base)
    return zeros is not None and not bool(zeros.any())


def lies_along(where: Rows, axis: int) -> bool:
    """Whether every row along ``axis`` holds elements of one row of the softmax, or of none."""
    if isinstance(where, int):
        return where == axis
    highest = where.amax(axis, keepdim=True)
    return bool(((where == highest) | (where == 0)).all()) and bool((where > 0).any())


def axis_after(node: fx.Node, source: fx.Node, axis: int) -> int | None:
    """Where the softmax's axis is after ``node``, or ``None`` where its keys or queries do not
    survive."""
    what, rank, shape = kind(node), len(val(source).shape), val(source).shape
    if what in KEEPS_ROWS:
        wider = getattr(val(node), "ndim", -1) - rank
        return axis + wider if wider >= 0 else None
    if what is Kind.SLICE:
        return axis
    if what is Kind.PERMUTE:
        return integers(node, "dims").index(axis)
    if what in (Kind.RESHAPE, Kind.EXPAND):
        return after_reshape(tuple(shape), tuple(val(node).shape), axis)
    if what is Kind.LINEAR:
        return axis if axis != rank - 1 else None
    if what is Kind.TOTAL:
        gone = dims_of(node)
        kept = axis if argument(node, "keepdim") else axis - sum(d < axis for d in gone)
        return None if axis in gone else kept
    keeps = what is Kind.CONVOLUTION and axis > 1 and val(node).shape[axis] == shape[axis]
    return axis if keeps else None


def after_reshape(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> int | None:
    """The axis of ``after`` with the same length and the same number of elements behind it."""
    inner = math.prod(before[axis + 1 :])
    same = (i for i, n in enumerate(after) if n == before[axis])
    return next((i for i in same if math.prod(after[i + 1 :]) == inner), None)
