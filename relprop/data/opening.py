"""A data set from what a user types: a folder, a file, or an object, each to the reader of its
format."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import getattr_static
from pathlib import Path
from typing import Any

from relprop.data.base import Source
from relprop.data.eraser import EraserMovies
from relprop.data.folders import ImageFolder
from relprop.data.gtsegs import ImageNetSegmentation
from relprop.data.huggingface import HuggingFaceData, loaded
from relprop.data.images import ENDINGS
from relprop.data.rows import READERS
from relprop.data.squad import COLUMNS, Squad
from relprop.data.tables import ImageTable, TextTable
from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError, as_path, nearest

KNOWN = (
    "folder/class/picture.jpg, or folder/picture.jpg      ImageFolder",
    "a folder with docs/ and test.jsonl (ERASER)          EraserMovies",
    "a folder made by datasets' save_to_disk              HuggingFaceData, Squad",
    "gtsegs_ijcv.mat (ImageNet-Segmentation)              ImageNetSegmentation",
    ".csv, .tsv, .jsonl, .ndjson                          TextTable; with image=, ImageTable",
    ".json as SQuAD is published                          Squad",
    "a datasets.Dataset; any object that is a Source",
)
SOURCE = ("name", "kind", "labels", "identity", "__len__", "__getitem__")
SAVED = ("dataset_info.json", "dataset_dict.json", "state.json")  # by save_to_disk


@guarded
def open_data(spec: Any, **options: Any) -> Source:
    """The data set that ``spec`` names: a folder or a file, by its contents and its ending; a
    ``datasets.Dataset``; a ``Source``, as it is.

    ``options`` are those of the reader (``ImageFolder``, ``EraserMovies``, ``HuggingFaceData``,
    ``Squad``, ``ImageNetSegmentation``, ``TextTable``, ``ImageTable``). Raises ``OptionError`` for
    an option that the reader does not have, ``InputError`` for what no reader takes.
    """
    if isinstance(spec, (str, Path)):
        path = as_path(spec)
        if not str(spec) or not path.exists():
            raise InputError(f"{str(spec)!r} does not exist", then=KNOWN)
        return _made(_of_path(path, options), spec, options)
    # nothing of it is asked, which could read all of it
    if all(getattr_static(spec, name, KNOWN) is not KNOWN for name in SOURCE):
        if options:
            given = ", ".join(f"{name}=" for name in options)
            raise OptionError(f"{given}: {type(spec).__name__} is made already, give them to it")
        return spec
    if isinstance(spec, Mapping) or hasattr(spec, "column_names"):
        return _made(_of_dataset(spec, options), spec, options)
    raise InputError(f"{type(spec).__name__} is no data set", then=KNOWN)


def _of_path(path: Path, options: Mapping[str, Any]) -> Callable[..., Source]:
    """The reader of a folder or a file: that of the first format that it is of."""
    for fits, reader in FOLDERS if path.is_dir() else FILES:
        if fits(path, options):
            return reader
    if path.is_dir():
        raise InputError(f"{path}: a folder of no known format", then=KNOWN)
    ending = path.suffix.lower()
    raise InputError(f"{path.name}: no data set is known by the ending {ending!r}", then=KNOWN)


Fits = Callable[[Path, Mapping[str, Any]], bool]


def _ends(*endings: str) -> Fits:
    return lambda path, options: path.suffix.lower() in endings


def _is_eraser(folder: Path, options: Mapping[str, Any]) -> bool:
    return (folder / "docs").is_dir() and any(folder.glob("*.jsonl"))


def _is_saved(folder: Path, options: Mapping[str, Any]) -> bool:
    return any((folder / name).is_file() for name in SAVED)


def _has_pictures(folder: Path, options: Mapping[str, Any]) -> bool:
    files = (name for _, _, names in os.walk(folder, followlinks=True) for name in names)
    return any(name.lower().endswith(ENDINGS) for name in files)


def _lists_pictures(file: Path, options: Mapping[str, Any]) -> bool:
    return _ends(*READERS)(file, options) and "image" in options


#: The formats, each by what tells it; the first that fits has the path. A new one is a line here.
FOLDERS: tuple[tuple[Fits, Callable[..., Source]], ...] = (
    (_is_eraser, EraserMovies),
    (_is_saved, HuggingFaceData),
    (_has_pictures, ImageFolder),
)
FILES: tuple[tuple[Fits, Callable[..., Source]], ...] = (
    (_lists_pictures, ImageTable),
    (_ends(*READERS), TextTable),
    (_ends(".mat"), ImageNetSegmentation),
    (_ends(".json"), Squad),
)


def _of_dataset(dataset: Any, options: Mapping[str, Any]) -> Callable[..., Source]:
    part = dataset.get(options.get("split")) if isinstance(dataset, Mapping) else dataset
    columns = set(getattr(part, "column_names", None) or ())
    return Squad if columns >= set(COLUMNS) and not options.keys() - {"split"} else HuggingFaceData


def _made(reader: Any, spec: Any, options: Mapping[str, Any]) -> Source:
    if reader is HuggingFaceData and isinstance(spec, (str, Path)):
        reader = _of_dataset(loaded(spec), options)
    known = [f.name for f in fields(reader)[1:]]
    if unknown := [name for name in options if name not in known]:
        given, there = (", ".join(f"{n}=" for n in names) for names in (unknown, known))
        raise OptionError(
            f"{given}: {reader.__name__} has {there}", then=nearest(unknown[0], known)
        )
    return reader(spec, **options)
