"""Scores along a sequence: a bar per token, or a line over the time of a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relprop.views.colours import hexadecimal, shade
from relprop.views.figure import (
    GREY,
    LABEL,
    TICK,
    bare,
    figure,
    room_for,
    write_ticks,
    write_title,
)
from relprop.views.regions import is_recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from relprop.explanation import Explanation, TokenScores


def plot_sequence(explanation: Explanation, sample: int, title: str) -> Figure:
    """Scores of tokens without labels: bars, or a line for a recording (sound, time series), in
    seconds if they are known."""
    tokens = next(iter(explanation.streams.values()))
    fig = _line(tokens, explanation, sample) if is_recording(tokens) else _bars(tokens, sample)
    write_title(fig.axes[0], title)
    return fig


def show_time(axes: Axes, tokens: TokenScores) -> None:
    """Seconds below a spectrogram's map, and its bands beside it; nothing of a picture's."""
    if tokens.clock is None or tokens.image is None or len(tokens.image) != 2:
        return
    time, second = tokens.clock
    for drawn in axes.images:
        drawn.set_extent((0, tokens.image[time] * second, 0, tokens.image[1 - time]))
    axes.set_aspect("auto")
    axes.set_axis_on()
    axes.set_xlabel("seconds", fontsize=LABEL)
    axes.set_ylabel("band, the lowest pitch below", fontsize=LABEL)
    bare(axes)


def _line(tokens: TokenScores, explanation: Explanation, sample: int) -> Figure:
    assert tokens.spans is not None  # is_recording
    known = tokens.source >= 0
    at = explanation.seconds() if tokens.clock else tokens.spans[:, 0]
    scores = tokens.scores[sample, known.to(tokens.scores.device)]
    fig, (axes,) = figure(1, 8.0, 3)
    axes.plot(at[known].mean(-1).tolist(), scores.tolist(), color="#d55e00")
    axes.set_xlabel("seconds" if tokens.clock else "step of the input", fontsize=LABEL)
    return fig


def _bars(tokens: TokenScores, sample: int) -> Figure:
    """A bar per token: orange for the target, blue against it, grey for what is no content."""
    scores, content = tokens.scores[sample].tolist(), tokens.content[sample].tolist()
    labels = [str(i) for i in range(len(scores))]
    fig, (axes,) = figure(1, max(4.0, 0.24 * len(scores) + 0.8), 2.3 + room_for(labels))
    colours = [
        hexadecimal(shade(0.75 if s >= 0 else -0.75)) if c else "lightgrey"
        for s, c in zip(scores, content, strict=True)
    ]
    axes.bar(range(len(scores)), scores, color=colours)
    axes.axhline(0, color=GREY, linewidth=0.6)
    write_ticks(axes, "x", labels, rotation=90, most=10_000)
    axes.set_ylabel("score", fontsize=TICK)
    bare(axes)
    return fig
