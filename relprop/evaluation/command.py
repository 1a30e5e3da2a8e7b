"""What ``relprop evaluate`` does: rows × measures on a data set, in a run folder, and the table of
them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from relprop.evaluation.entries import Entry, entries
from relprop.evaluation.evaluate import ATTCAT, CVPR_2021
from relprop.evaluation.table import Numbers, Table
from relprop.evaluation.tasks import ImageTask, Task, unchanged
from relprop.evaluation.text_task import TextTask
from relprop.evaluation.work import EvaluationWork, numbers
from relprop.runner.question import Question
from relprop.runs import Summary, processes, read_run, run
from relprop.runs.command import (
    open_named_model,
    open_source,
    parse_method,
    parse_options,
    prepared,
)


def evaluate_data(
    *,
    model: str,
    data: str,
    out: Path,
    methods: Sequence[str] = (),
    measures: Sequence[str] = (),
    data_options: Sequence[str] = (),
    batch_size: int | None = None,
    limit: int | None = None,
    resume: bool = False,
    on_error: str = "stop",
    max_length: int | None = None,
    trust_remote_code: bool = False,
    progress: bool = True,
) -> tuple[Summary, Table | None]:
    """Methods × measures on every sample of a data set, in the run folder ``out``, and the table,
    also in ``out`` as ``table.md`` and ``table.json``.

    Arguments as for ``relprop.runs.command.explain_data``; ``measures``: by name, ``None``: all
    that the data allow and that are not costly. Among several processes the first one makes the
    table; the others, and one whose run is not complete, return ``None`` for it. Raises
    ``RelpropError``.
    """
    here = processes.current()
    source = open_source(data, limit, **parse_options(data_options, "--data-option"))
    opened = open_named_model(model, here.device, trust_remote_code=trust_remote_code)
    source, normalize = prepared(source, opened)
    wanted = tuple(measures) or None
    task: Task = (
        ImageTask(opened.model, source, wanted, normalize=normalize or unchanged)
        if source.kind == "image"
        else TextTask(
            opened.model,
            source,
            wanted,
            tokenizer=getattr(opened.processor, "tokenizer", opened.processor),
            max_length=max_length,
        )
    )
    rows = entries(
        [_row(text) for text in methods] or (CVPR_2021 if source.kind == "image" else ATTCAT)
    )
    summary = run(
        EvaluationWork(task, rows, limit),
        out,
        batch_size=batch_size,
        resume=resume,
        on_error=on_error,
        progress=progress,
    )
    if summary.process or not summary.complete:
        return summary, None
    table = read_numbers(task, rows, out).table(f"{source.name}, {model}")
    (out / "table.md").write_text(str(table) + "\n", encoding="utf-8")
    (out / "table.json").write_text(table.to_json() + "\n", encoding="utf-8")
    return summary, table


def _row(text: str) -> object:
    """A method of the command line: its row is named as it was written."""
    chosen = parse_method(text)
    if isinstance(chosen, str):
        return chosen
    name, options = chosen
    return text, Question(
        name, {k: v for k, v in options.items() if k != "rules"}, options.get("rules")
    )


def measure(
    task: Task,
    methods: Sequence[object],
    out: Path,
    *,
    batch_size: int | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Numbers:
    """Rows × measures on every sample of a task, in a run folder, and read back from it."""
    rows = entries(methods)
    run(EvaluationWork(task, rows), out, batch_size=batch_size, resume=resume, progress=progress)
    return read_numbers(task, rows, out)


def read_numbers(task: Task, rows: Sequence[Entry], folder: Path) -> Numbers:
    """What a run folder holds, as numbers for tables."""
    return numbers(task, rows, ((line["index"], line) for line in read_run(folder).rows()))
