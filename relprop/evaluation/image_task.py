"""Maps of pictures, measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from relprop.api.explain import explain
from relprop.data import Sample
from relprop.data.functions import of_callable
from relprop.error_boundary import guarded
from relprop.errors import InputError, RelpropError
from relprop.evaluation.base import finite, place_of
from relprop.evaluation.entries import Entry
from relprop.evaluation.measures import (
    Batch,
    ClassCorrelation,
    ImageCurve,
    Measure,
    Randomisation,
    SegmentationCounts,
    Unfaithful,
    Unstable,
)
from relprop.evaluation.segmentation import upsampled
from relprop.evaluation.tasks import Task, unchanged
from relprop.explanation import Explanation


@guarded
@dataclass(frozen=True, eq=False)
class ImageTask(Task):
    """Images of one size, the model that classifies them, and what is measured: perturbation,
    segmentation (where there are masks), class sensitivity.

    ``normalize``: what is done to images in [0, 1] before the model sees them.
    """

    normalize: Callable[[Tensor], Tensor] = unchanged

    kind: ClassVar[str] = "image"

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "normalize": of_callable(self.normalize)}

    def possible(self, sample: Sample) -> list[Measure]:
        found: list[Measure] = []
        if sample.label is not None:
            found += [ImageCurve("negative"), ImageCurve("positive")]
        if sample.mask is not None:
            found.append(SegmentationCounts())
        return [*found, ClassCorrelation(), Randomisation(), Unfaithful(), Unstable()]

    def inputs(self, samples: Sequence[Sample]) -> Tensor:
        sizes = {tuple(sample.inputs.shape) for sample in samples}
        if len(sizes) > 1:
            fact = f"images of {len(sizes)} sizes: {', '.join(map(str, sorted(sizes)))}"
            raise InputError(fact, then=["transform=   # to one size, as the model needs"])
        images = self.parts(samples, None)["images"]
        device, dtype = place_of(self.model, images)
        return self.normalize(images.to(device, dtype))

    def parts(self, samples: Sequence[Sample], inputs: Any) -> dict[str, Any]:
        return {"images": torch.stack([sample.inputs for sample in samples])}

    def scores(self, e: Explanation, batch: Batch) -> Tensor:
        return e.heatmap(batch.parts["images"].shape[2:]).cpu()

    def own(self, values: Tensor, batch: Batch) -> Tensor:
        size = batch.parts["images"].shape[2:]
        whole = values.shape[1:] == size
        return finite("maps", values, "batch, h, w") if whole else upsampled(values, size)

    @cached_property
    def grid(self) -> tuple[int, int]:
        """The patches that attention sees, for the floors: noise in larger or smaller pieces would
        be another floor. Pixels, for a model without patches."""
        batch = self.batch([0])
        height, width = batch.parts["images"].shape[2:]
        try:
            found = explain(self.model, batch.inputs, batch.main(), method="rollout").grid
        except RelpropError:
            return height, width
        return (found[-2], found[-1]) if found else (height, width)

    def floor(self, entry: Entry, batch: Batch) -> Tensor:
        size = batch.parts["images"].shape[2:]
        if entry.name == "random":
            return upsampled(self.noise(batch, self.grid), size)
        y, x = (torch.linspace(-1, 1, n) for n in self.grid)
        far = (y[:, None] ** 2 + x[None] ** 2).sqrt()
        return upsampled(-far.expand(len(batch.samples), -1, -1), size)
