"""Hugging Face ``datasets`` by column names: texts, pairs (GLUE), pictures; and SQuAD, whose
answers are the rationale."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from relprop.data.base import Sample, Span
from relprop.data.columns import cell, class_index, class_names, text_sample
from relprop.data.files import described, digest, existing, given_classes, needed, position
from relprop.data.images import Size, Transform, as_image, rgb, to_image
from relprop.data.pieces import overlapping, split_words
from relprop.errors import InputError, OptionError, message

LOOKED_AT = 256  # rows that tell one data set from another
TEXTS = ("string", "large_string")  # as features call them


@dataclass(frozen=True, eq=False)
class HuggingFaceData:
    """A ``datasets.Dataset``, or a folder that ``save_to_disk`` made, by column names.

    ``dataset``: either; ``split``: which of several it has. ``text`` and ``pair``, or ``image``:
    the columns of the inputs; if none is named, the only column of texts or of pictures. ``label``:
    the column of classes, named by the data set's features (``ClassLabel``), by ``classes``, or,
    where it holds names, by these, sorted; −1 is no label; ``None``: there is none. ``rationale``:
    as for ``TextTable``. ``key``: the column of keys; else the row's number. ``size`` and
    ``transform``: as for ``ImageFolder``. Rows are read as plain Python objects, whatever
    ``with_format`` says; a ``set_transform`` of the user's stays.
    """

    dataset: Any
    _: KW_ONLY
    split: str | None = None
    text: str | None = None
    pair: str | None = None
    image: str | None = None
    label: str | None = "label"
    classes: Sequence[str] | None = None
    rationale: str | None = None
    key: str | None = None
    size: Size | None = None
    transform: Transform | None = None

    def __post_init__(self) -> None:
        to_image(self.size, self.transform)
        given_classes(self.classes)
        _ = self._data

    @property
    def name(self) -> str:
        """The data set's own and its split's, as far as they are known, else the folder's."""
        return _name(self._data, self.dataset)

    @property
    def kind(self) -> str:
        """By the columns."""
        return "image" if self._columns["image"] else "text"

    @cached_property
    def labels(self) -> tuple[str, ...] | None:
        """``classes``, else the features' names, else the names in the column; ``None`` if they are
        numbers."""
        if self.classes is not None or self.label is None:
            return given_classes(self.classes)
        feature: Any = (self._data.features or {}).get(self.label)
        if getattr(feature, "names", None) is not None:
            return tuple(feature.names)
        return (
            class_names(self._data.unique(self.label))
            if getattr(feature, "dtype", None) in TEXTS
            else None
        )

    def identity(self) -> dict[str, Any]:
        """Rows, columns, options, and the SHA-256 of up to 256 rows evenly chosen (their texts and
        labels; of pictures only the labels)."""
        options = {
            name: described(getattr(self, name))
            for name in ("classes", "rationale", "size", "transform")
        }
        told = _told_apart(self._data, [c for n, c in self._columns.items() if c and n != "image"])
        return {"format": "datasets", "name": self.name, **told, **self._columns, **options}

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Sample:
        index = position(index, len(self), self.name)
        where, columns = f"{self.name}, row {index}", self._columns
        row = _row(self._data, index, where)
        key = str(index) if self.key is None else str(cell(row, self.key, where, "key"))
        label = (
            None
            if self.label is None
            else class_index(cell(row, self.label, where, "label"), self.labels, where)
        )
        if columns["image"]:
            return Sample(
                key,
                as_image(
                    _picture(row[columns["image"]], where),
                    to_image(self.size, self.transform),
                    where,
                ),
                label,
            )
        return text_sample(
            row,
            where,
            key,
            label,
            text=str(columns["text"]),
            pair=self.pair,
            rationale=self.rationale,
        )

    @cached_property
    def _data(self) -> Any:
        return _opened(self.dataset, self.split)

    @cached_property
    def _columns(self) -> dict[str, str | None]:
        """The columns by what they are for, all of them there. Raises ``InputError``."""
        data = self._data
        named = {
            name: getattr(self, name)
            for name in ("text", "pair", "image", "label", "rationale", "key")
        }
        if self.text is not None and self.image is not None:
            raise OptionError("text= and image= exclude each other: a sample is one of the two")
        if self.text is None and self.image is None:
            guess = _only(data, [c for c in named.values() if c])
            named[guess[0]] = guess[1]
        known = (
            data.column_names
            if data.format["type"] != "custom"
            else list(data[0])
            if len(data)
            else named.values()
        )
        if missing := [
            f"{name}={column!r}"
            for name, column in named.items()
            if column is not None and column not in known
        ]:
            fact = f"no column for {', '.join(missing)}; there are {', '.join(map(repr, known))}"
            raise InputError(
                message(fact, at=self.name, then=["label=None   # if there are no labels"])
            )
        return named


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
        elif missing := {"id", "question", "context", "answers"} - set(self._data.column_names):
            raise InputError(
                message(
                    (
                        f"no column {', '.join(sorted(missing))}; there are "
                        f"{', '.join(self._data.column_names)}"
                    ),
                    at=self.name,
                )
            )

    @property
    def name(self) -> str:
        """The file's, without its ending, or the data set's."""
        return self._file.stem if self._file is not None else _name(self._data, self.dataset)

    def identity(self) -> dict[str, Any]:
        """The file; of a data set its rows, as of ``HuggingFaceData``."""
        told = (
            digest(self._file)
            if self._file is not None
            else _told_apart(self._data, ["id", "question", "context", "answers"])
        )
        return {"format": "squad", "name": self.name, **told}

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Sample:
        index = position(index, len(self), self.name)
        row = _row(self._data, index, self.name)
        where = f"{self.name}, question {row['id']}"
        question, context, answers = (
            row["question"],
            row["context"],
            _answers(row["answers"], where),
        )
        if not isinstance(question, str) or not isinstance(context, str):
            raise InputError(message("question and context are no texts", at=where))
        for text, start in answers:
            if context[start : start + len(text)] != text or not text or start < 0:
                there = context[max(start, 0) : max(start, 0) + len(text)]
                raise InputError(
                    message(
                        (
                            f"answer {text!r} is not at character {start} of the paragraph: "
                            f"there is {there!r}"
                        ),
                        at=where,
                    )
                )
        words = split_words(context, 1)
        spans = [Span(start, start + len(text), 1) for text, start in answers]
        return Sample(
            str(row["id"]),
            (question, context),
            words=words,
            rationale=overlapping(words, spans) if spans else None,
        )

    @property
    def _file(self) -> Path | None:
        return (
            Path(self.dataset)
            if isinstance(self.dataset, (str, Path)) and str(self.dataset).lower().endswith(".json")
            else None
        )

    @cached_property
    def _data(self) -> Any:
        return (
            _published(self._file) if self._file is not None else _opened(self.dataset, self.split)
        )


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
        said = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            message(
                f"not SQuAD's JSON (data, paragraphs, context, qas, id, question, answers): {said}",
                at=path.name,
            )
        ) from None


