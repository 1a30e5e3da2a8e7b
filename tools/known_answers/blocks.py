"""Studies whose units are explained some at a time: what all of these do alike."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from relprop.errors import RelpropError, RelpropWarning, first_line
from tools.known_answers.rows import METHODS, block, steadiness
from tools.known_answers.study import Value


@dataclass(eq=False)
class InBlocks:
    """A study of ``count`` units drawn by a ``seed``. ``at_once``: units of one call; ``few``:
    units that "random weights" and "stability" are measured on, of the first call."""

    count: int
    seed: int
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: METHODS)
    at_once: ClassVar[int]
    few: ClassVar[int] = 10

    def __post_init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.unit = block(self.make, self.at_once)

    @property
    def model(self) -> Any:
        raise NotImplementedError

    @cached_property
    def untrained(self) -> Any:
        """The same architecture with weights drawn anew."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return type(self.model)(self.model.config).eval()

    def __len__(self) -> int:
        return self.count

    def explained(self, model: Any, units: range, call: Mapping[str, Any]) -> list[Tensor]:
        """Of each unit a map per sample, (samples, ...)."""
        raise NotImplementedError

    def comparisons(self, units: range) -> Iterable[tuple[str, list[Tensor]]]:
        """Rows that are no methods, and their maps."""
        raise NotImplementedError

    def measured(self, units: range, row: str, maps: list[Tensor]) -> Iterable[list[Value]]:
        """The numbers of each unit's maps."""
        raise NotImplementedError

    def names(self, unit: int) -> list[str]:
        """Of each sample its name."""
        return [str(unit)]

    def identity(self) -> dict[str, Any]:
        methods = {row: {k: str(v) for k, v in call.items()} for row, call in self.methods.items()}
        sizes = [self.at_once, self.few]
        return {"count": self.count, "seed": self.seed, "sizes": sizes, "methods": methods}

    def __call__(self, unit: int) -> list[Value]:
        found: list[Value] = self.unit(unit)
        return found

    def make(self, first: int) -> list[list[Value]]:
        """All numbers of some units."""
        units = range(first, min(first + self.at_once, len(self)))
        found: list[list[Value]] = [[] for _ in units]
        for row, maps, seconds in self.maps(units):
            for values, more in zip(found, self.measured(units, row, maps), strict=True):
                values += [*more, Value("", row, "seconds", seconds)]
            if first == 0 and row in self.methods:
                few = units[: self.few]
                checked = self.checked(few, row, maps[: len(few)])
                for values, checks in zip(found[: len(few)], checked, strict=True):
                    values += checks
        return found

    def maps(self, units: range) -> Iterator[tuple[str, list[Tensor], float]]:
        """Of each row the maps of each unit, and CPU seconds of a sample; NaN of the first units,
        which have the capture in them."""
        if units.start:  # what is captured for a new width is in no method's seconds
            self.explained(self.model, units, next(iter(self.methods.values())))
        for row, call in self.methods.items():
            start = time.process_time()
            try:
                maps = self.explained(self.model, units, call)
            except RelpropError as error:
                self.refused[row] = first_line(error)
                continue
            spent = (time.process_time() - start) / sum(map(len, maps))
            yield row, maps, spent if units.start else math.nan
        for row, maps in self.comparisons(units):
            yield row, maps, math.nan

    def checked(self, units: range, row: str, maps: list[Tensor]) -> Iterator[list[Value]]:
        """How steady each unit's maps are."""
        call = self.methods[row]
        with warnings.catch_warnings():  # of random weights, and of float64's own last digits
            warnings.simplefilter("ignore", RelpropWarning)
            drawn = self.explained(self.untrained, units, call)
            exact = self.explained(self.model, units, {**call, "precision": "float64"})
        for unit, one, other, double in zip(units, maps, drawn, exact, strict=True):
            samples = zip(self.names(unit), one, other, double, strict=True)
            yield [
                Value(name, row, column, number)
                for name, *three in samples
                for column, number in steadiness(*three)
            ]
