"""``check_measure``: what a measure says of itself, and its numbers on a task's samples."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relprop.errors import RelpropError
from relprop.evaluation.base import Metric
from relprop.evaluation.entries import entries
from relprop.evaluation.measures import Batch, Measure
from relprop.evaluation.tasks import Task
from relprop.testing.faults import Checked, Examination

EXACT = 1e-3  # maps are in the precision of the model


def check_measure(
    measure: Measure, task: Task, *, method: str = "transformer_attribution", samples: int = 4
) -> Checked:
    """Examine a measure on the first samples of a task, with the maps of a method and with noise.

    The laws: the measure *says what it is* (``name``, ``metric``, ``statistics``, ``costly``); the
    *classes* it asks for are the model's; it *runs* and gives (samples, columns) numbers, NaN only
    where it is not defined; it is *repeatable* and *batch-exact* (a sample has the same numbers in
    any batch, to 1e-3: maps are in the model's own precision); its *statistics* are numbers, and
    where they are said to be a mean of one number per sample they are.

    Raises ``CheckFailed``, which names every law that is broken and what to do.

    >>> import relprop
    >>> from relprop.evaluation import ClassCorrelation, digit_scenes
    >>> print(relprop.testing.check_measure(ClassCorrelation(), digit_scenes(4)))
    measure 'class sensitivity': says what it is, classes, runs, repeatable, batch-exact, statistics
    """
    examination = Examination(f"measure {getattr(measure, 'name', type(measure).__name__)!r}")
    if not _says(examination, measure):
        return examination.end()
    own = replace(task, measured=[measure])
    try:
        table, first = _numbers(own, measure, method, list(range(samples)))
        again, _ = _numbers(own, measure, method, list(range(samples)))
        alone = torch.cat([_numbers(own, measure, method, [i])[0] for i in range(samples)], 1)
    except Exception as error:  # a user's measure may raise anything
        fact = f"it raised {type(error).__name__}: {error}"
        then = "docs/write-a-metric.md says what a measure is given and what it returns"
        examination.law("runs", False, fact, then)
        return examination.end()
    count = first.logits.shape[1]
    found = torch.stack([c.long() for c in measure.classes(first)])
    fact = f"classes() asks for {int(found.min())} to {int(found.max())} of {count} classes"
    right = bool(((found >= 0) & (found < count)).all()) and found.shape[1] == samples
    examination.law("classes", right, fact, "(batch,) class numbers of the model each")
    _laws(examination, measure, table, again, alone)
    return examination.end()


def _says(examination: Examination, measure: Any) -> bool:
    lacks = [
        n for n in ("name", "metric", "statistics", "costly", "classes") if not hasattr(measure, n)
    ]
    names = [s.name for s in getattr(measure, "statistics", ())]
    if not names or len(set(names)) < len(names):
        lacks.append(f"statistics of different names (it has {names})")
    if not isinstance(getattr(measure, "metric", None), Metric):
        lacks.append("a metric with name, higher_is_better, protocol, source, deviations")
    then = "relprop.evaluation.OfLabel has what most measures share (docs/write-a-metric.md)"
    return examination.law("says what it is", not lacks, f"it lacks {', '.join(lacks)}", then)


def _numbers(task: Task, measure: Measure, method: str, indices: list[int]) -> tuple[Tensor, Batch]:
    """The measure's numbers of these samples, for each of the rows: (rows, samples, columns)."""
    batch, rows = task.batch(indices), entries([method])
    found = []
    for maps in task.maps(batch, rows):
        if isinstance(maps, RelpropError):
            raise maps
        found.append(_table(measure(task, batch, maps), batch))
    return torch.stack(found), batch


def _table(found: Any, batch: Batch) -> Tensor:
    samples = len(batch.samples)
    shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != samples:
        raise RelpropError(f"it returned {shape}; ({samples} samples, columns) is needed")
    if found.isinf().any():
        raise RelpropError("it returned infinite numbers; NaN where it is not defined")
    return found.double()


def _laws(
    examination: Examination, measure: Measure, table: Tensor, again: Tensor, alone: Tensor
) -> None:
    examination.law("runs", True)
    then = "draw random numbers from a torch.Generator, by the sample and not by the batch"
    same = torch.equal(table.nan_to_num(), again.nan_to_num())
    examination.law("repeatable", same, "a second call gives other numbers", then)
    off = float((table - alone).nan_to_num().abs().max())
    fact = f"a sample has other numbers in a batch than alone, by {off:.2g}"
    right = off <= EXACT * max(1.0, float(table.nan_to_num().abs().max()))
    examination.law("batch-exact", right, fact, then)
    for statistic in measure.statistics:
        made = statistic.of(table[0])
        if not isinstance(made, float) or math.isinf(made):
            fact = f"{statistic.name!r} is {made!r}, and no finite float"
            examination.law("statistics", False, fact, "float(...) of the table")
        if statistic.values is not None:
            mean = float(statistic.values(table[0]).nanmean()) * statistic.scale
            near = math.isclose(made, mean, rel_tol=1e-6, abs_tol=1e-9) or math.isnan(made)
            fact = f"{statistic.name!r} is {made:.6g}, and the mean of its values {mean:.6g}"
            then = "relprop.evaluation.mean_of(name, values, scale)"
            if not near:
                examination.law("statistics", False, fact, then)
    if not any(f.law == "statistics" for f in examination.faults):
        examination.law("statistics", True)
