"""Methods at the input that draw random numbers: gradients averaged over noise, and noise alone.
Draws are as ``relprop.methods.averages`` makes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from relprop.errors import OptionError
from relprop.methods.averages import Noise, generator, normal, per_input
from relprop.methods.inputs import Baseline, gradient_taken, positive_integer
from relprop.methods.inputs import baselines as references
from relprop.numerics import at_least_float32
from relprop.progress import with_progress
from relprop.runner.input_study import InputStudy


def smoothgrad(
    at: InputStudy, *, n_samples: int = 50, stdev: float | Mapping[str, float] = 0.15, seed: int = 0
) -> Mapping[str, Tensor]:
    """|1/n Σ_k ∂y_t/∂x at x + ε_k|, ε_k ~ N(0, σ²) (Smilkov et al. 2017, Eq. 2; its magnitude is
    what they show). Never negative.

    ``n_samples`` is n; ``stdev`` is σ relative to the range of the values, σ/(max x − min x) over
    each sample of each input, or a dict of these by input name. At ``stdev=0`` it is
    ``input_gradient``. ``n_samples`` forward and backward passes per target.
    """
    positive_integer("n_samples", n_samples)
    per_input(at, "stdev", stdev)
    around = Noise(n_samples, stdev, seed)
    total = _zeros(at)
    for point in with_progress(around.points(at), "sample", n_samples):
        found = gradients(at, list(point.values.values()))
        for name, gradient in zip(total, found, strict=True):
            total[name] += gradient * point.weight
    return {name: t.abs() for name, t in total.items()}


def gradient_shap(
    at: InputStudy,
    *,
    baselines: Baseline | Sequence[Baseline] = None,
    n_samples: int = 50,
    stdevs: float | Mapping[str, float] = 0.0,
    seed: int = 0,
) -> Mapping[str, Tensor]:
    """1/n Σ_k (x_k − b_k) ⊙ ∂y_t/∂x at b_k + α_k(x_k − b_k), with α_k ~ U(0, 1) and x_k = x + N(0,
    σ²) (Lundberg & Lee 2017; Captum's ``GradientShap``).

    b_k is drawn from ``baselines``: ``None`` (zeros), a number, a tensor whose first axis counts
    the baselines (not the samples), integer ids for an input of ids, a list of baselines as
    ``integrated_gradients`` takes them (first axis 1), or a dict by input name of what has the same
    count for each. ``stdevs`` is σ, in the input's own units, or a dict by input name. In
    expectation it sums to y_t(x) − E y_t(b). ``n_samples`` forward and backward passes. Signed.
    """
    positive_integer("n_samples", n_samples)
    choice, spread = _distribution(at, baselines), per_input(at, "stdevs", stdevs)
    source = generator(seed)
    total = _zeros(at)
    for _ in with_progress(range(n_samples), "sample", n_samples):
        start = choice[int(torch.randint(len(choice), (), generator=source))]
        alpha = float(torch.rand((), generator=source, dtype=torch.float64))
        ends = [value + spread[name] * normal(value, source) for name, value in at.values.items()]
        found = gradients(at, [b + alpha * (x - b) for x, b in zip(ends, start, strict=True)])
        for name, x, b, gradient in zip(total, ends, start, found, strict=True):
            total[name] += (x - b) * gradient / n_samples
    return total


def random(at: InputStudy, *, seed: int = 0) -> Mapping[str, Tensor]:
    """A number from U(0, 1) per position, whatever the model, the target and the values: the floor
    of every table. The same for each sample."""
    source, found = generator(seed), {}
    for name, value in at.values.items():
        kept = [n if i in at.positions[name] else 1 for i, n in enumerate(value.shape)][1:]
        features = math.prod(value.shape[1:]) // math.prod(kept)
        drawn = torch.rand(kept, generator=source, dtype=torch.float64)
        each = (drawn / features).to(value.device, at_least_float32(value.dtype))
        found[name] = each.expand(value.shape).clone()  # a position's score is the sum over them
    return found


def gradients(at: InputStudy, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """∂y_t/∂x of every sample at other values of the inputs."""
    points = tuple(
        t.to(value.dtype).detach().requires_grad_()
        for t, value in zip(tensors, at.values.values(), strict=True)
    )
    with gradient_taken("near the input"), torch.enable_grad():
        return torch.autograd.grad(at.forward(*points).sum(), points)


def _zeros(at: InputStudy) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(value, dtype=at_least_float32(value.dtype))
        for name, value in at.values.items()
    }


def _distribution(at: InputStudy, given: object) -> list[tuple[Tensor, ...]]:
    """The baselines to draw from, each a tensor per input."""
    if isinstance(given, Mapping):
        counts = {len(v) for v in given.values() if isinstance(v, (list, tuple))}
        if len(counts) > 1:
            raise OptionError(
                f"baselines has {', '.join(map(str, sorted(counts)))} entries for the "
                "inputs: each draw takes one of every input, so the counts agree"
            )
        count = counts.pop() if counts else 1
        entries: list[object] = [
            {name: v[k] if isinstance(v, (list, tuple)) else v for name, v in given.items()}
            for k in range(count)
        ]
    else:
        entries = list(given) if isinstance(given, (list, tuple)) else [given]
    if not entries:
        raise OptionError("baselines is empty: give at least one")
    return [references(at, entry) for entry in entries]
