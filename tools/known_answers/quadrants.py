"""Do maps of the shipped model of pictures and words lie where its answer says?

The answer ("top left") is explained, both words at once. The truth is the quarter of the picture
that it names, and the disc that lies there; the words have scores of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

import relprop
from relprop.demo.quadrant_model import quadrant_model, quadrant_processor
from relprop.demo.quadrants import Quadrants, make_quadrants
from tools.known_answers.blocks import InBlocks
from tools.known_answers.rows import FLOORS, INTEGRATED, METHODS, noise, share
from tools.known_answers.study import Column, Value


@dataclass(eq=False)
class QuadrantStudy(InBlocks):
    """The study. A unit is a picture with a question, and its answer the one sample."""

    count: int = 100
    seed: int = 40_000_003
    methods: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: METHODS | {"integrated_gradients": INTEGRATED}
    )
    at_once: ClassVar[int] = 50
    name: ClassVar[str] = "quadrants"
    title: ClassVar[str] = "Pictures with words (a small LLaVA): the quarter that is named"
    units: ClassVar[str] = "pictures"
    samples: ClassVar[str] = "answers"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("share on the quarter", True, 100),
        Column("share on the disc", True, 100),
        Column("random weights", False),
        Column("stability", False),
        Column("seconds", False),
    )

    @property
    def rows(self) -> tuple[str, ...]:
        return (*self.methods, *FLOORS)

    @cached_property
    def drawn(self) -> Quadrants:
        return make_quadrants(self.count, seed=self.seed)

    @cached_property
    def model(self) -> Any:
        return quadrant_model()

    @cached_property
    def processor(self) -> Any:
        return quadrant_processor()

    def key(self, unit: int) -> str:
        return f"{self.drawn.questions[unit]} {self.drawn.answers[unit]}"

    def explained(self, model: Any, units: range, call: Mapping[str, Any]) -> list[Tensor]:
        """Maps over pixels of the sum of both words' log-probabilities, each (1, H, W)."""
        images, questions, answers = self.drawn.pictures(), self.drawn.questions, self.drawn.answers
        given = {
            "images": [images[i] for i in units],
            "text": [f"<image> {questions[i]} {answers[i]}" for i in units],
        }
        targets = [relprop.targets.answer(answers[i]) for i in units]
        e = relprop.explain(model, given, targets, processor=self.processor, progress=False, **call)
        return list(e["pixel_values"].heatmap()[:, None])

    def comparisons(self, units: range) -> Iterator[tuple[str, list[Tensor]]]:
        size = (1, *self.drawn.quarters.shape[1:])
        yield "uniform", [torch.ones(size)] * len(units)
        yield "random", [noise(unit, *size) for unit in units]

    def measured(self, units: range, row: str, maps: list[Tensor]) -> Iterator[list[Value]]:
        for unit, (one,) in zip(units, maps, strict=True):
            disc = self.drawn.discs[unit, self.drawn.asked[unit]]
            quarter = self.drawn.quarters[unit]
            yield [
                Value(str(unit), row, "share on the quarter", share(one, quarter.bool())),
                Value(str(unit), row, "share on the disc", share(one, disc.bool())),
            ]
