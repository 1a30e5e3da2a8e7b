"""Positions picked by tensors of numbers: ``index`` and ``gather``."""

from __future__ import annotations

import math

import torch
from torch import fx

from relprop.operations import Kind, argument, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_live,
    rank,
    reshaped,
    shape_of,
    val,
)


def as_index(node: fx.Node) -> fx.Node | None:
    """``index_select`` and ``take`` → ``index``; positions of several axes, picked by one mask, are
    positions of one."""
    x = operand(node)
    if is_call(node, aten.index_select):
        dim = argument(node, "dim") % max(rank(x), 1)
        where = reshaped(node, argument(node, "index"), [-1])
        return emit(node, aten.index.Tensor, x, [*[None] * dim, where])
    if is_call(node, aten.take):
        return emit(node, aten.index.Tensor, reshaped(node, x, [-1]), [argument(node, "index")])
    if (rows := _of_one_axis(node)) is not None:
        return rows
    *ahead, mask = argument(node, "indices")
    if any(ahead) or val(mask).dtype != torch.bool or rank(mask) < 2:
        return None
    first, shape = len(ahead), shape_of(x)
    folded = [*shape[:first], math.prod(shape_of(mask)), *shape[first + rank(mask) :]]
    picked = reshaped(node, mask, [math.prod(shape_of(mask))])
    node.args = (reshaped(node, x, folded), [*ahead, picked])
    return None


def rows_of_computed(node: fx.Node) -> fx.Node | None:
    """``embedding`` in a table that the model computes → ``index``: no parameter is looked up."""
    table, ids = operand(node), argument(node, "indices")
    return emit(node, aten.index.Tensor, table, [ids]) if is_live(table) else None


def as_gather(node: fx.Node) -> fx.Node | None:
    """``take_along_dim`` → ``gather``, its operands broadcast against each other; whole rows that
    one index picks → ``index``."""
    if not is_call(node, aten.take_along_dim):
        return _whole_rows(node)
    x, index, dim = operand(node), argument(node, "indices"), argument(node, "dim")
    if dim is None:
        return emit(
            node, aten.gather.default, reshaped(node, x, [-1]), 0, reshaped(node, index, [-1])
        )
    dim %= rank(x)
    wide = torch.broadcast_shapes(
        *([1 if i == dim else s for i, s in enumerate(shape_of(t))] for t in (x, index))
    )
    shapes = ([shape_of(t)[dim] if i == dim else s for i, s in enumerate(wide)] for t in (x, index))
    x, index = (expanded(node, t, s) for t, s in zip((x, index), shapes, strict=True))
    return emit(node, aten.gather.default, x, dim, index)


def _whole_rows(gather: fx.Node) -> fx.Node | None:
    """A ``gather`` of whole rows, by one index."""
    x, dim, index = arguments(gather)[:3]
    where = row_index(gather, x, dim, index)
    if where is None:
        return None
    return emit(gather, aten.index.Tensor, x, [*[None] * (dim % rank(x)), where])


def row_index(at: fx.Node, x: fx.Node, dim: int, index: fx.Node) -> fx.Node | None:
    """Which rows of ``x`` an index along an axis names, (rows,), if it names whole ones: each of
    its numbers is repeated along all other axes of ``x``."""
    if kind(index) is not Kind.EXPAND:
        return None
    one, axis, wide = operand(index), dim % max(rank(x), 1), shape_of(index)
    lengths = [1] * (rank(index) - rank(one)) + shape_of(one)
    repeated = math.prod(lengths) == lengths[axis] == wide[axis]
    whole = all(n == s for i, (n, s) in enumerate(zip(wide, shape_of(x), strict=True)) if i != axis)
    return reshaped(at, one, [-1]) if repeated and whole else None


def _of_one_axis(node: fx.Node) -> fx.Node | None:
    """An ``index`` that names the only position of an axis, too, without that."""
    x, indices = operand(node), argument(node, "indices")
    given = [(i, index) for i, index in enumerate(indices) if index is not None]
    left = [(i, index) for i, index in given if shape_of(x)[i] > 1]
    if len(left) != 1 or len(given) < 2 or val(left[0][1]).dtype == torch.bool:
        return None
    ((axis, index),) = left
    wide = torch.broadcast_shapes(*(tuple(shape_of(i)) for _, i in given))
    if math.prod(wide) != val(index).numel() or any(val(i).dtype == torch.bool for _, i in given):
        return None
    if shape_of(node) != [*shape_of(x)[:axis], val(index).numel(), *shape_of(x)[axis + 1 :]]:
        return None
    where = reshaped(node, index, [-1])
    return emit(node, aten.index.Tensor, x, [*[None] * axis, where])
