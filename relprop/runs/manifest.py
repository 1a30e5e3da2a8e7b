"""``run.json``: what a run folder is of. And ``failed*.jsonl``: the samples that could not be
done."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from relprop.errors import InputError, OptionError, ResumedRunWarning, first_line, warn
from relprop.runs.base import Work
from relprop.runs.disk import write_atomically
from relprop.runs.probing import Probe, apart, is_probe

FORMAT = "relprop-run-1"
NAME = "run.json"


@dataclass(frozen=True)
class Manifest:
    """What a run folder is of: the work's identity and columns, its number of samples, the versions
    it was begun with, the batch size it uses, what its model computes of fixed numbers."""

    identity: Mapping[str, Any]
    samples: int
    columns: Mapping[str, str]
    versions: Mapping[str, str]
    batch_size: int | None = None
    probe: Probe | None = None

    @classmethod
    def of(cls, work: Work) -> Manifest:
        """The manifest of a work that begins now. Raises ``OptionError`` if its identity is not
        plain JSON."""
        from relprop import __version__

        try:
            identity = json.loads(json.dumps(work.identity(), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise OptionError(f"the work's identity is not plain JSON: {error}") from None
        versions = {"relprop": __version__, "torch": str(torch.__version__)}
        probe = getattr(work, "probe", lambda: None)()
        return cls(identity, len(work), dict(work.columns), versions, probe=probe)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a run folder. Raises ``InputError`` for any other folder."""
        try:
            written = json.loads((folder / NAME).read_text(encoding="utf-8"))
            if written.pop("format", None) != FORMAT:
                raise ValueError(f"its format is not {FORMAT!r}")
            found = cls(**written)
            objects = (found.identity, found.columns, found.versions)
            sizes = (found.samples, found.batch_size or 1)
            if not all(isinstance(v, dict) for v in objects):
                raise TypeError("identity, columns or versions is no JSON object")
            if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in sizes):
                raise TypeError("its samples or batch_size is no number of samples")
            if not is_probe(found.probe):
                raise TypeError("its probe is not what a model computed")
            return found
        except FileNotFoundError:
            fact = f"{folder.name!r} is no run folder: it has no {NAME}"
            then = "give the folder that a run wrote, or an empty one"
            raise InputError(fact, then=[then]) from None
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"{NAME} in {folder.name!r} cannot be read: {first_line(error)}"
            ) from error

    def write(self, folder: Path) -> None:
        """Atomically."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"
        write = partial(Path.write_text, data=text, encoding="utf-8")
        write_atomically(folder / NAME, "what the run is of", write)

    def check_same(self, now: Manifest, folder: Path) -> None:
        """Raises ``InputError`` naming what differs if ``now`` is of another work; warns of other
        versions."""
        mine, theirs = (
            {"identity": m.identity, "samples": m.samples, "columns": m.columns}
            for m in (self, now)
        )
        if found := list(differences(mine, theirs)):
            count = f"{len(found)} difference{'s' * (len(found) > 1)}"
            shown = (f"{at}: {_short(a)} in the folder, {_short(b)} now" for at, a, b in found[:8])
            raise InputError(
                f"{folder.name!r} holds a run of something else; {count}",
                at="\n        ".join(shown),
                then=["go on with what the folder was begun with, or give another folder"],
            )
        if gap := apart(self.probe, now.probe):
            raise InputError(
                f"{folder.name!r} was begun with a model that computes something else, with the "
                f"same weights and settings: {gap}",
                then=[
                    "undo what changed since: an attribute, a hook, a forward, a transform, a "
                    "method or a rule of your own",
                    "or give another folder",
                ],
            )
        for name, version in now.versions.items():
            if (before := self.versions.get(name)) != version:
                fact = f"this run was begun with {name} {before} and goes on with {version}"
                warn(ResumedRunWarning(fact))


def remember_batch_size(folder: Path, size: int) -> None:
    """Note in ``run.json`` what fits into memory. Of several processes that do so at once the last
    one counts, which costs the others one retry."""
    replace(Manifest.read(folder), batch_size=size).write(folder)


def differences(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two JSON values differ: the dotted path, and both values."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            yield from differences(a.get(key), b.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, f"{path}[{i}]")
    elif a != b:
        yield path, a, b


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True)
class Failure:
    """A sample that could not be done, and why."""

    index: int
    key: str
    error: str


def failed_file(folder: Path, process: int) -> Path:
    """Where a process writes its failures: each its own file, so that no two append to one."""
    return folder / ("failed.jsonl" if process == 0 else f"failed-{process}.jsonl")


def add_failure(path: Path, failure: Failure) -> None:
    """Append one line, on the disk when this returns. A line that a kill cut short is ended first,
    and does not count."""
    line = (json.dumps(asdict(failure)) + "\n").encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        end = os.lseek(descriptor, 0, os.SEEK_END)
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            line = b"\n" + line
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_failures(folder: Path) -> dict[int, Failure]:
    """The failures by sample; lines that were cut short are left out."""
    found: dict[int, Failure] = {}
    for path in sorted(folder.glob("failed*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                failure = Failure(**json.loads(line))
            except (ValueError, TypeError):
                continue
            found.setdefault(failure.index, failure)
    return found
