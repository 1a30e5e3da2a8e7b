"""From which positions of the input a value was computed: positions pushed, in place of values,
through the ops on the way.

A value's *reach* along one axis of the input is four numbers: ``lo``, ``hi``, the hull of the
positions it was computed from, and ``near_lo``, ``near_hi``, the same by the narrowest way where
several meet (beside a skip connection, a convolution over positions or a gate made from the whole
image says nothing about where a value is). Reaches are kept as small as they vary: axes along which
they are constant have length 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from relprop.operations import MOVES, Kind, argument, kind, of
from relprop.tracer.editing import val
from relprop.tracer.follow import follow
from relprop.tracer.order import Flow
from relprop.tracer.program import is_floating
from relprop.tracer.run import template

NOWHERE = torch.tensor([math.inf, -math.inf, math.inf, -math.inf], dtype=torch.float64)


def reaches_between(
    leaf: fx.Node, to: fx.Node, axis: int, flow: Flow, known: Mapping[fx.Node, Tensor]
) -> dict[fx.Node, Tensor]:
    """The reach, (4, *shape), of every node on the way ``to`` a tensor, along one axis of the leaf.
    ``known``: values of ``indices``.

    What an op makes that is not understood comes from everywhere.
    """
    size = val(leaf).shape[axis]
    first = torch.arange(size, dtype=torch.float64).reshape(
        [size if i == axis else 1 for i in range(val(leaf).dim())]
    )

    def after(node: fx.Node, reaches: Mapping[fx.Node, Tensor]) -> Tensor | None:
        if not isinstance(val(node), Tensor):
            return None
        reach = _step(node, reaches, known)
        return _everywhere(node, reaches) if reach is None else reach

    start = torch.stack([first, first + 1, first, first + 1])
    return follow(flow.between(leaf, to), {leaf: start}, after)


def _everywhere(node: fx.Node, reaches: Mapping[fx.Node, Tensor]) -> Tensor:
    """The hull of all that enters a node, at each of its elements."""
    entering = [reaches[i].flatten(1) for i in node.all_input_nodes if i in reaches]
    return hull(torch.cat(entering, 1), (1,)).reshape(4, *[1] * val(node).dim())


def indices(leaf: fx.Node, to: fx.Node, flow: Flow) -> set[fx.Node]:
    """The whole numbers by which values are put in other places between two tensors: what the reach
    cannot be known without."""
    moves = [n for n in flow.between(leaf, to) if kind(n) in MOVES]
    return {
        o
        for n in moves
        for o in template(n)[0]
        if not is_floating(o) and isinstance(val(o), Tensor) and val(o).dtype != torch.bool
    }


def _step(
    node: fx.Node, reaches: Mapping[fx.Node, Tensor], known: Mapping[fx.Node, Tensor]
) -> Tensor | None:
    """The reach after one op; ``None`` if the op is not understood."""
    if kind(node) in MOVES and (moved := _moved(node, reaches, known)) is not None:
        return moved
    if kind(node) in _KINDS:
        return _KINDS[kind(node)](node, reaches)
    shape = tuple(val(node).shape)
    operands = [
        _ranked(reaches[o], len(shape))
        for o in template(node)[0]
        if o in reaches and val(o).dim() <= len(shape)
    ]
    if not operands or any(
        n not in (1, s) for reach in operands for n, s in zip(reach.shape[1:], shape, strict=True)
    ):
        return None
    return _merged(operands)


def _merged(operands: Sequence[Tensor]) -> Tensor:
    """Elementwise: the hull of the operands, but of one that varies alone beside one that does not
    (a gate made from everything); nearest is the narrowest."""
    varying = [
        reach for reach in operands if reach[0].numel() > 1 and bool((reach[2] < math.inf).any())
    ]
    together, *others = varying or operands
    for other in others:
        a, b = torch.broadcast_tensors(together, other)
        narrower = (b[3] - b[2] < a[3] - a[2]) & (b[2] < math.inf) | (a[2] == math.inf)
        together = torch.cat(
            [
                torch.minimum(a[:1], b[:1]),
                torch.maximum(a[1:2], b[1:2]),
                torch.where(narrower, b[2:], a[2:]),
            ]
        )
    return together


def _indexed(node: fx.Node, reaches: Mapping[fx.Node, Tensor]) -> Tensor | None:
    """Indexed along one axis by values that are not known here: that axis must be one along which
    nothing changes."""
    places = [(i, index) for i, index in enumerate(node.args[1]) if index is not None]
    if (
        node.args[0] not in reaches
        or len(places) != 1
        or val(places[0][1]).dim() != 1
        or reaches[node.args[0]].shape[places[0][0] + 1] > 1
    ):
        return None
    return reaches[node.args[0]]


def _unfolded(node: fx.Node, reaches: Mapping[fx.Node, Tensor]) -> Tensor:
    """Windows of an image laid out as columns."""
    kernel, dilation, padding, stride = node.args[1:5]
    reach = reaches[node.args[0]].expand(4, *val(node.args[0]).shape)
    for axis in (-2, -1):
        reach = _extended(reach, reach.dim() + axis, padding[axis], padding[axis])
    return _compact(
        torch.stack(
            [torch.ops.aten.im2col(numbers, kernel, dilation, [0, 0], stride) for numbers in reach]
        )
    )


def _moved(
    node: fx.Node, reaches: Mapping[fx.Node, Tensor], known: Mapping[fx.Node, Tensor]
) -> Tensor | None:
    """The op itself, on each of the four numbers; parameters and constants are nowhere."""
    operands, rebuild = template(node)
    if any(o not in reaches and o not in known and not is_floating(o) for o in operands):
        return None
    full = [reaches[o].expand(4, *val(o).shape) if o in reaches else None for o in operands]
    results = []
    for k, nowhere in enumerate(NOWHERE):
        given = (
            f[k] if f is not None else known[o] if o in known else nowhere.expand(val(o).shape)
            for f, o in zip(full, operands, strict=True)
        )
        args, kwargs = rebuild(*given)
        results.append(node.target(*args, **kwargs))
    return _compact(torch.stack(results))


def _compact(reach: Tensor) -> Tensor:
    for axis in range(1, reach.dim()):
        first = reach.narrow(axis, 0, min(1, reach.shape[axis]))
        if bool((reach == first).all()):
            reach = first
    return reach


def _ranked(reach: Tensor, rank: int) -> Tensor:
    """With leading axes of length 1, to broadcast."""
    return reach.reshape(4, *[1] * (rank + 1 - reach.dim()), *reach.shape[1:])


def hull(reach: Tensor, axes: Sequence[int]) -> Tensor:
    """The hull along some axes, which stay with length 1."""
    lo, hi = reach.amin(axes, keepdim=True), reach.amax(axes, keepdim=True)
    return torch.stack([lo[0], hi[1], lo[2], hi[3]])


def _extended(reach: Tensor, axis: int, before: int, after: int) -> Tensor:
    """Positions continued evenly beyond both ends of an axis."""
    length = reach.shape[axis]
    ends = [
        reach.narrow(axis, i, 1) for i in (0, min(1, length - 1), length - 1, max(length - 2, 0))
    ]
    steps = [torch.nan_to_num(a - b, nan=0.0) for a, b in ((ends[0], ends[1]), (ends[2], ends[3]))]
    parts = (
        [ends[0] + k * steps[0] for k in range(before, 0, -1)]
        + [reach]
        + [ends[2] + k * steps[1] for k in range(1, after + 1)]
    )
    return torch.cat([p for p in parts if p.shape[axis]], axis) if len(parts) > 1 else reach


def _slid(
    reach: Tensor, axis: int, kernel: int, stride: int, padding: int, dilation: int, out: int
) -> Tensor:
    """A window slid along an axis: the hull of what it sees."""
    if reach.shape[axis] == 1:
        return reach
    width = (kernel - 1) * dilation + 1
    after = max(0, (out - 1) * stride + width - padding - reach.shape[axis])
    windows = (
        _extended(reach, axis, padding, after)
        .unfold(axis, width, stride)
        .narrow(axis, 0, out)[..., ::dilation]
    )
    return hull(windows, (-1,)).squeeze(-1)


def _windowed(
    node: fx.Node, reach: Tensor, kernel: Sequence[int], stride: Any, padding: Any, dilation: Any
) -> Tensor:
    """A convolution's or a pool's windows, over the last axes."""
    rank = len(kernel)
    for i in range(rank):
        k, s, p, d = kernel[i], *(_entry(v, i) for v in (stride or kernel, padding, dilation))
        before = ((k - 1) * d // 2 if p == "same" else 0) if isinstance(p, str) else p
        reach = _slid(
            reach,
            reach.dim() - rank + i,
            k,
            s,
            before,
            d,
            val(node).shape[val(node).dim() - rank + i],
        )
    return reach


def _entry(value: Any, i: int) -> Any:
    """One axis's entry of an argument that may be given for all axes at once."""
    if isinstance(value, (list, tuple)):
        return value[i] if len(value) > 1 else value[0]
    return value


