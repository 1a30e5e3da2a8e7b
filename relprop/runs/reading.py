"""Reading a run folder: the table, rows and tensors in the samples' order, and what is missing. A
run may be read while it is going on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import OptionError, ResumedRunWarning, as_path, warn
from relprop.runs.manifest import Failure, Manifest, read_failures
from relprop.runs.shards import Catalogue, Shard, arrow, schema

if TYPE_CHECKING:
    import pyarrow as pa

OPEN = 16  # shards whose rows are in memory at once, at most


@guarded
def read_run(folder: str | Path) -> RunResults:
    """The results in a run folder as they are now. Needs ``relprop[runs]``; raises ``InputError``
    for any other folder."""
    return RunResults(as_path(folder))


@guarded
class RunResults:
    """What a run folder holds. ``identity`` (everything the numbers depend on) and ``columns``
    (beside ``index`` and ``key``): the work's. ``samples``: how many there are in all. ``failed``:
    those that could not be done, by index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = Manifest.read(folder)
        self.identity, self.columns = manifest.identity, manifest.columns
        self.samples = manifest.samples
        self._catalogue = Catalogue(folder / "shards", self.samples)
        self.failed: Mapping[int, Failure] = {
            i: f for i, f in read_failures(folder).items() if self._catalogue.of(i) is None
        }
        if self._catalogue.twice:
            twice = f"{self._catalogue.twice} samples of {folder.name!r}"
            warn(ResumedRunWarning(f"{twice} are in two shards: the first one counts"))

    @property
    def done(self) -> int:
        """How many samples are done."""
        return self.samples - len(self._catalogue.missing)

    @property
    def missing(self) -> np.ndarray:
        """The samples that are neither done nor failed, ascending, int64."""
        return np.setdiff1d(self._catalogue.missing, list(self.failed), assume_unique=True)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing. Failed samples are not missing: ``failed`` has them."""
        return len(self.missing) == 0

    def table(self) -> pa.Table:
        """All rows as one Arrow table, by ascending ``index``; the rows of one sample in the work's
        order."""
        pa = arrow()
        parts = [schema(self.columns).empty_table()]
        for number, shard in enumerate(self._catalogue.shards):
            rows = shard.table(self.columns)
            counts = self._catalogue.number[rows["index"].to_numpy()] == number
            parts.append(rows if counts.all() else rows.filter(pa.array(counts)))
        return pa.concat_tables(parts).sort_by("index")  # a stable sort

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of ``table``, one after another, with a few shards in memory at a time."""
        by_index = lru_cache(OPEN)(self._by_index)
        for index in range(self.samples):
            if (shard := self._catalogue.of(index)) is not None:
                yield from by_index(shard).get(index, ())

    def rows_of(self, index: int) -> list[dict[str, Any]]:
        """One sample's rows; none if it is not done."""
        shard = self._catalogue.of(index)
        return [] if shard is None else self._by_index(shard).get(index, [])

    def tensors(self, index: int) -> dict[str, Tensor]:
        """One sample's tensors by name. Raises ``OptionError`` if the sample is not done."""
        if not 0 <= index < self.samples:
            raise OptionError(f"tensors({index}): there are samples 0 to {self.samples - 1}")
        shard = self._catalogue.of(index)
        if shard is None:
            why = "it is not done yet"
            if index in self.failed:
                why = f"it failed: {self.failed[index].error.splitlines()[0]}"
            then = ["resume the run", "run.missing and run.failed list such samples"]
            raise OptionError(f"tensors({index}): {why}", then=then)
        return shard.tensors(index)

    def _by_index(self, shard: Shard) -> dict[int, list[dict[str, Any]]]:
        found: dict[int, list[dict[str, Any]]] = {}
        for row in shard.table(self.columns).to_pylist():
            found.setdefault(row["index"], []).append(row)
        return found

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"RunResults({self.folder.name!r}, {self.done} of {self.samples} samples{failed})"
