"""The one input of ``relprop explain`` and its relatives: a picture in a file, a text as it is
written, or what comes on standard input."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relprop.commands.telling import WrongUsage
from relprop.errors import InputError, message


@dataclass(frozen=True)
class Given:
    """A picture (PIL), a text, or both, for a model of pairs; ``name``: what it is called in files
    and messages."""

    picture: Any = None
    text: str | None = None
    name: str = ""

    @property
    def kind(self) -> str:
        """What it is, in words."""
        return (
            "a picture and a text"
            if self.picture is not None and self.text is not None
            else "a text"
            if self.picture is None
            else "a picture"
        )


def read_given(
    argument: str | None, text: str | None = None, text_file: Path | None = None
) -> Given | None:
    """What the arguments name: INPUT (a picture's file, a text, or ``-``), and ``--text`` or
    ``--text-file``. ``None`` if nothing is given.

    Raises ``WrongUsage`` for two texts, ``InputError`` for a file that is not there or holds
    something else.
    """
    if text is not None and text_file is not None:
        raise WrongUsage("--text and --text-file are two texts: give one")
    beside = text if text_file is None else _read_text(text_file)
    found = None if argument is None else _from_stdin() if argument == "-" else _named(argument)
    if found is None:
        return (
            None
            if beside is None
            else _checked(Given(text=beside, name="text" if text_file is None else text_file.name))
        )
    if found.text is not None and beside is not None:
        raise WrongUsage("INPUT is a text, and another one is given with --text or --text-file")
    return _checked(Given(found.picture, found.text if beside is None else beside, found.name))


def _checked(given: Given) -> Given:
    if given.text is not None and not given.text.strip():
        raise InputError(f"the text ({given.name}) is empty")
    return given


def _named(argument: str) -> Given:
    """A file's picture, or the argument itself as a text."""
    from relprop.data.images import ENDINGS, read_picture

    path = Path(argument)
    if argument and _exists(path):
        if path.is_dir():
            raise WrongUsage(
                f"{argument!r} is a folder: relprop explain --data {argument!r} --out "
                "run explains all that is in it"
            )
        if path.suffix.lower() in (".txt", ".md", ".text"):
            raise WrongUsage(f"{argument!r} is a file of text: --text-file {argument!r}")
        return Given(read_picture(path, path.name), None, path.name)
    if path.suffix.lower() in ENDINGS and " " not in path.suffix:
        raise InputError(
            message(
                f"there is no file {argument!r}",
                then=["--text gives a text that ends like this one"],
            )
        )
    return Given(None, argument, "text")


def _exists(path: Path) -> bool:
    """Whether a file has this name; a text can be longer than any name, or hold what no name
    may."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(
            message(
                f"{path.name!r} is not text in UTF-8: {error.reason} at byte {error.start}",
                then=["a picture is given as INPUT"],
            )
        ) from None
    except OSError as error:
        raise InputError(f"{path.name!r} cannot be read: {error.strerror}") from None


def _from_stdin() -> Given:
    """Text in UTF-8, or the bytes of a picture."""
    given = sys.stdin.buffer.read()
    try:
        return Given(None, given.decode("utf-8").rstrip("\r\n"), "standard input")
    except UnicodeDecodeError:
        from relprop.data.images import read_picture

        source: Any = io.BytesIO(given)
        return Given(read_picture(source, "standard input"), None, "standard input")
