"""Shards: what came of one batch, as two files beside each other in ``shards/``.

``<first>-<last>-<process>.safetensors`` holds the tensors under ``<index>.<name>``,
``<first>-<last>-<process>.parquet`` the rows. The Parquet file is renamed to its name last, when
everything else is on the disk: it is what makes the shard count. Its metadata lists the samples, so
that one without rows or tensors is done, too. Needs ``relprop[runs]``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from relprop.errors import InputError, OptionError, RelpropError, first_line
from relprop.runs.base import Record
from relprop.runs.disk import owner, remove_leftovers, write_atomically

if TYPE_CHECKING:
    import pyarrow as pa

META = b"relprop"


def arrow() -> Any:
    """The ``pyarrow`` module. Raises ``OptionError`` if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise OptionError('relprop.runs needs pyarrow: pip install "relprop[runs]"') from None
    return pyarrow


@dataclass(frozen=True, eq=False)
class Shard:
    """A finished batch on the disk: ``path`` of its Parquet file, its samples' ``indices`` in
    order, and whether it has tensors."""

    path: Path
    indices: np.ndarray
    has_tensors: bool

    def table(self) -> pa.Table:
        """Its rows, in the samples' order."""
        pa = arrow()
        try:
            return pa.parquet.ParquetFile(self.path).read().replace_schema_metadata(None)
        except (OSError, pa.ArrowException) as error:
            raise _damaged(self.path, error) from error

    def tensors(self, index: int) -> dict[str, Tensor]:
        """One sample's tensors by name."""
        if not self.has_tensors:
            return {}
        start = f"{index}."
        path = self.path.with_suffix(".safetensors")
        try:
            with safe_open(str(path), framework="pt") as file:
                return {
                    name.removeprefix(start): file.get_tensor(name)
                    for name in list(file.keys())
                    if name.startswith(start)
                }
        except Exception as error:  # safetensors raises a type of its own
            raise _damaged(path, error) from error


def write_shard(folder: Path, records: Sequence[Record], columns: Mapping[str, str]) -> Path:
    """Commit the records of one batch: after this, and not before, its samples are done. Returns
    the Parquet file's path.

    Raises ``RelpropError`` if rows and columns do not fit, which is the work's fault.
    """
    pa = arrow()
    table = pa.Table.from_pydict(_by_column(records, columns), schema=schema(columns))
    tensors = {
        f"{r.index}.{name}": t.detach().cpu().contiguous().clone()
        for r in records
        for name, t in r.tensors.items()
    }
    indices = [r.index for r in records]
    path = folder / f"{min(indices):09d}-{max(indices):09d}-{owner()}.parquet"
    if tensors:  # as bytes: `save_file` has a temporary file of its own, which a kill leaves
        beside = path.with_suffix(".safetensors")
        write_atomically(
            beside, "a batch's tensors", lambda temporary: temporary.write_bytes(save(tensors))
        )
    facts = json.dumps({"indices": indices, "tensors": bool(tensors)})
    table = table.replace_schema_metadata({META: facts.encode()})
    write_atomically(
        path, "a batch's rows", lambda temporary: pa.parquet.write_table(table, temporary)
    )
    return path


def schema(columns: Mapping[str, str]) -> pa.Schema:
    """The table's schema: ``index``, ``key``, and the work's columns."""
    pa = arrow()
    kinds = {
        "string": pa.string(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "list<float64>": pa.list_(pa.float64()),
    }
    for name, kind in columns.items():
        if kind not in kinds or name in ("index", "key"):
            then = f"the types are {', '.join(kinds)}; index and key are there already"
            raise RelpropError(f"column {name!r} of type {kind!r}", then=[then])
    own = [(name, kinds[kind]) for name, kind in columns.items()]
    return pa.schema([("index", pa.int64()), ("key", pa.string()), *own])


def _by_column(records: Sequence[Record], columns: Mapping[str, str]) -> dict[str, list[Any]]:
    rows = [{"index": r.index, "key": r.key, **row} for r in records for row in r.rows]
    for row in rows:
        if wrong := set(row) ^ {"index", "key", *columns}:
            fact = f"a row of sample {row['key']!r} and the work's columns differ"
            raise RelpropError(f"{fact} in {', '.join(sorted(wrong))}")
    return {name: [row[name] for row in rows] for name in ("index", "key", *columns)}


class Catalogue:
    """Which shard has which sample. ``refresh`` looks for shards that have come since, and reads no
    other again.

    ``number`` (samples,), int32: the shard of each sample, −1 for none: all that is held of a data
    set, 4 bytes a sample. ``twice``: how many samples are in a second shard, too; the first in the
    order of names counts.
    """

    def __init__(self, folder: Path, samples: int) -> None:
        self.folder, self.samples = folder, samples
        self._seen: set[str] = set()
        self.shards: list[Shard] = []
        self.number = np.full(samples, -1, dtype=np.int32)
        self.twice = 0
        self.refresh()

    def refresh(self) -> Catalogue:
        """Take in what was committed since. Raises ``InputError`` for a damaged shard."""
        names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        fresh = (n for n in names - self._seen if n.endswith(".parquet") and n[0] != ".")
        for name in sorted(fresh):
            shard = _read(self.folder / name, self.samples)
            if shard.has_tensors and name.removesuffix("parquet") + "safetensors" not in names:
                raise _damaged(shard.path, "its .safetensors file is gone")
            alone = shard.indices[self.number[shard.indices] < 0]
            self.twice += len(shard.indices) - len(alone)
            self.number[alone] = len(self.shards)
            self.shards.append(shard)
            self._seen.add(name)
        return self

    @property
    def missing(self) -> np.ndarray:
        """The samples in no shard, ascending, int64."""
        return np.flatnonzero(self.number < 0)

    def of(self, index: int) -> Shard | None:
        """The shard of a sample."""
        return self.shards[self.number[index]] if self.number[index] >= 0 else None

    def in_order(self) -> Iterator[tuple[int, Shard]]:
        """Every sample that is done, ascending, with its shard."""
        for index in range(self.samples):
            if (shard := self.of(index)) is not None:
                yield index, shard


def remove_unfinished(folder: Path) -> int:
    """Remove what killed processes left of shards that do not count; returns how many files that
    were."""
    return remove_leftovers(
        folder, lambda path: path.suffix == ".parquet" or path.with_suffix(".parquet").exists()
    )


def _read(path: Path, samples: int) -> Shard:
    """A shard from its Parquet file's footer alone."""
    pa = arrow()
    try:
        facts = json.loads((pa.parquet.read_schema(path).metadata or {})[META])
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise _damaged(path, error) from error
    indices = np.asarray(facts["indices"], dtype=np.int64)
    if len(indices) == 0 or indices.min() < 0 or indices.max() >= samples:
        raise _damaged(path, f"its samples are not among the {samples} of this run")
    return Shard(path, indices, bool(facts["tensors"]))


def _damaged(path: Path, error: Exception | str) -> InputError:
    said = error if isinstance(error, str) else first_line(error)
    return InputError(
        f"the shard {path.name} cannot be read: {said}",
        then=["delete its .parquet and .safetensors files and resume: its samples are done again"],
    )
