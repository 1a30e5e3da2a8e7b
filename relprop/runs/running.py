"""``run``: a work done for every sample of its data set, batch by batch into a run folder.

A batch is finished when its shard is on the disk; a kill at any moment costs the batch that was
being done, and ``resume=True`` goes on with what is missing. Batches are cut at multiples of the
batch size, so that they are the same however often a run was interrupted and however many processes
do it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError, RelpropError, as_path, counted
from relprop.runs.base import Work
from relprop.runs.batches import Batches
from relprop.runs.disk import remove_leftovers
from relprop.runs.manifest import Manifest, read_failures
from relprop.runs.processes import Processes, current
from relprop.runs.progress import Progress, duration
from relprop.runs.shards import Catalogue, arrow, remove_unfinished, schema

START = 64  # samples in a batch, where nothing else is known
# seconds without any new shard after which the first process no longer waits for the others
PATIENCE = 1800.0


@dataclass(frozen=True)
class Summary:
    """What a call of ``run`` did. ``done``: samples by this process, now; ``missing``, ``failed``:
    in the whole folder, when it ended."""

    folder: Path
    samples: int
    done: int
    missing: int
    failed: int
    seconds: float
    batch_size: int
    process: int = 0
    processes: int = 1

    @property
    def complete(self) -> bool:
        """Whether no sample is missing (failed ones are not)."""
        return self.missing == 0

    def __str__(self) -> str:
        who = f" by process {self.process + 1} of {self.processes}" if self.processes > 1 else ""
        rate = f", {self.done / self.seconds:.3g} samples/s" if self.seconds and self.done else ""
        failed = f"; {self.failed} failed, listed in failed*.jsonl" if self.failed else ""
        left = f"; {self.missing} missing" if self.missing else ""
        return (
            f"{self.done} of {self.samples} samples{who} in {duration(self.seconds)}{rate}, batch "
            f"size {self.batch_size}{failed}{left}: {self.folder.name}"
        )


@guarded
def run(
    work: Work,
    out: str | Path,
    *,
    batch_size: int | None = None,
    resume: bool = False,
    on_error: str = "stop",
    progress: bool = True,
    patience: float = PATIENCE,
    strict: bool = False,
) -> Summary:
    """Do ``work`` for every sample, in batches, into the folder ``out``; see
    docs/whole-data-sets.md.

    Args:
        work: what to do (``relprop.runs.Work``): ``ExplainWork``, or your own.
        out: the run folder. It may not exist yet; one that is not empty needs ``resume``.
        batch_size: samples at a time; ``None``: what this folder used last, or 64 at first. It is
            halved, and remembered, when memory runs out.
        resume: go on with a folder that was begun with the same work; an empty one is begun.
        on_error: ``"stop"`` raises at a sample that cannot be done, whose key the message has;
            ``"skip"`` writes it to ``failed.jsonl`` and goes on. A sample that failed once is not
            tried again while it is in that file.
        progress: show how far it is, and the remaining time.
        patience: among several processes, seconds without a new shard after which the first one
            gives up waiting for the others.
        strict: any warning is an error, as in ``relprop.explain``; that of a sample is one that
            ``on_error`` is asked about.

    Returns:
        A summary. Of several processes the first returns when all are done, the others when their
        share is.

    Raises:
        InputError: the folder holds a run of something else, or is none, or a sample does not fit
            into memory alone.
        OptionError: a wrong option, or a folder that is not empty without ``resume``.
        RelpropError: what the work raised at a sample, with the sample's key.
    """
    _check_options(on_error, batch_size)
    _check_work(work)
    arrow()
    processes, folder = current(), as_path(out)
    mine = Manifest.of(work)
    schema(mine.columns)
    opened = processes.agree(lambda: _open(folder, mine, batch_size, resume))
    manifest, size, missing, removed = opened
    manifest.check_same(mine, folder)  # that every process has the same model and data
    todo = processes.share(missing, size)
    bar = Progress(len(todo), _title(processes), wanted=progress and processes.first)
    began = time.monotonic()
    doing = Batches(work, folder, processes.number, size, on_error, bar)
    with bar:
        if removed and bar.wanted:
            bar.say(f"removed {counted(removed, 'unfinished file')} of a killed run")
        try:
            doing.all(todo)
            seconds = time.monotonic() - began
            left = _wait(folder, len(work), processes, bar, patience)
        except KeyboardInterrupt:
            bar.say(
                f"interrupted after {doing.done} samples, which are in {folder.name!r}; "
                "resume=True, or --resume on the command line, goes on with the rest"
            )
            raise
    failed = len(read_failures(folder))
    counts = len(work), doing.done, left, failed, seconds, doing.size
    return Summary(folder, *counts, processes.number, processes.count)


def _check_options(on_error: str, batch_size: int | None) -> None:
    if on_error not in ("stop", "skip"):
        raise OptionError(f"on_error={on_error!r}: 'stop' or 'skip'")
    number = isinstance(batch_size, int) and not isinstance(batch_size, bool)
    if batch_size is not None and (not number or batch_size < 1):
        raise OptionError(f"batch_size={batch_size!r}: a positive integer or None")


def _check_work(work: object) -> None:
    if missing := [n for n in ("columns", "identity", "__len__") if not hasattr(work, n)]:
        fact = f"{type(work).__name__} is no work: it has no {', '.join(missing)}"
        raise OptionError(fact, then=["relprop.runs.ExplainWork(model, source), or your own Work"])


def _open(
    folder: Path, mine: Manifest, batch_size: int | None, resume: bool
) -> tuple[Manifest, int, np.ndarray, int]:
    """The run folder made, or checked and cleaned. What the processes agree on before the work: its
    manifest, the batch size, what is missing in it, and how many files were removed."""
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"out={folder.name!r} is a file: give a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fact = f"the run folder {str(folder)!r} cannot be made: {error.strerror}"
        raise InputError(fact, then=["give one below a folder of your own"]) from error
    if all(p.name.startswith(".") and p.name.endswith(".tmp") for p in folder.iterdir()):
        manifest, size = mine, batch_size or START
    elif resume:
        manifest = Manifest.read(folder)
        manifest.check_same(mine, folder)
        size = batch_size or manifest.batch_size or START
    else:
        goes_on = "resume=True, or --resume, goes on with the run in it"
        fact = f"the folder {folder.name!r} is not empty"
        raise OptionError(fact, then=[goes_on, "or give another folder"])
    manifest = replace(manifest, batch_size=size)
    manifest.write(folder)
    shards = folder / "shards"
    shards.mkdir(exist_ok=True)
    removed = remove_unfinished(shards) + remove_leftovers(folder, lambda path: True)
    return manifest, size, _missing(folder, Catalogue(shards, mine.samples)), removed


def _missing(folder: Path, catalogue: Catalogue) -> np.ndarray:
    return np.setdiff1d(catalogue.missing, list(read_failures(folder)), assume_unique=True)


def _title(processes: Processes) -> str:
    return "samples" if processes.count == 1 else f"samples of process 1 of {processes.count}"


def _wait(folder: Path, samples: int, processes: Processes, bar: Progress, patience: float) -> int:
    """How many samples are missing; the first of several processes watches the folder until none
    is."""
    if processes.count == 1:  # all that was missing is done or failed
        return 0
    catalogue = Catalogue(folder / "shards", samples)
    left = len(_missing(folder, catalogue))
    if not processes.first:
        return left
    if left and bar.wanted:
        bar.say(f"this process is done; waiting for the others: {left} samples")
    pause, changed = 0.05, time.monotonic()
    while left:
        time.sleep(pause)
        pause = min(1.0, 1.5 * pause)
        now = len(_missing(folder, catalogue.refresh()))
        if now < left:
            left, changed = now, time.monotonic()
        elif time.monotonic() - changed > patience:
            fact = f"{left} samples are missing, and no other process has finished any for"
            raise RelpropError(f"{fact} {duration(patience)}", then=["launch it again with resume"])
    return left