def _answers(found: Any, where: str) -> list[tuple[str, int]]:
    """Texts and where they begin, from a list of answers or, as ``datasets`` has them, from lists
    of texts and of starts."""
    try:
        pairs = (
            list(zip(found["text"], found["answer_start"], strict=True))
            if isinstance(found, Mapping)
            else [(a["text"], a["answer_start"]) for a in found]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            message(f"answers need text and answer_start: {error}", at=where)
        ) from None
    if not all(isinstance(text, str) and isinstance(start, int) for text, start in pairs):
        raise InputError(message("answers need texts, and numbers of characters", at=where))
    return pairs


def loaded(folder: str | Path) -> Any:
    """The ``datasets.Dataset`` or ``DatasetDict`` in a folder that ``save_to_disk`` made. Raises
    ``InputError``."""
    folder, datasets = existing(folder, "folder"), needed("datasets")
    try:
        return datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            message(f"{folder.name} holds no data set as save_to_disk makes it: {error}")
        ) from None


def _opened(dataset: Any, split: str | None) -> Any:
    """One map-style data set, with rows of plain Python objects. Raises ``InputError`` and
    ``OptionError``."""
    if isinstance(dataset, (str, Path)):
        dataset = loaded(dataset)
    if isinstance(dataset, Mapping):
        if split not in dataset:
            raise OptionError(
                message(
                    f"split={split!r}: the data set has {', '.join(map(repr, dataset))}",
                    then=[f"split={next(iter(dataset), 'test')!r}"],
                )
            )
        dataset = dataset[split]
    elif split is not None and str(getattr(dataset, "split", None)) != split:
        raise OptionError(
            f"split={split!r}: the data set is one, "
            f"{getattr(dataset, 'split', None) or 'without a name'}"
        )
    if not all(
        hasattr(dataset, name)
        for name in ("column_names", "features", "with_format", "unique", "__len__")
    ):
        fact = f"{type(dataset).__name__} is no map-style datasets.Dataset"
        raise InputError(
            message(
                fact,
                then=[
                    "datasets.Dataset.from_list(list(stream.take(1000)))   # of one that streams"
                ],
            )
        )
    return dataset if dataset.format["type"] == "custom" else dataset.with_format(None)


