"""What ``relprop.evaluation.tune`` gains on the shipped tasks: ``python -m
tools.known_answers.tuned`` prints the table of docs/evaluation.md, and with ``--update`` writes
it."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import torch
import typer

from relprop.evaluation import digit_scenes, reviews, tune
from tools.evaluation.page import update
from tools.known_answers.__main__ import DOCS

SAMPLES, SEED = 100, 7
TASKS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "scenes": (
        digit_scenes,
        "segmentation: mIoU",
        ("transformer_attribution", "lrp_gamma", "attnlrp"),
    ),
    "reviews": (reviews, "AOPC", ("transformer_attribution", "lrp_gamma", "attnlrp")),
}


def main(
    update_docs: Annotated[
        bool, typer.Option("--update", help="Write docs/evaluation.md.")
    ] = False,
) -> None:
    """Tune each method on each task."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lines = [
        "| data, measure | method | chosen on one half, and on the other | gain on the other half "
        "|",
        "| --- | --- | --- | --- |",
    ]
    for name, (make, metric, methods) in TASKS.items():
        task = make(SAMPLES, seed=SEED)
        for method in methods:
            found = tune(
                task.model,
                task.source,
                metric,
                method=method,
                tokenizer=getattr(task, "tokenizer", None),
            )
            gain, chosen = found.gain, "; ".join(dict.fromkeys(found.chosen))
            said = f"{gain.mean:+.3g} [{gain.low:+.3g}, {gain.high:+.3g}]"
            lines.append(f"| {name}, {metric} | `{method}` | {chosen} | {said} |")
            typer.echo(lines[-1])
    if update_docs:
        update(DOCS / "evaluation.md", {"tuned": "\n".join(lines)})


if __name__ == "__main__":
    typer.run(main)
