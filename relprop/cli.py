"""The command line: argument parsing; each command is a few lines around the library."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from relprop.commands import options
from relprop.commands.asked import Asked, AskedDataSet, AskedModel
from relprop.commands.ending import (
    deprecations_silenced,
    one_interrupt,
    refusal,
    warnings_as_messages,
)
from relprop.commands.telling import WrongUsage, tell
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

        tell(f"relprop {__version__}")
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
    from relprop.commands.demo import demo as run

    run(out, seed, force=force, json_output=json_output)


@app.command(epilog=CODES)
def explain(
    model: options.Model,
    input: options.Input = None,
    text: options.Text = None,
    text_file: options.TextFile = None,
    target: options.Targets = None,
    method: options.Method = None,
    rules: options.Rules = None,
    out: options.Out = None,
    force: options.Force = False,
    json_output: options.Json = False,
    stream: options.Stream = None,
    ledger: options.Ledger = None,
    data: options.Data = None,
    data_option: options.DataOption = None,
    resume: options.Resume = False,
    batch_size: options.BatchSize = None,
    limit: options.Limit = None,
    on_error: options.OnError = "stop",
    precision: options.Precision = None,
    memory: options.Memory = "auto",
    max_length: options.MaxLength = None,
    trust_remote_code: options.Trust = False,
) -> None:
    """Explain one picture or text; or, with --data, every sample of a data set, into a run folder
    (in several processes under accelerate launch -m relprop explain)."""
    from relprop.commands.explain import Answer
    from relprop.commands.explain import explain as run

    opening = AskedModel(model, precision, max_length, trust_remote_code, memory)
    run(
        Asked(opening, input, text, text_file, stream),
        AskedDataSet(data or "", data_option or (), resume, batch_size, limit, on_error),
        Answer(target or (), method or (), rules, out or (), force, json_output, ledger),
    )


@app.command(epilog=CODES)
def compare(
    model: options.Model,
    input: options.Input = None,
    text: options.Text = None,
    text_file: options.TextFile = None,
    target: options.Target = "predicted",
    method: options.Method = None,
    out: options.ComparisonOut = None,
    force: options.Force = False,
    json_output: options.Json = False,
    stream: options.Stream = None,
    ledger: options.Ledger = None,
    precision: options.Precision = None,
    memory: options.Memory = "auto",
    max_length: options.MaxLength = None,
    trust_remote_code: options.Trust = False,
) -> None:
    """Explain one input by several methods (six that differ, if none is named): rank
    correlations, and the maps side by side."""
    from relprop.commands.compare import compare as run
    from relprop.commands.explain import Answer

    opening = AskedModel(model, precision, max_length, trust_remote_code, memory)
    asked = Asked(opening, input, text, text_file, stream)
    run(asked, Answer((target,), method or (), None, out or (), force, json_output, ledger))


@app.command(epilog=CODES)
def generate(
    model: options.Model,
    input: options.Prompt = None,
    text: options.Text = None,
    text_file: options.TextFile = None,
    max_new_tokens: options.NewTokens = 20,
    seed: options.Seed = None,
    method: options.Method = None,
    rules: options.Rules = None,
    out: options.Out = None,
    force: options.Force = False,
    json_output: options.Json = False,
    stream: options.Stream = None,
    precision: options.Precision = None,
    memory: options.Memory = "auto",
    max_length: options.MaxLength = None,
    trust_remote_code: options.Trust = False,
) -> None:
    """Let a model go on after a prompt, and explain every token that it generates."""
    from relprop.commands.explain import Answer
    from relprop.commands.generate import generate as run

    opening = AskedModel(model, precision, max_length, trust_remote_code, memory)
    answer = Answer((), method or (), rules, out or (), force, json_output)
    run(Asked(opening, input, text, text_file, stream), answer, max_new_tokens, seed)


@app.command(epilog=CODES)
def compile(
    model: options.Model,
    input: options.Input = None,
    text: options.Text = None,
    text_file: options.TextFile = None,
    method: options.OneMethod = None,
    rules: options.Rules = None,
    out: options.CompiledOut = None,
    force: options.Force = False,
    json_output: options.Json = False,
    ahead_of_time: options.AheadOfTime = False,
    ledger: options.Ledger = None,
    precision: options.Precision = None,
    max_length: options.MaxLength = None,
    trust_remote_code: options.Trust = False,
) -> None:
    """One method of one model as a file that PyTorch runs without either, for inputs of INPUT's
    shape and batches of any size."""
    from relprop.commands.compile import compile_model
    from relprop.commands.explain import Answer

    opening = AskedModel(model, precision, max_length, trust_remote_code)
    outs = () if out is None else (out,)
    methods = () if method is None else (method,)
    answer = Answer((), methods, rules, outs, force, json_output, ledger)
    compile_model(Asked(opening, input, text, text_file), answer, ahead_of_time=ahead_of_time)


@app.command(epilog=CODES)
def check(
    model: options.Model,
    input: options.Input = None,
    text: options.Text = None,
    text_file: options.TextFile = None,
    method: options.CheckedMethod = "transformer_attribution",
    rules: Annotated[str, typer.Option(help="The rule set, by name.")] = "paper",
    precision: options.Precision = None,
    json_output: options.Json = False,
    trust_remote_code: options.Trust = False,
) -> None:
    """Is a model supported: each operation and its rule, where relevance is lost, and which methods
    apply. Without INPUT, for a random one."""
    from relprop.commands.check import check as run

    opening = AskedModel(model, precision, trust_remote_code=trust_remote_code)
    asked = Asked(opening, input, text, text_file)
    if not run(asked, method, rules, json_output=json_output):
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
def evaluate(
    out: Annotated[Path, typer.Option(help="The run folder, and where the table goes.")],
    data: Annotated[
        str | None,
        typer.Option(help="demo:digits, demo:reviews, or a data set of your own (docs/data.md)."),
    ] = None,
    model: Annotated[str | None, typer.Option(help=options.MODEL)] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A row, name:option=value,option=value. May be repeated."),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(help="A measure by name. May be repeated; all that are cheap if not given."),
    ] = None,
    data_option: options.DataOption = None,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", "--limit", help="Only the first so many samples; all if not given."
        ),
    ] = None,
    resume: options.Resume = False,
    batch_size: options.BatchSize = None,
    on_error: options.OnError = "stop",
    max_length: options.MaxLength = None,
    json_output: options.Json = False,
    trust_remote_code: options.Trust = False,
) -> None:
    """Methods × metrics: a table of a model on a data set. (The papers' tables on the shipped
    models are made in a clone of the repository: make evaluate.)"""

    if data is None or model is None:
        raise WrongUsage(
            f"evaluate needs {'--data' if data is None else '--model'}; the papers' tables on the "
            "shipped models are made in a clone of the repository: make evaluate"
        )
    from relprop.commands.data_sets import evaluate as run

    opening = AskedModel(model, None, max_length, trust_remote_code)
    asked = AskedDataSet(data, data_option or (), resume, batch_size, samples, on_error)
    run(opening, asked, out, method or (), measure or (), json_output=json_output)


def main(arguments: list[str] | None = None) -> None:
    """The entry point: ``CODES``. A refusal is one message without a traceback; so are warnings."""

    if not sys.stderr.isatty():
        # read by huggingface_hub and transformers when they are imported
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with one_interrupt(), deprecations_silenced(), warnings_as_messages():
        try:
            app(arguments, prog_name="relprop")
        except WrongUsage as error:
            tell(f"relprop: {error}\n  relprop COMMAND --help lists the options", err=True)
            raise SystemExit(2) from None
        except Exception as error:
            tell(f"relprop: {refusal(error)}", err=True)
            if os.environ.get("RELPROP_TRACEBACK"):
                traceback.print_exception(error)
            raise SystemExit(1) from None
