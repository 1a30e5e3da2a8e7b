"""``rounding_stability``: how much of a map is rounding. The skip-add rule divides by sums near
zero, so float32 can decide what one sees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relprop.api.explain import explain
from relprop.error_boundary import guarded
from relprop.errors import OptionError
from relprop.explanation import Explanation


@guarded
def rounding_stability(model: nn.Module, inputs: Any, target: Any = None, **options: Any) -> Tensor:
    """Spearman's rank correlation of the content tokens' scores, of all explained inputs, with the
    same run in float64, per sample, (batch,).

    1 means that rounding changes no rank; ``rules="stable"`` is nearer to 1 than ``rules="paper"``
    on most models, not on all (docs/measurements.md). ``options`` are those of ``explain`` except
    ``precision``. With ``target=None`` the class predicted in the model's own precision is
    explained in both. A sample with fewer than two distinct scores has no ranks: NaN.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> x = torch.rand(1, 1, 32, 32)
    >>> bool(relprop.rounding_stability(digit_scene_model(), x, rules="stable") > 0.99)
    True
    """
    if "precision" in options:
        fact = "rounding_stability compares the model's own precision with float64"
        raise OptionError(f"{fact}: leave precision= out")
    single = explain(model, inputs, target, **options)
    if target is None and all(isinstance(one, int) for one in single.target):
        target = list(single.target)
    double = explain(model, inputs, target, precision="float64", **options)
    pairs = [[content_scores(e, i) for e in (single, double)] for i in range(len(single))]
    return torch.stack([rank_correlation(one, other) for one, other in pairs])


def content_scores(explanation: Explanation, sample: int) -> Tensor:
    """The content tokens' scores of one sample, of all inputs one after another."""
    streams = explanation.streams.values()
    return torch.cat([s.scores[sample][s.content[sample].to(s.scores.device)] for s in streams])


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
