"""Tables as papers print them: methods × statistics, with 95 % intervals, the number of samples,
and what cannot be told from random."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import OptionError
from relprop.evaluation.base import Interval, bootstrap
from relprop.evaluation.entries import POSITION, RANDOM, Entry
from relprop.evaluation.measures import Measure, Statistic
from relprop.views.escape import markup, visible
from relprop.views.html_tables import table

FLOORS = (RANDOM.name, POSITION.name)


@dataclass(frozen=True)
class Column:
    """A statistic of a measure, and how a table names it."""

    measure: Measure
    statistic: Statistic

    @property
    def name(self) -> str:
        """``measure: statistic``; a measure with one statistic is named alone."""
        alone = len(self.measure.statistics) == 1
        return self.measure.name if alone else f"{self.measure.name}: {self.statistic.name}"

    @property
    def digits(self) -> int:
        """How many digits are shown after the point."""
        return 3 if self.statistic.scale == 1 else 1

    @property
    def higher_is_better(self) -> bool:
        """Which way it is read."""
        return self.measure.metric.higher_is_better


@dataclass(frozen=True)
class Cell:
    """A number with its interval, and its difference from ``random`` on the same samples (``None``:
    it is that row, or there is none)."""

    interval: Interval
    above_random: Interval | None = None

    @property
    def like_random(self) -> bool:
        """Whether the interval of the difference from random holds 0: on these samples the metric
        cannot tell the two apart."""
        above = self.above_random
        return above is not None and above.low <= 0 <= above.high

    def worse_than_random(self, higher_is_better: bool) -> bool:
        """Whether the whole interval of the difference lies on the wrong side of 0."""
        above = self.above_random
        return above is not None and (above.high < 0 if higher_is_better else above.low > 0)


ENOUGH = 0.9  # of the samples: the best is no row that has a number for fewer


@guarded
@dataclass(frozen=True, eq=False)
class Numbers:
    """What was measured: for each (row, measure) a table (samples, columns), float64. ``refused``:
    the rows whose method is not defined for the model, and why."""

    rows: tuple[Entry, ...]
    measures: tuple[Measure, ...]
    tables: Mapping[tuple[str, str], Tensor]
    refused: Mapping[str, str] = field(default_factory=dict)
    memo: dict[Any, Cell | None] = field(default_factory=dict, repr=False)

    def table(
        self,
        title: str = "",
        rows: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        draws: int = 2000,
    ) -> Table:
        """A table of some rows and columns by name (``None``: all). Raises ``OptionError`` for a
        name that there is not."""
        names = {row.name: row for row in self.rows}
        known = {c.name: c for m in self.measures for c in (Column(m, s) for s in m.statistics)}
        kept = list(self.rows) if rows is None else _named("rows", rows, names)
        chosen = list(known.values()) if columns is None else _named("columns", columns, known)
        found = {(r.name, c.name): self.cell(r, c, draws) for r in kept for c in chosen}
        cells = {at: cell for at, cell in found.items() if cell is not None}
        undefined: dict[str, tuple[str, ...]] = {}
        for c in chosen:
            none = [r.name for r in kept if (r.name, c.name) not in cells and self.says(r, c)]
            undefined |= {c.name: tuple(none)} if none else {}
        shown = tuple(row.name for row in kept if row.name not in self.refused)
        named = {row.name for row in kept}
        refused = {name: why for name, why in self.refused.items() if name in named}
        return Table(title, shown, tuple(chosen), cells, refused, undefined)

    def says(self, row: Entry, column: Column) -> bool:
        """Whether a column was measured for a row, and means something for it."""
        return (row.name, column.measure.name) in self.tables and (
            row.class_specific or not column.statistic.of_classes
        )

    def difference(
        self, row: str, other: str, column: Column, draws: int = 2000
    ) -> Interval | None:
        """One row's number less another's on the same samples, by paired bootstrap; ``None`` where
        it says nothing of one of them."""
        rows = [r for name in (row, other) for r in self.rows if r.name == name]
        if len(rows) < 2 or not all(self.says(r, column) for r in rows):
            return None
        one, two = (self.tables[r.name, column.measure.name] for r in rows)
        return interval(column.statistic, draws, one, two)

    def cell(self, row: Entry, column: Column, draws: int = 2000) -> Cell | None:
        """A row's number in a column with its interval; ``None`` where it says nothing."""
        if not self.says(row, column):
            return None
        if (at := (row.name, column.name, draws)) not in self.memo:
            name, statistic = column.measure.name, column.statistic
            found, floor = self.tables[row.name, name], self.tables.get((RANDOM.name, name))
            mine = interval(statistic, draws, found)
            alone = floor is None or row.name == RANDOM.name
            above = None if alone else interval(statistic, draws, found, floor)
            self.memo[at] = None if mine is None else Cell(mine, above)
        return self.memo[at]


