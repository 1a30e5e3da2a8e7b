"""``evaluate``: methods × metrics on a task, in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from relprop.errors import OptionError
from relprop.evaluation.entries import entries
from relprop.evaluation.table import Table
from relprop.evaluation.tasks import Task
from relprop.evaluation.work import EvaluationWork, numbers

CVPR_2021 = ("rollout", "raw_attention", "gradcam", "lrp", "partial_lrp", "transformer_attribution")
ATTCAT = (
    *("raw_attention", "rollout", "attention_grad", "attention_times_grad"),
    *("partial_lrp", "transformer_attribution", "cat", "attcat"),
)


def evaluate(
    task: Task,
    methods: Iterable[Any] = CVPR_2021,
    *,
    samples: int | None = None,
    batch_size: int = 50,
    title: str = "",
) -> Table:
    """The table of ``methods`` on a task's samples, with the rows ``random`` and ``position``.

    Args:
        task: ``digit_scenes(500)``, ``reviews(500)``, or an ``ImageTask`` or ``TextTask`` of a
            model and a data set of your own.
        methods: names (``"rollout"``, ``"partial_lrp/lrp"``), functions ``f(model, inputs,
            target)``, pairs of a row's name and one of these.
        samples: the first so many of the data set; ``None``: all. ``batch_size``: samples at a
            time; no number depends on it beyond rounding.

    For data sets that are large, and for runs that may be interrupted, there is ``relprop evaluate
    --data`` (docs/whole-data-sets.md).

    >>> import torch
    >>> from relprop.evaluation import digit_scenes, evaluate
    >>> def mine(model, images, target):
    ...     return images.mean(1)
    >>> table = evaluate(digit_scenes(4), ["transformer_attribution", mine])
    >>> table.rows
    ('transformer_attribution', 'mine', 'random', 'position')
    """
    if batch_size < 1 or (samples is not None and samples < 2):
        raise OptionError(f"batch_size={batch_size}, samples={samples}: at least 1, and at least 2")
    rows = entries(methods)
    work = EvaluationWork(task, rows, samples)
    lines = [
        (record.index, row)
        for first in range(0, len(work), batch_size)
        for record in work(range(first, min(first + batch_size, len(work))))
        for row in record.rows
    ]
    return numbers(task, rows, lines).table(title)
