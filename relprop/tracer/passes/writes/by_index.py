"""Writes by index, in few forms: what is picked changes place, what is brought to one place is
added there."""

from __future__ import annotations

import math

import torch
from torch import fx

from relprop.operations import argument, is_call, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_number,
    is_tensor,
    permuted,
    rank,
    reshaped,
    shape_of,
    val,
)
from relprop.tracer.passes.spelling.picking import row_index
from relprop.tracer.passes.writes.masks import mask_of
from relprop.tracer.passes.writes.places import put, put_slice


def summed_by_index(node: fx.Node) -> fx.Node | None:
    """``index_add`` and ``scatter_add``: what was there plus a sum by index onto zeros."""
    base, alpha, args = operand(node), argument(node, "alpha"), list(node.args)
    if is_call(node, aten.scatter_add) and (rows := _rows_of(node)) is not None:
        return emit(node, aten.index_add.default, base, args[1], rows, args[3])
    if is_number(base, 0) and alpha in (None, 1):
        return None
    if alpha not in (None, 1):
        args[3] = emit(node, aten.mul.Tensor, args[3], alpha)
    added = emit(node, node.target, emit(node, aten.zeros_like.default, base), *args[1:])
    return added if is_number(base, 0) else emit(node, aten.add.Tensor, base, added)


def _rows_of(node: fx.Node) -> fx.Node | None:
    """The places to which ``scatter`` or ``scatter_add`` bring whole rows."""
    base, dim, index, source = arguments(node)[:4]
    return row_index(node, base, dim, index) if shape_of(index) == shape_of(source) else None


def put_by_index(node: fx.Node) -> fx.Node | None:
    """Writes by index: one value at a mask → ``where``; accumulated → a sum by index, or a write
    onto zeros, and what was there added."""
    base, indices, values = arguments(node)[:3]
    used = [i for i, index in enumerate(indices) if index is not None]
    masks = [val(indices[i]).dtype == torch.bool for i in used]
    if not argument(node, "accumulate"):
        alone = len(used) == len(indices) == 1 and masks[0]
        return _put_where(node, base, indices[0], values) if alone else None
    if any(masks) or mask_of(list(indices)) is not None:
        # which brings no two values to one place: a write, onto zeros
        zeros = emit(node, aten.zeros_like.default, base)
        added = emit(node, node.target, zeros, indices, values)
    else:
        added = accumulated(node, base, indices, used, values)
    return added if is_number(base, 0) else emit(node, aten.add.Tensor, base, added)


def rows_written(node: fx.Node) -> fx.Node | None:
    """``index_copy``, and ``scatter`` of whole rows: a write by index of one axis."""
    base, dim, index, source = arguments(node)[:4]
    if is_call(node, aten.index_copy):
        rows: fx.Node | None = reshaped(node, index, [-1])
    else:
        whole = is_tensor(source) and len(node.args) == 4 and not node.kwargs
        rows = _rows_of(node) if whole else None
    if rows is None:
        return None
    return emit(node, aten.index_put.default, base, [*[None] * (dim % rank(node)), rows], source)


def put_flat(node: fx.Node) -> fx.Node:
    """``put``: a write by index into the elements one after another."""
    x, index, values = (reshaped(node, a, [val(a).numel()]) for a in arguments(node)[:3])
    adds = bool(argument(node, "accumulate"))
    return reshaped(
        node, emit(node, aten.index_put.default, x, [index], values, adds), shape_of(node)
    )


