"""What a study is: a trained model, samples whose right explanation is known, rows (methods) and
columns (measures); how it is run into a folder, and how its numbers become a table.

A study is made of *units* (a sentence, a reaction, a pair of pictures), each with one or more
*samples* (words, atoms). Samples of a unit are no independent draws, so intervals come from
resampling units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from relprop.evaluation import Interval, bootstrap
from relprop.evaluation.entries import RANDOM, Entry
from relprop.evaluation.measures import Statistic
from relprop.evaluation.table import Cell, Numbers, interval
from relprop.evaluation.table import Column as TableColumn
from relprop.runs import Record, read_run, run


@dataclass(frozen=True)
class Value:
    """One number: of a ``sample`` of a unit, in a ``row`` and a ``column``. NaN: not defined."""

    sample: str
    row: str
    column: str
    number: float


@dataclass(frozen=True)
class Column:
    """What is measured. ``scale``: 100 where it is shown in percent; ``protocol``: how, in a few
    words."""

    name: str
    higher_is_better: bool = True
    scale: float = 1.0
    protocol: str = "docs/which-method.md"


class Study(Protocol):
    """``rows``: names of methods and of comparisons, as the table has them; ``refused``: the rows
    that have no numbers, and why; ``units`` and ``samples``: what these are called."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def units(self) -> str: ...
    @property
    def samples(self) -> str: ...
    @property
    def columns(self) -> tuple[Column, ...]: ...
    @property
    def rows(self) -> tuple[str, ...]: ...
    @property
    def refused(self) -> Mapping[str, str]: ...

    def __len__(self) -> int:
        """How many units."""

    def key(self, unit: int) -> str:
        """A unit's name: its sentence, its reaction."""

    def identity(self) -> dict[str, Any]:
        """What the numbers depend on: weights, seeds, counts."""

    def __call__(self, unit: int) -> Iterable[Value]:
        """All numbers of a unit."""


@dataclass(frozen=True, eq=False)
class StudyWork:
    """A study as a ``relprop.runs.Work``: killed, it goes on where it stopped."""

    study: Study
    columns: ClassVar[Mapping[str, str]] = {
        "sample": "string",
        "row": "string",
        "column": "string",
        "number": "float64",
        "refused": "string",
    }

    def identity(self) -> dict[str, Any]:
        return {"work": self.study.name, **self.study.identity()}

    def probe(self) -> None:
        return None

    def __len__(self) -> int:
        return len(self.study)

    def key(self, index: int) -> str:
        return self.study.key(index)

    def __call__(self, indices: Sequence[int]) -> list[Record]:
        return [Record(i, self.key(i), tuple(self._lines(i))) for i in indices]

    def _lines(self, unit: int) -> Iterator[dict[str, Any]]:
        for value in self.study(unit):
            yield vars(value) | {"refused": ""}
        for row, why in self.study.refused.items():
            yield {"sample": "", "row": row, "column": "", "number": math.nan, "refused": why}


@dataclass(frozen=True)
class _Metric:
    """A column as tables want it."""

    column: Column
    source: str = "docs/which-method.md"
    deviations: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def higher_is_better(self) -> bool:
        return self.column.higher_is_better

    @property
    def protocol(self) -> str:
        return self.column.protocol


@dataclass(frozen=True)
class _Measured:
    """A column as a measure of ``relprop.evaluation``: the mean over samples, of (sum, count) per
    unit."""

    metric: Any
    costly: bool = False

    @property
    def name(self) -> str:
        return str(self.metric.name)

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        scale = self.metric.column.scale

        def mean(table: Tensor) -> float:
            return scale * float(table[:, 0].sum() / table[:, 1].sum())

        return (Statistic(self.name, mean, None, scale),)

    def classes(self, batch: Any) -> list[Tensor]:
        return []

    def __call__(self, task: Any, batch: Any, maps: Any) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class UnitNumbers(Numbers):
    """Numbers whose rows may have been measured on different units: two rows are compared on those
    that both have. ``units``: of each table the units of its lines."""

    units: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)

    def difference(
        self, row: str, other: str, column: TableColumn, draws: int = 2000
    ) -> Interval | None:
        name = column.measure.name
        both = (row, name), (other, name)
        if not all(at in self.tables for at in both):
            return None
        common = set(self.units[both[0]]) & set(self.units[both[1]])
        one, two = (self.tables[at][[u in common for u in self.units[at]]] for at in both)
        return interval(column.statistic, draws, one, two) if len(common) > 1 else None

    def cell(self, row: Entry, column: TableColumn, draws: int = 2000) -> Cell | None:
        at = row.name, column.measure.name
        if at not in self.tables:
            return None
        if (memo := (*at, draws)) not in self.memo:
            mine = bootstrap(self.tables[at], draws, statistic=column.statistic.of)
            above = None
            if row.name != RANDOM.name:
                above = self.difference(row.name, RANDOM.name, column, draws)
            self.memo[memo] = Cell(mine, above)
        return self.memo[memo]


@dataclass
class _Sums:
    """Sum and count of one row and column, by unit."""

    by_unit: dict[int, list[float]] = field(default_factory=dict)

    def add(self, unit: int, number: float) -> None:
        if number == number:
            total = self.by_unit.setdefault(unit, [0.0, 0.0])
            total[0] += number
            total[1] += 1


def measure(study: Study, out: Path, **running: Any) -> Numbers:
    """Run a study into a folder (or go on with one) and read its numbers."""
    run(StudyWork(study), out, batch_size=1, **running)
    return read(study, out)


def read(study: Study, out: Path) -> Numbers:
    """A run folder as numbers for tables: for each row and column (units, 2), sum and count of its
    samples. A column that only some units have is a table of these."""
    sums: dict[tuple[str, str], _Sums] = {}
    refused: dict[str, str] = {}
    for line in read_run(out).rows():
        if line["refused"]:
            refused.setdefault(line["row"], line["refused"])
            continue
        at = line["row"], line["column"]
        sums.setdefault(at, _Sums()).add(line["index"], line["number"])
    least = {"seconds": 1}
    kept = {at: s.by_unit for at, s in sums.items() if len(s.by_unit) >= least.get(at[1], 2)}
    units = {at: tuple(sorted(found)) for at, found in kept.items()}
    tables = {
        at: torch.tensor([kept[at][u] for u in units[at]], dtype=torch.float64) for at in kept
    }
    measures = tuple(_Measured(_Metric(c)) for c in study.columns)
    rows = tuple(Entry(name) for name in study.rows)
    refused = {row: why for row, why in refused.items() if not any(at[0] == row for at in tables)}
    return UnitNumbers(rows, measures, tables, refused, units=units)
