"""Do maps of the shipped model of pictures and words lie where its answer says?

The answer ("top left") is explained, both words at once. The truth is the quarter of the picture
that it names, and the disc that lies there; the words have scores of their own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

import relprop
from relprop.demo.quadrant_model import quadrant_model, quadrant_processor
from relprop.demo.quadrants import Quadrants, make_quadrants
from relprop.errors import RelpropError, first_line
from tools.known_answers.rows import FLOORS, INTEGRATED, METHODS, block, noise, share
from tools.known_answers.study import Column, Value

AT_ONCE = 50


@dataclass
class QuadrantStudy:
    """The study. A unit is a picture with a question."""

    count: int = 100
    seed: int = 40_000_003
    name: ClassVar[str] = "quadrants"
    title: ClassVar[str] = "Pictures with words (a small LLaVA): the quarter that is named"
    units: ClassVar[str] = "pictures"
    samples: ClassVar[str] = "answers"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("share on the quarter", True, 100),
        Column("share on the disc", True, 100),
        Column("seconds", False),
    )

    def __post_init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.methods = METHODS | {"integrated_gradients": INTEGRATED}
        self.unit = block(self.make, AT_ONCE)

    @property
    def rows(self) -> tuple[str, ...]:
        return (*self.methods, *FLOORS)

    @cached_property
    def drawn(self) -> Quadrants:
        return make_quadrants(self.count, seed=self.seed)

    def __len__(self) -> int:
        return self.count

    def key(self, unit: int) -> str:
        return f"{self.drawn.questions[unit]} {self.drawn.answers[unit]}"

    def identity(self) -> dict[str, Any]:
        return {"count": self.count, "seed": self.seed, "rows": list(self.rows)}

    def __call__(self, unit: int) -> list[Value]:
        return [Value(str(unit), *found) for found in self.unit(unit)]

    def make(self, first: int) -> list[list[tuple[str, str, float]]]:
        pictures = range(first, min(first + AT_ONCE, self.count))
        found: list[list[tuple[str, str, float]]] = [[] for _ in pictures]
        maps: dict[str, tuple[Tensor, float]] = {}
        for row, call in self.methods.items():
            try:
                maps[row] = self.heat(pictures, call)
            except RelpropError as error:
                self.refused[row] = first_line(error)
        size = self.drawn.quarters.shape[1:]
        drawn = torch.stack([noise(i, *size) for i in pictures])
        maps |= {"uniform": (torch.ones_like(drawn), torch.nan), "random": (drawn, torch.nan)}
        for row, (heat, seconds) in maps.items():
            for values, one, i in zip(found, heat, pictures, strict=True):
                disc = self.drawn.discs[i, self.drawn.asked[i]]
                values += [
                    (row, "share on the quarter", share(one, self.drawn.quarters[i].bool())),
                    (row, "share on the disc", share(one, disc.bool())),
                    (row, "seconds", seconds),
                ]
        return found

    @cached_property
    def opened(self) -> tuple[Any, Any]:
        return quadrant_model(), quadrant_processor()

    def heat(self, pictures: range, call: Any) -> tuple[Tensor, float]:
        """(pictures, H, W) maps of the sum of both words' log-probabilities; seconds per
        picture, without the capture."""
        model, processor = self.opened
        images = self.drawn.pictures()
        asked = zip(self.drawn.questions, self.drawn.answers, strict=True)
        texts = [f"<image> {q} {a}" for q, a in asked]
        given = {
            "images": [images[i] for i in pictures],
            "text": [texts[i] for i in pictures],
        }
        targets = [relprop.targets.answer(self.drawn.answers[i]) for i in pictures]
        for _ in range(2):
            start = time.process_time()
            e = relprop.explain(model, given, targets, processor=processor, progress=False, **call)
        seconds = (time.process_time() - start) / len(pictures)
        return e["pixel_values"].heatmap(), seconds
