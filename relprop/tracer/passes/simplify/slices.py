"""Positions and runs that are cut from what was cut, joined, padded or merged."""

from __future__ import annotations

import math

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.editing import arguments, aten, emit, expanded, joined, rank, reshaped, shape_of


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
