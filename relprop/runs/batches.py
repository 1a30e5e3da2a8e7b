"""One process's share of a run, batch by batch: each into a shard; in smaller pieces where memory
runs out, or to find the sample that cannot be done."""

from __future__ import annotations

import gc
from collections import deque
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from relprop import errors
from relprop.errors import (
    InputError,
    RelpropError,
    UnforeseenError,
    first_line,
    out_of_memory,
)
from relprop.runs.base import Record, Work
from relprop.runs.manifest import Failure, add_failure, failed_file, remember_batch_size
from relprop.runs.progress import Progress
from relprop.runs.shards import write_shard


class _OutOfMemory(RelpropError):
    """Stands for an error that says memory ran out, without the tensors that its traceback
    holds."""


@dataclass
class Batches:
    """One process's share, batch by batch: ``size`` samples at a time, ``done`` so far."""

    work: Work
    folder: Path
    process: int
    size: int
    on_error: str
    bar: Progress
    done: int = 0

    def all(self, todo: np.ndarray) -> None:
        """Every batch of ``todo``, each cut at multiples of the batch size of the moment."""
        at = 0
        while at < len(todo):
            end = int(np.searchsorted(todo, (todo[at] // self.size + 1) * self.size))
            self.batch(todo[at:end].tolist())
            at = end

    def batch(self, indices: list[int]) -> None:
        """One batch: in smaller pieces where memory runs out, or to find the sample that cannot be
        done."""
        pieces, size = deque([indices]), self.size
        while pieces:
            piece = pieces.popleft()
            found = self.attempt(piece)
            if not isinstance(found, RelpropError):
                write_shard(self.folder / "shards", found, self.work.columns)
                self.done += len(piece)
                self.bar.advance(len(piece))
            elif len(piece) == 1:
                if isinstance(found, _OutOfMemory):
                    self.use(size)  # one sample that is too large says nothing of the others
                self.failed(piece[0], found)
            elif isinstance(found, _OutOfMemory):
                pieces.extendleft(reversed(self.smaller(piece)))
            else:
                pieces.extendleft([piece[len(piece) // 2 :], piece[: len(piece) // 2]])

    def smaller(self, piece: list[int]) -> list[list[int]]:
        """The samples of ``piece``, which do not fit into memory together, by a smaller batch
        size."""
        size = self.size
        while size >= len(piece):
            size //= 2
        self.use(size)
        return [list(block) for _, block in groupby(piece, lambda index: index // size)]

    def use(self, size: int) -> None:
        """Another batch size from now on, and in later runs."""
        if size == self.size:
            return
        if size < self.size:
            self.bar.say(f"out of memory with {self.size} samples at a time; going on with {size}")
        self.size = size
        remember_batch_size(self.folder, size)

    def attempt(self, indices: list[int]) -> list[Record] | RelpropError:
        """The records, or why there are none."""
        try:
            records = self.work(indices)
        except Exception as error:
            if out_of_memory(error):
                found = _OutOfMemory(first_line(error))
            elif isinstance(error, RelpropError):
                return error.with_traceback(None)
            else:  # of the data set, or of the work: a sample has it, which is looked for
                caught = RelpropError(f"{type(error).__name__}: {first_line(error)}")
                caught.__cause__ = error.with_traceback(None)
                return caught
        else:
            if (given := [r.index for r in records]) != indices:
                fact = f"the work was asked for samples {indices}"
                raise UnforeseenError(f"{fact} and gave records of {given}")
            return list(records)
        gc.collect()  # outside the except: nothing refers to the traceback, and its tensors
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
        return found

    def failed(self, index: int, error: RelpropError) -> None:
        """A sample that cannot be done alone: raise, or write it down."""
        key = str(getattr(self.work, "key", str)(index))
        if self.on_error == "skip":
            file = failed_file(self.folder, self.process)
            add_failure(file, Failure(index, key, str(error)))
            self.bar.say(f"sample {key!r} failed: {first_line(error)}")
            self.bar.advance(1)
            return
        sample = f"sample {key!r} (number {index})"
        skip = "on_error='skip', or --on-error skip,"
        then = f"{skip} writes such samples to failed.jsonl and goes on"
        if isinstance(error, _OutOfMemory):
            fact = f"{sample} does not fit into memory, even alone: {error}"
            raise InputError(fact, then=[then])
        kind = type(error) if type(error).__module__ == errors.__name__ else RelpropError
        raise kind(f"{sample}: {error}\n  {then}") from (error.__cause__ or error)
