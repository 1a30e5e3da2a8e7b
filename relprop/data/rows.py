"""Rows of a text file, found by their offset: JSON lines and delimited columns. Only offsets stay
in memory; a row is read when asked for."""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

from relprop.data.files import existing
from relprop.errors import InputError

Row = Mapping[str, Any]


class Rows:
    """Rows by number, and one after the other. A format says where they begin (``places``) and what
    stands there (``parsed``)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def places(self) -> array[int]:
        """Where each row begins, in bytes."""
        raise NotImplementedError

    def parsed(self, file: BinaryIO, index: int) -> Row:
        """Row ``index``, by column, of a file that stands where it begins."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.places)

    def row(self, index: int) -> Row:
        """Row ``index``. Raises ``InputError`` if it is malformed."""
        with self.path.open("rb") as file:
            file.seek(self.places[index])
            return self.parsed(file, index)

    def __iter__(self) -> Iterator[Row]:
        return map(self.row, range(len(self)))

    def malformed(self, fact: str, index: int, then: Sequence[str] = ()) -> InputError:
        """The error that says so of row ``index``."""
        return InputError(fact, at=f"{self.path.name}, row {index}", then=then)


class JsonLines(Rows):
    """A file with one JSON object per line, UTF-8; empty lines are left out."""

    @cached_property
    def places(self) -> array[int]:
        found, at = array("q"), 0
        with self.path.open("rb") as file:
            for line in file:
                if line.strip():
                    found.append(at)
                at += len(line)
        return found

    def parsed(self, file: BinaryIO, index: int) -> Row:
        try:
            found = json.loads(file.readline())
        except (ValueError, RecursionError) as error:
            raise self.malformed(f"not JSON: {error}", index) from None
        if not isinstance(found, dict):
            kind = type(found).__name__
            raise self.malformed(f"a {kind}, not an object with columns", index)
        return found


class Delimited(Rows):
    """A table with a header, UTF-8: columns by commas, with quotes (RFC 4180), or as ``format``
    says to ``csv.reader``."""

    def __init__(self, path: Path, **format: Any) -> None:
        super().__init__(path)
        self.format = format

    @property
    def places(self) -> array[int]:  # type: ignore[override]
        return self._index[1]

    @cached_property
    def _index(self) -> tuple[tuple[str, ...], array[int]]:
        header: tuple[str, ...] = ()
        places = array("q")
        try:
            with self.path.open("rb") as file:
                for place, cells in self._cells(file):
                    if header:
                        places.append(place)
                    else:
                        header = tuple(cells)
        except (csv.Error, UnicodeDecodeError) as error:
            fact = f"no table in UTF-8: {error}"
            limit = "csv.field_size_limit(10**9)   # Python's own limit on the length of a cell"
            then = [limit] if "field larger" in str(error) else []
            raise self.malformed(fact, len(places), then) from None
        if not header or len(set(header)) < len(header):
            fact = f"the first line names the columns, each once; it is {list(header)}"
            raise InputError(fact, at=self.path.name)
        if not self.format and len(header) == 1 and (mark := re.search(r"[;\t|]", header[0])):
            fact = f"there is one column, {header[0]!r}: columns are told by commas in a .csv"
            commas = f"pandas.read_csv({self.path.name!r}, sep={mark[0]!r})"
            raise InputError(fact, then=[f"{commas}.to_csv('commas.csv', index=False)"])
        return header, places

    def _cells(self, file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
        """Where each row begins, and its cells. A row is several lines if a quoted cell is; empty
        lines are left out."""
        place = start = file.tell()

        def lines() -> Iterator[str]:
            nonlocal place
            for line in file:
                text = line.decode("utf-8-sig" if place == 0 else "utf-8")
                place += len(line)
                yield text

        for cells in csv.reader(lines(), strict=True, **self.format):
            if cells:
                yield start, cells
            start = place

    def parsed(self, file: BinaryIO, index: int) -> Row:
        columns, (_, cells) = self._index[0], next(self._cells(file))
        if len(cells) != len(columns):
            there = f"{len(columns)} columns: {', '.join(columns)}"
            raise self.malformed(f"{len(cells)} cells, {there}", index)
        return dict(zip(columns, cells, strict=True))


READERS: dict[str, Callable[[Path], Rows]] = {
    ".csv": Delimited,
    # without quotes: in GLUE's files a quote is a character
    ".tsv": partial(Delimited, delimiter="\t", quoting=csv.QUOTE_NONE),
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
