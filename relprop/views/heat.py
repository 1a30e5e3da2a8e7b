"""Scores of patches as heat maps: on the model's own image, and on the picture it was made from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from relprop.errors import OptionError

if TYPE_CHECKING:
    from relprop.explanation import TokenScores

LARGEST = 2**30  # numbers in a map: 4 GiB in float32


def heatmap(tokens: TokenScores, size: tuple[int, ...] | int | None) -> Tensor:
    """(batch, *size): the patches' scores between whose middles it is linear; ``size`` defaults to
    the image's."""
    if tokens.grid is None or tokens.image is None:
        raise OptionError(
            "heatmap() is for images: this explanation has no patch grid; use scores and tokens"
        )
    size = _checked(tokens.image if size is None else size, tokens.image, len(tokens.scores))
    places = [_middles(n, length / n) for n, length in zip(size, tokens.image, strict=True)]
    return _at(tokens, tokens.scores, places)


def _checked(size: object, image: tuple[int, ...], batch: int) -> tuple[int, ...]:
    """A map's size along each axis of the image. Raises ``OptionError`` for what is none, and for
    maps of more than 2^30 numbers."""
    sizes = (*image[:-2], size, size) if isinstance(size, int) else size
    if not isinstance(sizes, (tuple, list)) or not all(
        isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes
    ):
        raise OptionError(
            f"heatmap(size={size!r}): a positive number of pixels, or one along each axis",
            then=[f"size={image}, the image's, is what is taken if none is given"],
        )
    if len(sizes) != len(image):
        raise OptionError(f"heatmap(size={size!r}): the image has {len(image)} axes, {image}")
    if (numbers := batch * math.prod(sizes)) > LARGEST:
        raise OptionError(
            f"a heat map of {' × '.join(map(str, sizes))} for {batch} samples has {numbers:.3g} "
            f"numbers; {LARGEST:.3g} is the most",
            then=["give a smaller size=, or fewer samples at a time"],
        )
    return tuple(sizes)


def original_heatmap(
    tokens: TokenScores, sample: int, size: tuple[int, int] | None = None
) -> Tensor:
    """(H, W) of one sample's picture as it was before processing; 0 where processing cut it off.
    ``size``: of the whole picture, if it is shown smaller than it was."""
    if tokens.originals is None or tokens.image is None or tokens.grid is None:
        raise OptionError(
            "original_heatmap() needs the pictures as they were before processing",
            then=[
                "relprop.explain(model, pictures, processor=image_processor)",
                *(["explanation.picture(0).original_heatmap()"] if tokens.pictures else []),
            ],
        )
    original = tokens.originals[sample]
    _checked(size or original.size, original.size, 1)
    starts, ends = original.frame[:2], original.frame[2:]
    places = [
        (_middles(n, whole / n) - start) * (length / (end - start))
        for n, whole, start, end, length in zip(
            size or original.size, original.size, starts, ends, tokens.image, strict=True
        )
    ]
    down, across = (
        (at >= 0) & (at <= length) for at, length in zip(places, tokens.image, strict=True)
    )
    found = _at(tokens, tokens.scores[sample][None], places)[0]
    return found * (down[:, None] & across).to(found)


def patches(tokens: TokenScores, sample: int) -> np.ndarray:
    """The scores of one sample's patches, (h, w) (of a video (t, h, w)), float64; 0 where no token
    is of a patch."""
    return _on_grid(tokens, tokens.scores[sample][None].detach().cpu().double())[0].numpy()


def _on_grid(tokens: TokenScores, scores: Tensor) -> Tensor:
    """Scores of all tokens, (batch, tokens), where their patches are, (batch, *grid)."""
    assert tokens.grid is not None
    known = (tokens.source >= 0).to(scores.device)
    maps = scores.new_zeros(len(scores), math.prod(tokens.grid))
    cells = tokens.source.to(scores.device)[known]
    return maps.index_add(1, cells, scores[:, known]).unflatten(1, tokens.grid)


def _middles(count: int, step: float) -> Tensor:
    return (torch.arange(count, dtype=torch.float64) + 0.5) * step


def _at(tokens: TokenScores, scores: Tensor, places: list[Tensor]) -> Tensor:
    """The scores at a lattice of places, given by their coordinates along each axis of the input,
    (batch, *places).

    Linear between the middles of neighbouring patches and constant beyond the outermost: where
    patches tile the image this is ``interpolate(mode="bilinear", align_corners=False)``. A patch's
    middle is that of the pixels it was made from, which for patches made by strided, padded
    convolutions is not the middle of an even tile.
    """
    maps = _on_grid(tokens, scores)
    for axis, at in enumerate(places):
        maps = _between(maps, axis + 1, _patch_middles(tokens, axis), at)
    return maps


def _patch_middles(tokens: TokenScores, axis: int) -> Tensor:
    """Where the patches' middles are along one axis of the input."""
    assert tokens.grid is not None and tokens.image is not None
    count = tokens.grid[axis]
    middles = _middles(count, tokens.image[axis] / count)
    if tokens.spans is not None:
        known = tokens.source >= 0
        places = torch.unravel_index(tokens.source[known], tokens.grid)[axis]
        middles[places] = tokens.spans[known, axis].double().mean(-1)
    return middles


def _between(maps: Tensor, axis: int, middles: Tensor, at: Tensor) -> Tensor:
    """The maps at other places along one axis, linear between the middles they are known at."""
    count = len(middles)
    right = torch.searchsorted(middles, at).clamp(1, max(count - 1, 1)).clamp(max=count - 1)
    left = (right - 1).clamp(min=0)
    part = (at - middles[left]) / (middles[right] - middles[left])
    part = part.nan_to_num(0.0).clamp(0, 1).to(maps)
    maps = maps.movedim(axis, -1)
    return (maps[..., left] * (1 - part) + maps[..., right] * part).movedim(-1, axis)
