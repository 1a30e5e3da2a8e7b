"""Files that commands write: their endings are known before anything is computed, nothing is
overwritten unasked, and no file is left half written."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from relprop.commands.printing import WrongUsage, as_json
from relprop.commands.steps import Steps
from relprop.errors import OptionError, writable
from relprop.writing import written

Writer = Callable[[Path], object]


def check_outs(
    outs: Sequence[Path], endings: Sequence[str], *, force: bool, drawn: bool = True
) -> None:
    """Refuse before the work what could not be written after it. ``drawn``: pictures by matplotlib.

    Raises ``WrongUsage`` for an ending that is none of ``endings``, or a file named twice;
    ``OptionError`` for a file that exists, without ``force``, and for a picture without matplotlib;
    ``InputError`` for a folder that does not exist.
    """
    for out in outs:
        if out.suffix.lower() not in endings:
            known = f"the ending says what is written: {', '.join(endings)}"
            raise WrongUsage(f"--out {str(out)!r}: {known}")
        if list(outs).count(out) > 1:
            raise WrongUsage(f"--out {str(out)!r} is given twice")
        writable(out)
        if out.exists() and not force:
            then = ["--force overwrites it", "or give another name"]
            raise OptionError(f"{str(out)!r} exists already", then=then)
        picture = drawn and out.suffix.lower() == ".png"
        if picture and importlib.util.find_spec("matplotlib") is None:
            raise OptionError('pictures need matplotlib: pip install "relprop[plot]"')


def write(outs: Sequence[Path], writers: Mapping[str, Writer], steps: Steps) -> None:
    """Write each file by the writer of its ending: first beside it, then in its place."""
    for out in outs:
        steps.next(f"writing {out.name}")
        with written(out, f"the {out.suffix} file") as unfinished:
            writers[out.suffix.lower()](unfinished)


def json_writer(value: Callable[[], object]) -> Writer:
    """What writes ``value`` as a file of JSON."""
    return lambda path: path.write_text(as_json(value()) + "\n", encoding="utf-8")
