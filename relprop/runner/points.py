"""Other values of what is explained, at which a method is asked, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

if TYPE_CHECKING:
    from relprop.runner.input_study import InputStudy


@dataclass(frozen=True)
class Point:
    """Other values of the explained inputs by name, each (batch, *one sample's shape), and their
    ``weight`` in the mean. ``steps``: what a method that multiplies with the input takes in its
    place (``None``: these values)."""

    values: Mapping[str, Tensor]
    weight: float
    steps: Mapping[str, Tensor] | None = None


@runtime_checkable
class Average(Protocol):
    """What ``average=`` takes: the points at which a method is asked. Each sample's are its own:
    they do not depend on the rest of the batch."""

    @property
    def count(self) -> int:
        """How many there are."""

    def points(self, at: InputStudy) -> Iterator[Point]:
        """The points around the values of ``at``, or on the way to them."""
