"""Evaluation as work over a data set: for each sample, each row and each measure the numbers that a
table is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from relprop.error_boundary import guarded
from relprop.errors import RelpropError
from relprop.evaluation.entries import Entry
from relprop.evaluation.measures import Measure
from relprop.evaluation.table import Numbers
from relprop.evaluation.tasks import Task
from relprop.runner.conditions import Conditions
from relprop.runs import Record, read_run
from relprop.runs.probing import Probe, probe


@guarded
@dataclass(frozen=True, eq=False)
class EvaluationWork:
    """Rows × measures on a task's samples: a ``relprop.runs.Work``. A row of the table is a method,
    a measure, its numbers, and why there are none, if so."""

    task: Task
    rows: Sequence[Entry]
    samples: int | None = None

    columns: ClassVar[Mapping[str, str]] = {
        "method": "string",
        "measure": "string",
        "values": "list<float64>",
        "refused": "string",
    }

    def identity(self) -> dict[str, Any]:
        return {
            "work": "evaluate",
            "task": self.task.identity(),
            "rows": [row.identity() for row in self.rows],
            "samples": len(self),
        }

    def probe(self) -> Probe | None:
        """What the model computes of fixed numbers, and how it is explained: more than weights and
        settings decide it."""
        task, calls = self.task, {row.name: row.call for row in self.rows if row.call is not None}
        source, how = task.source.__getitem__, Conditions()
        return probe(task.model, len(self), source, lambda s: task.inputs([s]), calls, how)

    def __len__(self) -> int:
        count = len(self.task.source)
        return count if self.samples is None else min(self.samples, count)

    def key(self, index: int) -> str:
        """The sample's name, for messages."""
        return str(self.task.source[index].key)

    def __call__(self, indices: Sequence[int]) -> list[Record]:
        batch = self.task.batch(indices)
        lines: list[list[dict[str, Any]]] = [[] for _ in indices]
        for row, maps in zip(self.rows, self.task.maps(batch, self.rows), strict=True):
            made: list[tuple[str, str, list[Any]]]
            if isinstance(maps, RelpropError):
                made = [("", str(maps), [[] for _ in indices])]
            else:
                some = (m for m in self.task.measures if measured(row, m))
                made = [(m.name, "", m(self.task, batch, maps).tolist()) for m in some]
            for measure, refused, values in made:
                named = {"method": row.name, "measure": measure, "refused": refused}
                for line, own in zip(lines, values, strict=True):
                    line.append({**named, "values": own})
        return [
            Record(i, sample.key, tuple(line))
            for i, sample, line in zip(indices, batch.samples, lines, strict=True)
        ]


def measured(row: Entry, measure: Measure) -> bool:
    """Whether a measure says anything of a row: one that compares classes says nothing of a map
    that has none."""
    return row.class_specific or not all(statistic.of_classes for statistic in measure.statistics)


@guarded
def numbers(
    task: Task, rows: Sequence[Entry], lines: Iterable[tuple[int, Mapping[str, Any]]]
) -> Numbers:
    """All samples' numbers, by row and measure, in the samples' order, from lines of (index,
    row)."""
    values: dict[tuple[str, str], list[tuple[int, list[float]]]] = {}
    refused: dict[str, str] = {}
    for index, line in lines:
        if line["refused"]:
            refused.setdefault(line["method"], line["refused"])
        else:
            at = line["method"], line["measure"]
            values.setdefault(at, []).append((index, list(line["values"])))
    tables = {}
    for at, found in values.items():
        ordered = [v for _, v in sorted(found, key=lambda pair: pair[0])]
        tables[at] = torch.tensor(ordered, dtype=torch.float64)
    return Numbers(tuple(rows), task.measures, tables, refused)


def measured_numbers(
    task: Task, rows: Sequence[Entry], samples: int | None, batch_size: int = 50
) -> Numbers:
    """The numbers of the first ``samples`` (``None``: all), in memory, ``batch_size`` at a
    time."""
    work = EvaluationWork(task, rows, samples)
    every = range(len(work))
    batches = (work(every[first : first + batch_size]) for first in every[::batch_size])
    lines = ((record.index, row) for made in batches for record in made for row in record.rows)
    return numbers(task, rows, lines)


def read_numbers(task: Task, rows: Sequence[Entry], folder: Path) -> Numbers:
    """What a run folder holds, as numbers for tables."""
    return numbers(task, rows, ((line["index"], line) for line in read_run(folder).rows()))
