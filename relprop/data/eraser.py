"""ERASER's Movie Reviews (DeYoung et al., ACL 2020): documents with the passages a person would
give as the reason for their class."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from relprop.data.base import Sample, Word
from relprop.data.columns import Row
from relprop.data.files import digest, existing, given_classes, listing, options_of, position
from relprop.data.rows import JsonLines
from relprop.error_boundary import guarded
from relprop.errors import OptionError


@guarded
def eraser_words(text: str) -> tuple[Word, ...]:
    """The tokens that ERASER's offsets count: lines without the white space around them, cut at
    spaces.

    >>> [(word.start, word.end) for word in eraser_words("a  fine film .\\n\\n it is")]
    [(0, 1), (3, 7), (8, 12), (13, 14), (17, 19), (20, 22)]
    """
    words, at = [], 0
    for line in text.split("\n"):
        start = at + len(line) - len(line.lstrip())
        found = re.finditer("[^ ]+", line.strip())
        words += [Word(start + m.start(), start + m.end()) for m in found]
        at += len(line) + 1
    return tuple(words)


@guarded
@dataclass(frozen=True)
class EraserMovies:
    """Reviews in ERASER's files: ``docs/`` with a document per file, and ``train.jsonl``,
    ``val.jsonl``, ``test.jsonl`` with an annotation per line.

    ``folder``: where these are. ``split``: which of the three. ``classes``: the model's, in its
    order. ``Sample.inputs`` is the document as it is in its file, ``words`` its tokens as ERASER
    counts them, ``rationale`` whether a word is in any evidence, of all groups together; keys are
    ``annotation_id``. A review is one document: an annotation with evidence in several, as other
    data sets of ERASER have, is refused. Raises ``InputError`` for files that are missing or
    malformed.
    """

    folder: str | Path
    _: KW_ONLY
    split: str = "test"
    classes: Sequence[str] = ("NEG", "POS")

    name: ClassVar[str] = "ERASER movies"
    kind: ClassVar[str] = "text"

    def __post_init__(self) -> None:
        folder = existing(self.folder, "folder")
        found = sorted(path.stem for path in folder.glob("*.jsonl"))
        if self.split not in found:
            there = ", ".join(found) or "no .jsonl files"
            raise OptionError(f"split={self.split!r}: {folder.name} has {there}")
        existing(folder / "docs", "folder")
        given_classes(self.classes)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """``classes``."""
        return tuple(self.classes)

    @cached_property
    def _annotations(self) -> JsonLines:
        return JsonLines(Path(self.folder) / f"{self.split}.jsonl")

    def identity(self) -> dict[str, Any]:
        """The annotations' file, the documents' names and sizes, the split and the classes."""
        folder = Path(self.folder) / "docs"
        documents = listing(folder, sorted(path.name for path in folder.iterdir()))
        named = {"format": "eraser", "name": self.name, **digest(self._annotations.path)}
        return {**named, **documents, **options_of(self, "split", "classes")}

    def __len__(self) -> int:
        return len(self._annotations)

    def __getitem__(self, index: int) -> Sample:
        index = position(index, len(self), self.name)
        row = Row(self._annotations.row(index), f"{self.split}.jsonl, row {index}")
        key, label, groups = (
            row.cell(column, column) for column in ("annotation_id", "classification", "evidences")
        )
        if label not in self.classes:
            fact = f"classification {label!r}: the classes are {', '.join(map(repr, self.classes))}"
            raise row.refused(fact, ["classes=(...)   # the model's, in its order"])
        evidences = _evidences(row, groups)
        text = self._document(row, _document_of(row, evidences))
        words = eraser_words(text)
        marked = _marked(evidences, len(words))
        number = list(self.classes).index(label)
        return Sample(str(key), text, number, words=words, rationale=marked)

    def _document(self, row: Row, name: str) -> str:
        path = Path(self.folder) / "docs" / name
        if Path(name).name != name or not path.is_file():
            raise row.refused(f"no document docs/{name}")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise row.refused(f"docs/{name} is not UTF-8: {error}") from None


def _evidences(row: Row, groups: Any) -> list[Row]:
    """Of all groups together."""
    if not isinstance(groups, list) or not all(
        isinstance(group, list) and all(isinstance(e, dict) for e in group) for group in groups
    ):
        raise row.refused("evidences: a list of groups, each a list of objects, is needed")
    return [Row(evidence, row.where) for group in groups for evidence in group]


def _document_of(row: Row, evidences: Sequence[Row]) -> str:
    """The one document of an annotation: its evidences', else the one it names, else that of its
    own name."""
    found = {str(evidence.cell("docid", "docid")) for evidence in evidences}
    if not found:
        named = row.values.get("docids") or [row.values["annotation_id"]]
        found = {str(name) for name in named}
    if len(found) > 1:
        several = f"{len(found)} documents ({', '.join(sorted(found)[:3])})"
        raise row.refused(f"evidence in {several}: one document per annotation is read")
    return found.pop()


def _marked(evidences: Sequence[Row], count: int) -> tuple[bool, ...]:
    """For each of ``count`` words whether it is in any evidence."""
    marked = [False] * count
    for evidence in evidences:
        start, end = (evidence.cell(column, column) for column in ("start_token", "end_token"))
        numbers = isinstance(start, int) and isinstance(end, int)
        if not numbers or not 0 <= start < end <= count:
            raise evidence.refused(f"evidence of tokens {start} to {end}: the document has {count}")
        marked[start:end] = [True] * (end - start)
    return tuple(marked)
