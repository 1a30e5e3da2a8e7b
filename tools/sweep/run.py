"""Running the sweep: subjects in worker processes, which may crash or hang without harm; results
appended to a file as they come."""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tools.sweep.record import FAILED, Record
from tools.sweep.subject import Subject

RECYCLE = 40  # subjects per worker process: libraries keep caches
MEMORY = 12 << 30  # bytes of address space for data per worker


def run(
    subjects: Iterable[Subject],
    results: Path,
    *,
    jobs: int = 1,
    timeout: float = 300,
    gradient_alone: bool = False,
    log: Callable[[str], None] = print,
) -> list[Record]:
    """Examine ``subjects``, skipping those that ``results`` (JSON lines) has already; returns the
    records of all, in the subjects' order."""
    wanted = list(subjects)
    done = read_records(results)
    todo = [s for s in wanted if s.name not in done]
    if len(todo) < len(wanted):
        log(f"{len(wanted) - len(todo)} of {len(wanted)} are in {results.name} already")
    began, finished = time.monotonic(), 0
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a") as sink:
        for record in _examined(todo, jobs, timeout, gradient_alone):
            done[record.name] = record
            sink.write(json.dumps(record.as_dict()) + "\n")
            sink.flush()
            finished += 1
            left = (time.monotonic() - began) / finished * (len(todo) - finished)
            verdict = record.status if record.status != FAILED else f"FAILED: {record.cause[:120]}"
            log(
                f"[{finished}/{len(todo)}, {left / 60:.0f} min left] {record.name}  "
                f"{record.seconds:.1f} s  {verdict}"
            )
    return [done[s.name] for s in wanted]


def read_records(path: Path) -> dict[str, Record]:
    """The records of a JSON-lines file by name; the last one counts."""
    if not path.exists():
        return {}
    records = (
        Record.of(json.loads(line)) for line in path.read_text().splitlines() if line.strip()
    )
    return {r.name: r for r in records}


@dataclass
class _Worker:
    """A process that examines the subjects it is sent, and what it is doing."""

    log: Path
    timeout: float
    gradient_alone: bool = False
    subject: Subject | None = None
    deadline: float = 0.0
    served: int = 0
    process: Any = None
    pipe: Any = field(default=None, repr=False)

    def give(self, subject: Subject) -> None:
        """Start on a subject, in a fresh process when there is none."""
        if self.process is None or not self.process.is_alive():
            self.start()
        self.subject, self.deadline, self.served = (
            subject,
            time.monotonic() + self.timeout,
            self.served + 1,
        )
        self.pipe.send(subject)

    def start(self) -> None:
        """A new process. It is spawned, not forked: PyTorch's threads do not survive a fork."""
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        given = (theirs, str(self.log), self.gradient_alone)
        self.process = context.Process(target=_serve, args=given, daemon=True)
        self.process.start()
        theirs.close()
        self.served = 0

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
        self.process = None

    def collect(self) -> Record | None:
        """The record, if there is one by now; a dead or overdue process is ended and recorded as
        such."""
        assert self.subject is not None
        record: Record | None = None
        try:
            if self.pipe.poll():
                record = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            record = self._lost(
                f"the process ended with exit code {self.process.exitcode}: {self._last_words()}"
            )
        if record is None and time.monotonic() > self.deadline:
            record = self._lost(f"not done after {self.timeout:.0f} s")
        if record is not None:
            if self.served >= RECYCLE:
                self.stop()
            self.subject = None
        return record

    def _lost(self, cause: str) -> Record:
        self.stop()
        assert self.subject is not None
        s = self.subject
        seconds = round(self.timeout - (self.deadline - time.monotonic()), 2)
        return Record(
            s.name,
            s.source,
            s.family,
            s.entry,
            list(s.tasks),
            s.named,
            FAILED,
            f"process: {cause}",
            failures=[["process", cause]],
            seconds=seconds,
        )

    def _last_words(self) -> str:
        lines = (
            self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        )
        return lines[-1][:200] if lines else "it said nothing"


def _examined(
    todo: list[Subject], jobs: int, timeout: float, gradient_alone: bool
) -> Iterator[Record]:
    """Records as they come, from ``jobs`` workers."""
    waiting = list(reversed(todo))
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            _Worker(Path(folder) / f"{i}.log", timeout, gradient_alone)
            for i in range(max(1, min(jobs, len(todo))))
        ]
        try:
            while waiting or any(w.subject for w in workers):
                for worker in workers:
                    if worker.subject is None and waiting:
                        worker.give(waiting.pop())
                wait([w.pipe for w in workers if w.subject], timeout=1)
                for worker in workers:
                    if worker.subject is not None and (record := worker.collect()) is not None:
                        yield record
        finally:
            for worker in workers:
                worker.stop()


def _serve(pipe: Connection, log: str, gradient_alone: bool) -> None:
    """A worker's life: one thread, its own limits, its output in a file; a subject in, a record
    out."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    _limit_memory()
    import torch

    from tools.sweep.examine import examine

    torch.set_num_threads(1)
    while True:
        try:
            subject = pipe.recv()
        except EOFError:
            return
        torch.manual_seed(0)
        try:
            record = examine(subject, gradient_alone)
        except Exception as error:  # a defect of the sweep itself, or no memory: the others go on
            cause = f"{type(error).__name__}: {error}"[:400]
            s = subject
            record = Record(
                s.name,
                s.source,
                s.family,
                s.entry,
                list(s.tasks),
                s.named,
                FAILED,
                f"sweep: {cause}",
                failures=[["sweep", cause]],
            )
        pipe.send(record)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on this platform
        return
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
