"""What is measured of every sample and every method: a metric, brought to the batches of a task,
and the statistics that a table shows of it.

A measure gives a few numbers per sample, (samples, columns), so that they can be kept on disk as
they come; a ``Statistic`` makes one number of all samples'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from relprop.evaluation.base import Metric
from relprop.evaluation.perturbation import ImagePerturbation, TextPerturbation
from relprop.evaluation.robustness import Infidelity, MaxSensitivity
from relprop.evaluation.sanity import ClassSensitivity, ParameterRandomization
from relprop.evaluation.segmentation import Segmentation, SegmentationResult


@dataclass(frozen=True)
class Statistic:
    """One number of a table of samples: ``of`` (samples, columns); ``values``: its per-sample part,
    (samples,), where it is a mean of one. ``of_classes``: for class-specific methods only."""

    name: str
    of: Callable[[Tensor], float]
    values: Callable[[Tensor], Tensor] | None = None
    scale: float = 1.0
    of_classes: bool = False


def mean_of(
    name: str,
    values: Callable[[Tensor], Tensor] = lambda table: table[:, 0],
    scale: float = 1.0,
    of_classes: bool = False,
) -> Statistic:
    """A statistic that is the mean of one number per sample; samples where it is not defined (NaN)
    are left out."""
    return Statistic(name, lambda t: float(values(t).nanmean()) * scale, values, scale, of_classes)


@dataclass(frozen=True, eq=False)
class Batch:
    """Some samples of a data set as their model takes them, with its ``logits`` (batch, classes);
    ``predicted`` and ``labels`` (batch,); ``parts``: what its task's measures need."""

    indices: tuple[int, ...]
    samples: tuple[Any, ...]
    inputs: Any
    predicted: Tensor
    labels: Tensor | None
    logits: Tensor
    parts: Mapping[str, Any]

    @property
    def others(self) -> list[tuple[int, ...]]:
        """Of each sample, further classes that are true of it."""
        return [sample.others for sample in self.samples]

    def rival(self) -> Tensor:
        """(batch,): for each sample a class to tell the explained one from: another true one, else
        of all other classes the one the model finds least likely."""
        least = self.logits.scatter(1, self.main()[:, None], torch.inf).argmin(1)
        pairs = zip(self.samples, least.tolist(), strict=True)
        return torch.tensor([s.others[0] if s.others else c for s, c in pairs])

    def main(self) -> Tensor:
        """(batch,): the class of the label, or the predicted one where there are no labels."""
        return self.predicted if self.labels is None else self.labels


@dataclass(frozen=True, eq=False)
class Maps:
    """One method's maps of a batch: ``values`` (pairs, ...), for the (sample, class) pairs
    ``rows``; ``None``: one per sample, whatever the class.

    ``explain(model, inputs, target)``: the method again, on another model or other inputs of the
    same samples.
    """

    values: Tensor
    rows: Mapping[tuple[int, int], int] | None
    explain: Callable[[Any, Any, Tensor], Tensor]

    def of(self, classes: Tensor) -> Tensor:
        """(batch, ...): the map of each sample for its class."""
        if self.rows is None:
            return self.values
        return self.values[[self.rows[i, int(c)] for i, c in enumerate(classes)]]


class Measure(Protocol):
    """A metric on the batches of a task. ``name``: what it is called in files and on the command
    line. ``statistics``: the numbers a table may show of it. ``costly``: whether it explains the
    samples many times over: such a measure is made only if it is named."""

    @property
    def name(self) -> str: ...
    @property
    def metric(self) -> Metric: ...
    @property
    def statistics(self) -> tuple[Statistic, ...]: ...
    @property
    def costly(self) -> bool: ...

    def classes(self, batch: Batch) -> list[Tensor]:
        """The classes whose maps are needed, each (batch,)."""

    def __call__(self, task: Any, batch: Batch, maps: Maps) -> Tensor:
        """(batch, columns), float64."""


class OfLabel:
    """What most measures are: named as their metric, cheap, and made of the maps of the label's
    class."""

    metric: Any
    statistics: Any
    costly: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return str(self.metric.name)

    def classes(self, batch: Batch) -> list[Tensor]:
        return [batch.main()]


