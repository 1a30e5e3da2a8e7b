"""The inputs of ``relprop explain`` and its relatives: each a picture in a file, a text as it is
written, or what comes on standard input."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relprop.commands.arguments import Args
from relprop.commands.printing import WrongUsage
from relprop.errors import InputError

FILE = re.compile(r"\S*/\S*|\S+\.[A-Za-z][A-Za-z0-9]{1,4}")
"""What is taken for the name of a file: one word with a folder or an ending."""


@dataclass(frozen=True)
class OneInput:
    """A picture (PIL), a text, or both, for a model of pairs. ``name`` is what messages call it."""

    picture: Any = None
    text: str | None = None
    name: str = ""

    @property
    def title(self) -> str:
        """What tells it from others: a file's name, or how the text begins."""
        return self.name if self.text is None else self.text[:60]

    @property
    def kind(self) -> str:
        """What it is, in words."""
        if self.picture is None:
            return "a text"
        return "a picture" if self.text is None else "a picture and a text"


def read_inputs(args: Args, *, several: bool = True) -> list[OneInput]:
    """What the command line names: INPUTs (a picture's file, a text, or ``-``; all pictures or all
    texts, and only one but for ``several``), and ``--text`` or ``--text-file``.

    Raises ``WrongUsage`` for two texts, ``InputError`` for a file that is not there or holds
    something else.
    """
    if len(args.inputs) > 1 and not several:
        raise WrongUsage(f"{len(args.inputs)} INPUTs are given, and one is taken here")
    beside = _text_option(args)
    found = [_from_stdin() if i == "-" else _named(i) for i in args.inputs]
    if len(found) > 1:
        _refuse_mixed(found, beside)
    if beside is None:
        return [_checked(one) for one in found]
    if found and found[0].text is not None:
        raise WrongUsage("INPUT is a text, and another one is given with --text or --text-file")
    only = found[0] if found else beside
    return [_checked(OneInput(only.picture, beside.text, only.name))]


def _refuse_mixed(found: list[OneInput], beside: OneInput | None) -> None:
    """Several INPUTs are one batch; words without quotes around all of them are no texts."""
    if beside is not None:
        raise WrongUsage(f"{len(found)} INPUTs are given, and a text beside one picture")
    if len({one.kind for one in found}) > 1:
        raise WrongUsage("INPUTs are pictures or texts, not both at once")
    words = [one.text for one in found if one.text is not None and not one.text.strip().count(" ")]
    if words:
        then = [f'relprop explain "{" ".join(str(one.text) for one in found)[:60]}"']
        raise WrongUsage(f"{len(found)} texts are given, {words[0]!r} is one word", then=then)


def _text_option(args: Args) -> OneInput | None:
    """The text of ``--text`` or ``--text-file``."""
    if args.text is not None and args.text_file is not None:
        raise WrongUsage("--text and --text-file are two texts: give one")
    if args.text_file is not None:
        return OneInput(text=_read_text(args.text_file), name=args.text_file.name)
    return None if args.text is None else OneInput(text=args.text, name="text")


def _checked(given: OneInput) -> OneInput:
    if given.text is not None and not given.text.strip():
        raise InputError(f"the text ({given.name}) is empty")
    return given


def _named(argument: str) -> OneInput:
    """A file's picture, or the argument itself as a text."""
    from relprop.adapters.rgb import read_picture
    from relprop.data.images import ENDINGS

    path = Path(argument)
    if argument and _exists(path):
        _refuse_other_files(path, argument)
        return OneInput(read_picture(path, path.name), None, path.name)
    like_a_file = bool(FILE.fullmatch(argument))
    if like_a_file or (path.suffix.lower() in ENDINGS and " " not in path.suffix):
        then = "--text gives a text that looks like a file"
        raise InputError(f"there is no file {argument!r}", then=[then])
    return OneInput(None, argument, "text")


def _refuse_other_files(path: Path, argument: str) -> None:
    """A folder and a file of text have options of their own."""
    if path.is_dir():
        whole = f"relprop explain --data {argument!r} --out run"
        raise WrongUsage(f"{argument!r} is a folder: {whole} explains all that is in it")
    if path.suffix.lower() in (".txt", ".md", ".text"):
        raise WrongUsage(f"{argument!r} is a file of text: --text-file {argument!r}")


def _exists(path: Path) -> bool:
    """Whether a file has this name; a text can be longer than any name, or hold what no name
    may."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        fact = f"{path.name!r} is not text in UTF-8: {error.reason} at byte {error.start}"
        raise InputError(fact, then=["a picture is given as INPUT"]) from None
    except OSError as error:
        raise InputError(f"{path.name!r} cannot be read: {error.strerror}") from None


def _from_stdin() -> OneInput:
    """Text in UTF-8, or the bytes of a picture."""
    given = sys.stdin.buffer.read()
    try:
        return OneInput(None, given.decode("utf-8-sig").rstrip("\r\n"), "standard input")
    except UnicodeDecodeError:
        from relprop.adapters.rgb import read_picture

        source: Any = io.BytesIO(given)
        return OneInput(read_picture(source, "standard input"), None, "standard input")
