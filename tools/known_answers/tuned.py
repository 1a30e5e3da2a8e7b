"""What ``relprop.evaluation.tune`` gains on digit scenes: ``python -m
tools.known_answers.tuned`` prints the table of docs/evaluation.md, and with ``--update`` writes
it."""

from __future__ import annotations

import warnings
from typing import Annotated

import torch
import typer

from relprop.evaluation import digit_scenes, tune
from tools.evaluation.page import update
from tools.known_answers.__main__ import DOCS

SAMPLES, SEED, METRIC = 40, 7, "segmentation: mIoU"
METHODS = ("transformer_attribution", "lrp_gamma", "attnlrp")


def main(
    update_docs: Annotated[
        bool, typer.Option("--update", help="Write docs/evaluation.md.")
    ] = False,
) -> None:
    """Tune each method."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lines = [
        "| method | chosen on one half, and on the other | gain on the other half |",
        "| --- | --- | --- |",
    ]
    task = digit_scenes(SAMPLES, seed=SEED)
    for method in METHODS:
        found = tune(task.model, task.source, METRIC, method=method)
        gain, chosen = found.gain, "; ".join(dict.fromkeys(found.chosen))
        said = f"{gain.mean:+.1f} [{gain.low:+.1f}, {gain.high:+.1f}]"
        lines.append(f"| `{method}` | {chosen} | {said} |")
        typer.echo(lines[-1])
    if update_docs:
        update(DOCS / "evaluation.md", {"tuned": "\n".join(lines)})


if __name__ == "__main__":
    typer.run(main)