def _conv(node: fx.Node, reaches: Mapping[fx.Node, Tensor]) -> Tensor | None:
    if node.args[0] not in reaches or of(node).transposed:
        return None
    kernel = val(node.args[1]).shape[2:]
    reach = hull(reaches[node.args[0]], (-len(kernel) - 1,))
    return _windowed(
        node,
        reach,
        kernel,
        argument(node, "stride"),
        argument(node, "padding"),
        argument(node, "dilation"),
    )


def _pool(node: fx.Node, reaches: Mapping[fx.Node, Tensor]) -> Tensor:
    if of(node).adaptive:
        return _adaptive_pool(node, reaches)
    rank = of(node).axes
    kernel = [_entry(argument(node, "kernel_size"), i) for i in range(rank)]
    dilation = argument(node, "dilation") or 1
    return _windowed(
        node,
        reaches[node.args[0]],
        kernel,
        argument(node, "stride"),
        argument(node, "padding"),
        dilation,
    )


def _adaptive_pool(node: fx.Node, reaches: Mapping[fx.Node, Tensor]) -> Tensor:
    reach, shape = reaches[node.args[0]], val(node).shape
    for axis in range(-of(node).axes, 0):
        length, out = reach.shape[axis], shape[axis]
        if length > 1:
            bins = [(i * length // out, -(-(i + 1) * length // out)) for i in range(out)]
            reach = torch.cat([hull(reach.narrow(axis, a, b - a), (axis,)) for a, b in bins], axis)
    return reach


def _upsample(node: fx.Node, reaches: Mapping[fx.Node, Tensor]) -> Tensor:
    """Resized: each new position is an even share of the old ones."""
    reach, shape = reaches[node.args[0]], val(node).shape
    for axis in range(-of(node).axes, 0):
        length, out = reach.shape[axis], shape[axis]
        if length > 1 and length != out:
            edges = torch.arange(out + 1, dtype=torch.float64) * length / out
            old = _extended(reach, axis, 0, 2)
            at = edges.floor().long()
            part = (edges - at).reshape(
                [-1 if i == reach.dim() + axis else 1 for i in range(reach.dim())]
            )
            new = old.index_select(axis, at) * (1 - part) + old.index_select(axis, at + 1) * part
            start, end = new.narrow(axis, 0, out), new.narrow(axis, 1, out)
            reach = torch.stack([start[0], end[0], start[2], end[2]])
    return reach


def _pad(node: fx.Node, reaches: Mapping[fx.Node, Tensor]) -> Tensor | None:
    amounts = list(node.args[1])
    reach = reaches[node.args[0]]
    for i, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        axis = reach.dim() - 1 - i
        if reach.shape[axis] > 1:
            reach = _extended(reach, axis, max(before, 0), max(after, 0))
            reach = reach.narrow(axis, max(-before, 0), val(node).shape[axis - 1])
    return reach


def _linear(node: fx.Node, reaches: Mapping[fx.Node, Tensor]) -> Tensor | None:
    return hull(reaches[node.args[0]], (-1,)) if node.args[0] in reaches else None


def _matmul(node: fx.Node, reaches: Mapping[fx.Node, Tensor]) -> Tensor | None:
    """The hull over the axis that is summed; of two products' factors the narrower says where it
    is."""
    rank = val(node).dim()
    mixed = [
        _ranked(hull(reaches[o], (axis,)), rank)
        for o, axis in zip(node.args[:2], (-1, -2), strict=True)
        if o in reaches and val(o).dim() > 1
    ]
    return _merged(mixed) if mixed else None


def _reduced(node: fx.Node, reaches: Mapping[fx.Node, Tensor]) -> Tensor:
    reach, dims = reaches[node.args[0]], argument(node, "dim")
    rank = reach.dim() - 1
    gone = [d % rank + 1 for d in ([dims] if isinstance(dims, int) else dims or range(rank))]
    reach = hull(reach, gone)
    return reach if argument(node, "keepdim") else reach.squeeze(gone)


_KINDS: dict[Kind, Callable[[fx.Node, Mapping[fx.Node, Tensor]], Tensor | None]] = {
    Kind.CONVOLUTION: _conv,
    Kind.MAX_POOL: _pool,
    Kind.AVERAGE_POOL: _pool,
    Kind.RESAMPLE: _upsample,
    Kind.PAD: _pad,
    Kind.LINEAR: _linear,
    Kind.INDEX: _indexed,
    Kind.WINDOWS: _unfolded,
    Kind.MATMUL: _matmul,
    **dict.fromkeys((Kind.TOTAL, Kind.LARGEST, Kind.STATISTIC), _reduced),
}
