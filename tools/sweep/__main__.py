"""``python -m tools.sweep timm|hf|all``: every model of a library, built small, explained, and what
held of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from relprop.cli import CODES
from relprop.commands.options import Json
from tools.sweep.command import chosen_subjects, sweep
from tools.sweep.subjects import SOURCES

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, epilog=CODES
)


@app.command(epilog=CODES)
def main(
    source: Annotated[str, typer.Argument(help="timm, hf, or all.")],
    filter: Annotated[
        str,
        typer.Option(help="Only models whose name holds this text (or fits it, if it has a *)."),
    ] = "",
    jobs: Annotated[int, typer.Option(help="Worker processes, one thread each.")] = 1,
    out: Annotated[
        Path,
        typer.Option(
            help="Where the report goes; an interrupted sweep with the same --out goes on where "
            "it stopped."
        ),
    ] = Path("build/sweep"),
    timeout: Annotated[float, typer.Option(help="Seconds for one model.")] = 300,
    list_only: Annotated[
        bool, typer.Option("--list", help="Only print the models' names.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(help="An earlier supported-models.json: exit with 1 if a model got worse."),
    ] = None,
    gradient_alone: Annotated[
        bool,
        typer.Option(
            "--gradient-alone",
            help="Measure the columns of gradients alone, and write them into the report that "
            "--check names, for all models measured so far.",
        ),
    ] = False,
    exclusions: Annotated[
        Path | None, typer.Option(help="A JSON file of names to leave out, each with its reason.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Do not go on with an interrupted sweep.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Build every model of a library from its config, explain it, and report what held. Nothing is
    downloaded."""
    if source not in (*SOURCES, "all"):
        raise typer.BadParameter(f"{source!r}: timm, hf or all")
    if gradient_alone and (check is None or not check.exists()):
        raise typer.BadParameter("--gradient-alone needs --check, a report to write into")
    if list_only:
        names = [subject.name for subject in chosen_subjects(source, filter)]
        typer.echo(json.dumps(names) if json_output else "\n".join(names))
        return
    held = sweep(
        source,
        pattern=filter,
        jobs=jobs,
        out=out,
        timeout=timeout,
        check=check,
        exclusions=exclusions,
        fresh=fresh,
        gradient_alone=gradient_alone,
        log=lambda line: typer.echo(line, err=json_output),
    )
    if json_output:
        paths = {"report": "supported-models.json", "page": "supported-models.md"}
        typer.echo(json.dumps({"ok": held, **{k: str(out / name) for k, name in paths.items()}}))
    if not held:
        raise typer.Exit(1)


if __name__ == "__main__":
    app(prog_name="python -m tools.sweep")
