"""Models that read the patches of pictures as rows of one matrix, whatever sizes the pictures have:
which row is which patch of which picture, found by sending pictures of coordinates through the same
processing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relprop.adapters.pictures import Original, coordinates, picture_size, thumbnail


@dataclass(frozen=True)
class Patches:
    """Where the rows of an input are from, each of which is one patch of one of several pictures:
    ``places`` (rows, 3): picture, row and column. ``side``: of a patch, in pixels."""

    places: Tensor
    side: int

    @property
    def grid(self) -> tuple[int, ...]:
        """(pictures, h, w), pictures with fewer patches than the largest filled up below and to the
        right; (h, w) of a single picture."""
        count, *sides = (self.places.amax(0) + 1).tolist()
        return (count, *sides) if count > 1 else tuple(sides)

    def of(self, picture: int) -> tuple[int, int]:
        """(h, w) of one picture."""
        height, width = (self.places[self.places[:, 0] == picture, 1:].amax(0) + 1).tolist()
        return height, width


def patches(
    pictures: Sequence[Any], process: Callable[[Any], Tensor], rows: int, side: int
) -> Patches | None:
    """Which patch of which picture each of ``rows`` rows is that processing made of all of them,
    one after another; ``None`` if it does not cut whole pictures into patches."""
    found = []
    for index, picture in enumerate(pictures):
        size = picture_size(picture)
        places = None if size is None else _places(size, hasattr(picture, "convert"), process)
        if places is None:
            return None
        found.append(torch.cat([torch.full_like(places[:, :1], index), places], 1))
    whole = torch.cat(found)
    return Patches(whole, side) if len(whole) == rows else None


def _places(size: tuple[int, int], pil: bool, process: Callable[[Any], Tensor]) -> Tensor | None:
    """The row and the column of each patch of a picture, by the means of its coordinates."""
    seen = coordinates(size, pil, process)
    if seen is None or seen[0].dim() != 2:
        return None
    black, white, down, across = seen
    range_ = white - black
    means = [
        torch.where(range_.abs() > 1e-6, (ramp - black) / range_, torch.nan).nanmean(1)
        for ramp in (down, across)
    ]
    rows = len(black)
    for height in (h for h in range(1, rows + 1) if rows % h == 0):
        counts = (height, rows // height)
        at = [mean * n - 0.5 for mean, n in zip(means, counts, strict=True)]
        places = torch.stack([a.round() for a in at], 1)
        off = (torch.stack(at, 1) - places).abs().max()
        inside = all(
            set(p.tolist()) == set(range(n)) for p, n in zip(places.T, counts, strict=True)
        )
        if inside and off < 0.25 and len(torch.unique(places, dim=0)) == rows:
            return places.long()
    return None


def whole_originals(pictures: Sequence[Any], found: Patches) -> list[Original]:
    """The originals of pictures that were cut into patches as a whole: the frame is that of the
    largest, which reaches beyond the smaller ones."""
    made = []
    for index, picture in enumerate(pictures):
        size = picture_size(picture) or (1, 1)
        ends = [
            n * most / own
            for n, most, own in zip(size, found.grid[-2:], found.of(index), strict=True)
        ]
        made.append(Original(size, (0.0, 0.0, ends[0], ends[1]), thumbnail(picture)))
    return made
