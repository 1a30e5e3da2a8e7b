"""Reaches through what slides over an image or a sequence: convolutions, pools, windows laid out as
columns, padding and resizing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx

from relprop.layout.reach import Reaches, compact, extended, hull
from relprop.operations import Value, argument, integers, of, operand
from relprop.tracer.editing import val


def convolution(node: fx.Node, reaches: Reaches) -> Tensor | None:
    """The hull over the channels, then over each window."""
    if operand(node) not in reaches or of(node).transposed:
        return None
    kernel = tuple(val(argument(node, "weight")).shape[2:])
    reach = hull(reaches[operand(node)], (-len(kernel) - 1,))
    return _windowed(node, reach, kernel)


def pool(node: fx.Node, reaches: Reaches) -> Tensor:
    """The hull over each window."""
    if of(node).adaptive:
        return _adaptive_pool(node, reaches)
    size = argument(node, "kernel_size")
    sizes = [_entry(size, axis) for axis in range(-of(node).axes, 0)]
    return _windowed(node, reaches[operand(node)], sizes)


def columns(node: fx.Node, reaches: Reaches) -> Tensor:
    """Windows of an image laid out as columns (``im2col``)."""
    names = ("kernel_size", "dilation", "padding", "stride")
    kernel, dilation, padding, stride = (argument(node, name) for name in names)
    reach = reaches[operand(node)].expand(4, *val(operand(node)).shape)
    for axis in (-2, -1):
        reach = extended(reach, reach.dim() + axis, padding[axis], padding[axis])
    laid = [torch.ops.aten.im2col(part, kernel, dilation, [0, 0], stride) for part in reach]
    return compact(torch.stack(laid))


def padded(node: fx.Node, reaches: Reaches) -> Tensor:
    """Positions go on beyond the ends; where the padding is negative, ends are cut off."""
    amounts = integers(node, "pad")
    reach = reaches[operand(node)]
    for i, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        axis = reach.dim() - 1 - i
        if reach.shape[axis] > 1:
            reach = extended(reach, axis, max(before, 0), max(after, 0))
            reach = reach.narrow(axis, max(-before, 0), val(node).shape[axis - 1])
    return reach


def resized(node: fx.Node, reaches: Reaches) -> Tensor:
    """Each new position is an even share of the old ones."""
    reach, shape = reaches[operand(node)], val(node).shape
    for axis in range(-of(node).axes, 0):
        if 1 < reach.shape[axis] != shape[axis]:
            reach = _resized(reach, reach.dim() + axis, shape[axis])
    return reach


def _resized(reach: Tensor, axis: int, count: int) -> Tensor:
    edges = torch.arange(count + 1, dtype=torch.float64) * reach.shape[axis] / count
    at = edges.floor().long()
    part = (edges - at).reshape([-1 if i == axis else 1 for i in range(reach.dim())])
    old = extended(reach, axis, 0, 2)
    new = old.index_select(axis, at) * (1 - part) + old.index_select(axis, at + 1) * part
    start, end = new.narrow(axis, 0, count), new.narrow(axis, 1, count)
    return torch.stack([start[0], end[0], start[2], end[2]])


def _adaptive_pool(node: fx.Node, reaches: Reaches) -> Tensor:
    """The hull over as many bins as there are results."""
    reach, shape = reaches[operand(node)], val(node).shape
    for axis in range(-of(node).axes, 0):
        length, count = reach.shape[axis], shape[axis]
        if length > 1:
            bins = [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
            hulls = [hull(reach.narrow(axis, a, b - a), (axis,)) for a, b in bins]
            reach = torch.cat(hulls, axis)
    return reach


def _windowed(node: fx.Node, reach: Tensor, kernel: Sequence[int]) -> Tensor:
    """The hull of what a convolution's or a pool's windows see, over the last axes."""
    stride, padding = argument(node, "stride") or kernel, argument(node, "padding")
    dilation = argument(node, "dilation") or 1
    for axis, size in enumerate(kernel, -len(kernel)):
        length, count = reach.shape[axis], val(node).shape[axis]
        if length > 1:
            step, apart, before = (_entry(v, axis) for v in (stride, dilation, padding))
            if isinstance(before, str):
                before = (size - 1) * apart // 2 if before == "same" else 0
            width = (size - 1) * apart + 1
            after = max(0, (count - 1) * step + width - before - length)
            seen = extended(reach, axis, before, after).unfold(axis, width, step)
            seen = seen.narrow(axis - 1, 0, count)[..., ::apart]
            reach = hull(seen, (-1,)).squeeze(-1)
    return reach


def _entry(value: Value, axis: int) -> Value:
    """One axis's entry of an argument that may be given for all axes at once."""
    if isinstance(value, (list, tuple)):
        return value[axis] if len(value) > 1 else value[0]
    return value
