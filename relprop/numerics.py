"""Safe division, stabilisers, positive and negative parts, and sums that accumulate in double.

A denominator smaller than ``smallest(dtype)`` (the smallest normal number divided by the rounding
unit: 1e-31 in float32, 1e-292 in float64) counts as zero: its reciprocal times any ordinary value
would overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Divide = Callable[[Tensor, Tensor], Tensor]


def smallest(dtype: torch.dtype) -> float:
    """Denominators below this magnitude count as zero."""
    info = torch.finfo(dtype)
    return info.tiny / info.eps


def safe_divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b counts as zero; never infinite for ordinary a, never NaN."""
    return torch.where(b.abs() < smallest(b.dtype), 0.0, a / b)


@dataclass(frozen=True)
class Epsilon:
    """a / (b + ε·sgn(b)), with sgn(0) = 1: the sign-aware stabiliser of LRP-ε; ε absolute."""

    epsilon: float = 1e-6

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        return safe_divide(a, b + self.epsilon * sign(b))


@dataclass(frozen=True)
class AuthorsStabiliser:
    """a / (b + 1e-9), and 0 where b = 0: what the published code does; of no use near b = -1e-9.
    Only ``reference`` uses it."""

    epsilon: float = 1e-9

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        shifted = b + self.epsilon
        return torch.where(b == 0, 0.0, a / torch.where(shifted == 0, self.epsilon, shifted))


def sign(x: Tensor) -> Tensor:
    """+1 where x ≥ 0, −1 elsewhere: unlike ``torch.sign`` never 0."""
    return torch.where(x < 0, -1.0, 1.0).to(x.dtype)


def positive(x: Tensor) -> Tensor:
    """x⁺ = max(x, 0)."""
    return x.clamp(min=0)


def negative(x: Tensor) -> Tensor:
    """x⁻ = min(x, 0)."""
    return x.clamp(max=0)


def total(x: Tensor) -> Tensor:
    """The sum of all elements: along the last axis in the values' own type, the rest in double
    where the device has it (Apple's ``mps`` does not)."""
    partial = x.sum(-1) if x.dim() else x
    return partial.sum(dtype=torch.float32 if x.device.type == "mps" else torch.float64)


def is_finite(x: Tensor) -> bool:
    """Whether no element is NaN or infinite, without a copy of the tensor."""
    return not x.numel() or all(bool(end.isfinite()) for end in torch.aminmax(x.detach()))


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The type relevance is computed in: float32 for half precision, else the values' own."""
    return torch.promote_types(dtype, torch.float32)