def accumulated(
    node: fx.Node, base: fx.Node, indices: list[fx.Node | None], used: list[int], values: fx.Node
) -> fx.Node:
    """Zeros of the shape of ``base``, and at every place the sum of what the indices bring there:
    the indexed axes folded to one, and one index into it."""
    shape = shape_of(base)
    rest = [i for i in range(len(shape)) if i not in used]
    beside = [shape[i] for i in rest]
    given = [index for index in indices if index is not None]
    picked = list(torch.broadcast_shapes(*(tuple(shape_of(index)) for index in given)))
    where = _folded_index(node, given, [shape[i] for i in used], picked)
    together = used == list(range(used[0], used[-1] + 1))
    ahead = used[0] if together else 0  # axes in front of those that are picked
    wide = expanded(node, values, [*beside[:ahead], *picked, *beside[ahead:]])
    own = list(range(ahead, ahead + len(picked)))
    order = [*own, *(i for i in range(rank(wide)) if i not in own)]
    source = reshaped(node, permuted(node, wide, order), [math.prod(picked), *beside])
    sizes = [shape[i] for i in used]
    zeros = emit(node, aten.new_zeros.default, base, [math.prod(sizes), *beside])
    summed = emit(node, aten.index_add.default, zeros, 0, reshaped(node, where, [-1]), source)
    unfolded = reshaped(node, summed, [*sizes, *beside])
    axes = [*used, *rest]
    return permuted(node, unfolded, [axes.index(i) for i in range(len(shape))])


def _folded_index(
    node: fx.Node, indices: list[fx.Node], sizes: list[int], picked: list[int]
) -> fx.Node:
    """Indices of several axes as one of these axes folded to one."""
    where: fx.Node | None = None
    for index, size in zip(indices, sizes, strict=True):
        one = emit(node, aten.remainder.Scalar, expanded(node, index, picked), size)
        if where is not None:
            one = emit(node, aten.add.Tensor, emit(node, aten.mul.Tensor, where, size), one)
        where = one
    assert where is not None
    return where


def _put_where(node: fx.Node, base: fx.Node, mask: fx.Node, values: fx.Node) -> fx.Node | None:
    """``x[mask] = v`` with one value for all chosen places → ``where``."""
    behind = rank(base) - rank(mask)
    ahead = max(rank(values) - behind, 0)
    if any(s != 1 for s in shape_of(values)[:ahead]):
        return None
    one = reshaped(node, values, shape_of(values)[ahead:])
    return emit(
        node, aten.where.self, reshaped(node, mask, [*shape_of(mask), *[1] * behind]), one, base
    )


def scatter_reduced(node: fx.Node) -> fx.Node | None:
    """``scatter_reduce`` to a sum or a mean → ``scatter_add``, over the counts."""
    base, dim, index, source, reduce = arguments(node)[:5]
    whole = bool(argument(node, "include_self"))
    if reduce not in ("sum", "mean") or (reduce == "mean" and whole):
        return None
    zeros = emit(node, aten.zeros_like.default, base)
    added = emit(node, aten.scatter_add.default, zeros, dim, index, source)
    if reduce == "sum" and whole:
        return emit(node, aten.add.Tensor, base, added)
    ones = emit(node, aten.ones_like.default, source)
    count = emit(node, aten.scatter_add.default, zeros, dim, index, ones)
    if reduce == "mean":
        added = emit(node, aten.div.Tensor, added, emit(node, aten.clamp_min.default, count, 1))
    return emit(node, aten.where.self, emit(node, aten.gt.Scalar, count, 0), added, base)


def written(node: fx.Node) -> fx.Node | None:
    """``select_scatter`` and ``slice_scatter`` → what is before, what is written, what is after."""
    whole, part, dim = operand(node), arguments(node)[1], argument(node, "dim") % rank(node)
    size = shape_of(whole)[dim]
    if is_call(node, aten.select_scatter):
        index = argument(node, "index") % size
        return put(node, whole, part, dim, index, index + 1)
    bounds = slice(*(argument(node, n) for n in ("start", "end", "step"))).indices(size)
    evenly = bounds[2] == 1 or (size % bounds[2] == 0 and bounds[0] < bounds[2])
    if not evenly:
        wanted = (whole, part, dim, *bounds)
        return None if node.args == wanted else emit(node, node.target, *wanted)
    return put_slice(node, whole, part, dim, range(*bounds))


def copied(node: fx.Node) -> fx.Node:
    """``copy(x, y)``: y, in the shape and type of x."""
    x, y = arguments(node)[:2]
    if val(y).dtype != val(x).dtype:
        y = emit(node, aten.to.dtype, y, val(x).dtype)
    return expanded(node, y, shape_of(x))
