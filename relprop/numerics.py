"""Safe division, stabilisers, positive and negative parts, and sums that accumulate in double.

A denominator smaller than ``smallest(dtype)`` (the smallest normal number divided by the rounding
unit: 1e-31 in float32, 1e-292 in float64) counts as zero: its reciprocal times any ordinary value
would overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

Divide = Callable[[Tensor, Tensor], Tensor]


def smallest(dtype: torch.dtype) -> float:
    """Denominators below this magnitude count as zero."""
    info = torch.finfo(dtype)
    return info.tiny / info.eps


@cache
def just_below(value: float, dtype: torch.dtype) -> float:
    """The largest number of a floating type that is less than ``value``, a normal number."""
    mantissa, exponent = math.frexp(value)
    step: float = torch.finfo(dtype).eps * 2.0 ** (exponent - 1)
    return value - (step / 2 if mantissa == 0.5 else step)


def safe_divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b counts as zero; never infinite or NaN for ordinary a.

    There it divides by infinity: comparing and choosing takes PyTorch several times as long.
    """
    magnitude = torch.threshold(b.abs(), just_below(smallest(b.dtype), b.dtype), math.inf)
    return a / magnitude.copysign(b)


def per_count(a: Tensor, count: Tensor) -> Tensor:
    """a / count, and 0 where the count is 0; counts are not negative."""
    return a / torch.threshold(count, 0.0, math.inf)


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
    one = torch.ones((), dtype=x.dtype, device=x.device)
    return one.copysign(x + 0.0)  # of -0.0, too, it is +1


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
    return partial.sum(dtype=_double(x))


def totals(x: Tensor) -> Tensor:
    """The ``total`` of each of the tensors that lie along the first axis."""
    partial = x.sum(-1) if x.dim() > 1 else x
    return partial.reshape(len(x), -1).sum(1, dtype=_double(x))


def _double(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64


def is_finite(x: Tensor) -> bool:
    """Whether no element is NaN or infinite, without a copy of the tensor."""
    return not x.numel() or all(bool(end.isfinite()) for end in torch.aminmax(x.detach()))


def is_below_infinity(x: Tensor) -> bool:
    """Whether no element is NaN or ∞, without a copy of the tensor."""
    return not x.numel() or bool(x.detach().amax() < math.inf)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The type relevance is computed in: float32 for half precision, else the values' own."""
    return torch.promote_types(dtype, torch.float32)
