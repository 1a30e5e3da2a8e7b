"""Inputs of very many positions (pixels, the samples of a sound), summed over neighbours, so that a
hand can point at what is shown."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relprop.explanation import TokenScores

# What cells have none of.
PER_TOKEN = ("padding", "tokens", "matrix", "input", "spans", "words", "texts", "layers")
MOST_CELLS = 4096  # more positions than that are summed: no hand finds a single one


def shows_matrix(positions: int) -> bool:
    """Whether a page shows C of so many positions, where there is one."""
    return positions <= MOST_CELLS


def pooled_tokens(tokens: TokenScores) -> tuple[TokenScores, str | None]:
    """The tokens, or where there are more than ``MOST_CELLS``, sums over neighbours, with a
    sentence that says so."""
    count = tokens.scores.shape[1]
    if shows_matrix(count):
        return tokens, None
    extent = tokens.grid if tokens.grid is not None else (count,)
    step = _step(extent)
    coarse = tuple(-(-n // step) for n in extent)
    cells = _cells(tokens, extent, coarse, step)
    placed = cells >= 0

    def summed(values: Tensor) -> Tensor:
        values = values.detach().cpu().double()
        sums = values.new_zeros(len(values), math.prod(coarse))
        return sums.index_add(1, cells[placed], values[:, placed]).float()

    made: dict[str, Any] = dict.fromkeys(PER_TOKEN)
    made |= {name: summed(getattr(tokens, name)) for name in ("scores", "row", "identity")}
    pooled = replace(
        tokens,
        content=summed(tokens.content) > 0,
        source=torch.arange(math.prod(coarse)),
        grid=coarse if tokens.grid is not None else None,
        **made,
    )
    return pooled, _note(tokens, "×".join([str(step)] * len(extent)), not bool(placed.all()))


def _step(extent: tuple[int, ...]) -> int:
    """How many neighbours along each axis one cell holds."""
    step = 1
    while math.prod(-(-n // step) for n in extent) > MOST_CELLS / 4:
        step += 1
    return step


def _cells(
    tokens: TokenScores, extent: tuple[int, ...], coarse: tuple[int, ...], step: int
) -> Tensor:
    """The cell of each token; −1 for the model's own tokens, which are nowhere."""
    place = tokens.source if tokens.grid is not None else torch.arange(tokens.scores.shape[1])
    cells = torch.zeros_like(place)
    for axis, n in zip(torch.unravel_index(place.clamp(min=0), extent), coarse, strict=True):
        cells = cells * n + axis // step
    return cells.where(place >= 0, -1)


def _note(tokens: TokenScores, size: str, without_own: bool) -> str:
    note = (
        f"{tokens.scores.shape[1]} positions are too many to point at: each cell holds {size} of "
        "them, and its number is the sum of theirs"
    )
    note += ", without the model's own tokens." if without_own else "."
    return note + (" C is not shown." if tokens.matrix is not None else "")
