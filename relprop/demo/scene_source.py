"""Digit scenes as a data set: each scene twice true (two digits), with the pixels of the digit that
is asked about."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from relprop.data import Sample
from relprop.demo.scenes import CLASSES, Scenes, make_scenes
from relprop.errors import NoSampleError, OptionError


class DigitScenes:
    """``n`` scenes of held-out digits, drawn from ``seed``, as a ``relprop.data.Source``.

    A sample's image is (1, 32, 32); its label is the first digit, ``others`` the second, and
    ``mask`` the first digit's own pixels (``Scenes.pixels``): 1 there, 0 elsewhere. Scenes are
    drawn all at once, so scene i depends on ``n`` as well as on ``seed``; they are kept, 12 KiB
    each. Raises ``OptionError`` if ``n`` is less than 1.
    """

    kind = "image"
    name = "digit scenes"
    labels = tuple(map(str, range(CLASSES)))

    def __init__(self, n: int, seed: int = 0) -> None:
        if not isinstance(n, int) or n < 1:
            raise OptionError(f"n={n!r}: at least one scene")
        self.n, self.seed = n, seed

    @cached_property
    def scenes(self) -> Scenes:
        """All of them, as one batch."""
        return make_scenes(self.n, seed=self.seed)

    def identity(self) -> dict[str, Any]:
        """Its name, size and seed."""
        return {"name": self.name, "n": self.n, "seed": self.seed}

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < self.n:
            raise NoSampleError(f"scene {index} of {self.n}")
        first, second = self.scenes.digits[index].tolist()
        mask = self.scenes.pixels(0)[index].int()
        return Sample(str(index), self.scenes.images[index], first, (second,), mask)
