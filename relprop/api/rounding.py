"""``rounding_stability``: how much of a map is rounding. The skip-add rule divides by sums near
zero, so float32 can decide what one sees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relprop.api.explain import explain
from relprop.door import guarded
from relprop.errors import OptionError


@guarded
def rounding_stability(model: nn.Module, inputs: Any, target: Any = None, **options: Any) -> Tensor:
    """Spearman's rank correlation of the content tokens' scores with the same run in float64, per
    sample, (batch,).

    1 means that rounding changes no rank; ``rules="stable"`` is nearer to 1 than ``rules="paper"``
    on most models, not on all (docs/measurements.md). ``options`` are those of ``explain`` except
    ``precision``. With ``target=None`` the class predicted in the model's own precision is
    explained in both. A sample with fewer than two distinct scores has no ranks: NaN.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> bool(relprop.rounding_stability(digit_scene_model(), torch.rand(1, 1, 32, 32), rules="stable") > 0.99)
    True
    """  # noqa: E501
    if "precision" in options:
        fact = "rounding_stability compares the model's own precision with float64"
        raise OptionError(f"{fact}: leave precision= out")
    single = explain(model, inputs, target, **options)
    same = list(single.target) if target is None else target
    double = explain(model, inputs, same, precision="float64", **options)
    return torch.stack(
        [
            rank_correlation(a[content].double(), b[content].double())
            for a, b, content in zip(
                single.scores, double.scores, single.content.to(single.scores.device), strict=True
            )
        ]
    )


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's ρ of two vectors, ties at their mean rank; NaN where either is constant."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    return (x * y).sum() / (x.norm() * y.norm())


def _ranks(values: Tensor) -> Tensor:
    """Mean ranks, from 0."""
    _, inverse, counts = values.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    return (ends - (counts.double() + 1) / 2)[inverse]
