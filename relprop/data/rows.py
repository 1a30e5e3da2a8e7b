"""Rows of a text file, found by their offset: JSON lines and delimited columns. Only offsets stay
in memory; a row is read when asked for."""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from relprop.data.files import existing
from relprop.errors import InputError, message

Row = Mapping[str, Any]


class Rows(Protocol):
    """Rows by number, and one after the other."""

    def __iter__(self) -> Iterator[Row]: ...

    def __len__(self) -> int: ...

    def row(self, index: int) -> Row:
        """Row ``index``, by column."""


@dataclass(frozen=True)
class JsonLines:
    """A file with one JSON object per line, UTF-8; empty lines are left out."""

    path: Path

    @cached_property
    def offsets(self) -> array[int]:
        """Where each row begins, in bytes."""
        found, at = array("q"), 0
        with self.path.open("rb") as file:
            for line in file:
                if line.strip():
                    found.append(at)
                at += len(line)
        return found

    def __len__(self) -> int:
        return len(self.offsets)

    def row(self, index: int) -> Row:
        """Row ``index``. Raises ``InputError`` for what is no JSON object."""
        with self.path.open("rb") as file:
            file.seek(self.offsets[index])
            return self._parsed(file.readline(), index)

    def __iter__(self) -> Iterator[Row]:
        with self.path.open("rb") as file:
            for index, line in enumerate(line for line in file if line.strip()):
                yield self._parsed(line, index)

    def _parsed(self, line: bytes, index: int) -> Row:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(
                message(f"not JSON: {error}", at=f"{self.path.name}, row {index}")
            ) from None
        if not isinstance(found, dict):
            raise InputError(
                message(
                    f"a {type(found).__name__}, not an object with columns",
                    at=f"{self.path.name}, row {index}",
                )
            )
        return found


@dataclass(frozen=True)
class Delimited:
    """A table with a header, UTF-8: columns by commas with quotes (RFC 4180), or by tabs without
    (GLUE's files, where a quote is a character)."""

    path: Path
    delimiter: str = ","

    @cached_property
    def _index(self) -> tuple[tuple[str, ...], array[int]]:
        found = array("q")
        with self.path.open("rb") as file:
            reader, start = self._reader(file), 0
            header: tuple[str, ...] = ()
            try:
                for cells in reader:
                    if cells and not header:
                        header = tuple(cells)
                    elif cells:
                        found.append(start)
                    start = reader.place
            except (csv.Error, UnicodeDecodeError) as error:
                raise InputError(
                    message(
                        f"no table in UTF-8: {error}",
                        at=f"{self.path.name}, row {len(found)}",
                        then=_limit(error),
                    )
                ) from None
        if not header or len(set(header)) < len(header):
            raise InputError(
                message(
                    f"the first line names the columns, each once; it is {list(header)}",
                    at=self.path.name,
                )
            )
        return header, found

    def _reader(self, file: BinaryIO) -> _Reader:
        return _Reader(file, self.delimiter)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns' names."""
        return self._index[0]

    def __len__(self) -> int:
        return len(self._index[1])

    def row(self, index: int) -> Row:
        """Row ``index``. Raises ``InputError`` if it has more or fewer cells than there are
        columns."""
        with self.path.open("rb") as file:
            file.seek(self._index[1][index])
            return self._named(next(self._reader(file)), index)

    def __iter__(self) -> Iterator[Row]:
        with self.path.open("rb") as file:
            for index, cells in enumerate(
                islice(filter(None, self._reader(file)), 1, 1 + len(self))
            ):
                yield self._named(cells, index)

    def _named(self, cells: Sequence[str], index: int) -> Row:
        header = self.columns
        if len(cells) != len(header):
            raise InputError(
                message(
                    f"{len(cells)} cells, {len(header)} columns: {', '.join(header)}",
                    at=f"{self.path.name}, row {index}",
                )
            )
        return dict(zip(header, cells, strict=True))


class _Reader:
    """Cells of row after row, and ``place``, where the next one begins: a row may be several lines,
    if a quoted cell is."""

    def __init__(self, file: BinaryIO, delimiter: str) -> None:
        self.file, self.place = file, file.tell()
        lines = self._lines()
        self.rows = (
            csv.reader(lines, strict=True)
            if delimiter == ","
            else csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
        )

    def _lines(self) -> Iterator[str]:
        for line in self.file:
            text = line.decode("utf-8-sig" if self.place == 0 else "utf-8")
            self.place += len(line)
            yield text

    def __iter__(self) -> _Reader:
        return self

    def __next__(self) -> list[str]:
        return next(self.rows)


def _limit(error: Exception) -> list[str]:
    return (
        ["csv.field_size_limit(10**9)   # Python's own limit on the length of a cell"]
        if "field larger" in str(error)
        else []
    )


READERS: dict[str, Callable[[Path], Rows]] = {
    ".csv": Delimited,
    ".tsv": lambda path: Delimited(path, "\t"),
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
}


def rows_of(path: str | Path) -> Rows:
    """The rows of a file, by its ending: ``.csv``, ``.tsv``, ``.jsonl``, ``.ndjson``. Raises
    ``InputError`` for others, and if it does not exist."""
    path = existing(path)
    if path.suffix.lower() not in READERS:
        raise InputError(f"{path.name}: tables are {', '.join(READERS)}")
    return READERS[path.suffix.lower()](path)
