"""Running text with shaded words or tokens, broken into lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from relprop.errors import OptionError
from relprop.views.colours import colours, hexadecimal, ink, shade
from relprop.views.escape import visible
from relprop.views.figure import GREY, TICK, TITLE, blank
from relprop.views.shown import checked, named, target_of, text_only, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from relprop.explanation import Explanation

LINE, MARGIN, BAR = 1.75, 8.0, 90.0  # line height in letter sizes; margin and legend in points
POINTS = 72.0


def text(
    explanation: Explanation,
    *,
    sample: int = 0,
    by: str | None = None,
    ax: Axes | None = None,
    title: str | None = None,
    width: float = 6.5,
    size: float = 11.0,
) -> Axes:
    """One sample's text, its words (or tokens) shaded by score: orange for the target, blue against
    it, as strong as the share of the strongest.

    Letters are black or white, whichever has the larger contrast (at least 4.5 to 1); special
    tokens are grey. Text is drawn as it is, no mathematics; what could act on its surroundings is
    written out.

    Args:
        by: ``"words"`` or ``"tokens"``; ``None``: words where they are known.
        width, size: of the figure in inches, of the letters in points. Within ``ax`` the lines are
            as long as it is wide.

    Raises ``OptionError`` for an explanation that is not of text.
    """
    text_only(explanation, "text()")
    if not (width > 0 and size > 0):
        raise OptionError(f"text(width={width}, size={size}): positive numbers")
    found = units(explanation, sample, by, what="text()")
    sample = checked(explanation, sample)
    title = f"target {target_of(explanation, sample)}" if title is None else title
    points = width * POINTS if ax is None else ax.get_window_extent().width / ax.figure.dpi * POINTS
    words = [visible(named(name), 60) for name in found.names]
    places, bottom = lay_out(
        words, points, size, gap=0.42 * size if found.kind == "words" else 0.25 * size
    )
    top = (TITLE * 2.0 if title and ax is None else 0.0) + MARGIN
    height = top + bottom + MARGIN + (22.0 if ax is None else 0.0)
    if ax is None:
        fig = blank(width, height / POINTS)
        fig.set_layout_engine("none")
        ax = fig.add_axes((0.0, 0.0, 1.0, 1.0))
        ax.text(MARGIN, MARGIN, visible(title, 120), fontsize=TITLE, va="top", parse_math=False)
        _legend(ax, height, any(s < 0 for s in found.scores))
    elif title:
        ax.set_title(visible(title, 120), fontsize=TITLE).set_parse_math(False)
    ax.set_xlim(0, points)
    ax.set_ylim(height, 0)
    ax.set_aspect("auto")
    ax.set_axis_off()
    for word, (left, right, line), share, content in zip(
        words, places, found.relative(), found.content, strict=True
    ):
        _draw(ax, word, (left, right, top + line), size, share, content)
    return ax


def lay_out(
    words: list[str], width: float, size: float, *, gap: float
) -> tuple[list[tuple[float, float, float]], float]:
    """For each word left, right and the middle of its line, in points from the top left corner of
    the text; and where the last line ends."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font, places, left, line = FontProperties(size=size), [], MARGIN, 0  # type: ignore[arg-type]
    for word in words:
        long = text_to_path.get_text_width_height_descent(word, font, False)[0] if word else 0.0
        if left > MARGIN and left + long > width - MARGIN:
            left, line = MARGIN, line + 1
        places.append((left, left + long, (line + 0.5) * LINE * size))
        left += long + gap
    return places, (line + 1) * LINE * size


def _draw(
    ax: Axes, word: str, place: tuple[float, float, float], size: float, share: float, content: bool
) -> None:
    from matplotlib.patches import Rectangle

    left, right, middle = place
    ground = shade(share)
    if content:
        ax.add_patch(
            Rectangle(
                (left - 0.16 * size, middle - 0.72 * size),
                right - left + 0.32 * size,
                1.44 * size,
                facecolor=hexadecimal(ground),
                linewidth=0,
            )
        )
    front = hexadecimal(ink(ground)) if content else GREY
    ax.text(
        left,
        middle + 0.36 * size,
        word,
        fontsize=size,
        color=front,
        va="baseline",
        ha="left",
        parse_math=False,
        clip_on=True,
    )


def _legend(ax: Axes, height: float, signed: bool) -> None:
    """What the shades mean, below the text."""
    shares = np.linspace(-1 if signed else 0, 1, 101)
    top = height - MARGIN - 8.0
    label: dict[str, Any] = {"fontsize": TICK, "color": GREY, "va": "center"}
    left = MARGIN + (38.0 if signed else 6.0)
    if signed:
        ax.text(MARGIN, top + 4, "against", **label)
    else:
        ax.text(MARGIN, top + 4, "0", ha="left", **label)
        left += 4.0
    ax.imshow(
        colours(shares, signed=True)[None],
        extent=(left, left + BAR, top + 8, top),
        aspect="auto",
        interpolation="bilinear",
    )
    ax.text(left + BAR + 4, top + 4, "for the target" if signed else "strongest", **label)
