"""Shards: what came of one batch, as two files beside each other in ``shards/``.

``<first>-<last>-<process>.safetensors`` holds the tensors under ``<index>.<name>``,
``<first>-<last>-<process>.parquet`` the rows. The Parquet file is renamed to its name last, when
everything else is on the disk: it is what makes the shard count. Its metadata lists the samples, so
that one without rows or tensors is done, too, and holds checksums of itself, of the rows and of the
file of tensors, whose size is looked at when the shard is found and whose contents when it is read.
Needs ``relprop[runs]``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from relprop.errors import InputError, OptionError, RelpropError, first_line
from relprop.runs.base import Record
from relprop.runs.disk import owner, remove_leftovers, write_atomically

if TYPE_CHECKING:
    import pyarrow as pa

META, META_DIGEST = b"relprop", b"relprop-sha256"


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
    order; ``rows`` and ``tensors_digest`` are the checksums of its rows and of its file of tensors
    (none: it has no tensors), of so many ``bytes``. ``read``: what has been found whole."""

    path: Path
    indices: np.ndarray
    rows: str
    tensors_digest: str = ""
    bytes: int = 0
    read: set[str] = field(default_factory=set, repr=False)

    @property
    def has_tensors(self) -> bool:
        """Whether there is a file of tensors beside the rows."""
        return bool(self.tensors_digest)

    def table(self, columns: Mapping[str, str]) -> pa.Table:
        """Its rows, in the samples' order: the work's ``columns``, and of its own samples alone."""
        pa = arrow()
        try:
            file = pa.parquet.ParquetFile(self.path)
            _check_claims(file.metadata)
            table = file.read().replace_schema_metadata(None)
            found = _digest_of_rows(table)
        except Exception as error:  # bytes that changed are wrong in any way
            raise _damaged(self.path, error) from error
        if found != self.rows:
            raise _damaged(self.path, "the checksum of its rows is another one")
        if table.schema != schema(columns):
            raise _damaged(self.path, "its columns are not those of this run")
        if not set(table["index"].to_pylist()) <= set(self.indices.tolist()):
            raise _damaged(self.path, "it has rows of samples that are not its own")
        return table

    def check_size(self) -> None:
        """Raise ``InputError`` where the file of tensors is gone or was cut short."""
        path = self.path.with_suffix(".safetensors")
        if not path.is_file():
            raise _damaged(path, "it is gone")
        if path.stat().st_size != self.bytes:
            raise _damaged(path, f"it has {path.stat().st_size} bytes, not {self.bytes}")

    def check_contents(self) -> None:
        """The same, and where its bytes are not as they were written; they are read once."""
        self.check_size()
        path = self.path.with_suffix(".safetensors")
        if "tensors" not in self.read:
            if hashlib.sha256(path.read_bytes()).hexdigest() != self.tensors_digest:
                raise _damaged(path, "its checksum is another one")
            self.read.add("tensors")

    def tensors(self, index: int) -> dict[str, Tensor]:
        """One sample's tensors by name."""
        if not self.has_tensors:
            return {}
        start = f"{index}."
        path = self.path.with_suffix(".safetensors")
        self.check_contents()
        try:
            with safe_open(str(path), framework="pt") as file:
                return {
                    name.removeprefix(start): file.get_tensor(name).clone()
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
    facts: dict[str, Any] = {"indices": indices, "rows": _digest_of_rows(table)}
    if tensors:  # as bytes: `save_file` has a temporary file of its own, which a kill leaves
        beside, data = path.with_suffix(".safetensors"), save(tensors)
        write_atomically(beside, "a batch's tensors", lambda temporary: temporary.write_bytes(data))
        facts |= {"tensors": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    meta = json.dumps(facts).encode()
    table = table.replace_schema_metadata({META: meta, META_DIGEST: _sha(meta)})
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


def _check_claims(footer: pa.parquet.FileMetaData) -> None:
    """Raise ``ValueError`` for more rows than there is memory for: equal ones take no place in a
    file."""
    cells, free = footer.num_rows * footer.num_columns, psutil.virtual_memory().available
    if cells * 8 > free:
        raise ValueError(
            f"its {footer.num_rows} rows take at least {cells * 8 / 1e9:.3g} GB of memory, of "
            f"which {free / 1e9:.3g} GB are free"
        )


def _digest_of_rows(table: pa.Table) -> str:
    """SHA-256 of a table's columns and values."""
    return hashlib.sha256(json.dumps(table.to_pydict()).encode()).hexdigest()


def _sha(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def _by_column(records: Sequence[Record], columns: Mapping[str, str]) -> dict[str, list[Any]]:
    rows = [{"index": r.index, "key": r.key, **row} for r in records for row in r.rows]
    for row in rows:
        if wrong := set(row) ^ {"index", "key", *columns}:
            fact = f"a row of sample {row['key']!r} and the work's columns differ"
            raise RelpropError(f"{fact} in {', '.join(sorted(wrong))}")
    return {name: [_storable(row[name]) for row in rows] for name in ("index", "key", *columns)}


def _storable(value: Any) -> Any:
    """Text that is no UTF-8 (a file's name, half of a character) with that part written out."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value


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
            if shard.has_tensors:
                shard.check_size()
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
        metadata = pa.parquet.read_schema(path).metadata or {}
        if _sha(metadata[META]) != metadata[META_DIGEST]:
            raise ValueError("the checksum of its list of samples is another one")
        facts = json.loads(metadata[META])
        indices = np.asarray(facts["indices"], dtype=np.int64)
        if indices.ndim != 1:
            raise ValueError("its list of samples is none")
        checksums = (str(facts["rows"]), str(facts.get("tensors", "")), int(facts.get("bytes", 0)))
    except Exception as error:  # bytes that changed are wrong in any way
        raise _damaged(path, error) from error
    if len(indices) == 0 or indices.min() < 0 or indices.max() >= samples:
        raise _damaged(path, f"its samples are not among the {samples} of this run")
    return Shard(path, indices, *checksums)


def _damaged(path: Path, error: Exception | str) -> InputError:
    reason = error if isinstance(error, str) else first_line(error)
    return InputError(
        f"the shard {path.name} cannot be read: {reason}",
        then=["delete its .parquet and .safetensors files and resume: its samples are done again"],
    )
