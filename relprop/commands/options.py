"""The arguments and options that several commands take, each declared once with its help.

This file is read before anything is known of the command, so it imports neither PyTorch nor any
other room.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODEL = "demo:digits, demo:reviews, demo:lookups, timm:NAME, or an id or folder for either library."
Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="[INPUT]...",
        help="A picture's file, or a text as it is (in quotes); - reads standard input. explain "
        "takes several.",
        show_default=False,
    ),
]
Model = Annotated[str, typer.Option("--model", help=MODEL)]
Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda, cuda:1, mps, ...; the accelerator, if there is one."),
]
NewTokens = Annotated[int, typer.Option(min=1, help="How many tokens are generated at most.")]
Seed = Annotated[
    int | None, typer.Option(help="Sample, from this seed; the likeliest tokens if not given.")
]
Text = Annotated[str | None, typer.Option(help="A text, beside a picture for models of both.")]
TextFile = Annotated[Path | None, typer.Option(help="A file with the text, in UTF-8.")]
Target = Annotated[
    str, typer.Option(help="predicted, a class's index or name, token:TEXT of a language model.")
]
Targets = Annotated[
    list[str],
    typer.Option(
        "--target",
        help="predicted (the default), a class's index or name, token:TEXT of a language model; "
        "with --data predicted or label. May be repeated for one input.",
    ),
]
Method = Annotated[
    list[str],
    typer.Option(
        "--method",
        help="A method (relprop methods), with options if wanted: name:option=value,option=value. "
        "May be repeated.",
    ),
]
OneMethod = Annotated[
    str | None,
    typer.Option(help="A method (relprop methods), with options if wanted: name:option=value."),
]
CheckedMethod = Annotated[
    str, typer.Option(help="The exit code says whether this method can explain the model.")
]
Rules = Annotated[
    str | None,
    typer.Option(
        help="A rule set by name: paper, stable, reference, ...; the method's own if not given."
    ),
]
Ledger = Annotated[
    bool | None,
    typer.Option(
        "--ledger/--no-ledger",
        help="Print where all relevance went; methods that are one gradient are then walked, which "
        "takes longer. --no-ledger keeps no books anywhere.",
        show_default=False,
    ),
]
Precision = Annotated[
    str | None, typer.Option(help="float32 or float64; the model's own if not given.")
]
Memory = Annotated[
    str,
    typer.Option(
        help="How many bytes an answer may take beside the model (4e9), auto (half of what is "
        "free) or none. Above, the graph is cut into segments."
    ),
]
MaxLength = Annotated[int | None, typer.Option(help="Longer texts are cut to so many tokens.")]
Stream = Annotated[
    str | None,
    typer.Option(help="Of several explained inputs only this one, by its name: pixel_values."),
]
Out = Annotated[
    list[Path],
    typer.Option(
        "--out",
        help="x.png, x.html, x.safetensors or x.json; may be repeated. With --data the run folder, "
        "and x.html or x.png for another copy of its page, or a picture of it.",
    ),
]
ComparisonOut = Annotated[
    list[Path],
    typer.Option(help="x.png (the maps side by side), x.html or x.json. May be repeated."),
]
CardOut = Annotated[list[Path], typer.Option(help="x.html or x.png. May be repeated.")]
Heads = Annotated[
    bool, typer.Option("--heads", help="Which attention heads carry the answer, in its place.")
]
Checks = Annotated[
    bool,
    typer.Option(
        help="Explain the model with its weights shuffled, too, and cover parts of INPUT."
    ),
]
CompiledOut = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="x.safetensors or x.pt2, which relprop.load_explainer reads."),
]
AheadOfTime = Annotated[
    bool,
    typer.Option(
        "--ahead-of-time", help="Compile it to machine code, by a C++ compiler: some minutes."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the code that comes with the model.")
]
Data = Annotated[
    str | None,
    typer.Option(
        help="In place of INPUT a data set: demo:digits, demo:reviews, or a folder or file "
        "(docs/whole-data-sets.md)."
    ),
]
DataOption = Annotated[
    list[str],
    typer.Option(
        "--data-option",
        help="With --data: what its reader should know: text=review, split=test. May be repeated.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
BatchSize = Annotated[
    int | None, typer.Option(help="Samples at a time; found and remembered if not given.")
]
Limit = Annotated[
    int | None,
    typer.Option("--samples", "--limit", help="With --data: only the first so many samples."),
]
OnError = Annotated[
    str,
    typer.Option(
        help="With --data: stop, or skip samples that cannot be done; they are listed in "
        "failed.jsonl."
    ),
]
NoChecks = Annotated[
    bool,
    typer.Option(
        "--no-checks",
        help="With --data: the run's page without stability and covering, which take two to three "
        "times as long as explaining these samples.",
    ),
]
