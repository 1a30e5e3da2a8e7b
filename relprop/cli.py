"""The command line: argument parsing; each command is a few lines around the library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help="Explain what a transformer looked at.")


@app.callback()
def _root() -> None:
    """Explain what a transformer looked at."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo.png"),
    seed: Annotated[int, typer.Option(help="Which held-out scene is explained.")] = 8,
) -> None:
    """Explain one held-out digit scene for both of its digits, with the shipped trained model."""
    from relprop.demo.show import run_demo

    typer.echo(run_demo(out, seed))


@app.command()
def sweep(
    source: Annotated[str, typer.Argument(help="timm, hf, or all.")],
    filter: Annotated[str, typer.Option(help="Only models whose name holds this text (or fits it, if it has a *).")] = "",
    jobs: Annotated[int, typer.Option(help="Worker processes, one thread each.")] = 1,
    out: Annotated[Path, typer.Option(help="Where the report goes; an interrupted sweep with the same --out goes on where it stopped.")] = Path("build/sweep"),
    timeout: Annotated[float, typer.Option(help="Seconds for one model.")] = 300,
    list_only: Annotated[bool, typer.Option("--list", help="Only print the models' names.")] = False,
    check: Annotated[Path | None, typer.Option(help="An earlier supported-models.json: exit with 1 if a model got worse.")] = None,
    exclusions: Annotated[Path | None, typer.Option(help="A JSON file of names to leave out, each with its reason.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not go on with an interrupted sweep.")] = False,
) -> None:
    """Build every model of a library from its config, explain it, and report what held. Nothing is downloaded."""
    from relprop.sweep import command

    if list_only:
        for subject in command.chosen_subjects(source, filter):
            typer.echo(subject.name)
    elif not command.sweep(
        source, pattern=filter, jobs=jobs, out=out, timeout=timeout, check=check, exclusions=exclusions, fresh=fresh, tell=typer.echo,
    ):
        raise typer.Exit(1)


def main() -> None:
    """The entry point; a refusal is one message and exit code 1, without a traceback."""
    from relprop.errors import RelpropError

    try:
        app()
    except RelpropError as error:
        typer.echo(f"relprop: {error}", err=True)
        raise SystemExit(1) from None
