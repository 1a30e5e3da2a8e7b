"""``relprop explain --data`` and ``relprop evaluate``: a model and a data set by name, and a run
folder; in every process of an ``accelerate launch``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relprop.cards.run import run_page
from relprop.commands.arguments import Answer, DataArgs, ModelArgs
from relprop.commands.printing import command_line, echo, echo_json
from relprop.data import Source
from relprop.errors import RelpropError, UnforeseenError, quietly
from relprop.evaluation import EvaluationWork, ImageTask, TextTask
from relprop.evaluation.entries import entries
from relprop.evaluation.evaluate import ATTCAT, CVPR_2021
from relprop.evaluation.tasks import Task, unchanged
from relprop.evaluation.work import read_numbers
from relprop.runner.question import Question
from relprop.runs import ExplainWork, Summary, Work, processes, read_run, run
from relprop.runs.command import (
    Opened,
    device_named,
    open_named_model,
    open_source,
    parse_method,
    parse_options,
    prepared,
    tokenizer_of,
)
from relprop.writing import written


def explain_all(
    model: ModelArgs, data: DataArgs, answer: Answer, out: Path, pages: Sequence[Path]
) -> None:
    """Explain every sample into the run folder ``out``, print the summary, and once the run is
    complete write its page and model card there, and the page as each of ``pages``. Methods:
    each a name, or a name with options, ``transformer_attribution:rules=stable,...``. Raises
    ``RelpropError``."""
    opened, source, normalize = _opened(model, data)
    work = ExplainWork(
        opened.model,
        source,
        methods=[parse_method(m) for m in answer.methods or ("transformer_attribution",)],
        target=(*answer.targets, "predicted")[0],
        normalize=normalize,
        processor=opened.processor if source.kind == "text" else None,
        max_length=model.max_length,
        limit=data.limit,
        precision=model.precision,
        memory=model.bytes,
    )
    summary = _run(work, data, out)
    if answer.json_output:
        echo_json(dataclasses.asdict(summary) | {"complete": summary.complete})
    else:
        echo(summary)
    if summary.complete and not summary.process:
        files = _write_page(work, out, pages, checks=not data.no_checks)
        if not answer.json_output and files:
            echo("\n".join(f"written: {file}" for file in files))
    processes.leave()


def _write_page(work: ExplainWork, out: Path, pages: Sequence[Path], *, checks: bool) -> list[Path]:
    """Write the page and the model card of a complete run; the files. A refusal is told and fails
    nothing: the numbers are on the disk."""
    files = []
    try:
        with quietly():  # the run has warned
            page = run_page(read_run(out), work, command_line(), checks=checks)
            files.append(page.to_html(out / "index.html"))
            files.append(page.to_markdown(out / "model-card.md"))
        for path in pages:
            picture = path.suffix.lower() == ".png"
            files.append((page.to_png if picture else page.to_html)(path))
    except UnforeseenError:
        raise
    except RelpropError as error:
        echo(f"warning: the run is complete, its page could not be written: {error}", err=True)
    return files


def evaluate(
    model: ModelArgs,
    data: DataArgs,
    out: Path,
    methods: Sequence[str],
    measures: Sequence[str],
    *,
    json_output: bool,
) -> None:
    """Methods × measures on every sample, in the run folder ``out``, and the table, also in ``out``
    as ``table.md`` and ``table.json``. Among several processes the first one makes the table, once
    the run is complete. ``measures``: by name; none: all that the data allow and that are not
    costly. Raises ``RelpropError``."""
    opened, source, normalize = _opened(model, data)
    chosen = tuple(measures) or None
    if source.kind == "image":
        task: Task = ImageTask(opened.model, source, chosen, normalize=normalize or unchanged)
    else:
        how = {"tokenizer": tokenizer_of(opened.processor), "max_length": model.max_length}
        task = TextTask(opened.model, source, chosen, **how)
    usual = CVPR_2021 if source.kind == "image" else ATTCAT
    rows = entries([_row(text) for text in methods] or usual)
    summary = _run(EvaluationWork(task, rows, data.limit), data, out)
    echo(summary, err=True)
    if summary.complete and not summary.process:
        table = read_numbers(task, rows, out).table(f"{source.name}, {model.name}")
        for name, text in (("table.md", str(table)), ("table.json", table.to_json())):
            with written(out / name, "the table") as beside:
                beside.write_text(f"{text}\n", encoding="utf-8")
        echo(table.to_json() if json_output else table)
    processes.leave()


def _opened(model: ModelArgs, data: DataArgs) -> tuple[Opened, Source, Any]:
    """The model, the data set as it takes it, and what normalises images."""
    device = device_named(model.device)
    options = parse_options(data.data_options, "--data-option")
    source = open_source(data.data or "", data.limit, **options)
    opened = open_named_model(model.name, device, trust_remote_code=model.trust_remote_code)
    return opened, *prepared(source, opened)


def _run(work: Work, data: DataArgs, out: Path) -> Summary:
    how: dict[str, Any] = {"batch_size": data.batch_size, "resume": data.resume}
    return run(work, out, on_error=data.on_error, **how)


def _row(text: str) -> object:
    """A method of the command line: its row is named as it was written."""
    name, options = parse_method(text)
    rules = options.pop("rules", None)
    return (text, Question(name, options, rules)) if ":" in text else text
