"""The command line: argument parsing; each command is a few lines around the library."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

CODES = (
    "Exit codes: 0 done; 1 refused or failed, with the reason on standard error; 2 "
    "the command line is wrong."
)
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Explain what a transformer looked at.",
    epilog=CODES,
)

MODEL = "demo:digits, demo:reviews, timm:NAME, or an id or folder for transformers or timm."
Input = Annotated[
    str | None,
    typer.Argument(
        metavar="[INPUT]",
        help="A picture's file, or a text as it is; - reads standard input.",
        show_default=False,
    ),
]
Model = Annotated[str, typer.Option(help=MODEL)]
Text = Annotated[str | None, typer.Option(help="A text, beside a picture for models of both.")]
TextFile = Annotated[Path | None, typer.Option(help="A file with the text, in UTF-8.")]
Method = Annotated[
    list[str] | None,
    typer.Option(
        help="A method (relprop methods), with options if wanted: "
        "name:option=value,option=value. May be repeated."
    ),
]
Precision = Annotated[
    str | None, typer.Option(help="float32 or float64; the model's own if not given.")
]
MaxLength = Annotated[int | None, typer.Option(help="Longer texts are cut to so many tokens.")]
Stream = Annotated[
    str | None,
    typer.Option(help="Of several explained inputs only this one, by its name: pixel_values."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the code that comes with the model.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
DataOption = Annotated[
    list[str] | None,
    typer.Option(
        help="With --data: what its reader should know: text=review, split=test. May be repeated."
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(help="Samples at a time; found and remembered if not given.")
]
OnError = Annotated[
    str,
    typer.Option(
        help="With --data: stop, or skip samples that cannot be done; they are listed in "
        "failed.jsonl."
    ),
]


@app.callback()
def _root() -> None:
    """Explain what a transformer looked at."""


@app.command(epilog=CODES)
def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo.png"),
    seed: Annotated[int, typer.Option(help="Which held-out scene is explained.")] = 8,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Explain one held-out digit scene for both of its digits, with the shipped trained model."""
    from relprop.commands.steps import Steps
    from relprop.commands.telling import tell, tell_json
    from relprop.commands.writing import check_outs

    check_outs([out], [".png"], force=force)
    with Steps(1) as steps:
        steps.next("explaining a scene")
        from relprop.demo.show import run_demo

        report = run_demo(out, seed)
    tell_json(
        {"seed": seed, "picture": str(out), "report": report.splitlines()}
    ) if json_output else tell(report)


@app.command(epilog=CODES)
def explain(
    model: Model,
    input: Input = None,
    text: Text = None,
    text_file: TextFile = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="predicted (the default), a class's index or name, token:TEXT of a "
            "language model; with --data predicted or label. May be repeated for one input."
        ),
    ] = None,
    method: Method = None,
    rules: Annotated[
        str | None,
        typer.Option(
            help="A rule set by name: paper, stable, reference, ...; the method's own if not given."
        ),
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            help="x.png, x.html, x.safetensors or x.json; may be repeated. With --data "
            "the run folder."
        ),
    ] = None,
    force: Force = False,
    json_output: Json = False,
    stream: Stream = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="In place of INPUT a data set: demo:digits, demo:reviews, or a folder "
            "or file (docs/whole-data-sets.md)."
        ),
    ] = None,
    data_option: DataOption = None,
    resume: Resume = False,
    batch_size: BatchSize = None,
    limit: Annotated[
        int | None, typer.Option(help="With --data: only the first so many samples.")
    ] = None,
    on_error: OnError = "stop",
    precision: Precision = None,
    max_length: MaxLength = None,
    trust_remote_code: Trust = False,
) -> None:
    """Explain one picture or text; or, with --data, every sample of a data set, into a run folder
    (in several processes under accelerate launch -m relprop explain)."""
    from relprop.commands import explain as commands

    options: dict[str, Any] = {
        "--text": text,
        "--text-file": text_file,
        "--stream": stream,
        "--force": force,
        "--data-option": data_option,
        "--resume": resume,
        "--batch-size": batch_size,
        "--limit": limit,
        "--on-error": None if on_error == "stop" else on_error,
    }
    shared: dict[str, Any] = {
        "model": model,
        "targets": target or (),
        "methods": method or (),
        "rules": rules,
        "outs": out or (),
        "precision": precision,
        "max_length": max_length,
        "json_output": json_output,
        "trust_remote_code": trust_remote_code,
    }
    if commands.choose(input, data, options):
        commands.explain_one(
            input, text=text, text_file=text_file, force=force, stream=stream, **shared
        )
    else:
        assert data is not None  # choose
        commands.explain_all(
            data,
            data_options=data_option or (),
            resume=resume,
            batch_size=batch_size,
            limit=limit,
            on_error=on_error,
            **shared,
        )


