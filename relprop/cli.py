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
def explain(
    model: Annotated[str, typer.Option(help="demo:digits, demo:reviews, timm:NAME, or an id or folder for transformers.")],
    data: Annotated[str | None, typer.Option(help="The data set: demo:digits, demo:reviews, or a folder or file (docs/whole-data-sets.md).")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="A method, with options if wanted: name:option=value,option=value. May be repeated.")] = None,
    target: Annotated[str, typer.Option(help="predicted or label.")] = "predicted",
    data_option: Annotated[list[str] | None, typer.Option(help="What the data set's reader should know: text=review, split=test. May be repeated.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    batch_size: Annotated[int | None, typer.Option(help="Samples at a time; found and remembered if not given.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many samples.")] = None,
    on_error: Annotated[str, typer.Option(help="stop, or skip: samples that cannot be explained are listed in failed.jsonl.")] = "stop",
    precision: Annotated[str | None, typer.Option(help="float32 or float64; the model's own if not given.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Longer texts are cut to so many tokens.")] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run the code that comes with the model.")] = False,
) -> None:
    """Explain every sample of a data set, into a run folder; under `accelerate launch -m relprop explain ...` in several processes."""
    from relprop.errors import OptionError, message
    from relprop.runs import command, processes

    if data is None or out is None:
        raise OptionError(message("explain needs a data set and a run folder", then=["relprop explain --model demo:digits --data demo:digits --out run"]))
    summary = command.explain_data(
        model=model, data=data, out=out, methods=method or (), target=target, data_options=data_option or (), batch_size=batch_size, limit=limit,
        resume=resume, on_error=on_error, precision=precision, max_length=max_length, trust_remote_code=trust_remote_code,
    )
    typer.echo(summary)
    processes.leave()


@app.command()
def evaluate(
    out: Annotated[Path, typer.Option(help="Where the runs and the tables go.")],
    data: Annotated[str | None, typer.Option(help="A data set of your own (docs/data.md); without it the shipped tasks and the papers' tables.")] = None,
    model: Annotated[str | None, typer.Option(help="With --data: demo:digits, demo:reviews, timm:NAME, or an id or folder for transformers.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="With --data: a row, name:option=value,option=value. May be repeated.")] = None,
    measure: Annotated[list[str] | None, typer.Option(help="With --data: a measure by name. May be repeated; all that are cheap if not given.")] = None,
    data_option: Annotated[list[str] | None, typer.Option(help="With --data: what its reader should know: text=review, split=test. May be repeated.")] = None,
    samples: Annotated[int | None, typer.Option(help="Samples of each task: 500 of the shipped ones, all of --data.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Of the shipped tasks only this one: digit_scenes, reviews, sanity. May be repeated.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    batch_size: Annotated[int | None, typer.Option(help="Samples at a time; found and remembered if not given.")] = None,
    on_error: Annotated[str, typer.Option(help="With --data: stop, or skip samples that cannot be done; they are listed in failed.jsonl.")] = "stop",
    max_length: Annotated[int | None, typer.Option(help="With --data: longer texts are cut to so many tokens.")] = None,
    update: Annotated[Path | None, typer.Option(help="A page whose marked tables are written anew: docs/evaluation.md.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="With --data: print the table as JSON.")] = False,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run the code that comes with the model.")] = False,
) -> None:
    """Methods × metrics: the papers' tables on the shipped models, or a table of a model and a data set of your own."""
    from relprop.errors import OptionError
    from relprop.evaluation import command
    from relprop.runs import processes

    own = {"--model": model, "--method": method, "--measure": measure, "--data-option": data_option, "--max-length": max_length, "--json": json_output, "--trust-remote-code": trust_remote_code}
    if data is None:
        if given := [name for name, value in own.items() if value]:
            raise OptionError(f"{', '.join(given)}: only with --data")
        command.evaluate_shipped(
            out, samples=500 if samples is None else samples, only=only or (), resume=resume, batch_size=batch_size or command.BATCH, page_to_update=update, tell=typer.echo,
        )
        return
    if model is None or only or update is not None:
        raise OptionError("--data needs --model" if model is None else "--only and --update are for the shipped tasks")
    summary, table = command.evaluate_data(
        model=model, data=data, out=out, methods=method or (), measures=measure or (), data_options=data_option or (), batch_size=batch_size, limit=samples, resume=resume,
        on_error=on_error, max_length=max_length, trust_remote_code=trust_remote_code,
    )
    typer.echo(summary, err=True)
    if table is not None:
        typer.echo(table.to_json() if json_output else str(table))
    processes.leave()


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
