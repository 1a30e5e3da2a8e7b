"""Numbers by sample as text, and how far some are from others."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: More numbers of a sample than this are kept as sums with random signs.
WHOLE, SUMS = 300, 8


def kept(numbers: Tensor) -> dict[str, Any]:
    """Scores, or other numbers by sample, as text: all, or sums of what is too long."""
    if by_sample(numbers).shape[1] > WHOLE:
        return summed(numbers)
    return {"shape": list(numbers.shape), "numbers": _written(by_sample(numbers))}


def summed(numbers: Tensor) -> dict[str, Any]:
    """Sums of a sample's numbers over its largest with fixed random signs: any that changes shows
    in most of them."""
    flat = by_sample(numbers)
    largest = flat.abs().amax(1, keepdim=True).clamp(min=1e-20)
    signs = np.random.default_rng(flat.shape[1]).choice([-1.0, 1.0], (SUMS, flat.shape[1]))
    sums = (flat / largest) @ torch.from_numpy(signs).T
    return {"shape": list(numbers.shape), "sums": _written(sums), "largest": _written(largest)}


def _written(numbers: Tensor) -> str:
    array = np.ascontiguousarray(numbers.numpy(), dtype="<f8")
    return base64.b64encode(array.tobytes()).decode()


def read(text: str) -> Tensor:
    """The numbers that ``kept`` and ``summed`` wrote."""
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype="<f8").copy())


def by_sample(numbers: Tensor) -> Tensor:
    """A row for each sample; a vector or one number is one row."""
    wide = numbers.double().reshape(len(numbers) if numbers.dim() > 1 else 1, -1)
    return wide if wide.numel() else torch.zeros(1, 1, dtype=torch.float64)


def gap(now: Tensor, then: Tensor) -> float:
    """The largest difference, as a part of the sample's largest number."""
    if now.shape != then.shape:
        return float("inf")
    mine, old = by_sample(now), by_sample(then)
    alike = (mine == old) | (mine.isnan() & old.isnan())
    far = torch.where(alike, 0.0, (mine - old).abs()).nan_to_num(float("inf"))
    largest = old.abs().nan_to_num(0.0, 0.0).amax(1).clamp(min=1e-20)
    return float((far.amax(1) / largest).max())
