"""The command line: argument parsing; each command is a few lines around the library."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from relprop.commands import options
from relprop.commands.arguments import Answer, Args, DataArgs, ModelArgs, spelt_out
from relprop.commands.ending import (
    deprecations_silenced,
    one_interrupt,
    refusal,
    warnings_as_messages,
)
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


@app.command(epilog=CODES)
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


@app.command(epilog=CODES)
@spelt_out()
def explain(args: Args, data: DataArgs, answer: Answer) -> None:
    """Explain pictures or texts; or, with --data, every sample of a data set, into a run folder
    (in several processes under accelerate launch -m relprop explain)."""
    from relprop.commands.explain import explain as run

    run(args, data, answer)


@app.command(epilog=CODES)
@spelt_out("targets", "rules", "outs")
def compare(
    args: Args,
    answer: Answer,
    target: options.Target = "predicted",
    out: options.ComparisonOut = [],  # noqa: B006
) -> None:
    """Explain one input by several methods (six that differ, if none is named): rank
    correlations, and the maps side by side."""
    from relprop.commands.compare import compare as run

    run(args, replace(answer, targets=[target], outs=out))


@app.command(epilog=CODES)
@spelt_out("targets", "ledger")
def generate(
    args: Args,
    answer: Answer,
    max_new_tokens: options.NewTokens = 20,
    seed: options.Seed = None,
) -> None:
    """Let a model go on after a prompt (INPUT), and explain every token that it generates."""
    from relprop.commands.generate import generate as run

    run(args, answer, max_new_tokens, seed)


@app.command(epilog=CODES)
@spelt_out("targets", "outs", "stream", "memory", "ledger")
def card(
    args: Args,
    answer: Answer,
    out: options.CardOut,
    target: options.Target = "predicted",
    max_new_tokens: options.NewTokens = 20,
    heads: options.Heads = False,
    checks: options.Checks = True,
) -> None:
    """One page about one picture or text: what the answer rests on, in words and outlined, what
    the model nearly said, and what it says when that part is covered."""
    from relprop.commands.card import card as run

    answer = replace(answer, targets=[target], outs=out)
    run(args, answer, max_new_tokens, heads=heads, checks=checks)


@app.command(epilog=CODES)
@spelt_out("targets", "methods", "outs", "stream", "memory")
def compile(
    args: Args,
    answer: Answer,
    method: options.OneMethod = None,
    out: options.CompiledOut = None,
    ahead_of_time: options.AheadOfTime = False,
) -> None:
    """One method of one model as a file that PyTorch runs without either, for inputs of INPUT's
    shape and batches of any size."""
    from relprop.commands.compile import compile_model

    outs, methods = [] if out is None else [out], [] if method is None else [method]
    answer = replace(answer, methods=methods, outs=outs)
    compile_model(args, answer, ahead_of_time=ahead_of_time)


@app.command(epilog=CODES)
@spelt_out("stream", "memory", "max_length")
def check(
    args: Args,
    method: options.CheckedMethod = "transformer_attribution",
    rules: Annotated[str, typer.Option(help="The rule set, by name.")] = "paper",
    json_output: options.Json = False,
) -> None:
    """Is a model supported: each operation and its rule, where relevance is lost, and which methods
    apply. Without INPUT, for a random one."""
    from relprop.commands.check import check as run

    if not run(args, method, rules, json_output=json_output):
        raise typer.Exit(1)


@app.command(epilog=CODES)
def methods(
    name: Annotated[str | None, typer.Argument(help="One method, with its options.")] = None,
    json_output: options.Json = False,
) -> None:
    """The methods: whether class-specific, signed, what they cost, and where they come from."""
    from relprop.commands.methods import show_methods

    show_methods(name, json_output=json_output)


@app.command(epilog=CODES)
def doctor(json_output: options.Json = False) -> None:
    """What is installed, what does not fit together, what is missing and what to type, and what it
    runs on."""
    from relprop.commands.doctor import doctor as run

    if not run(json_output=json_output):
        raise typer.Exit(1)


@app.command(epilog=CODES)
@spelt_out("precision", "memory", "no_checks")
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
