"""The command line. Each command is a function whose parameters are its options, a few lines around
the library; none imports PyTorch before it is at work."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from relprop.commands import options
from relprop.commands.arguments import DataArgs, ModelArgs, options_of_classes
from relprop.commands.card import card
from relprop.commands.check import check
from relprop.commands.compare import compare
from relprop.commands.compile import compile
from relprop.commands.doctor import doctor
from relprop.commands.error_output import (
    deprecations_silenced,
    one_interrupt,
    refusal,
    warnings_as_messages,
)
from relprop.commands.explain import explain
from relprop.commands.generate import generate
from relprop.commands.methods import methods
from relprop.commands.printing import WrongUsage, echo, echo_json
from relprop.commands.steps import Steps
from relprop.commands.writing import check_outs
from relprop.errors import strictly

CODES = (
    "Exit codes: 0 done; 1 refused or failed, with the reason on standard error; 2 "
    "the command line is wrong."
)
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Explain what a transformer looked at.",
    epilog=CODES,
)


def _version(wanted: bool) -> None:
    if wanted:
        from relprop import __version__

        echo(f"relprop {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Any warning is an error.")] = False,
) -> None:
    """Explain what a transformer looked at."""
    if strict:
        context.with_resource(strictly())


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo.png"),
    seed: Annotated[int, typer.Option(help="Which held-out scene is explained.")] = 8,
    force: options.Force = False,
    json_output: options.Json = False,
) -> None:
    """Explain one held-out digit scene for both of its digits, with the shipped trained model."""
    check_outs([out], [".png"], force=force, drawn=False)
    with Steps(1) as steps:
        steps.next("explaining a scene")
        from relprop.demo.show import run_demo

        report = run_demo(out, seed)
    if json_output:
        echo_json({"seed": seed, "picture": str(out), "report": report.splitlines()})
    else:
        echo(report)


@options_of_classes("precision", "memory", "no_checks")
def evaluate(
    model: ModelArgs,
    data: DataArgs,
    out: Annotated[Path, typer.Option(help="The run folder, and where the table goes.")],
    method: Annotated[
        list[str],
        typer.Option(help="A row, name:option=value,option=value. May be repeated."),
    ] = [],  # noqa: B006
    measure: Annotated[
        list[str],
        typer.Option(help="A measure by name. May be repeated; all that are cheap if not given."),
    ] = [],  # noqa: B006
    json_output: options.Json = False,
) -> None:
    """Methods × metrics: a table of a model on a data set. (The papers' tables on the shipped
    models are made in a clone of the repository: make evaluate.)"""
    if data.data is None:
        raise WrongUsage(
            "evaluate needs --data; the papers' tables on the shipped models are made in a clone "
            "of the repository: make evaluate"
        )
    from relprop.commands.data_sets import evaluate as run

    run(model, data, out, method, measure, json_output=json_output)


for _command in (demo, explain, compare, generate, card, compile, check, methods, doctor, evaluate):
    app.command(epilog=CODES)(_command)


def main(arguments: list[str] | None = None) -> None:
    """The entry point: ``CODES``. A refusal is one message without a traceback; so are warnings."""

    if not sys.stderr.isatty():
        # read by huggingface_hub and transformers when they are imported
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with one_interrupt(), deprecations_silenced(), warnings_as_messages():
        try:
            app(arguments, prog_name="relprop")
        except WrongUsage as error:
            echo(f"relprop: {error}\n  relprop COMMAND --help lists the options", err=True)
            raise SystemExit(2) from None
        except Exception as error:
            echo(f"relprop: {refusal(error)}", err=True)
            if os.environ.get("RELPROP_TRACEBACK"):
                traceback.print_exception(error)
            raise SystemExit(1) from None
