"""Infidelity and max-sensitivity (Yeh et al. 2019), as Captum computes them, of maps of
floating-point inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import OptionError
from relprop.evaluation.base import finite, labels_for, logits_of, place_of
from relprop.evaluation.positions import check_floating, map_of
from relprop.explanation import Explanation


@dataclass(frozen=True)
class _Perturbed:
    """What both share: how often, how far, and with which random numbers the inputs are
    perturbed."""

    samples: int = 10
    radius: float = 0.02
    seed: int = 0

    higher_is_better: ClassVar[bool] = False
    protocol: ClassVar[str] = "paper"

    def __post_init__(self) -> None:
        if self.samples < 1 or not self.radius > 0:
            given = f"samples={self.samples}, radius={self.radius}"
            raise OptionError(f"{given}: at least 1, and more than 0")

    def _noise(self, draw: Callable[..., Tensor], rows: Tensor, scale: float = 1.0) -> Tensor:
        """Noise for rows in which each sample stands ``samples`` times, one after the other: the
        same draws for every sample, so that none depends on its batch."""
        generator, shape = torch.Generator().manual_seed(self.seed), (self.samples, *rows.shape[1:])
        drawn = scale * draw(shape, generator=generator, dtype=torch.float64)
        return drawn.to(rows).repeat(len(rows) // self.samples, *(1 for _ in rows.shape[1:]))


@guarded
@dataclass(frozen=True)
class Infidelity(_Perturbed):
    """E_I (Iᵀ φ − (f(x) − f(x − I)))²: how badly the map φ predicts what noise I does to the output
    (Yeh et al. 2019, Def. 2.1). Lower is better.

    I is normal noise of standard deviation ``radius``. With ``normalize`` the map is first scaled
    by the best factor, per sample, since maps of most methods have no unit; without it φ must be in
    units of output per input, as gradients × 1 are.
    """

    normalize: bool = True

    name: ClassVar[str] = "infidelity"
    source: ClassVar[str] = "Yeh et al., NeurIPS 2019, Def. 2.1; captum.metrics.infidelity"
    deviations: ClassVar[tuple[str, ...]] = (
        "The map of an explanation is its heat map over the pixels, or each token's score spread "
        "over the positions it was made from; the same in every channel, each a share 1/C of it.",
        "Every sample sees the same noise, drawn from the seed.",
    )

    def __call__(
        self, model: Any, inputs: Tensor, maps: Explanation | Tensor, target: Any
    ) -> Tensor:
        """(batch,), float64. ``inputs`` as the model takes them, floating point; ``maps`` of their
        shape, (batch, H, W), or an explanation; ``target`` (batch,) classes."""
        even = map_of(inputs, maps)
        values = even.expand(inputs.shape) * (even[0].numel() / inputs[0].numel())
        classes, (device, _) = labels_for(target, len(inputs)), place_of(model, inputs)

        def perturbed(rows: Tensor) -> tuple[Tensor, Tensor]:
            drawn = self._noise(torch.randn, rows, self.radius)
            return drawn, rows - drawn

        def chosen(rows: Tensor, of: Tensor) -> Tensor:
            logits = logits_of(model, rows.to(device)).double()
            return logits.gather(1, of[:, None])[:, 0].to(rows.device)

        with torch.no_grad():
            found: Tensor = _captum("infidelity")(
                chosen,
                perturbed,
                inputs.detach(),
                values,
                additional_forward_args=(classes,),
                n_perturb_samples=self.samples,
                normalize=self.normalize,
            )
        return found.double().cpu()


@guarded
@dataclass(frozen=True)
class MaxSensitivity(_Perturbed):
    """max over noise of ‖φ(x + ε) − φ(x)‖ / ‖φ(x)‖, |ε| ≤ ``radius`` (Yeh et al. 2019, Def. 3.1):
    how far the map moves when the input hardly does. Lower is better."""

    name: ClassVar[str] = "max-sensitivity"
    source: ClassVar[str] = "Yeh et al., NeurIPS 2019, Def. 3.1; captum.metrics.sensitivity_max"
    deviations: ClassVar[tuple[str, ...]] = (
        "The largest of finitely many draws (samples), as in Captum: a lower bound of the maximum.",
        "Every sample sees the same noise, drawn from the seed.",
    )

    def __call__(
        self, explain: Callable[[Tensor, Tensor], Explanation | Tensor], inputs: Tensor, target: Any
    ) -> Tensor:
        """(batch,), float64. ``explain``: a function of inputs and their classes (n,) that gives
        their maps, an ``Explanation`` or a tensor (n, ...)."""
        check_floating(inputs)
        classes = labels_for(target, len(inputs))

        def moved(rows: Tensor, radius: float) -> tuple[Tensor]:
            return (rows + radius * (2 * self._noise(torch.rand, rows) - 1),)

        def maps(rows: tuple[Tensor]) -> tuple[Tensor]:
            found = explain(rows[0], classes.repeat_interleave(len(rows[0]) // len(classes)))
            found = found.scores if isinstance(found, Explanation) else found
            return (finite("maps", found.flatten(1), "batch, tokens").double(),)

        found: Tensor = _captum("sensitivity_max")(
            maps,
            inputs.detach(),
            perturb_func=moved,
            perturb_radius=self.radius,
            n_perturb_samples=self.samples,
        )
        return found.double().cpu()


def _captum(name: str) -> Any:
    """One of Captum's metrics. Raises ``OptionError`` naming the extra where Captum is not
    installed."""
    try:
        import captum.metrics
    except ImportError:
        fact = 'infidelity and max-sensitivity need Captum: pip install "relprop[captum]"'
        raise OptionError(fact) from None
    return getattr(captum.metrics, name)
