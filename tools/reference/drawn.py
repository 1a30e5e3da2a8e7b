"""Weights and inputs that are the same numbers on every processor.

PyTorch's own random numbers differ in the last place with the instruction set. What a library drew
or worked out is looked at coarsely, for its kind and its size, and drawn anew by numpy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map_only

#: By how much a weight is changed where rounding is tried: one unit in the last place of float64,
#: or of float32 where a model calculates some of its numbers in that.
ULP, SINGLE = 2.0**-52, 2.0**-23


def draw(model: nn.Module, seed: int) -> None:
    """Give every floating parameter and statistic of ``model``, in float64, new numbers about as
    large as its own; tables that the model worked out itself are rounded."""
    source = np.random.default_rng(seed)
    with torch.no_grad():
        for p in model.parameters():
            if (p.is_floating_point() or p.is_complex()) and p.numel():
                real = torch.view_as_real(p) if p.is_complex() else p
                real.copy_(_like(real, source))
        for module in model.modules():
            for name, b in module.named_buffers(recurse=False):
                if b.is_floating_point() and b.numel():
                    b.copy_(_statistic(b, name, source) if _counts(module) else _coarse(b))


def _counts(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) or "BatchNorm" in type(module).__name__


def _like(given: Tensor, source: np.random.Generator) -> Tensor:
    """Normal numbers about the mean of ``given``, to one digit, as wide as its spread to half an
    octave."""
    mean, spread = float(given.mean()), float(given.std()) if given.numel() > 1 else 0.1
    wide = 2 ** (round(2 * math.log2(spread)) / 2) if spread > 1e-6 else 0.1
    return round(mean, 1) + wide * _normal(given, source)


def _statistic(given: Tensor, name: str, source: np.random.Generator) -> Tensor:
    drawn = _normal(given, source)
    return 0.1 * drawn if "mean" in name or "bias" in name else 1 + 0.2 * drawn.abs()


def _normal(given: Tensor, source: np.random.Generator) -> Tensor:
    return torch.from_numpy(source.standard_normal(tuple(given.shape))).to(given)


def _coarse(given: Tensor) -> Tensor:
    """Each number as bfloat16 has it, since powers, sines and logarithms differ in the last place
    of float32; whole numbers and their binary fractions stay."""
    exact = bool((given * 2**10 == (given * 2**10).round()).all())
    return given if exact else given.to(torch.bfloat16).to(given.dtype)


def draw_inputs(inputs: Any, seed: int) -> Any:
    """The floating tensors of a call drawn anew, in float64: normal, or even between 0 and 1 where
    they lie there; what is exactly 0 or 1 throughout (masks), and padding, stays."""
    source = np.random.default_rng(seed)
    return tree_map_only(Tensor, lambda t: _input(t, source), inputs)


def _input(given: Tensor, source: np.random.Generator) -> Tensor:
    if not given.is_floating_point() or bool(((given == 0) | (given == 1)).all()):
        return given.double() if given.is_floating_point() else given
    between = float(given.min()) >= 0 and float(given.max()) <= 1
    shape = tuple(given.shape)
    drawn = source.random(shape) if between else source.standard_normal(shape)
    return torch.from_numpy(drawn) * (given != 0)


def numbers(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the floating parameters and buffers of ``model``, by name."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    return {n: t.detach().clone() for n, t in own.items() if t.is_floating_point()}


def restore(model: nn.Module, before: dict[str, Tensor]) -> None:
    """The numbers as they were."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for name, value in before.items():
            own[name].copy_(value)


def round_otherwise(model: nn.Module, ulp: float = ULP) -> None:
    """Move every weight by up to two units in its last place."""
    source = np.random.default_rng(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point():
                p.mul_(1 + ulp * torch.from_numpy(source.integers(-2, 3, tuple(p.shape))).to(p))


def enlarge(model: nn.Module, y: Tensor, factor: float) -> None:
    """Multiply the weights of the last layer below ``y``: those that its gradient meets first. A
    score that a gradient is a factor of grows with them."""
    own = {id(p) for p in model.parameters()}
    level: list[Any] = [y.grad_fn] if y.grad_fn is not None else []
    seen: set[Any] = set()
    while level:
        below = [f for node in level for f, _ in node.next_functions if f is not None]
        leaves = [p for f in below if id(p := _leaf(f)) in own]
        if leaves:
            with torch.no_grad():
                for p in leaves:
                    p.mul_(factor)
            return
        level = [f for f in dict.fromkeys(below) if f not in seen]
        seen.update(level)


def _leaf(node: Any) -> Any:
    """The parameter that a step of the gradient ends in, transposed or seen otherwise."""
    while len(node.next_functions) == 1 and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    return getattr(node, "variable", None)
