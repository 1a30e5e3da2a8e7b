"""Fourier transforms are linear maps: products of real and imaginary parts with cosines and sines.

Along an axis of length n, with s = −1 forward and s = 1 backward,
y_j = Σ_k x_k (cos θ_jk + i s sin θ_jk), θ_jk = 2π jk / n."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch._subclasses.complex_tensor import ComplexTensor


def between_complex(z: ComplexTensor, dims: list[int], how: int, forward: bool) -> ComplexTensor:
    """``_fft_c2c``: along one axis after the other. ``how``: by what sums of n are divided, 1, √n
    or n."""
    for dim in dims:
        z = _along(z, dim, z.shape[dim], how, -1 if forward else 1)
    return z


def of_real(x: Tensor, dims: list[int], how: int, half: bool) -> ComplexTensor:
    """``_fft_r2c``: forward, the last axis first, of which the first half alone may be made."""
    *others, last = dims
    z = _along(x, last, x.shape[last], how, -1)
    if half:
        kept = x.shape[last] // 2 + 1
        z = ComplexTensor(z.re.narrow(last, 0, kept), z.im.narrow(last, 0, kept))
    return between_complex(z, others[::-1], how, forward=True)


def to_real(z: ComplexTensor, dims: list[int], how: int, count: int) -> Tensor:
    """``_fft_c2r``: backward, the last axis last, of which the first half alone is given: most of
    it stands for its mirror image, too."""
    *others, last = dims
    z = _along(between_complex(z, others, how, forward=False), last, count, how, 1, mirrored=True)
    return z.re


def _along(
    x: Tensor | ComplexTensor, dim: int, count: int, how: int, sign: int, mirrored: bool = False
) -> ComplexTensor:
    """The transform of a signal of length ``count`` along one axis, of which all or the first half
    is given."""
    parts = [x.re, x.im] if isinstance(x, ComplexTensor) else [x]
    cosines, sines = _waves(parts[0], dim, count, how)
    if mirrored:
        ends = torch.arange(len(cosines), device=cosines.device) * 2 % count == 0
        twice = 2.0 - ends.to(cosines.dtype)
        cosines, sines = cosines * twice[:, None], sines * twice[:, None]
    flat = torch.cat([part.movedim(dim, -1) for part in parts], -1)
    ahead, back = (sines, -sines)[::sign]
    of_parts = ([cosines, back], [ahead, cosines])
    weights = (torch.cat(both[: len(parts)]) for both in of_parts)
    return ComplexTensor(*((flat @ weight).movedim(-1, dim) for weight in weights))


def _waves(x: Tensor, dim: int, count: int, how: int) -> tuple[Tensor, Tensor]:
    """The cosines and sines of θ, (rows, columns), over what sums are divided by. Of those that
    are not 0 the smallest is sin(π / 2n) > 1/n: what is less is rounding, which no rule may share
    out."""
    k, j = (torch.arange(n, device=x.device) for n in (x.shape[dim], count))
    angles = (k[:, None] * j % count).to(x.dtype) * (2 * math.pi / count)
    share = float((1, math.sqrt(count), count)[how])
    cosines, sines = (
        torch.nn.functional.hardshrink(wave, 1 / count) / share
        for wave in (angles.cos(), angles.sin())
    )
    return cosines, sines
