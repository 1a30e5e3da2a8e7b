"""Pictures of explanations (matplotlib): ``relprop.plot``. docs/pictures.md shows each.

Every function draws one sample, in ``ax`` or in a figure of its own, and returns the axes:
``ax.figure.savefig("map.pdf")``. No pyplot: nothing global is touched, and nothing is shown by
itself. All scales are perceptually uniform and made for the colour-blind: dark to light for scores
that are positive, orange (for the target) and blue (against it) on both sides of 0 for signed ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relprop.errors import OptionError
from relprop.views.curves import curves
from relprop.views.figure import LABEL, figure, room_for, show_heatmap, show_image, write_title
from relprop.views.ledgers import ledger
from relprop.views.maps import compare, heatmap
from relprop.views.matrices import bars, heads, layers, matrix
from relprop.views.shown import checked, target_of
from relprop.views.texts import text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from relprop.explanation import Explanation

__all__ = [
    "compare",
    "curves",
    "figure",
    "heads",
    "heatmap",
    "layers",
    "ledger",
    "matrix",
    "show_heatmap",
    "show_image",
    "text",
]


def plot_explanation(explanation: Explanation, image: Any, *, sample: int) -> Figure:
    """One sample: its heat map (over its image, if given; a column per time of a video), its tokens
    as bars, or its scores along the recording.

    ``image`` is the model's own, or the picture it was made from, if the explanation knows that
    one.
    """
    sample = checked(explanation, sample)
    title = f"target {target_of(explanation, sample)}"
    if explanation.grid is None:
        if image is not None:
            raise OptionError("plot(image): this explanation is of no image")
        return _plot_sequence(explanation, sample, title)
    if len(explanation.grid) > 2:
        times, *_ = explanation.grid
        frames = (
            explanation.heatmap((times, *explanation.image[1:]))[sample]
            if explanation.image
            else ()
        )
        fig, columns = figure(times)
        for i, (axes, heat) in enumerate(zip(columns, frames, strict=True)):
            show_heatmap(axes, heat, f"{title}, {i + 1} of {times}")
        return fig
    drawn = heatmap(explanation, image, sample=sample).figure
    return drawn  # type: ignore[return-value]


def _plot_sequence(explanation: Explanation, sample: int, title: str) -> Figure:
    """Bars with the tokens' labels; a line for what has none (sound, time series), in seconds if
    they are known."""
    scores = explanation.scores[sample].tolist()
    tokens = next(iter(explanation.streams.values()))
    if (
        tokens.tokens is None
        and tokens.spans is not None
        and bool((tokens.spans.diff(dim=-1) > 1).any())
    ):
        known = explanation.source >= 0
        at = explanation.seconds() if tokens.clock else tokens.spans[:, 0]
        fig, (axes,) = figure(1, 8.0, 3)
        axes.plot(
            at[known].mean(-1).tolist(),
            explanation.scores[sample, known.to(explanation.scores.device)].tolist(),
            color="#d55e00",
        )
        axes.set_xlabel("seconds" if tokens.clock else "step of the input", fontsize=LABEL)
    else:
        labels = tokens.tokens[sample] if tokens.tokens else [str(i) for i in range(len(scores))]
        fig, (axes,) = figure(1, max(4.0, 0.24 * len(scores) + 0.8), 2.3 + room_for(labels))
        bars(explanation, labels, scores, explanation.content[sample].tolist(), axes)
    write_title(axes, title)
    return fig


def plot_comparison(explanations: Mapping[str, Explanation], image: Any, *, sample: int) -> Figure:
    """Several methods' explanations of one sample side by side, each on its own scale (that of its
    content): heat maps, or a row of shaded tokens each.

    Methods that score other tokens than the first one (pixels, where it scores patches of a text's
    words) are left out.
    """
    first = next(iter(explanations.values()))
    if not -len(first) <= sample < len(first):
        raise OptionError(f"sample={sample}: the explanations have {len(first)} samples")
    maps = all(e.grid is not None and len(e.grid) == 2 for e in explanations.values())
    same = (
        explanations
        if maps
        else {label: e for label, e in explanations.items() if e.scores.shape == first.scores.shape}
    )
    drawn = compare(same, image, sample=sample, scale="own", colorbar=False)[0].figure
    return drawn  # type: ignore[return-value]