Named = TypeVar("Named")


def _named(kind: str, wanted: Sequence[str], there: Mapping[str, Named]) -> list[Named]:
    if missing := [name for name in wanted if name not in there]:
        fact = f"{kind}: there is no {', '.join(map(repr, missing))}"
        raise OptionError(fact, then=[f"{kind}={list(there)}"])
    return [there[name] for name in wanted]


def interval(
    statistic: Statistic, draws: int, one: Tensor, two: Tensor | None = None
) -> Interval | None:
    """A statistic of one table of samples, less that of another of the same samples if there is
    one; ``None`` of fewer than two."""
    if statistic.values is not None:
        values = statistic.values(one)
        values = values if two is None else values - statistic.values(two)
        known = values[~values.isnan()]
        return bootstrap(statistic.scale * known, draws) if len(known) > 1 else None
    if two is None:
        return bootstrap(one, draws, statistic=statistic.of)
    width = one.shape[1]

    def above(both: Tensor) -> float:
        return statistic.of(both[:, :width]) - statistic.of(both[:, width:])

    return bootstrap(torch.cat([one, two], 1), draws, statistic=above)


@guarded
@dataclass(frozen=True, eq=False)
class Table:
    """Rows of methods, columns of statistics. ``table["rollout", "mIoU"]`` is a ``Cell``;
    ``print(table)`` shows it as Markdown, best numbers in bold.

    ``refused``: methods that are not defined for this model, each with its reason. ``undefined``:
    by column the rows whose number is not defined on any two samples.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, str], Cell]
    refused: Mapping[str, str] = field(default_factory=dict)
    undefined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __getitem__(self, at: tuple[str, str]) -> Cell:
        """The cell of a row and a column; a statistic's own name will do where only one column has
        it. Raises ``OptionError``."""
        row, name = at
        found = [c.name for c in self.columns if name in (c.name, c.statistic.name)]
        if len(found) != 1 or (row, found[0]) not in self.cells:
            columns = ", ".join(c.name for c in self.columns)
            there = f"rows are {', '.join(self.rows)}; columns {columns}"
            raise OptionError(f"table[{row!r}, {name!r}]: {there}")
        return self.cells[row, found[0]]

    @cached_property
    def best(self) -> dict[str, str]:
        """For each column the row with the best number, of those that have one for nine tenths of
        its samples; floors do not count."""

        def compared(column: str) -> list[str]:
            rows = [r for r in self.order(column) if r not in FLOORS]
            counts = {r: self.cells[r, column].interval.samples for r in rows}
            return [r for r in rows if counts[r] >= ENOUGH * max(counts.values())]

        orders = {c.name: compared(c.name) for c in self.columns}
        return {column: rows[0] for column, rows in orders.items() if rows}

    @property
    def samples(self) -> tuple[int, int]:
        """The smallest and the largest number of samples of any cell."""
        counts = [cell.interval.samples for cell in self.cells.values()]
        return (min(counts), max(counts)) if counts else (0, 0)

    def order(self, column: str) -> list[str]:
        """The rows from best to worst in a column, without those that have no number there."""
        at = next(c for c in self.columns if c.name == column)
        there = [row for row in self.rows if (row, column) in self.cells]
        mean = {row: self.cells[row, column].interval.mean for row in there}
        return sorted(there, key=lambda row: mean[row], reverse=at.higher_is_better)

    def notes(self) -> list[str]:
        """What a reader must know: sample counts, what cannot be told from random, methods that are
        not defined."""
        fewest, most = self.samples
        fewer = f" (at least {fewest}: samples where a number is not defined are left out)"
        protocols = [f"{c.measure.name} `{c.measure.metric.protocol}`" for c in self.columns]
        found = [
            f"n = {most}{'' if fewest == most else fewer}; 95 % bootstrap intervals over samples.",
            f"Protocols: {', '.join(dict.fromkeys(protocols))}.",
        ]
        for column in self.columns:
            found += self._beside_random(column)
        found += [
            f"{column} is not defined for {', '.join(rows)}: on all these samples, or all but one, "
            "it is NaN."
            for column, rows in self.undefined.items()
        ]
        return found + [
            f"{name} is not defined for this model: {why.splitlines()[0]}"
            for name, why in self.refused.items()
        ]

    def _beside_random(self, column: Column) -> list[str]:
        """Which methods a column cannot tell from random, and which are worse."""
        found = {row: self.cells.get((row, column.name)) for row in self.rows if row not in FLOORS}
        there = {row: cell for row, cell in found.items() if cell is not None}
        alike = [row for row, cell in there.items() if cell.like_random]
        up = column.higher_is_better
        worse = [row for row, cell in there.items() if cell.worse_than_random(up)]
        notes = []
        if alike and column.statistic.name == column.measure.statistics[0].name:
            fact = f"On these samples {column.name} cannot tell {', '.join(alike)} from random"
            notes.append(f"{fact} (°: the interval of the paired difference holds 0).")
        if worse:
            notes.append(f"{column.name} finds random better than {', '.join(worse)}.")
        return notes

    def text(self, row: str, column: Column) -> str:
        """A cell as a table shows it: number, interval, ° if it cannot be told from random; a dash
        where there is none."""
        cell = self.cells.get((row, column.name))
        if cell is None:
            return "–"
        i = cell.interval
        mean, low, high = (f"{number:.{column.digits}f}" for number in (i.mean, i.low, i.high))
        mean = f"**{mean}**" if self.best.get(column.name) == row else mean
        return f"{mean}{'°' if cell.like_random else ''} [{low}, {high}]"

    def markdown(self, transposed: bool = False) -> str:
        """The table as Markdown; ``transposed``: methods as columns. Notes follow as a list."""
        columns = [(f"{c.name} {'↑' if c.higher_is_better else '↓'}", c) for c in self.columns]
        grid = markdown_grid(self.rows, columns, self.text, transposed)
        title = [f"### {plain(self.title)}\n"] if self.title else []
        return "\n".join([*title, grid, "", *(f"- {plain(note)}" for note in self.notes())])

    def __str__(self) -> str:
        return self.markdown()

    def _repr_html_(self) -> str:
        head = ["", *(f"{c.name} {'↑' if c.higher_is_better else '↓'}" for c in self.columns)]
        lines = [
            [row, *(self.text(row, c).replace("**", "") for c in self.columns)] for row in self.rows
        ]
        return table(head, lines) + "".join(f"<p>{markup(note, 2000)}</p>" for note in self.notes())

    def to_json(self) -> str:
        """Rows, columns and cells as JSON, for machines."""
        columns = [
            {
                "name": c.name,
                "metric": c.measure.metric.name,
                "protocol": c.measure.metric.protocol,
                "source": c.measure.metric.source,
                "higher_is_better": c.higher_is_better,
            }
            for c in self.columns
        ]
        cells = [
            {"row": row, "column": column, **values.pop("interval"), **values}
            for (row, column), cell in self.cells.items()
            for values in [asdict(cell)]
        ]
        found = {"title": self.title, "rows": list(self.rows), "columns": columns, "cells": cells}
        return json.dumps(found | {"refused": dict(self.refused)})


def plain(text: str) -> str:
    """Text that is one line of a Markdown table, and no markup of a page."""
    shown = visible(text, 2000).replace("|", "\\|").replace("<", "&lt;")
    return shown.replace("![", "!\\[").replace("](", "]\\(")


def markdown_grid(
    rows: Sequence[str],
    columns: Sequence[tuple[str, Any]],
    text: Callable[[str, Any], str],
    transposed: bool,
) -> str:
    """A Markdown table of ``text(row, column)``; ``columns``: each with its heading;
    ``transposed``: rows and columns change places."""
    lines = [["", *(plain(heading) for heading, _ in columns)]]
    lines += [[plain(row), *(text(row, column) for _, column in columns)] for row in rows]
    if transposed:
        lines = [list(line) for line in zip(*lines, strict=True)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
