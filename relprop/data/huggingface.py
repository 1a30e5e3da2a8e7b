"""Hugging Face ``datasets`` by column names: texts, pairs (GLUE), pictures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from relprop.adapters.rgb import rgb
from relprop.data.base import Sample
from relprop.data.columns import Row, TextColumns, class_names
from relprop.data.files import existing, given_classes, needed, options_of, position
from relprop.data.images import Size, Transform, as_image, to_image
from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError

LOOKED_AT = 256  # rows that tell one data set from another
TEXTS = ("string", "large_string")  # as features call them
LABELS = (*TEXTS, "int", "uint", "float", "bool")  # how their names begin
PURPOSES = ("text", "pair", "image", "label", "rationale", "key")  # of columns
OPTIONS = ("classes", "rationale", "size", "transform")  # beside columns
MAP_STYLE = ("column_names", "features", "with_format", "unique", "__len__")


@guarded
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
        return name_of(self._data, self.dataset)

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
        if not str(getattr(feature, "dtype", "")).startswith(LABELS):
            return None
        return class_names(self._data.unique(self.label))

    def identity(self) -> dict[str, Any]:
        """Rows, columns, options, and the SHA-256 of up to 256 rows evenly chosen (their texts and
        labels; of pictures only the labels)."""
        read = [column for n, column in self._columns.items() if column and n != "image"]
        identity, options = told_apart(self._data, read), options_of(self, *OPTIONS)
        return {"format": "datasets", "name": self.name, **identity, **self._columns, **options}

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Sample:
        index = position(index, len(self), self.name)
        where, columns = f"{self.name}, row {index}", self._columns
        row = Row(row_of(self._data, index, where), where)
        key = str(index) if self.key is None else str(row.cell(self.key, "key"))
        feature = (self._data.features or {}).get(self.label)
        label = row.label(self.label, self.labels, coded=hasattr(feature, "names"))
        if columns["image"]:
            picture = _picture(row, columns["image"])
            return Sample(key, as_image(picture, to_image(self.size, self.transform), where), label)
        return TextColumns(str(columns["text"]), self.pair, self.rationale).sample(row, key, label)

    @cached_property
    def _data(self) -> Any:
        return opened(self.dataset, self.split)

    @cached_property
    def _columns(self) -> dict[str, str | None]:
        """The columns by what they are for, all of them there. Raises ``InputError``."""
        if self.text is not None and self.image is not None:
            raise OptionError("text= and image= exclude each other: a sample is one of the two")
        named: dict[str, str | None] = {name: getattr(self, name) for name in PURPOSES}
        if self.text is None and self.image is None:
            purpose, column = _only(self._data, [c for c in named.values() if c])
            named[purpose] = column
        known = self._known(named)
        if missing := [f"{n}={c!r}" for n, c in named.items() if c is not None and c not in known]:
            fact = f"no column for {', '.join(missing)}; there are {', '.join(map(repr, known))}"
            raise InputError(fact, at=self.name, then=["label=None   # if there are no labels"])
        return named

    def _known(self, named: Mapping[str, str | None]) -> list[str | None]:
        """The columns that rows have; of a user's own transform only a row can tell."""
        if self._data.format["type"] != "custom":
            return list(self._data.column_names)
        return list(self._data[0]) if len(self._data) else list(named.values())


def loaded(folder: str | Path) -> Any:
    """The ``datasets.Dataset`` or ``DatasetDict`` in a folder that ``save_to_disk`` made. Raises
    ``InputError``."""
    folder, datasets = existing(folder, "folder"), needed("datasets")
    try:
        return datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        fact = f"{folder.name} holds no data set as save_to_disk makes it: {error}"
        raise InputError(fact) from None


def opened(dataset: Any, split: str | None) -> Any:
    """One map-style data set, with rows of plain Python objects. Raises ``InputError`` and
    ``OptionError``."""
    if isinstance(dataset, (str, Path)):
        dataset = loaded(dataset)
    if isinstance(dataset, Mapping):
        if split not in dataset:
            fact = f"split={split!r}: the data set has {', '.join(map(repr, dataset))}"
            raise OptionError(fact, then=[f"split={next(iter(dataset), 'test')!r}"])
        dataset = dataset[split]
    elif split is not None and str(getattr(dataset, "split", None)) != split:
        own = getattr(dataset, "split", None) or "without a name"
        raise OptionError(f"split={split!r}: the data set is one, {own}")
    if not all(hasattr(dataset, name) for name in MAP_STYLE):
        fact = f"{type(dataset).__name__} is no map-style datasets.Dataset"
        then = "datasets.Dataset.from_list(list(stream.take(1000)))   # of one that streams"
        raise InputError(fact, then=[then])
    return dataset if dataset.format["type"] == "custom" else dataset.with_format(None)


def row_of(data: Any, index: int, where: str) -> Mapping[str, Any]:
    """A row as ``datasets`` reads it, pictures decoded. Raises ``InputError``."""
    try:
        return data[index]
    except (OSError, ValueError, SyntaxError) as error:
        at = where if "row" in where else f"{where}, row {index}"
        raise InputError(f"the row cannot be read: {error}", at=at) from None


def _picture(row: Row, column: str) -> Any:
    """In RGB, from what ``datasets`` decodes: a PIL image."""
    value = row.values[column]
    if not hasattr(value, "convert"):
        fact = f"the picture is {type(value).__name__}, not a PIL image"
        raise row.refused(fact, ["dataset.cast_column(column, datasets.Image())"])
    try:
        return rgb(value, row.where)
    except InputError:
        raise
    except (OSError, SyntaxError, ValueError) as error:
        raise row.refused(f"no picture can be read: {error}") from None


def _only(data: Any, others: Sequence[str]) -> tuple[str, str]:
    """The only column of pictures, else the only one of texts, that is not named otherwise."""
    features = {c: f for c, f in (data.features or {}).items() if c not in others}
    pictures = [c for c, feature in features.items() if type(feature).__name__ == "Image"]
    texts = [c for c, feature in features.items() if getattr(feature, "dtype", None) in TEXTS]
    found = [("image", c) for c in pictures] or [("text", c) for c in texts]
    if len(found) != 1:
        fact = f"the columns are {', '.join(map(repr, data.column_names))}: which is explained?"
        then = ["text='sentence'", "text='premise', pair='hypothesis'", "image='image'"]
        raise OptionError(fact, then=then)
    return found[0]


def name_of(data: Any, given: Any) -> str:
    """What a data set is called: its own name and its split's, else the folder's."""
    info = getattr(data, "info", None)
    own = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None)
    parts = [own, getattr(info, "config_name", None), getattr(data, "split", None)]
    known = [str(part) for part in parts if part and part != "default"]
    if own:
        return "/".join(known)
    if isinstance(given, (str, Path)):
        return Path(given).resolve().name
    return "/".join(["dataset", *known])


def told_apart(data: Any, columns: Sequence[str]) -> dict[str, Any]:
    """Rows, columns, and a digest of some rows of ``columns``: what a data set is, wherever its
    files lie."""
    chosen = data if data.format["type"] == "custom" else data.select_columns(list(columns))
    step = max(1, -(-len(data) // LOOKED_AT))
    rows = [chosen[i] for i in range(0, len(data), step)] if columns else []
    text = json.dumps([{c: row[c] for c in columns} for row in rows], sort_keys=True, default=str)
    return {
        "rows": len(data),
        "columns": list(data.column_names),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
