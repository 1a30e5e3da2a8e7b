"""Reaches through what slides over an image or a sequence: convolutions, pools, windows laid out as
columns, padding and resizing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.layout.reach import Reaches, compact, extended, hull, of_input
from relprop.operations import Value, argument, integers, of, operand
from relprop.tracer.editing import val


@dataclass(frozen=True)
class Window:
    """A window along one axis: how many values it sees, how far it moves, how many positions stand
    before the first value, and how far apart the values it sees are."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def width(self) -> int:
        """From the first value it sees to the last one."""
        return (self.kernel - 1) * self.dilation + 1


def convolution(node: fx.Node, reaches: Reaches) -> Tensor | None:
    """The hull over the channels, then over each window."""
    if operand(node) not in reaches or of(node).transposed:
        return None
    kernel = tuple(val(argument(node, "weight")).shape[2:])
    reach = hull(of_input(node, reaches), (-len(kernel) - 1,))
    return _windowed(node, reach, kernel)


def pool(node: fx.Node, reaches: Reaches) -> Tensor:
    """The hull over each window."""
    if of(node).adaptive:
        return _adaptive_pool(node, reaches)
    size = argument(node, "kernel_size")
    return _windowed(node, of_input(node, reaches), [_entry(size, i) for i in range(of(node).axes)])


def columns(node: fx.Node, reaches: Reaches) -> Tensor:
    """Windows of an image laid out as columns (``im2col``)."""
    names = ("kernel_size", "dilation", "padding", "stride")
    kernel, dilation, padding, stride = (argument(node, name) for name in names)
    reach = of_input(node, reaches).expand(4, *val(operand(node)).shape)
    for axis in (-2, -1):
        reach = extended(reach, reach.dim() + axis, padding[axis], padding[axis])
    laid = [torch.ops.aten.im2col(part, kernel, dilation, [0, 0], stride) for part in reach]
    return compact(torch.stack(laid))


def padded(node: fx.Node, reaches: Reaches) -> Tensor:
    """Positions go on beyond the ends; where the padding is negative, ends are cut off."""
    amounts = integers(node, "pad")
    reach = of_input(node, reaches)
    for i, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        axis = reach.dim() - 1 - i
        if reach.shape[axis] > 1:
            reach = extended(reach, axis, max(before, 0), max(after, 0))
            reach = reach.narrow(axis, max(-before, 0), val(node).shape[axis - 1])
    return reach


def resized(node: fx.Node, reaches: Reaches) -> Tensor:
    """Each new position is an even share of the old ones."""
    reach, shape = of_input(node, reaches), val(node).shape
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
    reach, shape = of_input(node, reaches), val(node).shape
    for axis in range(-of(node).axes, 0):
        length, count = reach.shape[axis], shape[axis]
        if length > 1:
            bins = [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
            hulls = [hull(reach.narrow(axis, a, b - a), (axis,)) for a, b in bins]
            reach = torch.cat(hulls, axis)
    return reach


def _windowed(node: fx.Node, reach: Tensor, kernel: Sequence[int]) -> Tensor:
    """A convolution's or a pool's windows, over the last axes."""
    rank, shape = len(kernel), val(node).shape
    for i, window in enumerate(_windows(node, kernel)):
        axis = reach.dim() - rank + i
        if reach.shape[axis] > 1:
            reach = _slid(reach, axis, window, shape[len(shape) - rank + i])
    return reach


def _windows(node: fx.Node, kernel: Sequence[int]) -> list[Window]:
    """The window along each axis, as the call's arguments say."""
    stride, padding = argument(node, "stride") or kernel, argument(node, "padding")
    dilation = argument(node, "dilation") or 1
    found = []
    for i, size in enumerate(kernel):
        apart, before = _entry(dilation, i), _entry(padding, i)
        if isinstance(before, str):
            before = (size - 1) * apart // 2 if before == "same" else 0
        found.append(Window(size, _entry(stride, i), before, apart))
    return found


def _slid(reach: Tensor, axis: int, window: Window, count: int) -> Tensor:
    """The hull of what a window sees at each of ``count`` places along an axis."""
    end = (count - 1) * window.stride + window.width - window.padding
    after = max(0, end - reach.shape[axis])
    seen = extended(reach, axis, window.padding, after).unfold(axis, window.width, window.stride)
    return hull(seen.narrow(axis, 0, count)[..., :: window.dilation], (-1,)).squeeze(-1)


def _entry(value: Value, i: int) -> Value:
    """One axis's entry of an argument that may be given for all axes at once."""
    if isinstance(value, (list, tuple)):
        return value[i] if len(value) > 1 else value[0]
    return value