@dataclass(frozen=True)
class BothCurves:
    """Perturbation with maps of the predicted class and of the target class: 20 hits per sample.
    Images and texts say how a ``curve`` is found."""

    order: str
    protocol: str = "paper-code"

    kind: ClassVar[Callable[..., ImagePerturbation | TextPerturbation]]
    costly: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return f"{self.order} perturbation"

    @property
    def metric(self) -> ImagePerturbation | TextPerturbation:
        return type(self).kind(self.order, "predicted", self.protocol)

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        def area(at: int) -> Callable[[Tensor], Tensor]:
            return lambda table: torch.trapezoid(table[:, at + self.metric.first : at + 10], dx=0.1)

        return (
            mean_of("predicted", area(0), 100),
            mean_of("target", area(10), 100, of_classes=True),
        )

    def classes(self, batch: Batch) -> list[Tensor]:
        return [batch.predicted] if batch.labels is None else [batch.predicted, batch.labels]

    def curve(self, metric: Any, task: Any, batch: Batch, values: Tensor) -> Any:
        """The metric's curve with these maps."""
        raise NotImplementedError

    def __call__(self, task: Any, batch: Batch, maps: Maps) -> Tensor:
        assert batch.labels is not None
        predicted = self.curve(self.metric, task, batch, maps.of(batch.predicted)).hits
        if maps.rows is None or torch.equal(batch.predicted, batch.labels):
            return torch.cat([predicted, predicted], 1)
        of_target = replace(self.metric, explained="target")
        target = self.curve(of_target, task, batch, maps.of(batch.labels)).hits
        return torch.cat([predicted, target], 1)


class ImageCurve(BothCurves):
    """Perturbation of images."""

    kind = ImagePerturbation

    def curve(self, metric: Any, task: Any, batch: Batch, values: Tensor) -> Any:
        given = task.model, batch.parts["images"], values, batch.labels
        return metric(*given, normalize=task.normalize, others=batch.others)


@dataclass(frozen=True)
class SegmentationCounts(OfLabel):
    """Segmentation of the label's object: eight counts per image."""

    metric: Segmentation = field(default_factory=Segmentation)

    statistics = (
        Statistic(
            "pixel accuracy", lambda t: 100 * SegmentationResult(t).pixel_accuracy, None, 100
        ),
        mean_of("mAP", lambda t: t[:, 6], 100),
        Statistic("mIoU", lambda t: 100 * SegmentationResult(t).mean_iou, None, 100),
    )

    def __call__(self, task: Any, batch: Batch, maps: Maps) -> Tensor:
        masks = torch.stack([sample.mask for sample in batch.samples])
        return self.metric.table(maps.of(batch.main()), masks)


@dataclass(frozen=True)
class ClassCorrelation(OfLabel):
    """Spearman's ρ of the maps of two classes: the label's, and a second class that is true of the
    sample, or else the class that the model finds least likely. Lower is better."""

    metric: ClassSensitivity = field(default_factory=ClassSensitivity)

    statistics = (mean_of("ρ", of_classes=True),)

    def classes(self, batch: Batch) -> list[Tensor]:
        return [batch.main(), batch.rival()]

    def __call__(self, task: Any, batch: Batch, maps: Maps) -> Tensor:
        mine, others = maps.of(batch.main()), maps.of(batch.rival())
        return self.metric(mine, others, content=batch.parts.get("content"))[:, None]


@dataclass(frozen=True)
class Randomisation(OfLabel):
    """Spearman's ρ with the map of the model whose parameters are randomised, stage by stage; of a
    model with fewer modules than stages the rest is NaN."""

    metric: ParameterRandomization = field(default_factory=ParameterRandomization)

    costly: ClassVar[bool] = True
    statistics = (mean_of("ρ", lambda t: t.nanmean(1)),)

    def __call__(self, task: Any, batch: Batch, maps: Maps) -> Tensor:
        def explain(model: Any) -> Tensor:
            return maps.explain(model, batch.inputs, batch.main())

        content = batch.parts.get("content")
        curve = self.metric(task.model, batch.inputs, explain, content=content)
        found = torch.full((len(batch.samples), self.metric.stages), torch.nan, dtype=torch.float64)
        found[:, : curve.similarity.shape[1]] = curve.similarity
        return found


@dataclass(frozen=True)
class Unfaithful(OfLabel):
    """Infidelity of the map, over pixels."""

    metric: Infidelity = field(default_factory=lambda: Infidelity(samples=20, radius=0.1))

    costly: ClassVar[bool] = True
    statistics = (mean_of("mean"),)

    def __call__(self, task: Any, batch: Batch, maps: Maps) -> Tensor:
        return self.metric(task.model, batch.inputs, maps.of(batch.main()), batch.main())[:, None]


@dataclass(frozen=True)
class Unstable(OfLabel):
    """Max-sensitivity of the map to noise on the input."""

    metric: MaxSensitivity = field(default_factory=MaxSensitivity)

    costly: ClassVar[bool] = True
    statistics = (mean_of("max"),)

    def __call__(self, task: Any, batch: Batch, maps: Maps) -> Tensor:
        def explain(inputs: Tensor, target: Tensor) -> Tensor:
            return maps.explain(task.model, inputs, target)

        return self.metric(explain, batch.inputs, batch.main())[:, None]
