"""Running text with shaded words or tokens, broken into lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from relprop.error_boundary import guarded
from relprop.errors import OptionError
from relprop.views.colours import colours, hexadecimal, ink, shade
from relprop.views.escape import visible
from relprop.views.figure import GREY, TICK, TITLE, blank, several
from relprop.views.shown import named, target_of, text_only, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from relprop.explanation import Explanation

LINE, MARGIN, BAR = 1.75, 8.0, 90.0  # line height in letter sizes; margin and legend in points
POINTS = 72.0


@guarded
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
    found = units(explanation, sample, by, what="text()").in_words()
    title = f"target {target_of(explanation, sample)}" if title is None else title
    points = width * POINTS if ax is None else ax.get_window_extent().width / ax.figure.dpi * POINTS
    words = [visible(named(name), 60) for name in found.names]
    gap = (0.42 if found.kind == "words" else 0.25) * size
    places, bottom = lay_out(words, points, size, gap=gap)
    top = (TITLE * 2.0 if title and ax is None else 0.0) + MARGIN
    height = top + bottom + MARGIN + (22.0 if ax is None else 0.0)
    if ax is None:
        ax = _own_axes(width, height, title)
        _legend(ax, height, any(s < 0 for s in found.scores))
    elif title:
        ax.set_title(visible(title, 120), fontsize=TITLE).set_parse_math(False)
    ax.set_xlim(0, points)
    ax.set_ylim(height, 0)
    ax.set_aspect("auto")
    ax.set_axis_off()
    shown = zip(words, places, found.relative(), found.content, strict=True)
    for word, (left, right, line), share, content in shown:
        _draw(ax, word, (left, right, top + line), size, share if content else None)
    return ax


def draw_words(ax: Axes, words: list[str], shares: list[float], width: float, size: float) -> None:
    """Words of given shares of the strongest, in lines, in axes that are ``width`` inches wide."""
    places, bottom = lay_out(words, width * POINTS, size, gap=0.42 * size)
    ax.set_xlim(0, width * POINTS)
    ax.set_ylim(bottom + MARGIN, 0)
    ax.set_aspect("equal", anchor="W")
    ax.set_axis_off()
    for word, place, share in zip(words, places, shares, strict=True):
        _draw(ax, word, place, size, share)


def _own_axes(width: float, height: float, title: str) -> Axes:
    """A figure that is all text: ``width`` in inches, ``height`` in points."""
    fig = blank(width, height / POINTS)
    from relprop.views.canvas import Panel

    fig.set_layout_engine("none")
    axes = fig.add_axes((0.0, 0.0, 1.0, 1.0), axes_class=Panel)
    axes.text(MARGIN, MARGIN, visible(title, 120), fontsize=TITLE, va="top", parse_math=False)
    return axes


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
    ax: Axes, word: str, place: tuple[float, float, float], size: float, share: float | None
) -> None:
    """One word on its ground; ``share`` is ``None`` for what is no content, which has none."""
    from matplotlib.patches import Rectangle

    (left, right, middle), colour = place, GREY
    if share is not None:
        ground = shade(share)
        colour = hexadecimal(ink(ground))
        corner, wide = (left - 0.16 * size, middle - 0.72 * size), right - left + 0.32 * size
        filled: dict[str, Any] = {"facecolor": hexadecimal(ground), "linewidth": 0}
        ax.add_patch(Rectangle(corner, wide, 1.44 * size, **filled))
    how: dict[str, Any] = {"fontsize": size, "color": colour, "parse_math": False}
    ax.text(left, middle + 0.36 * size, word, clip_on=True, **how)


def _legend(ax: Axes, height: float, signed: bool) -> None:
    """What the shades mean, below the text."""
    shares = np.linspace(-1 if signed else 0, 1, 101)
    top = height - MARGIN - 8.0
    label: dict[str, Any] = {"fontsize": TICK, "color": GREY, "va": "center"}
    left = MARGIN + (38.0 if signed else 10.0)
    ax.text(MARGIN, top + 4, "against" if signed else "0", **label)
    place = (left, left + BAR, top + 8, top)
    ax.imshow(colours(shares)[None], extent=place, aspect="auto", interpolation="bilinear")
    ax.text(left + BAR + 4, top + 4, "for the target" if signed else "strongest", **label)


def texts(named: Mapping[str, Explanation]) -> Figure:
    """Explanations of one sample each, of any texts, one below another: shaded words."""
    from relprop.views.plot import text

    rows_of_tokens = [e.tokens[0] for e in named.values() if e.tokens]
    letters = max((len(" ".join(row)) for row in rows_of_tokens), default=0)
    rows = several(None, len(named), 1, 8.0, 0.7 + 0.3 * (letters // 80))
    for (axes,), (name, e) in zip(rows, named.items(), strict=True):
        text(e, ax=axes, title=name)
    return rows[0][0].figure  # type: ignore[return-value]