def _row(data: Any, index: int, where: str) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = data[index]
    except (OSError, ValueError, SyntaxError) as error:  # datasets decodes pictures as it reads
        raise InputError(
            message(
                f"the row cannot be read: {error}",
                at=f"{where}, row {index}" if "row" not in where else where,
            )
        ) from None
    return found


def _picture(value: Any, where: str) -> Any:
    """In RGB, from what ``datasets`` decodes: a PIL image."""
    if not hasattr(value, "convert"):
        raise InputError(
            message(
                f"the picture is {type(value).__name__}, not a PIL image",
                at=where,
                then=["dataset.cast_column(column, datasets.Image())"],
            )
        )
    try:
        return rgb(value)
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(message(f"no picture can be read: {error}", at=where)) from None


def _only(data: Any, others: Sequence[str]) -> tuple[str, str]:
    """The only column of pictures, else the only one of texts, that is not named otherwise."""
    kinds = {
        column: getattr(feature, "dtype", None)
        for column, feature in (data.features or {}).items()
        if column not in others
    }
    pictures = [c for c in kinds if type(data.features[c]).__name__ == "Image"]
    texts = [c for c, kind in kinds.items() if kind in TEXTS]
    found = [("image", c) for c in pictures] or [("text", c) for c in texts]
    if len(found) != 1:
        fact = f"the columns are {', '.join(map(repr, data.column_names))}: which is explained?"
        raise OptionError(
            message(
                fact, then=["text='sentence'", "text='premise', pair='hypothesis'", "image='image'"]
            )
        )
    return found[0]


def _name(data: Any, given: Any) -> str:
    info = getattr(data, "info", None)
    parts = [
        getattr(info, "dataset_name", None) or getattr(info, "builder_name", None),
        getattr(info, "config_name", None),
        getattr(data, "split", None),
    ]
    known = [str(part) for part in parts if part and part != "default"]
    return (
        "/".join(known)
        if parts[0]
        else Path(given).resolve().name
        if isinstance(given, (str, Path))
        else "/".join(["dataset", *known])
    )


def _told_apart(data: Any, columns: Sequence[str]) -> dict[str, Any]:
    """Rows, columns, and a digest of some rows of ``columns``: what a data set is, wherever its
    files lie."""
    told = data if data.format["type"] == "custom" else data.select_columns(list(columns))
    step = max(1, -(-len(data) // LOOKED_AT))
    rows = [told[i] for i in range(0, len(data), step)] if columns else []
    text = json.dumps([{c: row[c] for c in columns} for row in rows], sort_keys=True, default=str)
    return {
        "rows": len(data),
        "columns": list(data.column_names),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
