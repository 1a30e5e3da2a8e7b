"""Whether two functions are the same: at numbers of our own, in values and in derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relprop.tracer.editing import val
from relprop.tracer.passes.trials.subgraphs import Subgraph

Function = Callable[..., Tensor]
Pull = Callable[[Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Trial:
    """One set of numbers to try a subgraph with."""

    x: Tensor
    parameters: tuple[Tensor, ...]


def trials(subgraph: Subgraph) -> list[Trial]:
    """Ordinary, tiny and large numbers of both signs, seeded."""
    generator = torch.Generator().manual_seed(0)

    def draw(shape: list[int]) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    found = []
    for scale, shift in ((1.0, 0.3), (1e-3, 0.0), (30.0, -5.0)):
        x = scale * draw(subgraph.probe_shape()) + shift * scale
        drawn = (draw(s) + 0.1 for s in subgraph.parameter_shapes())
        masks = (val(p).dtype == torch.bool for p in subgraph.parameters)
        given = tuple(t > 0 if m else t for t, m in zip(drawn, masks, strict=True))
        found.append(Trial(x, given))
    return found


def same(a: object, b: object, tolerance: float = 1e-11) -> bool:
    """Whether two results agree, relative to the largest."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape:
        return False
    if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
        return False
    gap = torch.where(a == b, 0.0, a - b).nan_to_num(0.0).abs().max().item() if a.numel() else 0.0
    finite = torch.where(b.isfinite(), b, 0.0).abs().max().item() if b.numel() else 0.0
    return gap <= tolerance * finite if math.isfinite(gap) else False


def equal_functions(
    one: Function,
    other: Function,
    given: Sequence[Tensor | tuple[Tensor, ...]],
    tolerance: float = 1e-11,
) -> bool:
    """Whether two functions have the same values, and the same derivatives, at some tensors (a
    tuple: at several arguments)."""
    for x in given:
        at = x if isinstance(x, tuple) else (x,)
        try:
            (a, pull_a), (b, pull_b) = (_slopes(function, at) for function in (one, other))
        except (RuntimeError, TypeError, ValueError, IndexError):
            return False
        if not same(a, b, tolerance):
            return False
        weights = torch.linspace(0.5, 1.5, a.numel(), dtype=a.dtype).reshape(a.shape)
        pairs = zip(pull_a(weights), pull_b(weights), strict=True)
        if not all(same(s, t, 1e-8) for s, t in pairs):
            return False
    return True


def _slopes(function: Function, at: tuple[Tensor, ...]) -> tuple[Tensor, Pull]:
    """The value of a function, and what takes weights of it back to the function's arguments."""
    found: tuple[Tensor, Pull] = torch.func.vjp(function, *at)  # type: ignore[assignment]
    return found
