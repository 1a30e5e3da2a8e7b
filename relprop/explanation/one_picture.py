"""One of several pictures that a sample holds, as an explained input of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from relprop.adapters import Original
from relprop.errors import OptionError
from relprop.explanation.tokens import TokenScores

BY_TOKEN = ("scores", "row", "identity", "content", "padding", "layers")


def one_picture(stream: TokenScores, number: int) -> TokenScores:
    """Picture ``number`` of an input of several: its tokens alone, by their places in its own grid.
    Raises ``OptionError`` for one that is not there."""
    count = (
        stream.grid[0] if stream.grid and len(stream.grid) == 3 else int(stream.grid is not None)
    )
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < count:
        raise OptionError(
            f"picture({number!r}): input {stream.name!r} has {count} pictures, counted from 0"
        )
    if stream.grid is None or stream.image is None or len(stream.grid) == 2:
        return stream
    area = stream.grid[1] * stream.grid[2]
    mine = (stream.source >= 0) & (stream.source // area == number)
    rows, columns = torch.unravel_index(stream.source[mine] % area, stream.grid[1:])
    grid = (int(rows.max()) + 1, int(columns.max()) + 1)
    share = [own / most for own, most in zip(grid, stream.grid[1:], strict=True)]
    image = tuple(round(n * part) for n, part in zip(stream.image[1:], share, strict=True))
    by_token = ((n, getattr(stream, n)) for n in BY_TOKEN)
    own: dict[str, Any] = {n: None if t is None else t[..., mine] for n, t in by_token}
    own |= dict.fromkeys(("tokens", "words", "texts", "matrix", "input", "pictures"))
    return replace(
        stream,
        **own,
        source=rows * grid[1] + columns,
        grid=grid,
        image=image,
        spans=None if stream.spans is None else stream.spans[mine, 1:],
        extent=image,
        originals=_originals(stream, number, share),
    )


def _originals(stream: TokenScores, number: int, share: list[float]) -> tuple[Original, ...] | None:
    """The picture of each sample, framed by its own part of the grid."""
    if stream.pictures is None or any(len(sample) <= number for sample in stream.pictures):
        return None
    found = []
    for original in (sample[number] for sample in stream.pictures):
        top, left, bottom, right = original.frame
        ends = top + (bottom - top) * share[0], left + (right - left) * share[1]
        found.append(replace(original, frame=(top, left, *ends)))
    return tuple(found)
