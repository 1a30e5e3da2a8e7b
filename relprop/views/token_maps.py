"""Pictures beside the words of a generation: for each generated token, how much each part of each
picture weighs, on the words' scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from relprop.views.overlay import blended
from relprop.views.shown import named, place_of

if TYPE_CHECKING:
    from relprop.explanation import Explanation, TokenScores


@dataclass(frozen=True)
class Maps:
    """One picture of one sample. ``name``: of the input it belongs to; ``shares`` (steps, h, w): a
    map per generated token, of patches, as shares of that token's strongest score; ``seen``: bytes
    (H, W, 3) of what the model saw of the picture, if it was kept."""

    kind: ClassVar[str] = "picture"
    name: str
    shares: np.ndarray
    seen: np.ndarray | None

    @property
    def whole(self) -> np.ndarray:
        """The map of all steps together, (h, w)."""
        mean: np.ndarray = self.shares.mean(0)
        return mean

    def over(self, shares: np.ndarray) -> np.ndarray:
        """Bytes (H, W, 3) of a map of patches over the picture."""
        if self.seen is None:
            return blended(np.kron(shares, np.ones((16, 16))), None)
        rows, columns = (
            np.arange(n) * k // n for n, k in zip(self.seen.shape[:2], shares.shape, strict=True)
        )
        return blended(shares[rows][:, columns], self.seen / 255)


def maps_of(
    steps: Sequence[Explanation], sample: int, names: Sequence[str] | None = None
) -> list[Maps]:
    """Every picture of a sample, in the order the model reads them in, a map for each step.
    ``names``: of the inputs that are looked at, if not all."""
    every = list(steps[0].streams) if steps else []
    return [
        _maps([pictures_of(step[name])[number] for step in steps], steps, sample)
        for name in (every if names is None else names)
        for number in range(len(pictures_of(steps[0][name])))
    ]


def pictures_of(explanation: Explanation) -> list[Explanation]:
    """An explained input's pictures, each as an explanation of its own; none of a text."""
    grid = explanation.grid
    if grid is None or explanation.image is None or len(grid) not in (2, 3):
        return []
    return [explanation.picture(k) for k in range(grid[0] if len(grid) == 3 else 1)]


def _maps(pictures: list[Explanation], steps: Sequence[Explanation], sample: int) -> Maps:
    first = pictures[0]
    assert first.grid is not None
    cells = [picture.heatmap(first.grid)[sample].double().cpu() for picture in pictures]
    both = zip(cells, steps, strict=True)
    shares = np.stack(
        [(cell / strongest(step, sample)).clamp(-1, 1).numpy() for cell, step in both]
    )
    originals = first.streams[first.stream].originals
    seen = None if originals is None else originals[sample].seen()
    pixels = None if seen is None else seen.expand(3, -1, -1).movedim(0, -1).numpy()
    return Maps(first.stream, shares, pixels)


def strongest(step: Explanation, sample: int) -> float:
    """The largest |score| of content among all inputs, 1 if all are 0."""
    found = ((s.scores[sample] * s.content[sample]).abs().max() for s in step.streams.values())
    return max(map(float, found)) or 1.0


def columns(stream: TokenScores, sample: int) -> list[str]:
    """What the tokens of an input are called; their places where that is not known."""
    if stream.tokens is not None:
        return stream.tokens[sample]
    if stream.grid is not None:
        return [named(place_of(int(k), stream.grid)) for k in stream.source]
    return [str(k) for k in range(stream.scores.shape[1])]
