"""Means of what a mask leaves, recognised by their numbers alone."""

from __future__ import annotations

import torch
from torch import fx

from relprop.tracer.editing import aten, emit, is_float, reshaped, shape_of, val
from relprop.tracer.passes.trials.comparison import same
from relprop.tracer.passes.trials.parts import Piece, in_double


def masked_mean(part: Piece) -> fx.Node | None:
    """Σ x·m / Σ m over the tokens, m one of 0 and 1."""
    at = part.output
    for one in (0, 1):
        x, mask = part.sources[one], part.sources[1 - one]
        if not is_float(x) or val(x).dim() != 3 or shape_of(x)[1] < 2:
            continue
        b, n, width = shape_of(x)
        if val(mask).numel() != b * n or shape_of(at) not in ([b, width], [b, 1, width]):
            continue
        for hides in (False, True):
            if all(_is_mean_of(part, one, hides, seed) for seed in range(3)):
                kept = reshaped(at, mask, [b, n, 1])
                if hides:
                    kept = emit(at, aten.logical_not.default, kept)
                kept = emit(at, aten._to_copy.default, kept, dtype=val(x).dtype)
                total = emit(at, aten.sum.dim_IntList, emit(at, aten.mul.Tensor, x, kept), [1])
                count = emit(at, aten.sum.dim_IntList, kept, [1])
                return reshaped(at, emit(at, aten.div.Tensor, total, count), shape_of(at))
    return None


def _is_mean_of(part: Piece, one: int, hides: bool, seed: int) -> bool:
    x = part.draw(seed, 100.0**seed)[one]
    kept = torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(seed)) < 0.6
    kept[:, seed % x.shape[1]] = True
    mask = part.sources[1 - one]
    given = (kept ^ hides).reshape(shape_of(mask)).to(in_double(val(mask).dtype))
    y = part(*((x, given) if one == 0 else (given, x)))
    means = (x * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)
    return same(y, means.reshape(shape_of(part.output)))
