"""Moves that are taken back: shapes and orders of axes that are put on and taken off again,
positions and runs that are cut from what was cut, joined, padded or merged."""

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
    is_float,
    is_live,
    joined,
    permuted,
    rank,
    reshaped,
    shape_of,
)


def simpler_reshape(node: fx.Node) -> fx.Node | None:
    """Of a reshape; of one position, which is a selection; of rows that are treated one by one."""
    x, shape = operand(node), shape_of(node)
    if shape_of(x) == shape:
        return x
    if kind(x) is Kind.RESHAPE:
        return reshaped(node, operand(x), shape)
    if is_call(x, aten.slice) and isinstance(arguments(x)[2], int):
        dim, left = arguments(x)[1], shape_of(x)
        if left[dim] == 1 and shape == [*left[:dim], *left[dim + 1 :]]:
            return emit(node, aten.select.int, operand(x), dim, arguments(x)[2])
    return _of_sum(node) or _of_rows(node, x, shape)


def _of_sum(node: fx.Node) -> fx.Node | None:
    """Tensors that were laid out otherwise, added and laid back → added as they lay."""
    total = operand(node)
    back = kind(total) is Kind.SUM and any(
        kind(a) is kind(node) and shape_of(operand(a)) == shape_of(node) and is_live(a)
        for a in total.all_input_nodes
    )
    return terms_laid(node) if back else None


def terms_laid(node: fx.Node) -> fx.Node | None:
    """A sum that is laid out otherwise → the sum of its terms, each laid out so."""
    total = operand(node)
    if kind(total) is not Kind.SUM or len(total.users) != 1 or total.kwargs:
        return None
    if not all(is_float(a) and shape_of(a) == shape_of(total) for a in arguments(total)):
        return None
    laid = [emit(node, node.target, a, *arguments(node)[1:]) for a in arguments(total)]
    return emit(node, total.target, *laid)


def _of_rows(node: fx.Node, x: fx.Node, shape: list[int]) -> fx.Node | None:
    """What is done to each row makes no difference to how the rows lie: laid out, treated and laid
    back is treated."""
    before = arguments(x)[0] if x.args else None
    of_each = kind(x) in (Kind.FUNCTION, Kind.AFFINE)
    if not of_each and not is_call(x, aten.layer_norm, aten.rms_norm, aten.linear):
        return None
    if len(x.users) != 1:
        return None
    if not isinstance(before, fx.Node) or kind(before) is not Kind.RESHAPE:
        return None
    y = operand(before)
    if shape_of(y)[-1:] != shape_of(before)[-1:] or shape_of(y)[:-1] != shape[:-1]:
        return None
    along = argument(x, "normalized_shape")
    if any(is_live(n) for n in x.all_input_nodes[1:]) or (along and len(along) > 1):
        return None
    others = [n for n in x.all_input_nodes[1:] if rank(n) > (2 if kind(x) is Kind.LINEAR else 1)]
    plain = isinstance(x.target, torch._ops.OpOverload)
    made = emit(node, x.target, y, *arguments(x)[1:], **x.kwargs) if plain and not others else None
    return made if made is not None and shape_of(made) == shape else None


def simpler_permute(node: fx.Node) -> fx.Node | None:
    """Of an order that was changed before; of axes of length 1 alone."""
    x, dims = operand(node), list(arguments(node)[1])
    if dims == sorted(dims):
        return x
    if is_call(x, aten.permute):
        return permuted(node, operand(x), [arguments(x)[1][d] for d in dims])
    long = [d for d in dims if shape_of(x)[d] != 1]
    return reshaped(node, x, shape_of(node)) if long == sorted(long) else _of_sum(node)


def simpler_expand(node: fx.Node) -> fx.Node | None:
    """Of nothing, or of what was expanded before."""
    x = operand(node)
    if shape_of(x) == shape_of(node):
        return x
    return expanded(node, operand(x), shape_of(node)) if kind(x) is Kind.EXPAND else None


def simpler_pad(node: fx.Node) -> fx.Node | None:
    """Of nothing; what is put on at one end and taken off at the other moves the rest."""
    return None if any(arguments(node)[1]) else operand(node)


