"""Tables by column names: texts, pairs of texts or paths of pictures, with labels, in CSV, TSV or
JSON lines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from relprop.adapters.rgb import read_picture
from relprop.data.base import Sample
from relprop.data.columns import Row, TextColumns, class_names
from relprop.data.files import digest, given_classes, listing, options_of, position
from relprop.data.images import Size, Transform, as_image, to_image
from relprop.data.rows import Rows, rows_of
from relprop.error_boundary import guarded


@guarded
@dataclass(frozen=True)
class Table:
    """What both kinds of tables share: a file (``.csv``, ``.tsv``, ``.jsonl``, ``.ndjson``) whose
    rows are samples, and what ``label`` and ``key`` are.

    A label is a class by number (from 0) or by name; without ``classes`` the names are those in the
    column, sorted, for which all of it is read once; how the file writes it makes no difference
    (``2``, ``2.0``, ``"2"``). Nothing, NaN, −1 and an empty cell are no label; several are refused.
    Numbers with fractions, and −1 and 1 alone, are refused without ``classes``.
    ``label=None``: there is no such column. ``key=None``: a row's key is its number, from 0.
    """

    path: str | Path
    _: KW_ONLY
    label: str | None = "label"
    classes: Sequence[str] | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        rows_of(self.path)
        given_classes(self.classes)

    @property
    def name(self) -> str:
        """The file's, without its ending."""
        return Path(self.path).stem

    @cached_property
    def labels(self) -> tuple[str, ...] | None:
        """``classes``, else the names in the column of labels; ``None`` if they are numbers."""
        if self.classes is not None or self.label is None:
            return given_classes(self.classes)
        rows = (self._at(row, i) for i, row in enumerate(self._rows))
        return class_names(row.cell(self.label, "label") for row in rows)

    def identity(self) -> dict[str, Any]:
        """The file and the options."""
        named = {"format": type(self).__name__, "name": self.name, **digest(Path(self.path))}
        return named | options_of(self, *(f.name for f in fields(self) if f.name != "path"))

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def _rows(self) -> Rows:
        return rows_of(self.path)

    def _at(self, values: Any, index: int) -> Row:
        return Row(values, f"{Path(self.path).name}, row {index}")

    def _row(self, index: int) -> tuple[Row, str, int | None]:
        """A row, its key and its label."""
        index = position(index, len(self), self.name)
        row = self._at(self._rows.row(index), index)
        key = str(index) if self.key is None else str(row.cell(self.key, "key"))
        return row, key, row.label(self.label, self.labels)


@guarded
@dataclass(frozen=True, kw_only=True)
class TextTable(Table):
    """Texts, or pairs of texts, in a table (``Table``: the file, labels, keys).

    ``text``, ``pair``: the columns of the texts; a JSON list of words is a text, too, of these
    words. ``rationale``: the column of what a person gives as the reason: ``[0, 1, ...]``, one for
    each word (between white space) of all texts; or ``[[start, end], ...]`` in characters of the
    text, ``[start, end, 1]`` in those of the pair. Without it a sample has words only where the row
    has. Raises ``InputError``.
    """

    text: str = "text"
    pair: str | None = None
    rationale: str | None = None

    kind: ClassVar[str] = "text"

    def __getitem__(self, index: int) -> Sample:
        return TextColumns(self.text, self.pair, self.rationale).sample(*self._row(index))


def _leaves(path: str) -> bool:
    """Whether a path leads out of the folder it starts from. (A link below it may lead
    anywhere.)"""
    plain = os.path.normpath(path)
    return os.path.isabs(plain) or plain.split(os.sep)[0] == os.pardir


@guarded
@dataclass(frozen=True, kw_only=True)
class ImageTable(Table):
    """Pictures by their paths in a table (``Table``: the file, labels, keys).

    ``image``: the column of the paths, from the table's folder. ``size``, ``transform``,
    ``upright``: as for ``ImageFolder``. Raises ``InputError``.
    """

    image: str = "image"
    size: Size | None = None
    transform: Transform | None = None
    upright: bool = False

    kind: ClassVar[str] = "image"

    def __post_init__(self) -> None:
        super().__post_init__()
        to_image(self.size, self.transform)

    def identity(self) -> dict[str, Any]:
        """The table, the pictures' paths and contents, and the options."""
        paths = (p for row in self._rows if not _leaves(p := str(row.get(self.image))))
        return {**super().identity(), **listing(Path(self.path).parent, paths)}

    def __getitem__(self, index: int) -> Sample:
        row, key, label = self._row(index)
        path = row.cell(self.image, "image")
        if isinstance(path, str) and _leaves(path):
            then = ["move the pictures below the table's folder, or the table above them"]
            raise row.refused(f"{path!r} leads out of the table's folder", then)
        if not isinstance(path, str) or not (file := Path(self.path).parent / path).is_file():
            raise row.refused(f"no picture {path!r}; paths are from the table's folder")
        picture = read_picture(file, f"{path} ({row.where})", upright=self.upright)
        return Sample(key, as_image(picture, to_image(self.size, self.transform), row.where), label)
