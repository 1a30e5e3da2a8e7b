"""The rows that every study has, and what all of them do with a map."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

BALANCED: Mapping[str, Any] = {"gradient": "balanced"}
#: Methods over attention, then those at the input: the name in the tables, and what
#: ``relprop.explain`` is given.
METHODS: dict[str, Mapping[str, Any]] = {
    name: {"method": name}
    for name in (
        *("transformer_attribution", "rollout", "raw_attention", "gradcam", "partial_lrp"),
        *("attention_grad", "attention_times_grad", "gae", "cat", "attcat"),
        *("lrp", "attnlrp", "cp_lrp", "epsilon_lrp", "lrp_gamma"),
        *("input_gradient", "gradient_x_input"),
    )
} | {
    f"{name}, balanced": {"method": name, **BALANCED}
    for name in ("transformer_attribution", "gae", "cat", "attcat", "gradient_x_input")
}
INTEGRATED: Mapping[str, Any] = {"method": "integrated_gradients", "n_steps": 20}
#: Rows that know nothing of the model.
FLOORS = ("uniform", "random")


def share(scores: Tensor, truth: Tensor) -> float:
    """The share of a map's positive part on the truth, 0 where nothing is positive. Both of one
    shape; ``truth`` bool."""
    positive = scores.double().clamp(min=0)
    whole = float(positive.sum())
    return float(positive[truth].sum()) / whole if whole > 0 else 0.0


def steadiness(one: Tensor, drawn: Tensor, exact: Tensor) -> Iterator[tuple[str, float]]:
    """ "random weights": how like a map is to that of a model whose weights are drawn anew (rank
    correlation; not said where one is constant). "stability": how unlike to that in float64
    (largest difference ÷ largest score; 0 where all are 0)."""
    if one.unique().numel() > 1 and drawn.unique().numel() > 1:
        yield "random weights", float(spearmanr(one.flatten(), drawn.flatten()).statistic)
    largest = float(exact.abs().max())
    yield "stability", float((one - exact).abs().max()) / largest if largest else 0.0


def noise(seed: int, *shape: int) -> Tensor:
    """U(0, 1), the same for a seed."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def block(make: Callable[[int], list[Any]], size: int) -> Callable[[int], Any]:
    """Units that are worked out ``size`` at a time: ``make(first)`` gives those from ``first``
    on; the last ones made are kept."""
    kept: dict[int, list[Any]] = {}

    def unit(index: int) -> Any:
        first = index - index % size
        if first not in kept:
            kept.clear()
            kept[first] = make(first)
        return kept[first][index - first]

    return unit