@app.command(epilog=CODES)
def compare(
    model: Model,
    input: Input = None,
    text: Text = None,
    text_file: TextFile = None,
    target: Annotated[
        str,
        typer.Option(help="predicted, a class's index or name, token:TEXT of a language model."),
    ] = "predicted",
    method: Method = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(help="x.png (the maps side by side) or x.json. May be repeated."),
    ] = None,
    force: Force = False,
    json_output: Json = False,
    stream: Stream = None,
    precision: Precision = None,
    max_length: MaxLength = None,
    trust_remote_code: Trust = False,
) -> None:
    """Explain one input by several methods (all that are cheap, if none is named): rank
    correlations, and the maps side by side."""
    from relprop.commands.compare import compare as run

    run(
        input,
        model=model,
        text=text,
        text_file=text_file,
        target=target,
        methods=method or (),
        outs=out or (),
        force=force,
        json_output=json_output,
        stream=stream,
        precision=precision,
        max_length=max_length,
        trust_remote_code=trust_remote_code,
    )


@app.command(epilog=CODES)
def check(
    model: Model,
    input: Input = None,
    text: Text = None,
    text_file: TextFile = None,
    method: Annotated[
        str, typer.Option(help="The exit code says whether this method can explain the model.")
    ] = "transformer_attribution",
    rules: Annotated[str, typer.Option(help="The rule set, by name.")] = "paper",
    precision: Precision = None,
    json_output: Json = False,
    trust_remote_code: Trust = False,
) -> None:
    """Is a model supported: each operation and its rule, where relevance is lost, and which methods
    apply. Without INPUT, for a random one."""
    from relprop.commands.check import check as run

    if not run(
        input,
        model=model,
        text=text,
        text_file=text_file,
        method=method,
        rules=rules,
        precision=precision,
        json_output=json_output,
        trust_remote_code=trust_remote_code,
    ):
        raise typer.Exit(1)


@app.command(epilog=CODES)
def methods(
    name: Annotated[str | None, typer.Argument(help="One method, with its options.")] = None,
    json_output: Json = False,
) -> None:
    """The methods: whether class-specific, signed, what they cost, and where they come from."""
    from relprop.commands.methods import show_methods

    show_methods(name, json_output=json_output)


@app.command(epilog=CODES)
def doctor(json_output: Json = False) -> None:
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
    model: Annotated[str | None, typer.Option(help=MODEL)] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A row, name:option=value,option=value. May be repeated."),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(help="A measure by name. May be repeated; all that are cheap if not given."),
    ] = None,
    data_option: DataOption = None,
    samples: Annotated[
        int | None, typer.Option(help="Only the first so many samples; all if not given.")
    ] = None,
    resume: Resume = False,
    batch_size: BatchSize = None,
    on_error: OnError = "stop",
    max_length: MaxLength = None,
    json_output: Json = False,
    trust_remote_code: Trust = False,
) -> None:
    """Methods × metrics: a table of a model on a data set. (The papers' tables on the shipped
    models are made in a clone of the repository: make evaluate.)"""
    from relprop.commands.telling import WrongUsage, tell

    if data is None or model is None:
        raise WrongUsage(
            f"evaluate needs {'--data' if data is None else '--model'}; the papers' tables on the "
            "shipped models are made in a clone of the repository: make evaluate"
        )
    from relprop.evaluation.command import evaluate_data
    from relprop.runs import processes

    summary, table = evaluate_data(
        model=model,
        data=data,
        out=out,
        methods=method or (),
        measures=measure or (),
        data_options=data_option or (),
        batch_size=batch_size,
        limit=samples,
        resume=resume,
        on_error=on_error,
        max_length=max_length,
        trust_remote_code=trust_remote_code,
    )
    tell(summary, err=True)
    if table is not None:
        tell(table.to_json() if json_output else table)
    processes.leave()


def main(arguments: list[str] | None = None) -> None:
    """The entry point: ``CODES``. A refusal is one message without a traceback; so are warnings."""
    from relprop.commands.telling import WrongUsage, tell
    from relprop.errors import RelpropError, RelpropWarning

    if not sys.stderr.isatty():
        # read by huggingface_hub and transformers when they are imported
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    deprecations = logging.getLogger("torch.utils._pytree")  # for the authors of libraries
    level = deprecations.level
    deprecations.setLevel(logging.ERROR)
    shown: Any = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **line: Any) -> None:
        tell(f"warning: {message}", err=True) if issubclass(category, RelpropWarning) else shown(
            message, category, *place, **line
        )

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        try:
            app(arguments, prog_name="relprop")
        except WrongUsage as error:
            tell(f"relprop: {error}\n  relprop COMMAND --help lists the options", err=True)
            raise SystemExit(2) from None
        except Exception as error:
            mismatched = "torchvision::nms" in str(error)
            if not mismatched and not isinstance(error, (RelpropError, OSError)):
                raise
            tell(
                f"relprop: {error}"
                + (
                    "\n  then  relprop doctor  # torchvision was made for another PyTorch"
                    if mismatched
                    else ""
                ),
                err=True,
            )
            raise SystemExit(1) from None
        finally:
            deprecations.setLevel(level)
