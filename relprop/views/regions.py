"""What the parts of an explanation are called in a sentence: words and patches as they are, a
stretch of sound by its seconds, and of single pixels, of which a map has thousands, whole areas."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from relprop.views.shown import named, only, place_of, units

if TYPE_CHECKING:
    from relprop.adapters import Original
    from relprop.explanation import Explanation, TokenScores

AREAS = 8  # along the longer side of a picture, where every pixel has a score
STRETCHES = 32  # of a long sequence whose positions have no names
OUTSIDE = "outside of the picture"
AXES = ("frames", "rows", "columns")


def regions(explanation: Explanation, sample: int) -> list[tuple[str, float]]:
    """One sample's content in order: each part by name, with the sum of its scores.

    Raises ``OptionError`` where the explanation has no parts to show."""
    stream = only(explanation, "summary()")
    found = units(explanation, sample, what="summary()")
    names = [named(name) for name in found.names]
    if found.kind not in ("words", "tokens"):
        axes, step = _areas(stream)
        if step > 1:
            return _summed(stream, sample, axes, step)
        if stream.clock is not None and stream.spans is not None:
            names = [_named(stream, places) for places in _clamped(stream)]
    parts = zip(names, found.scores, found.content, strict=True)
    return [(name, score) for name, score, content in parts if content]


def token_places(stream: TokenScores) -> list[str | None] | None:
    """When and at which pitch each token of a spectrogram is; ``None`` for the model's own, and for
    what has no clock or no places."""
    if stream.clock is None or stream.spans is None or stream.grid is None:
        return None
    both = zip(stream.source.tolist(), _clamped(stream), strict=True)
    return [None if at < 0 else _named(stream, places) for at, places in both]


def single_pixels(stream: TokenScores) -> bool:
    """Whether every pixel of an image has a score of its own."""
    return stream.grid is not None and stream.grid == stream.image


def is_recording(stream: TokenScores) -> bool:
    """Whether tokens without labels stand for stretches of time: those with a clock, and those that
    were made from several steps of a sequence each."""
    if stream.tokens is not None or stream.spans is None:
        return False
    along = len(stream.extent) == 1 and _of_several(stream)
    return along or (stream.clock is not None and len(stream.grid or (0,)) <= 2)


def _of_several(stream: TokenScores) -> bool:
    """Whether tokens were made from several steps of the input each."""
    return stream.spans is not None and bool((stream.spans.diff(dim=-1) > 1).any())


def _areas(stream: TokenScores) -> tuple[tuple[int, ...], int]:
    """The axes along which single positions are scored, and how many of them make an area's side;
    1 where parts are named one by one."""
    if stream.grid is not None:
        return stream.grid, -(-max(stream.grid) // AREAS) if single_pixels(stream) else 1
    count = stream.scores.shape[1]
    many = count > 4 * STRETCHES and not _of_several(stream)
    return (count,), -(-count // STRETCHES) if many else 1


def _summed(
    stream: TokenScores, sample: int, axes: tuple[int, ...], step: int
) -> list[tuple[str, float]]:
    """Areas of ``step`` positions along each axis, the last ones of what is left."""
    scores = (stream.scores[sample] * stream.content[sample]).double().tolist()
    sums: dict[tuple[int, ...], list[float]] = {}
    for source, score in zip(stream.source.tolist(), scores, strict=True):
        place = place_of(source, axes)
        if place is not None:
            sums.setdefault(tuple(p // step for p in place), []).append(score)

    def name(area: tuple[int, ...]) -> str:
        original = None if stream.originals is None else stream.originals[sample]
        both = zip(area, axes, strict=True)
        places = [(k * step, min((k + 1) * step, length)) for k, length in both]
        if original is None or stream.image is None or len(places) != 2:
            return _named(stream, places)
        given = _in_the_original(places, original, stream.image)
        return OUTSIDE if given is None else _named(stream, given)

    return [(name(area), math.fsum(values)) for area, values in sums.items()]


def _in_the_original(
    places: list[tuple[int, int]], original: Original, image: tuple[int, ...]
) -> list[tuple[int, int]] | None:
    """Rows and columns of the model's image as those of the picture it was made from; ``None`` for
    what lies outside of that picture."""
    found = []
    four = zip(places, original.frame[:2], original.frame[2:], original.size, image, strict=True)
    for pair, start, end, size, length in four:
        first, last = sorted(start + p * (end - start) / length for p in pair)
        first, last = max(0, round(first)), min(size, round(last))
        if last <= first:
            return None
        found.append((first, last))
    return found


def measure(explanation: Explanation, sample: int) -> str:
    """Which rows and columns the areas of a picture are told by, where it is not the one that the
    model saw; else nothing."""
    stream = only(explanation, "summary()")
    if stream.originals is None or stream.grid is None or _areas(stream)[1] == 1:
        return ""
    height, width = stream.originals[sample].size
    return f"Rows and columns are those of the picture that was given, {height} × {width}."


def _clamped(stream: TokenScores) -> list[list[tuple[int, int]]]:
    """Each token's first position along each of the input's axes, and the one after its last."""
    assert stream.spans is not None
    lengths = stream.spans.new_tensor(stream.extent)[:, None]
    inside = stream.spans.clamp(min=0).minimum(lengths)
    return inside.long().tolist()


def _named(stream: TokenScores, places: list[tuple[int, int]]) -> str:
    """``rows 4–7 × columns 8–11``; of what has a clock ``0.48–0.56 s × bands 8–15``."""
    time, second = stream.clock or (None, 0.0)
    others = ("bands",) * 2 if time is not None else AXES[-len(places) :]
    others = ("positions",) if len(places) == 1 else others
    return " × ".join(
        f"{first * second:.2f}–{end * second:.2f} s"
        if axis == time
        else f"{others[axis]} {first}–{end - 1}"
        for axis, (first, end) in enumerate(places)
    )
