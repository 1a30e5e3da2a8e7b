"""What commands print: text that any terminal's encoding takes, JSON without NaN, and what a wrong
command line is answered with."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Mapping
from typing import Any

import typer

from relprop.errors import OptionError
from relprop.views.escape import printable


class WrongUsage(OptionError):
    """The command line itself is wrong: nothing was loaded. The command ends with exit code 2;
    every other refusal with 1."""


def command_line() -> str:
    """What was typed, fit to be typed again."""
    return shlex.join(["relprop", *sys.argv[1:]])


def echo(text: object, *, err: bool = False, painted: bool = False) -> None:
    """Print; characters that the stream's encoding lacks become ``?``, and those that act on a
    terminal are written out, but for what is ``painted``: a picture that ``terminal`` drew."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    shown = str(text) if painted else printable(str(text))
    typer.echo(shown.encode(encoding, "replace").decode(encoding), err=err)


def echo_json(value: Any) -> None:
    """Print ``value`` as JSON, on one line."""
    typer.echo(as_json(value))


def as_json(value: Any) -> str:
    """``value`` as JSON. Numbers that JSON lacks (NaN, infinities) are null, and what is no JSON
    value is text.

    >>> as_json({"rho": float("nan"), "site": (1, 2)})
    '{"rho": null, "site": [1, 2]}'
    """
    return json.dumps(plain(value), allow_nan=False)


def plain(value: Any) -> Any:
    """The nearest value that JSON has."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
