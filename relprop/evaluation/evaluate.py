"""``evaluate``: methods × metrics on a task, in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from relprop.error_boundary import guarded
from relprop.errors import OptionError
from relprop.evaluation.entries import entries
from relprop.evaluation.table import Table
from relprop.evaluation.tasks import Task
from relprop.evaluation.work import measured_numbers

CVPR_2021 = ("rollout", "raw_attention", "gradcam", "lrp", "partial_lrp", "transformer_attribution")
ATTCAT = (
    *("raw_attention", "rollout", "attention_grad", "attention_times_grad"),
    *("partial_lrp", "transformer_attribution", "cat", "attcat"),
)


@guarded
def evaluate(
    task: Task,
    methods: Iterable[Any] = CVPR_2021,
    *,
    samples: int | None = None,
    batch_size: int = 50,
    title: str = "",
    strict: bool = False,
) -> Table:
    """The table of ``methods`` on a task's samples, with the rows ``random`` and ``position``.

    Args:
        task: ``digit_scenes(500)``, ``reviews(500)``, or an ``ImageTask`` or ``TextTask`` of a
            model and a data set of your own.
        methods: names (``"rollout"``, ``"partial_lrp/lrp"``), functions ``f(model, inputs,
            target)``, pairs of a row's name and one of these.
        samples: the first so many of the data set; ``None``: all. ``batch_size``: samples at a
            time; no number depends on it beyond rounding.
        title: the table's. ``strict``: as in ``relprop.explain``.

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
    counts = [n for n in (batch_size, samples) if n is not None]
    whole = all(isinstance(n, int) for n in counts)
    if not whole or batch_size < 1 or (samples is not None and samples < 2):
        fact = f"batch_size={batch_size!r}, samples={samples!r}: at least 1, and at least 2"
        raise OptionError(fact)
    if not hasattr(task, "source") or not hasattr(task, "identity"):
        then = ["relprop.evaluation.digit_scenes(500), or an ImageTask or TextTask of your own"]
        raise OptionError(f"task is {type(task).__name__}, no task", then=then)
    return measured_numbers(task, entries(methods), samples, batch_size).table(title)
