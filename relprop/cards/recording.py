"""A recording on a card: maps over time, and where in time they lie, as HTML and in a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from relprop.views.escape import markup, visible
from relprop.views.token_maps import Maps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE, HIGH = 768, 120  # of the drawn recording, pixels
HALF, EVEN = 0.5, 0.4  # a map with half of it in no less than this share of the time is even
LETTER, ROWS = 0.025, 5  # a letter's share of the width on a narrow screen; rows of words below


@dataclass(frozen=True)
class Recording(Maps):
    """Maps over time, rising pitch upwards where they have several rows. ``shown``, ``length``: how
    much of the recording is shown, and how long it is, in ``unit``; ``hidden``: the share of the
    maps in the silence that is not shown; ``banded``: whether several rows are drawn of it."""

    kind: ClassVar[str] = "recording"
    drawn_as: ClassVar[str] = "A row for each channel, large numbers dark."
    shown: float
    length: float
    unit: str
    hidden: float
    banded: bool = False

    @property
    def whole(self) -> np.ndarray:
        """The map of all steps together as shares of its strongest: each step has a moment of its
        own, so that their mean is weak everywhere."""
        mean: np.ndarray = self.shares.mean(0)
        return mean / (np.abs(mean).max() or 1.0)

    def sentence(self, rests: str, shares: np.ndarray) -> str:
        """Where in time a map (rows, columns) lies: ``rests`` (``"it rests mostly on"``) and the
        shortest stretch that holds half of what speaks for the answer, or why none does."""
        if not shares.max(initial=0) > 0:
            return f"Nothing in the {self.kind} speaks for the answer."
        where = self.where(shares)
        if where is not None:
            part = "what speaks for it" if shares.min() < 0 else "the map"
            return f"{rests} {where}, which holds half of {part}."
        if self.hidden > HALF:
            silence = f"the silence behind the {self.kind}"
            return f"{self.hidden:.0%} of the map lies in {silence}: no part of it stands out."
        return f"The map is spread evenly over the {self.kind}: no part of it stands out."

    def where(self, shares: np.ndarray) -> str | None:
        """The shortest stretch of time that holds half of a map (rows, columns), what is not shown
        of it included; ``None`` where none does that is short."""
        heat = shares.clip(0).sum(0)
        ends = np.concatenate([[0.0], heat.cumsum()])
        last = np.searchsorted(ends, ends + HALF * ends[-1] / max(1 - self.hidden, 1e-9) - 1e-9)
        lengths = np.where(last <= len(heat), last - np.arange(len(ends)), len(ends))
        start = int(lengths.argmin())
        if ends[-1] <= 0 or lengths[start] > max(1, EVEN * len(heat)):
            return None
        first, end = (n * self.shown / len(heat) for n in (start, start + int(lengths[start])))
        return f"{self.span(first, end)} of the {self.kind}"

    def span(self, first: float, end: float) -> str:
        """A stretch of time by its ends."""
        if self.unit == "s":
            return f"{first:.2f}–{end:.2f} s"
        return f"{self.unit} {first:.0f}–{max(first, end - 1):.0f}"

    def html(self, drawn: str, texts: Sequence[str]) -> str:
        """What is ``drawn`` of it, and below it the parts of the answer, a text for each map
        (``""``: none)."""
        placed = self.placed(texts)
        named = "".join(
            f'<span style="left:{100 * at:.1f}%;top:{1.5 * row}em">{markup(text, 40)}</span>'
            for text, at, row in placed
        )
        rows, digits = max((row for *_, row in placed), default=0) + 1, 2 * (self.unit == "s")
        marks = (self.shown * k / 4 for k in range(5))
        scale = "".join(f"<span>{at:.{digits}f}&nbsp;{self.unit}</span>" for at in marks)
        said = "The answer stands where its map is strongest."
        if len(texts) > 1:
            said = "Parts of the answer stand where their map is strongest, if there is room."
        if self.banded:
            said = f"{self.drawn_as} {said}"
        if self.shown < self.length:
            rest = f"{self.span(self.shown, self.length)} ({self.hidden:.0%} of the map)"
            said += f" Not shown is the silence behind it, {rest}."
        return (
            f'<figure class="wave">{drawn}<p class="times" style="height:{1.5 * rows}em">{named}'
            f'</p><p class="scale soft">{scale}</p><figcaption>{said}</figcaption></figure>'
        )

    def draw_time(self, axes: Axes, texts: Sequence[str]) -> None:
        """Below the drawn recording its time, above it the parts of the answer."""
        from relprop.views.figure import LABEL, TICK, bare

        axes.images[0].set_extent((0, self.shown, 0, 1))
        axes.set_aspect("auto")
        axes.set_axis_on()
        for text, at, row in self.placed(texts):
            place = (at * self.shown, 1.02 + 0.07 * row)
            axes.text(*place, visible(text, 40), fontsize=TICK).set_parse_math(False)
        axes.set_title("")
        axes.set_yticks([])
        axes.set_xlabel("seconds" if self.unit == "s" else self.unit, fontsize=LABEL)
        bare(axes)

    def placed(self, texts: Sequence[str]) -> list[tuple[str, float, int]]:
        """The parts of the answer in their order in time: text, where its map is strongest as a
        share of the time shown, and the row in which none covers another, of ``ROWS``."""
        found, ends = list[tuple[str, float, int]](), list[float]()
        at = {k: self.strongest_at(k) for k, text in enumerate(texts) if text}
        for k in sorted(at, key=at.__getitem__):
            wide = min(1.0, LETTER * (len(texts[k]) + 2))
            start = min(at[k], 1 - wide)
            row = next((r for r, end in enumerate(ends) if end <= start), len(ends))
            if row < ROWS:
                ends[row : row + 1] = [start + wide]
                found.append((texts[k], start, row))
        return found

    def strongest_at(self, step: int) -> float:
        """Where one map is strongest, as a share of the time that is shown."""
        heat = self.shares[step].sum(0)
        return (int(heat.argmax()) + 0.5) / len(heat)


class Sound(Recording):
    """A recording whose time is known in seconds."""

    kind, drawn_as = "sound", "High pitch above, loud is dark."
