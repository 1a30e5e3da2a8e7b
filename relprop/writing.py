"""Files that are there whole or not at all, and what is said of one that could not be written: its
name, what was being written, and why; or of a name that is of another kind of file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relprop.errors import OptionError, RelpropError, as_path, first_line, writable

DRAWN = "explanation.plot().savefig({path!r})"
#: What writes a file of another kind than ``save``'s.
OTHERWISE = dict.fromkeys((".png", ".jpg", ".jpeg", ".svg", ".pdf", ".gif", ".webp"), DRAWN) | {
    ".html": "explanation.to_html({path!r})",
    ".json": "pathlib.Path({path!r}).write_text(explanation.to_json())",
    ".csv": "explanation.to_dataframe().to_csv({path!r})",
}


@contextmanager
def written(path: str | os.PathLike[str], what: str) -> Iterator[Path]:
    """Where to write ``what`` that is to stand at ``path``: beside it, and in its place at the end;
    what stood there before stays if that fails. What is written to a device or a pipe goes through
    it at the end, for libraries that write files may put one in its place.

    Raises ``InputError`` before anything is written where nothing can be, ``RelpropError`` where it
    fails.
    """
    given = writable(path)
    place = given.resolve()
    special = place.exists() and not place.is_file()
    folder = Path(tempfile.mkdtemp()) if special else place.parent
    beside = folder / f".{place.stem}.unfinished{place.suffix}"
    try:
        yield beside
        if special:
            with beside.open("rb") as source, place.open("wb") as through:
                shutil.copyfileobj(source, through)
        else:
            beside.chmod(_mode(place))
            os.replace(beside, place)
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        raise not_written(given, what, error) from error
    finally:
        beside.unlink(missing_ok=True)
        if special:
            folder.rmdir()


def _mode(place: Path) -> int:
    """The permissions of the file that stands at a place, or those that any new file there has."""
    if place.exists():
        return place.stat().st_mode & 0o7777
    probe = place.with_name(f".{place.stem}.mode{os.getpid()}")
    try:
        probe.touch()
        return probe.stat().st_mode & 0o7777
    finally:
        probe.unlink(missing_ok=True)


def not_written(path: Path, what: str, error: Exception) -> RelpropError:
    """What to say of a file that could not be written."""
    reason = error.strerror if isinstance(error, OSError) else first_line(error)
    fact = f"{what} could not be written to {str(path)!r}: {reason}"
    return RelpropError(fact, then=["make room there, or write to another disk, and try again"])


def refuse_other_kinds(path: str | Path, what: str) -> None:
    """Raise ``OptionError`` where ``what`` would be saved under the name of a file of another
    kind."""
    if (other := OTHERWISE.get(as_path(path).suffix.lower())) is not None:
        call = other.replace("explanation.", f"{what}.").format(path=str(path))
        raise OptionError(
            f"save({str(path)!r}) writes numbers that relprop.load reads, and no such file",
            then=[call, f"{what}.save('name.safetensors')"],
        )
