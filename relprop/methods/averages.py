"""Where a method is asked, too: around the input (``noise``), and on the way to it (``path``). The
mean of its scores is what ``average=`` gives.

Every number is drawn from a generator of its own, by ``seed``, in the shape of one sample: each
sample of a batch meets the same noise, so that its scores do not depend on what else is explained
with it, and the process's random state is not touched. Captum's ``NoiseTunnel`` draws for the whole
batch from the process's state; with the same noise the numbers are equal (tests).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import OptionError
from relprop.methods.inputs import Baseline, baselines, by_input, positive_integer
from relprop.runner.input_study import InputStudy
from relprop.runner.question import Point


@dataclass(frozen=True)
class Noise:
    """``count`` draws of x + ε, ε ~ N(0, σ²)."""

    count: int
    sigma: float | Mapping[str, float]
    seed: int

    def points(self, at: InputStudy) -> Iterator[Point]:
        """The draws, each with the same weight."""
        relative, source = per_input(at, "sigma", self.sigma), generator(self.seed)
        spread = {name: relative[name] * span(value) for name, value in at.values.items()}
        for _ in range(self.count):
            moved = {n: value + spread[n] * normal(value, source) for n, value in at.values.items()}
            yield Point(moved, 1 / self.count)


@dataclass(frozen=True)
class Path:
    """x′ + α(x − x′) at the ``count`` points of Gauss–Legendre quadrature in α."""

    count: int
    baseline: Baseline

    def points(self, at: InputStudy) -> Iterator[Point]:
        """The points, with their weights; the step is x − x′."""
        begin = dict(
            zip(at.values, baselines(at, at.run.part.samples_of(self.baseline)), strict=True)
        )
        steps = {name: value - begin[name] for name, value in at.values.items()}
        for place, weight in zip(*np.polynomial.legendre.leggauss(self.count), strict=True):
            alpha = (1 + float(place)) / 2
            yield Point({n: begin[n] + alpha * s for n, s in steps.items()}, weight / 2, steps)


@guarded
def noise(n: int = 10, sigma: float | Mapping[str, float] = 0.15, seed: int = 0) -> Noise:
    """Around the input, for any method's ``average=``: the mean of the scores of ``n`` draws of
    x + ε (Smilkov et al. 2017).

    ``sigma`` is relative to the range of each sample's values, σ/(max x − min x), or a dict of
    these by input name. For ids the noise is added to their embeddings. ``n`` passes more.

    >>> import relprop, torch
    >>> from relprop.demo.model import digit_scene_model
    >>> few = relprop.methods.noise(n=3, sigma=0.1)
    >>> e = relprop.explain(digit_scene_model(), torch.rand(2, 1, 32, 32), 3, average=few)
    """
    generator(seed)
    return Noise(positive_integer("n", n), sigma, seed)


@guarded
def path(n: int = 20, baseline: Baseline = None) -> Path:
    """On the way from ``baseline`` to the input, for any method's ``average=``: the mean of the
    scores at ``n`` points (Sundararajan et al. 2017, by Gauss–Legendre quadrature).

    A method that multiplies with the input takes the step x − x′ in its place, so that gradient ×
    input becomes integrated gradients; all others are asked as they are. ``baseline`` is x′, as
    ``integrated_gradients`` takes it: ``None`` (zeros), a number, a tensor, ids, or a dict of these
    by input name. ``n`` passes more.
    """
    return Path(positive_integer("n", n), baseline)


def generator(seed: object) -> torch.Generator:
    """A source of numbers. Raises ``OptionError`` for a seed that is no integer."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not -(2**63) <= seed < 2**63:
        raise OptionError(f"seed={seed!r}: an integer")
    return torch.Generator().manual_seed(seed)


def normal(value: Tensor, source: torch.Generator) -> Tensor:
    """Standard normal numbers for one sample, drawn on the CPU in double, so that neither device
    nor precision changes them."""
    drawn = torch.randn(value.shape[1:], generator=source, dtype=torch.float64)
    return drawn.to(value.device, value.dtype)


def span(value: Tensor) -> Tensor:
    """Each sample's largest value less its smallest, as wide as the value."""
    low, high = value.flatten(1).aminmax(dim=1)
    return (high - low).reshape(-1, *[1] * (value.dim() - 1))


def per_input(at: InputStudy, option: str, given: object) -> dict[str, float]:
    """A number ≥ 0 for every input; one that a dict does not name has 0."""
    named = by_input(at, option, given)
    for value in named.values():
        real = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not real or not 0 <= float(value) < math.inf:
            raise OptionError(
                f"{option}={given!r}: a number that is not negative, or a dict of these "
                "by input name"
            )
    return {name: float(named.get(name, 0.0)) for name in at.values}
