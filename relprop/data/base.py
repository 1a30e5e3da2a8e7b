"""What a data set is here: something with a length whose samples are images or texts, with what is
known of the right answer and the right explanation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True)
class Word:
    """Characters ``start`` to ``end`` (exclusive) of text number ``text`` of a sample."""

    start: int
    end: int
    text: int = 0


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample of a data set.

    ``key``: its name in the data set, the same in every run (a file's path from the data set's
    root, a document's id, a row's number). ``inputs``: an image (C, H, W) in [0, 1], *not*
    normalised; a text; or a tuple of texts (a pair). ``label``: the true class. ``others``: further
    classes that are true of it too (an image of two things): the model is not asked to choose
    between them and ``label``. ``mask`` (H, W), int: 1 where the object of class ``label`` is, 0
    elsewhere, −1 where nobody knows. ``words``: the text's words; ``rationale``: for each word,
    whether a person would give it as the reason (or, for a question, whether it is of the answer).
    """

    key: str
    inputs: Any
    label: int | None = None
    others: tuple[int, ...] = ()
    mask: Tensor | None = None
    words: tuple[Word, ...] | None = None
    rationale: tuple[bool, ...] | None = None


@runtime_checkable
class Source(Protocol):
    """A data set: ``len(source)``, ``source[i]``. Reading a sample twice gives the same; nothing is
    kept in memory that was not asked for.

    ``name``: what a table calls it; ``kind``: ``"image"`` or ``"text"``; ``labels``: the classes'
    names, if the data set knows them; ``Sample.label`` counts them from 0.
    """

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...] | None: ...

    def identity(self) -> dict[str, Any]:
        """What tells this data set from others, as plain JSON: a run that goes on must be of the
        same (files, sizes, options; no absolute path)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...
