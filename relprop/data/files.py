"""What the readers share: optional libraries looked up when they are needed, positions in a data
set, and what tells one file from another."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from relprop.data.functions import of_callable
from relprop.errors import InputError, NoSampleError, OptionError, as_path

WHOLE = 64 * 2**20  # bytes: of larger files only both ends are hashed


def needed(module: str, *, package: str = '"relprop[data]"') -> Any:
    """An optional library's module. Raises ``OptionError`` with the line that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] != module.split(".")[0]:
            raise
        missing = module.split(".")[0]
        raise OptionError(f"this data needs {missing}: pip install {package}") from None


def position(index: int, length: int, name: str) -> int:
    """``index`` counted from 0; negative ones count from the end. Raises ``NoSampleError``, an
    ``IndexError``, which ends a ``for`` loop over a data set."""
    if not hasattr(index, "__index__"):
        raise InputError(f"{name}[{index!r}]: the number of a sample is needed")
    if not -length <= index < length:
        raise NoSampleError(f"{name} has samples 0 to {length - 1}, not {index}")
    return index % length


def existing(path: str | Path, kind: str = "file") -> Path:
    """``path`` as a ``Path``. Raises ``InputError`` if it is not there, or not a file (or
    ``"folder"``)."""
    path = as_path(path)
    if not path.exists():
        at = "" if path.is_absolute() else f"looked for from {Path.cwd()}"
        raise InputError(f"{path} does not exist", at=at)
    if not (path.is_dir() if kind == "folder" else path.is_file()):
        raise InputError(f"{path} is no {kind}")
    return path


def digest(path: Path) -> dict[str, Any]:
    """Name, bytes and SHA-256 of a file: of all of it up to 64 MiB, of a larger one of the first
    and the last 32 MiB."""
    size, found, end = path.stat().st_size, hashlib.sha256(), WHOLE // 2
    with path.open("rb") as file:
        for start, length in [(0, size)] if size <= WHOLE else [(0, end), (size - end, end)]:
            file.seek(start)
            found.update(file.read(length))
    return {"file": path.name, "bytes": size, "sha256": found.hexdigest()}


def listing(root: Path, paths: Iterable[str]) -> dict[str, Any]:
    """Number, and SHA-256 of paths and contents, of files below ``root``; one that is not there has
    none."""
    found, number = hashlib.sha256(), 0
    for path in paths:
        there = (root / path).is_file()
        own = digest(root / path)["sha256"] if there else "not there"
        found.update(f"{path}\0{own}\n".encode("utf-8", "surrogateescape"))
        number += 1
    return {"files": number, "sha256_of_paths_and_contents": found.hexdigest()}


def given_classes(classes: Sequence[str] | None) -> tuple[str, ...] | None:
    """The option ``classes``: names, each once. Raises ``OptionError`` for one text, and for
    repeated names."""
    if classes is None:
        return None
    named = not isinstance(classes, str) and all(isinstance(name, str) for name in classes)
    if not named or len(set(classes)) != len(classes):
        fact = f"classes={classes!r}: names of classes, each once, in the model's order, are needed"
        raise OptionError(fact, then=['classes=("negative", "positive")'])
    return tuple(classes)


def options_of(source: Any, *names: str) -> dict[str, Any]:
    """Options of a data set by name, as plain JSON."""
    return {name: described(getattr(source, name)) for name in names}


def described(option: Any) -> Any:
    """An option as plain JSON: paths by their last part, functions and transforms as
    ``of_callable`` has them."""
    if option is None or isinstance(option, (bool, int, float, str)):
        return option
    if isinstance(option, (tuple, list)):
        return [described(o) for o in option]
    if isinstance(option, Path):
        return option.name
    return of_callable(option)
