"""Fourier transforms are linear maps: products of real and imaginary parts with cosines and sines.

Along an axis of length n, with s = −1 forward and s = 1 backward,
y_j = Σ_k x_k (cos θ_jk + i s sin θ_jk), θ_jk = 2π jk / n."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx
from torch.fx.node import Argument

from relprop.operations import Operator, operand
from relprop.tracer.editing import arguments, aten, emit, permuted, rank, reshaped, shape_of, val


def between_complex(node: fx.Node, device: torch.device) -> fx.Node:
    """``_fft_c2c``: along one axis after the other."""
    x, (dims, how, forward) = operand(node), arguments(node)[1:]
    transform = _Transform(node, device, how, -1 if forward else 1)
    for dim in dims:
        x = transform.along(x, dim, shape_of(x)[dim])
    return x


def of_real(node: fx.Node, device: torch.device) -> fx.Node:
    """``_fft_r2c``: forward, the last axis first, of which the first half alone may be made."""
    x, (dims, how) = operand(node), arguments(node)[1:3]
    transform = _Transform(node, device, how, -1)
    for dim in reversed(dims):
        x = transform.along(x, dim, shape_of(x)[dim], shape_of(node)[dim])
    return x


def to_real(node: fx.Node, device: torch.device) -> fx.Node:
    """``_fft_c2r``: backward, the last axis last, of which the first half alone is given."""
    x, (*others, last), how, count = arguments(node)
    transform = _Transform(node, device, how, 1)
    for dim in others:
        x = transform.along(x, dim, shape_of(x)[dim])
    return transform.along(x, last, count, to_real=True)


@dataclass(frozen=True)
class _Transform:
    """What is written just before ``at``. ``how``: by what sums of n are divided, 1, √n or n."""

    at: fx.Node
    device: torch.device
    how: int
    sign: int

    def along(
        self, x: fx.Node, dim: int, count: int, made: int | None = None, to_real: bool = False
    ) -> fx.Node:
        """The transform of a signal of length ``count`` along one axis, or its first ``made``
        numbers. ``to_real``: ``x`` is the first half of what has a real transform."""
        parts, dims, rows = [x], list(range(rank(x))), shape_of(x)[dim]
        order = [d for d in dims if d != dim % len(dims)] + [dim % len(dims)]
        if val(x).is_complex():
            parts = [self._emit(op, x) for op in (aten.real.default, aten.imag.default)]
        cosines, sines = self._waves(val(parts[0]).dtype, rows, made or count, count)
        if to_real:
            twice = self._twice(val(parts[0]).dtype, rows, count)
            cosines, sines = (self._emit(aten.mul.Tensor, w, twice) for w in (cosines, sines))
        ahead, back = (sines, self._emit(aten.neg.default, sines))[:: self.sign]
        flat = self._joined([permuted(self.at, part, order) for part in parts], len(dims) - 1)
        results = []
        for of_real, of_imaginary in ((cosines, back), (ahead, cosines))[: 1 if to_real else 2]:
            weights = self._joined([of_real, of_imaginary][: len(parts)], 0)
            total = self._emit(aten.matmul.default, flat, weights)
            results.append(permuted(self.at, total, [order.index(d) for d in dims]))
        return results[0] if to_real else self._emit(aten.complex.default, *results)

    def _waves(
        self, dtype: torch.dtype, rows: int, columns: int, count: int
    ) -> tuple[fx.Node, fx.Node]:
        """The cosines and sines of θ, (rows, columns), over what sums are divided by. Of those
        that are not 0 the smallest is sin(π / 2n) > 1/n: what is less is rounding, which no rule
        may share out."""
        options: dict[str, Argument] = {"dtype": torch.long, "device": self.device}
        k, j = (self._emit(aten.arange.default, n, **options) for n in (rows, columns))
        turns = self._emit(aten.mul.Tensor, reshaped(self.at, k, [rows, 1]), j)
        turns = self._emit(aten.remainder.Scalar, turns, count)
        angles = self._emit(aten.to.dtype, turns, dtype)
        angles = self._emit(aten.mul.Tensor, angles, 2 * math.pi / count)
        share = float((1, math.sqrt(count), count)[self.how])
        waves = (self._emit(op, angles) for op in (aten.cos.default, aten.sin.default))
        clean = (self._emit(aten.hardshrink.default, w, 1 / count) for w in waves)
        cosines, sines = (self._emit(aten.div.Tensor, w, share) for w in clean)
        return cosines, sines

    def _twice(self, dtype: torch.dtype, rows: int, count: int) -> fx.Node:
        """2 for every row that stands for its mirror image, too; 1 for the others."""
        last = 0 if count % 2 else 1
        runs = ((1, 1.0), (rows - 1 - last, 2.0), (last, 1.0))
        options: dict[str, Argument] = {"dtype": dtype, "device": self.device}
        return self._joined(
            [self._emit(aten.full.default, [n, 1], by, **options) for n, by in runs if n > 0], 0
        )

    def _joined(self, parts: list[fx.Node], dim: int) -> fx.Node:
        return parts[0] if len(parts) == 1 else self._emit(aten.cat.default, parts, dim)

    def _emit(self, op: Operator, *args: Argument, **kwargs: Argument) -> fx.Node:
        return emit(self.at, op, *args, **kwargs)


TRANSFORMS: dict[Operator, Callable[[fx.Node, torch.device], fx.Node]] = {
    aten._fft_c2c: between_complex,
    aten._fft_r2c: of_real,
    aten._fft_c2r: to_real,
}
