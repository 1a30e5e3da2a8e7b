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
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx

NOWHERE = torch.tensor([math.inf, -math.inf, math.inf, -math.inf], dtype=torch.float64)
Reaches = Mapping[fx.Node, Tensor]
"""The reach of each node that is known so far, (4, *the shape of its value)."""


def hull(reach: Tensor, axes: Sequence[int]) -> Tensor:
    """The hull along some axes, which stay with length 1."""
    along = tuple(axes)
    lo, hi = reach.amin(along, keepdim=True), reach.amax(along, keepdim=True)
    return torch.stack([lo[0], hi[1], lo[2], hi[3]])


def merged(operands: Sequence[Tensor]) -> Tensor:
    """Elementwise: the hull of the operands, but of one that varies alone beside one that does not
    (a gate made from everything); nearest is the narrowest."""
    varying = [
        reach for reach in operands if reach[0].numel() > 1 and bool((reach[2] < math.inf).any())
    ]
    together, *others = varying or operands
    for other in others:
        together = _merged_pair(together, other)
    return together


def _merged_pair(a: Tensor, b: Tensor) -> Tensor:
    narrower = (b[3] - b[2] < a[3] - a[2]) & (b[2] < math.inf) | (a[2] == math.inf)
    lo, hi = torch.minimum(a[:1], b[:1]), torch.maximum(a[1:2], b[1:2])
    return torch.cat([lo, hi, torch.where(narrower, b[2:], a[2:])])


def compact(reach: Tensor) -> Tensor:
    """The same with length 1 along the axes on which it is constant."""
    for axis in range(1, reach.dim()):
        first = reach.narrow(axis, 0, min(1, reach.shape[axis]))
        if bool((reach == first).all()):
            reach = first
    return reach


def with_rank(reach: Tensor, rank: int) -> Tensor:
    """The same with leading axes of length 1, to broadcast."""
    return reach.reshape(4, *[1] * (rank + 1 - reach.dim()), *reach.shape[1:])


def extended(reach: Tensor, axis: int, before: int, after: int) -> Tensor:
    """Positions continued evenly beyond both ends of an axis."""
    if not before and not after:
        return reach
    length = reach.shape[axis]
    first, second, last, next_to_last = (
        reach.narrow(axis, i, 1) for i in (0, min(1, length - 1), length - 1, max(length - 2, 0))
    )
    step_before = torch.nan_to_num(first - second, nan=0.0)
    step_after = torch.nan_to_num(last - next_to_last, nan=0.0)
    ahead = [first + k * step_before for k in range(before, 0, -1)]
    behind = [last + k * step_after for k in range(1, after + 1)]
    return torch.cat([*ahead, reach, *behind], axis)
