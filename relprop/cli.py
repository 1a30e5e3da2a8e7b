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


def main() -> None:
    """The entry point; a refusal is one message and exit code 1, without a traceback."""
    from relprop.errors import RelpropError

    try:
        app()
    except RelpropError as error:
        typer.echo(f"relprop: {error}", err=True)
        raise SystemExit(1) from None
