"""Reading a run folder: the table, rows and tensors in the samples' order, and what is missing. A
run may be read while it is going on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from relprop.errors import OptionError, warn
from relprop.runs.manifest import Failure, Manifest, read_failures
from relprop.runs.shards import Catalogue, Shard, arrow, schema

if TYPE_CHECKING:
    import pyarrow as pa

OPEN = 16  # shards whose rows are in memory at once, at most


def read_run(folder: str | Path) -> RunResults:
    """The results in a run folder as they are now. Needs ``relprop[runs]``; raises ``InputError``
    for any other folder."""
    return RunResults(Path(folder))


class RunResults:
    """What a run folder holds. ``identity`` and ``columns``: the work's. ``samples``: how many
    there are in all. ``failed``: those that could not be done, by index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = Manifest.read(folder)
        self._catalogue = Catalogue(folder / "shards", self.manifest.samples)
        self.failed: Mapping[int, Failure] = {
            i: f for i, f in read_failures(folder).items() if self._catalogue.of(i) is None
        }
        if self._catalogue.twice:
            warn(
                f"{self._catalogue.twice} samples of {folder.name!r} are in two shards: "
                "the first one counts"
            )

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything the numbers depend on."""
        return self.manifest.identity

    @property
    def samples(self) -> int:
        """How many samples the data set has."""
        return self.manifest.samples

    @property
    def columns(self) -> Mapping[str, str]:
        """The table's columns beside ``index`` and ``key``."""
        return self.manifest.columns

    @property
    def done(self) -> int:
        """How many samples are done."""
        return self.samples - len(self._catalogue.missing)

    @property
    def missing(self) -> np.ndarray:
        """The samples that are neither done nor failed, ascending, int64."""
        missing = self._catalogue.missing
        return missing[~np.isin(missing, list(self.failed))] if self.failed else missing

    @property
    def complete(self) -> bool:
        """Whether nothing is missing. Failed samples are not missing: ``failed`` has them."""
        return len(self.missing) == 0

    def table(self) -> pa.Table:
        """All rows as one Arrow table, by ascending ``index``; the rows of one sample in the work's
        order."""
        pa = arrow()
        parts = [
            _counted(pa, shard, self._catalogue, number)
            for number, shard in enumerate(self._catalogue.shards)
        ]
        return pa.concat_tables([schema(self.columns).empty_table(), *parts]).sort_by(
            "index"
        )  # a stable sort

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of ``table``, one after another, with a few shards in memory at a time."""
        held: OrderedDict[Path, dict[int, list[dict[str, Any]]]] = OrderedDict()
        for index, shard in self._catalogue.in_order():
            if shard.path not in held:
                held[shard.path] = _by_index(shard)
                while len(held) > OPEN:
                    held.popitem(last=False)
            held.move_to_end(shard.path)
            yield from held[shard.path].get(index, ())

    def rows_of(self, index: int) -> list[dict[str, Any]]:
        """One sample's rows; none if it is not done."""
        shard = self._catalogue.of(index)
        return [] if shard is None else _by_index(shard).get(index, [])

    def tensors(self, index: int) -> dict[str, Tensor]:
        """One sample's tensors by name. Raises ``OptionError`` if the sample is not done."""
        if not 0 <= index < self.samples:
            raise OptionError(f"tensors({index}): there are samples 0 to {self.samples - 1}")
        shard = self._catalogue.of(index)
        if shard is None:
            why = (
                f"it failed: {self.failed[index].error.splitlines()[0]}"
                if index in self.failed
                else "it is not done yet"
            )
            raise OptionError(
                f"tensors({index}): {why}",
                then=["resume the run", "run.missing and run.failed list such samples"],
            )
        return shard.tensors(index)

    def __repr__(self) -> str:
        return (
            f"RunResults({self.folder.name!r}, {self.done} of {self.samples} "
            f"samples{f', {len(self.failed)} failed' if self.failed else ''})"
        )


def _counted(pa: Any, shard: Shard, catalogue: Catalogue, number: int) -> pa.Table:
    """The rows of those of its samples that count."""
    table = shard.table()
    counts = catalogue.number[table["index"].to_numpy()] == number
    return table if counts.all() else table.filter(pa.array(counts))


def _by_index(shard: Shard) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for row in shard.table().to_pylist():
        found.setdefault(row["index"], []).append(row)
    return found
