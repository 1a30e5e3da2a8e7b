"""Moves of one tensor, by what they do and not by their name: reshape, permute, expand, select and
slice are all that is left of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, fx

from relprop.operations import Kind, argument, is_call, kind, operand
from relprop.tracer.editing import (
    applied,
    arguments,
    aten,
    emit,
    expanded,
    is_float,
    is_tensor,
    joined,
    permuted,
    rank,
    reshaped,
    shape_of,
    val,
)
from relprop.tracer.passes.spelling.picking import as_gather, as_index
from relprop.tracer.passes.spelling.slices import as_pieces, as_select, as_slice

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def order_of(node: fx.Node) -> list[int]:
    """Which axis of its operand each axis of a permutation's result is."""
    sizes = PRIMES[: rank(operand(node))]
    with torch.device("meta"):
        made = applied(node, torch.empty(sizes))
    return [sizes.index(size) for size in made.shape]


def as_reshape(node: fx.Node) -> fx.Node | None:
    """Whatever keeps the elements in their order → ``reshape``."""
    shape = shape_of(node)
    if is_call(node, aten.reshape) and list(arguments(node)[1]) == shape:
        return None
    return reshaped(node, operand(node), shape)


def as_permute(node: fx.Node) -> fx.Node | None:
    """Whatever changes the order of axes → ``permute``."""
    dims = order_of(node)
    if is_call(node, aten.permute) and list(arguments(node)[1]) == dims:
        return None
    x = operand(node)
    if is_call(node, aten.mH, aten.adjoint, aten.matrix_H) and val(x).is_complex():
        x = emit(node, aten.conj_physical.default, x)
    return permuted(node, x, dims)


def as_expand(node: fx.Node) -> fx.Node | None:
    """Whatever repeats axes of length 1 → ``expand`` to a shape that is written out."""
    shape = shape_of(node)
    if is_call(node, aten.expand) and list(arguments(node)[1]) == shape:
        return None
    return expanded(node, operand(node), shape)


def as_cat(node: fx.Node) -> fx.Node | None:
    """``stack`` and ``cat``, without empty tensors of one axis, which ``cat`` skips (caches that
    are still empty)."""
    given, dim = joined(node), argument(node, "dim")
    if is_call(node, aten.stack):
        dim %= rank(node)
        shape = shape_of(node)
        shape[dim] = 1
        parts = [reshaped(node, t, shape) for t in given]
        return parts[0] if len(parts) == 1 else emit(node, aten.cat.default, parts, dim)
    dim %= rank(node)
    some = [t for t in given if shape_of(t) != [0]] or given
    if len(some) == 1 and val(some[0]).dtype == val(node).dtype:
        return some[0]
    if is_call(node, aten.cat) and len(some) == len(given) and arguments(node)[1:] == (dim,):
        return None
    return emit(node, aten.cat.default, some, dim)


def as_repeat(node: fx.Node) -> fx.Node | None:
    """Whole tensors laid beside themselves, and copies of each position of an axis → ``expand``
    along new axes, which are merged then."""
    if is_call(node, aten.repeat_interleave):
        return _each_repeated(node)
    x, repeats = operand(node), arguments(node)[1]
    if 0 in repeats:
        return None
    repeats = [1] * (rank(x) - len(repeats)) + list(repeats)
    shape = [1] * (len(repeats) - rank(x)) + shape_of(x)
    new = [k > 1 and size > 1 for k, size in zip(repeats, shape, strict=True)]
    each = list(zip(new, repeats, shape, strict=True))
    once = [part for beside, _, size in each for part in ([1, size] if beside else [size])]
    wide = [part for beside, k, size in each for part in ([k, size] if beside else [k * size])]
    return reshaped(node, expanded(node, reshaped(node, x, once), wide), shape_of(node))


def _each_repeated(node: fx.Node) -> fx.Node | None:
    """Every position of an axis so many times, one copy beside the other."""
    x, times, dim = operand(node), argument(node, "repeats"), argument(node, "dim")
    if not isinstance(times, int) or dim is None or not is_float(x):
        return None
    before, after = shape_of(x)[: dim % rank(x) + 1], shape_of(x)[dim % rank(x) + 1 :]
    copies = expanded(node, reshaped(node, x, [*before, 1, *after]), [*before, times, *after])
    return reshaped(node, copies, shape_of(node))


def as_strided(node: fx.Node) -> fx.Node | None:
    """A view through strides of a tensor without gaps → an index into its elements, which does not
    depend on how values lie in memory."""
    if not is_call(node, aten.as_strided):
        return None
    x = operand(node)
    if not val(x).is_contiguous():
        strides = val(x).stride()
        x = permuted(node, x, sorted(range(len(strides)), key=lambda i: -strides[i]))
        if not val(x).is_contiguous():
            return None
    where = _strided_places(node, argument(node, "size"), argument(node, "stride"))
    return emit(node, aten.index.Tensor, reshaped(node, x, [math.prod(shape_of(x))]), [where])


def _strided_places(node: fx.Node, size: list[int], stride: list[int]) -> fx.Node:
    """Which element strides show at each place."""
    start, ones = argument(node, "storage_offset") or 0, [1] * len(size)
    where = emit(node, aten.full.default, ones, start, dtype=torch.long)
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):
        end = length * step if step else length
        steps = emit(node, aten.arange.start_step, 0, end, step or 1, dtype=torch.long)
        steps = steps if step else emit(node, aten.mul.Tensor, steps, 0)
        shape = [*ones[:axis], length, *ones[axis + 1 :]]
        where = emit(node, aten.add.Tensor, where, reshaped(node, steps, shape))
    return where


VIEWS: dict[Kind, Callable[[fx.Node], fx.Node | None]] = {
    Kind.RESHAPE: as_reshape,
    Kind.PERMUTE: as_permute,
    Kind.EXPAND: as_expand,
    Kind.SELECT: as_select,
    Kind.SLICE: as_slice,
    Kind.SPLIT: as_pieces,
    Kind.JOIN: as_cat,
    Kind.INDEX: as_index,
    Kind.GATHER: as_gather,
    Kind.REPEAT: as_repeat,
    Kind.VIEW: as_strided,
}


#: What shows the memory of its operand, whatever that is.
ALWAYS_VIEWS = frozenset(
    {Kind.SPLIT, Kind.PERMUTE, Kind.SELECT, Kind.SLICE, Kind.EXPAND, Kind.DETACH, Kind.VIEW}
)


def is_view(node: fx.Node) -> bool:
    """Whether a call's result shows the memory of its first operand, as far as its layout tells."""
    source, what = (arguments(node)[0] if node.args else None), kind(node)
    if not isinstance(source, fx.Node) or val(source) is None:
        return False
    if what in ALWAYS_VIEWS:
        return True
    if what is Kind.OUTPUT:
        return kind(source) is Kind.SPLIT
    if not is_tensor(source):
        return False
    if what is Kind.IDENTITY:
        return not is_call(node, aten.clone) and _same_layout(val(source), val(node))
    if what is Kind.CAST:
        return bool(val(source).dtype == val(node).dtype)
    if what is Kind.COMPLEX:
        return bool(getattr(node.target, "is_view", False))
    return what is Kind.RESHAPE and _views(val(source), tuple(shape_of(node)))


def _same_layout(source: Tensor, made: Tensor) -> bool:
    return (
        source.dtype == made.dtype
        and source.shape == made.shape
        and source.stride() == made.stride()
    )


def _views(source: Tensor, shape: tuple[int, ...]) -> bool:
    try:
        source.view(shape)
    except RuntimeError:
        return False
    return True
