"""Positions picked by tensors of numbers: ``index`` and ``gather``."""

from __future__ import annotations

import math

import torch
from torch import fx

from relprop.operations import argument, is_call, operand
from relprop.tracer.editing import aten, emit, expanded, is_live, rank, reshaped, shape_of, val


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
    """``take_along_dim`` → ``gather``, its operands broadcast against each other."""
    if not is_call(node, aten.take_along_dim):
        return None
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
