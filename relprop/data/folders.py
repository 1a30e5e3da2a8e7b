"""Pictures in a folder: one subfolder per class, or all in one, without labels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from relprop.adapters.rgb import read_picture
from relprop.data.base import Sample
from relprop.data.files import existing, given_classes, listing, options_of, position
from relprop.data.images import ENDINGS, Size, Transform, as_image, to_image
from relprop.error_boundary import guarded
from relprop.errors import InputError


@guarded
@dataclass(frozen=True)
class ImageFolder:
    """Pictures in a folder: one subfolder per class, as ImageNet's validation set is commonly laid
    out, or all in one folder, without labels.

    ``root``: the folder. ``size`` (pixels, or (H, W)): what every picture is resized to, bilinear,
    not keeping its aspect; 224 by default. ``transform`` instead: from a PIL image to (C, H, W) in
    [0, 1], such as ``image_transform(model)[0]``. ``classes``: the model's classes in its order,
    when the folder has only some of them; by default the subfolders' names, sorted, are numbered.
    ``upright``: turn pictures as their EXIF orientation says; torchvision's and timm's data sets do
    not, so neither is the default here. Names that begin with a dot are left out. Keys are paths
    from ``root``.
    """

    root: str | Path
    _: KW_ONLY
    size: Size | None = None
    transform: Transform | None = None
    classes: Sequence[str] | None = None
    upright: bool = False

    kind: ClassVar[str] = "image"

    def __post_init__(self) -> None:
        existing(self.root, "folder")
        given_classes(self.classes)
        to_image(self.size, self.transform)

    @property
    def name(self) -> str:
        """The folder's."""
        return Path(self.root).resolve().name

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The pictures' paths from ``root``, with ``/``, by class and name. Raises ``InputError``
        if there are none, or some in a class and some not."""
        root = Path(self.root)
        inside = sorted(entry.name for entry in root.iterdir() if not entry.name.startswith("."))
        loose = [n for n in inside if n.lower().endswith(ENDINGS) and (root / n).is_file()]
        folders = {n: sorted(_pictures(root, n)) for n in inside if (root / n).is_dir()}
        found = loose or [path for paths in folders.values() for path in paths]
        if not found:
            fact = f"{self.name}: no pictures ({', '.join(ENDINGS)})"
            raise InputError(fact, then=["root/class/picture.jpg, or root/picture.jpg"])
        if loose and any(folders.values()):
            fact = f"{len(loose)} pictures beside folders of pictures ({loose[0]})"
            raise InputError(f"{self.name}: {fact}: of which class are they?")
        if not loose:
            self._check_classes(folders)
        return tuple(found)

    def _check_classes(self, folders: Mapping[str, Sequence[str]]) -> None:
        if empty := [name for name, paths in folders.items() if not paths]:
            fact = f"{self.name}: no picture in {', '.join(empty[:5])}"
            raise InputError(f"{fact}: is it a class? Its number would shift the others'")
        classes = folders if self.classes is None else self.classes
        if unknown := [name for name in folders if name not in classes]:
            fact = f"{self.name}: folders {', '.join(unknown[:5])}"
            raise InputError(f"{fact} are none of the {len(classes)} classes")

    @cached_property
    def labels(self) -> tuple[str, ...] | None:
        """``classes``, else the subfolders' names; ``None`` of a folder without."""
        if "/" not in self.files[0]:
            return None
        return tuple(self.classes or sorted({path.split("/")[0] for path in self.files}))

    def identity(self) -> dict[str, Any]:
        """The files' paths and contents, and the options."""
        options = options_of(self, "size", "transform", "classes", "upright")
        files = listing(Path(self.root), self.files)
        return {"format": "images", "name": self.name, **files, **options}

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        key = self.files[position(index, len(self), self.name)]
        picture = read_picture(Path(self.root) / key, f"{self.name}/{key}", upright=self.upright)
        label = self.labels.index(key.split("/")[0]) if self.labels is not None else None
        return Sample(key, as_image(picture, to_image(self.size, self.transform), key), label)


def _pictures(root: Path, folder: str) -> Iterator[str]:
    for where, folders, names in os.walk(root / folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                yield (Path(where) / name).relative_to(root).as_posix()
