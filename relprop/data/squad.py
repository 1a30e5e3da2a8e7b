"""SQuAD, 1.1 or 2.0: questions with the paragraph that answers them, whose answers are the
rationale."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from relprop.data.base import Sample, Word
from relprop.data.columns import Row
from relprop.data.files import digest, existing, position
from relprop.data.huggingface import name_of, opened, row_of, told_apart
from relprop.data.pieces import overlapping, split_words
from relprop.error_boundary import guarded
from relprop.errors import InputError

COLUMNS = ["id", "question", "context", "answers"]


@guarded
@dataclass(frozen=True, eq=False)
class Squad:
    """SQuAD, 1.1 or 2.0: questions with the paragraph that answers them, as a pair of texts.

    ``dataset``: the ``.json`` file as published (read whole), a ``datasets.Dataset`` with its
    columns (``id``, ``question``, ``context``, ``answers``), or a folder that ``save_to_disk``
    made; ``split``: which of several it has. ``words`` are those of the paragraph
    (``split_words``), ``rationale`` whether a word is in any of the answers; a question without
    answer has no rationale. Raises ``InputError`` for an answer that is not where it is said to be.
    """

    dataset: Any
    _: KW_ONLY
    split: str | None = None

    kind: ClassVar[str] = "text"
    labels: ClassVar[tuple[str, ...] | None] = None

    def __post_init__(self) -> None:
        if self._file is not None:
            existing(self._file)
        elif missing := set(COLUMNS) - set(self._data.column_names):
            there = ", ".join(self._data.column_names)
            fact = f"no column {', '.join(sorted(missing))}; there are {there}"
            raise InputError(fact, at=self.name)

    @property
    def name(self) -> str:
        """The file's, without its ending, or the data set's."""
        return self._file.stem if self._file is not None else name_of(self._data, self.dataset)

    def identity(self) -> dict[str, Any]:
        """The file; of a data set its rows, as of ``HuggingFaceData``."""
        file = self._file
        identity = told_apart(self._data, COLUMNS) if file is None else digest(file)
        return {"format": "squad", "name": self.name, **identity}

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Sample:
        index = position(index, len(self), self.name)
        values = row_of(self._data, index, self.name)
        row = Row(values, f"{self.name}, question {values['id']}")
        question, context = values["question"], values["context"]
        answers = _answers(row)
        if not isinstance(question, str) or not isinstance(context, str):
            raise row.refused("question and context are no texts")
        spans = [_placed(row, text, start) for text, start in answers]
        words = split_words(context, 1)
        marked = overlapping(words, spans) if spans else None
        return Sample(str(values["id"]), (question, context), words=words, rationale=marked)

    @property
    def _file(self) -> Path | None:
        named = isinstance(self.dataset, (str, Path))
        return Path(self.dataset) if named and str(self.dataset).lower().endswith(".json") else None

    @cached_property
    def _data(self) -> Any:
        file = self._file
        return opened(self.dataset, self.split) if file is None else _published(file)


def _published(path: Path) -> list[dict[str, Any]]:
    """The questions of the file as published: articles of paragraphs of questions."""
    try:
        articles = json.loads(path.read_bytes())["data"]
        return [
            {
                "id": question["id"],
                "question": question["question"],
                "context": paragraph["context"],
                "answers": question.get("answers", []),
            }
            for article in articles
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        fact = "not SQuAD's JSON (data, paragraphs, context, qas, id, question, answers)"
        raise InputError(f"{fact}: {reason}", at=path.name) from None


def _answers(row: Row) -> list[tuple[str, int]]:
    """Texts and where they begin, from a list of answers or, as ``datasets`` has them, from lists
    of texts and of starts."""
    found = row.values["answers"]
    try:
        if isinstance(found, Mapping):
            pairs = list(zip(found["text"], found["answer_start"], strict=True))
        else:
            pairs = [(a["text"], a["answer_start"]) for a in found]
    except (KeyError, TypeError, ValueError) as error:
        raise row.refused(f"answers need text and answer_start: {error}") from None
    if not all(isinstance(text, str) and isinstance(start, int) for text, start in pairs):
        raise row.refused("answers need texts, and numbers of characters")
    return pairs


def _placed(row: Row, text: str, start: int) -> Word:
    """Where an answer stands in the paragraph."""
    context: str = row.values["context"]
    if context[start : start + len(text)] != text or not text or start < 0:
        there = context[max(start, 0) : max(start, 0) + len(text)]
        fact = f"answer {text!r} is not at character {start} of the paragraph: there is {there!r}"
        raise row.refused(fact)
    return Word(start, start + len(text), 1)
