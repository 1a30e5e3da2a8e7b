"""ImageNet-Segmentation (Guillaumin, Küttel & Ferrari, IJCV 2014): ``gtsegs_ijcv.mat``, pictures
with the mask of one object each.

The file is MATLAB's, version 7.3, which is HDF5: ``/value/img`` and ``/value/gt`` are (N, 1)
references. A picture's is to (3, W, H) bytes, a mask's to a cell whose first entry is a reference
to (W, H): MATLAB's axes, in reverse. ``/value/id``, if there, refers to the name of each in UTF-16.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from relprop.data.base import Sample
from relprop.data.files import digest, existing, given_classes, needed, options_of, position
from relprop.data.images import Size, to_image
from relprop.error_boundary import guarded
from relprop.errors import InputError

# what h5py raises for files that are not whole
BROKEN = OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError


@guarded
@dataclass(frozen=True)
class ImageNetSegmentation:
    """Pictures of ``gtsegs_ijcv.mat`` and the masks of their objects, both resized to ``size``
    (224): bilinear the picture, nearest the mask.

    ``path``: the file. ``classes``: WordNet ids in the model's order
    (``timm.data.ImageNetInfo().label_names()``), by which the name of a picture (``n01440764_…``)
    gives its label; without them there are no labels (the paper explains the predicted class). Keys
    are numbers of pictures, and their names, if the file has them. The file is opened when the
    first picture is asked for, in each process anew. Raises ``InputError`` for a file that is not
    whole, or not laid out so.
    """

    path: str | Path
    _: KW_ONLY
    size: Size | None = None
    classes: Sequence[str] | None = None

    name: ClassVar[str] = "ImageNet-Segmentation"
    kind: ClassVar[str] = "image"

    def __post_init__(self) -> None:
        existing(self.path)
        to_image(self.size, None)
        given_classes(self.classes)
        with self._opened() as file:
            _references(file, "img", self._where)
            _references(file, "gt", self._where)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_open"}

    @property
    def labels(self) -> tuple[str, ...] | None:
        """``classes``."""
        return given_classes(self.classes)

    def identity(self) -> dict[str, Any]:
        """The file and the options."""
        options = options_of(self, "size", "classes")
        return {"format": "gtsegs", "name": self.name, **digest(Path(self.path)), **options}

    @property
    def _where(self) -> str:
        return Path(self.path).name

    def _opened(self) -> Any:
        try:
            return needed("h5py").File(self.path, "r")
        except OSError as error:
            fact = f"not a whole HDF5 file (MATLAB 7.3): {error}"
            raise InputError(fact, at=self._where) from None

    @property
    def _file(self) -> Any:
        """The open file of this process: a handle does not survive a fork."""
        process, file = vars(self).get("_open", (None, None))
        if process != os.getpid():
            file = self._opened()
            vars(self)["_open"] = os.getpid(), file
        return file

    @cached_property
    def _length(self) -> int:
        images, masks = (len(_references(self._file, name, self._where)) for name in ("img", "gt"))
        if images != masks:
            raise InputError(f"{images} pictures, {masks} masks", at=self._where)
        return images

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Sample:
        index = position(index, len(self), self.name)
        picture, mask, name = self._picture(index), self._mask(index), self._name(index)
        if picture.shape[:2] != mask.shape:
            pixels = f"a picture of {list(picture.shape[:2])} pixels"
            raise self._malformed(f"{pixels}, a mask of {list(mask.shape)}", index)
        image, resize = needed("PIL.Image"), to_image(self.size, None)
        resized = resize(image.fromarray(picture).convert("RGB"))
        size = (resized.shape[2], resized.shape[1])
        nearest = image.fromarray(mask.astype(np.int32)).resize(size, image.Resampling.NEAREST)
        label = self._label(name, index) if self.classes is not None else None
        key = f"{index}:{name}" if name else str(index)
        return Sample(key, resized, label, mask=torch.from_numpy(np.array(nearest)).long())

    def _malformed(self, fact: str, index: int) -> InputError:
        return InputError(fact, at=f"{self._where}, picture {index}")

    def _read(self, name: str, index: int, *, cell: bool = False) -> Any:
        """What entry ``index`` of ``/value/name`` refers to, as an array; of a cell, what its first
        entry refers to."""
        try:
            found = self._file[_references(self._file, name, self._where)[index, 0]]
            return np.array(self._file[found[0, 0]] if cell else found)
        except InputError:
            raise
        except BROKEN as error:
            fact = f"/value/{name}: entry {index} cannot be read: {error}"
            raise InputError(fact, at=self._where) from None

    def _picture(self, index: int) -> Any:
        found = self._read("img", index)
        shaped = found.ndim == 2 or (found.ndim == 3 and found.shape[0] == 3)
        if found.dtype != np.uint8 or not shaped or 0 in found.shape:
            there = f"/value/img refers to {list(found.shape)}, {found.dtype}"
            raise self._malformed(f"{there}: bytes (3, width, height) are needed", index)
        return np.ascontiguousarray(found.T)

    def _mask(self, index: int) -> Any:
        found = self._read("gt", index, cell=True)
        if found.ndim != 2 or found.dtype.kind not in "biuf":
            there = f"/value/gt refers to {list(found.shape)}, {found.dtype}"
            raise self._malformed(f"{there}: a mask (width, height) is needed", index)
        if not np.isin(found, (-1, 0, 1)).all():
            there = f"a mask of {np.unique(found)[:8].tolist()}"
            fact = f"{there}: 1 (object), 0 (none) and −1 (unknown) are known"
            raise self._malformed(fact, index)
        return np.ascontiguousarray(found.T.astype(np.int64))

    def _name(self, index: int) -> str:
        if "/value/id" not in self._file:
            return ""
        codes = self._read("id", index)
        if codes.dtype.kind not in "iu":
            there = f"/value/id refers to {codes.dtype}"
            raise self._malformed(f"{there}: a text in UTF-16 is needed", index)
        encoding = "utf-16-le" if np.little_endian else "utf-16-be"
        return str(codes.astype(np.uint16).tobytes().decode(encoding).strip("\0 "))

    def _label(self, name: str, index: int) -> int | None:
        found, classes = re.match(r"n\d{8}", name), list(self.classes or ())
        if not found:
            fact = f"classes are given, and the picture's name {name!r} does not begin with a"
            raise self._malformed(f"{fact} WordNet id", index)
        return classes.index(found[0]) if found[0] in classes else None


def _references(file: Any, name: str, where: str) -> Any:
    """``/value/name``, (N, 1) references. Raises ``InputError`` if it is missing or something
    else."""
    h5py = needed("h5py")
    found = file.get(f"/value/{name}") if "/value" in file else None
    if found is None:
        values = file.get("/value")
        inside = list(values if isinstance(values, h5py.Group) else file)
        fact = f"no /value/{name}; there is {', '.join(map(str, inside)) or 'nothing'}"
        layout = "relprop.data.ImageNetSegmentation says how it is laid out"
        raise InputError(fact, at=where, then=[f"gtsegs_ijcv.mat as published: {layout}"])
    array = isinstance(found, h5py.Dataset)
    refers = array and h5py.check_ref_dtype(found.dtype) is h5py.Reference
    if not refers or found.shape[1:] != (1,):
        is_now = f"{found.shape}, {found.dtype}" if array else "a group"
        raise InputError(f"/value/{name} is {is_now}: references (N, 1) are needed", at=where)
    return found
