"""Files that are there whole or not at all, and what killed processes leave behind.

A file is written under a temporary name beside its own, flushed to the disk, and renamed. Temporary
names, and names of shards, carry the process that made them, so that what a killed process left can
be told from what a living one is writing.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relprop.writing import not_written

# seconds after which an unfinished file of another machine counts as left behind
FOREIGN = 24 * 3600.0
_token = {"pid": 0, "text": ""}


def owner() -> str:
    """This process, as a part of a file's name: machine, process id, and a random part, since
    process ids are used again."""
    if _token["pid"] != os.getpid():  # also after a fork
        _token.update(pid=os.getpid(), text=secrets.token_hex(3))
    return f"{_machine()}-{os.getpid()}-{_token['text']}"


def write_atomically(path: Path, what: str, write: Callable[[Path], Any]) -> None:
    """``write(temporary)``, then to the disk, then under its own name; a kill at any moment leaves
    the file as it was before, or as it is now. Raises ``RelpropError`` naming ``what`` it is and
    the file where that fails: a full disk."""
    temporary = path.with_name(f".{owner()}.{path.name}.tmp")
    try:
        write(temporary)
        _flush(temporary)
        os.replace(temporary, path)
    except Exception as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise not_written(path, what, error) from error
        raise
    if os.name == "posix":  # the rename itself
        _flush(path.parent)


def remove_leftovers(folder: Path, committed: Callable[[Path], bool]) -> int:
    """Remove what killed processes left in ``folder``: temporary files, and files that
    ``committed`` says do not count. Returns how many."""
    removed = 0
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.endswith(".tmp"):
            maker = path.name[1:].split(".")[0]
        elif path.is_file() and not committed(path):
            maker = path.stem.split("-", 2)[-1]
        else:
            continue
        if not _at_work(maker, path):
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _at_work(maker: str, path: Path) -> bool:
    """Whether the process that began this file may still be writing it."""
    machine, _, rest = maker.partition("-")
    pid = rest.partition("-")[0]
    if machine != _machine() or not pid.isdigit() or os.name != "posix":
        try:
            return time.time() - path.stat().st_mtime < FOREIGN
        except FileNotFoundError:
            return False
    if int(pid) == os.getpid():
        return maker == owner()
    try:
        os.kill(int(pid), 0)  # asks whether it is there, sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _machine() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
