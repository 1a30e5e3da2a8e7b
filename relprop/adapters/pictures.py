"""Which part of a picture a model sees, and, of models that read the patches of pictures as rows of
one matrix, whatever sizes the pictures have, which row is which patch of which picture: found by
sending pictures of coordinates through the same processing, whatever that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relprop.adapters.rgb import is_pil

KEPT = 448  # pixels of the longer side of a picture that is kept to be looked at


@dataclass(frozen=True)
class Original:
    """A picture as the user has it: its ``size`` (H, W), and where in it the model's image lies:
    ``frame`` (top, left, bottom, right) in its pixels.

    The frame lies inside the picture where processing crops, and reaches beyond it where processing
    pads. ``picture``: the whole picture to lay maps over, (1 or 3, h, w) bytes, its longer side at
    most 448 pixels; ``None`` where none was kept (``keep_pictures=False``).
    """

    size: tuple[int, int]
    frame: tuple[float, float, float, float]
    picture: Tensor | None = field(default=None, compare=False, repr=False)

    def seen(self) -> Tensor | None:
        """What of the kept picture the model saw, upright and unscaled, (1 or 3, h, w) bytes; grey
        where processing padded it."""
        return None if self.picture is None else framed(self.picture, self.size, self.frame)


def originals(
    name: str, pictures: Sequence[Any], process: Callable[[Any], Tensor], made: Tensor
) -> dict[str, tuple[tuple[Original, ...], ...]]:
    """The originals of input ``name``, one for each sample; empty if they are no pictures, or if
    processing does more than scale, crop, flip and pad.

    ``made`` is what processing made of all of them, (batch, channels, H, W): smaller ones are
    padded there below and to the right.
    """
    found = found_originals(pictures, process, tuple(made.shape[-2:]))
    return {name: tuple((one,) for one in found)} if found else {}


def found_originals(
    pictures: Sequence[Any], process: Callable[[Any], Tensor], shape: tuple[int, ...]
) -> list[Original]:
    """The original of each picture, of which processing made an image of (H, W) ``shape``; none
    where that is not known of all of them."""
    sizes = [picture_size(picture) for picture in pictures]
    known = {
        size: _original(size, hasattr(picture, "convert"), process, shape)
        for size, picture in zip(sizes, pictures, strict=True)
        if size
    }
    found = [known[size] if size else None for size in sizes]
    both = list(zip(found, pictures, strict=True)) if all(found) else []
    return [replace(o, picture=thumbnail(picture)) for o, picture in both if o]


def picture_size(picture: Any) -> tuple[int, int] | None:
    """(H, W) of a PIL image or an array (H, W) or (H, W, channels); ``None`` for anything else."""
    if is_pil(picture):
        return picture.size[1], picture.size[0]
    if isinstance(picture, np.ndarray) and (
        picture.ndim == 2 or (picture.ndim == 3 and picture.shape[2] in (1, 3, 4))
    ):
        return picture.shape[0], picture.shape[1]
    return None


def thumbnail(picture: Any) -> Tensor | None:
    """A picture as bytes (1 or 3, h, w), its longer side at most ``KEPT`` pixels, means of
    pixels; ``None`` for levels of which nothing says what is black and what is white."""
    if hasattr(picture, "convert"):
        if picture.mode[0] in "IF":
            return None
        picture = np.array(picture if picture.mode in ("L", "RGB") else picture.convert("RGB"))
    whole = torch.from_numpy(np.array(picture))
    if whole.dtype != torch.uint8:
        if not whole.is_floating_point() or not bool(((whole >= 0) & (whole <= 1)).all()):
            return None
        whole = (whole * 255).round().to(torch.uint8)
    whole = whole[None] if whole.dim() == 2 else whole.movedim(-1, 0)[:3]
    share = KEPT / max(whole.shape[1:])
    if share >= 1:
        return whole.contiguous()
    size = [max(1, round(n * share)) for n in whole.shape[1:]]
    small = torch.nn.functional.interpolate(whole[None].float(), size, mode="area")[0]
    return small.round().to(torch.uint8)


def framed(
    picture: Tensor,
    size: tuple[int, int],
    frame: tuple[float, float, float, float],
    *,
    padding: float = 128,
) -> Tensor:
    """What lies in ``frame`` of a picture (channels, h, w) that stands for one of ``size`` pixels;
    ``padding`` where the frame reaches beyond it."""
    shown = torch.full_like(picture[:, :1, :1], padding)
    lines = []
    for axis in range(2):
        scale = picture.shape[axis + 1] / size[axis]
        start, end = frame[axis] * scale, frame[axis + 2] * scale
        count = max(1, round(abs(end - start)))
        middles = start + (torch.arange(count) + 0.5) * ((end - start) / count)
        lines.append(middles.floor().long())
    inside = [(at >= 0) & (at < n) for at, n in zip(lines, picture.shape[1:], strict=True)]
    down, across = (at.clamp(0, n - 1) for at, n in zip(lines, picture.shape[1:], strict=True))
    cut = picture[:, down][:, :, across]
    return torch.where(inside[0][:, None] & inside[1], cut, shown)


def _original(
    size: tuple[int, int], pil: bool, process: Callable[[Any], Tensor], shape: tuple[int, ...]
) -> Original | None:
    """Black, white and two ramps of brightness in: what comes out is, between black and white, the
    coordinate a pixel was made from."""
    found = coordinates(size, pil, process)
    if found is None or found[0].dim() != 3:
        return None
    (height, width), (black, white, y, x) = size, found
    seen = (white - black).abs().amin(0) > 1e-6
    top, bottom = _line(((y - black) / (white - black)).mean(0), seen, height, shape[0])
    left, right = _line(((x - black) / (white - black)).mean(0).T, seen.T, width, shape[1])
    return None if None in (top, left) else Original(size, (top, left, bottom, right))  # type: ignore[arg-type]


def coordinates(
    size: tuple[int, int], pil: bool, process: Callable[[Any], Tensor]
) -> tuple[Tensor, ...] | None:
    """What processing makes of a black and a white picture, and of ramps of brightness down and
    across; ``None`` if it does not take them, or makes other shapes of them."""
    height, width = size
    across = np.broadcast_to((np.arange(width) + 0.5) / width, size)
    down = np.broadcast_to(((np.arange(height) + 0.5) / height)[:, None], size)
    try:
        made = tuple(
            process(_picture(share, pil)).double()
            for share in (np.zeros(size), np.ones(size), down, across)
        )
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError):
        return None
    return made if len({m.shape for m in made}) == 1 else None


def _picture(share: Any, pil: bool) -> Any:
    pixels = np.repeat(np.round(255 * share).astype(np.uint8)[..., None], 3, 2)
    if not pil:
        return pixels
    from PIL import Image

    return Image.fromarray(pixels)


def _line(share: Tensor, seen: Tensor, length: int, rows: int) -> tuple[float | None, float | None]:
    """Coordinates at the first and the last edge of ``rows`` rows, by the straight line through
    those that were made from the picture's inside."""
    known = [i for i in range(len(share)) if bool(seen[i].any())]
    where = torch.tensor([float(share[i][seen[i]].median()) for i in known], dtype=torch.float64)
    inner = (where > 0.1) & (where < 0.9)
    if int(inner.sum()) < 2:
        return None, None
    at = torch.tensor(known, dtype=torch.float64)[inner] + 0.5
    where = where[inner] * length
    slope = ((at - at.mean()) * (where - where.mean())).sum() / (at - at.mean()).square().sum()
    start = where.mean() - slope * at.mean()
    straight = bool(((start + slope * at) - where).abs().max() <= 0.02 * length)
    return (float(start), float(start + slope * rows)) if straight else (None, None)


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
