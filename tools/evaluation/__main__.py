"""``python -m tools.evaluation --out FOLDER``: the papers' tables on the shipped models, as a
page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from relprop.cli import CODES
from relprop.commands.options import Json, Resume
from tools.evaluation.tasks import measure_shipped, write_page

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, epilog=CODES
)


@app.command(epilog=CODES)
def main(
    out: Annotated[Path, typer.Option(help="Where the runs and the tables go.")],
    samples: Annotated[int, typer.Option(help="Samples of each task.")] = 500,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only this task: digit_scenes, reviews, sanity. May be repeated."),
    ] = None,
    resume: Resume = False,
    batch_size: Annotated[int, typer.Option(help="Samples at a time.")] = 50,
    update: Annotated[
        Path | None,
        typer.Option(help="A page whose marked tables are written anew: docs/evaluation.md."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Methods × metrics: the papers' tables on the shipped models."""

    def log(line: str) -> None:
        typer.echo(line, err=json_output)

    found = measure_shipped(
        out, samples=samples, only=only or (), log=log, resume=resume, batch_size=batch_size
    )
    command = f"python -m tools.evaluation --samples {samples}"
    write_page(found, out, command, page_to_update=update, log=log)
    if json_output:
        runs = {name: str(out / name) for name in found}
        typer.echo(json.dumps({"page": str(out / "evaluation.md"), "runs": runs}))


if __name__ == "__main__":
    app(prog_name="python -m tools.evaluation")
