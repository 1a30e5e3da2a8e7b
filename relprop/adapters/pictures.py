"""Which part of a picture a model sees: found by sending pictures of coordinates through the same
processing, whatever that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Original:
    """A picture as the user has it: its ``size`` (H, W), and where in it the model's image lies:
    ``frame`` (top, left, bottom, right) in its pixels.

    The frame lies inside the picture where processing crops, and reaches beyond it where processing
    pads.
    """

    size: tuple[int, int]
    frame: tuple[float, float, float, float]


def originals(
    name: str, pictures: Sequence[Any], process: Callable[[Any], Tensor], made: Tensor
) -> dict[str, tuple[Original, ...]]:
    """The originals of input ``name``; empty if they are no pictures, or if processing does more
    than scale, crop, flip and pad.

    ``made`` is what processing made of all of them, (batch, channels, H, W): smaller ones are
    padded there below and to the right.
    """
    sizes = [picture_size(picture) for picture in pictures]
    known = {
        size: _original(size, hasattr(picture, "convert"), process, tuple(made.shape[-2:]))
        for size, picture in zip(sizes, pictures, strict=True)
        if size
    }
    found = [known[size] if size else None for size in sizes]
    return {name: tuple(o for o in found if o)} if found and all(found) else {}


def picture_size(picture: Any) -> tuple[int, int] | None:
    """(H, W) of a PIL image or an array (H, W) or (H, W, channels); ``None`` for anything else."""
    if hasattr(picture, "convert") and isinstance(getattr(picture, "size", None), tuple):
        return picture.size[1], picture.size[0]
    if isinstance(picture, np.ndarray) and (
        picture.ndim == 2 or (picture.ndim == 3 and picture.shape[2] in (1, 3, 4))
    ):
        return picture.shape[0], picture.shape[1]
    return None


def _original(
    size: tuple[int, int], pil: bool, process: Callable[[Any], Tensor], shape: tuple[int, ...]
) -> Original | None:
    """Black, white and two ramps of brightness in: what comes out is, between black and white, the
    coordinate a pixel was made from."""
    height, width = size
    across = np.broadcast_to((np.arange(width) + 0.5) / width, size)
    down = np.broadcast_to(((np.arange(height) + 0.5) / height)[:, None], size)
    try:
        black, white, x, y = (
            process(_picture(share, pil)).double()
            for share in (np.zeros(size), np.ones(size), across, down)
        )
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError):
        return None
    if black.dim() != 3 or not black.shape == white.shape == x.shape == y.shape:
        return None
    seen = (white - black).abs().amin(0) > 1e-6
    top, bottom = _line(((y - black) / (white - black)).mean(0), seen, height, shape[0])
    left, right = _line(((x - black) / (white - black)).mean(0).T, seen.T, width, shape[1])
    return None if None in (top, left) else Original(size, (top, left, bottom, right))  # type: ignore[arg-type]


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