def simpler_select(node: fx.Node) -> fx.Node | None:
    """Of the one position there is, of a run, of tensors that were joined; the last of the running
    sums."""
    x, dim, index = arguments(node)[:3]
    if not isinstance(index, int) or not isinstance(dim, int):
        return None
    if shape_of(x)[dim] == 1:
        return reshaped(node, x, shape_of(node))
    if kind(x) is Kind.SLICE and arguments(x)[1] == dim and is_call(x, aten.slice):
        return emit(
            node, aten.select.int, operand(x), dim, arguments(x)[2] + index * arguments(x)[4]
        )
    if is_call(x, aten.cumsum) and len(x.users) == 1 and not x.kwargs:
        along, last = arguments(x)[1] % rank(x), shape_of(x)[dim] - 1
        return (
            emit(node, aten.sum.dim_IntList, operand(x), [dim])
            if (along, last) == (dim, index)
            else None
        )
    if is_call(x, aten.cat) and arguments(x)[1] == dim:
        part, start = _part_at(x, index)
        return emit(node, aten.select.int, part, dim, index - start)
    return None


def _part_at(whole: fx.Node, index: int) -> tuple[fx.Node, int]:
    """The part of a ``cat`` that holds a position, and where that part begins."""
    start = 0
    for part in joined(whole):
        length = shape_of(part)[arguments(whole)[1]]
        if index < start + length:
            return part, start
        start += length
    raise IndexError(index)


def simpler_slice(node: fx.Node) -> fx.Node | None:
    """Of everything, of a run, of tensors that were joined or repeated, of merged axes."""
    if not is_call(node, aten.slice) or not all(isinstance(a, int) for a in arguments(node)[1:]):
        return None
    x, (dim, start, end, step) = operand(node), arguments(node)[1:]
    length = shape_of(x)[dim]
    if (start, end, step) == (0, length, 1):
        return x
    if is_call(x, aten.slice) and arguments(x)[1] == dim and step == 1 and arguments(x)[4] == 1:
        offset = arguments(x)[2]
        return emit(node, aten.slice.Tensor, operand(x), dim, offset + start, offset + end, 1)
    if is_call(x, aten.cat) and arguments(x)[1] == dim and step == 1:
        return _slice_of_cat(node, x, dim, start, end)
    if is_call(x, aten.constant_pad_nd) and step == 1:
        return _slice_of_padded(node, x, dim, start, end)
    if kind(x) is Kind.EXPAND and _stands_once(operand(x), dim - rank(x)):
        return expanded(node, operand(x), shape_of(node))
    return _slice_of_merged(node, x, dim, start, end) if step == 1 else None


def _stands_once(x: fx.Node, dim: int) -> bool:
    """Whether a tensor has one position along an axis, counted from the last, or no such axis."""
    return rank(x) < -dim or shape_of(x)[dim] == 1


def _slice_of_padded(node: fx.Node, x: fx.Node, dim: int, start: int, end: int) -> fx.Node | None:
    """A run inside of what was padded, along the only axis that was."""
    around, place = list(arguments(x)[1]), 2 * (rank(x) - 1 - dim)
    before, others = sum(around[place : place + 1]), around[:place] + around[place + 2 :]
    inside = before <= start and end <= before + shape_of(operand(x))[dim]
    if not inside or any(others) or min(around) < 0:
        return None
    return emit(node, aten.slice.Tensor, operand(x), dim, start - before, end - before, 1)


def _slice_of_merged(node: fx.Node, x: fx.Node, dim: int, start: int, end: int) -> fx.Node | None:
    """A run of an axis that several were merged into, where it is a run of the first of them."""
    if kind(x) is not Kind.RESHAPE:
        return None
    y = operand(x)
    long, before = shape_of(y), math.prod(shape_of(x)[:dim])
    first = next((i for i in range(len(long)) if math.prod(long[:i]) == before), None)
    while first is not None and first < len(long) - 1 and long[first] == 1:
        first += 1
    after = math.prod(shape_of(x)[dim + 1 :])
    if first is None or math.prod(long[first:]) != shape_of(x)[dim] * after:
        return None
    step, rest = divmod(math.prod(long[first + 1 :]), after)
    if rest or step < 2 or start % step or end % step or long[first] * step != shape_of(x)[dim]:
        return None
    run = emit(node, aten.slice.Tensor, y, first, start // step, end // step, 1)
    return reshaped(node, run, shape_of(node))


def _slice_of_cat(node: fx.Node, x: fx.Node, dim: int, start: int, end: int) -> fx.Node:
    parts, at = [], 0
    for part in joined(x):
        length = shape_of(part)[dim]
        first, last = max(start - at, 0), min(end - at, length)
        if first < last:
            whole = (first, last) == (0, length)
            parts.append(
                part if whole else emit(node, aten.slice.Tensor, part, dim, first, last, 1)
            )
        at += length
    return parts[0] if len(parts) == 1 else emit(node, aten.cat.default, parts, dim)
