"""Pictures of explanations (matplotlib): ``relprop.plot``. docs/pictures.md shows each.

Every function draws one sample, in ``ax`` or in a figure of its own, and returns the axes:
``ax.figure.savefig("map.pdf")``. No pyplot: nothing global is touched, and nothing is shown by
itself, but a notebook shows what a cell ends with. There is one scale, perceptually uniform and
made for the colour-blind: from white to orange for the target, and to blue against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relprop.errors import OptionError
from relprop.views.curves import curves
from relprop.views.figure import figure, scale_of, show_heatmap, show_image
from relprop.views.ledgers import ledger
from relprop.views.maps import compare, heatmap
from relprop.views.matrices import heads, layers, matrix
from relprop.views.overlay import heatmap_and_image
from relprop.views.sequences import plot_sequence
from relprop.views.shaded_text import text
from relprop.views.shown import checked, target_of

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


def __dir__() -> list[str]:
    return __all__


def plot_explanation(explanation: Explanation, image: Any, *, sample: int) -> Figure:
    """One sample: its heat map (over ``image``, as ``heatmap`` takes it; a column per picture of
    several, and per time of a video), its words shaded, or its scores along the recording."""
    sample = checked(explanation, sample)
    title = f"target {target_of(explanation, sample)}"
    if explanation.grid is None:
        if image is not None and image is not False:
            raise OptionError("plot(image): this explanation is of no image")
        stream = next(iter(explanation.streams.values()))
        if stream.tokens is not None or stream.words is not None:
            return text(explanation, sample=sample, title=title).figure  # type: ignore[return-value]
        return plot_sequence(explanation, sample, title)
    if len(explanation.grid) > 2:
        return _plot_several(explanation, sample, title)
    return heatmap(explanation, image, sample=sample).figure  # type: ignore[return-value]


def _plot_several(explanation: Explanation, sample: int, title: str) -> Figure:
    """A heat map for each picture, or for each time of a video, on one scale."""
    assert explanation.grid is not None
    count = explanation.grid[0]
    found = [heatmap_and_image(explanation.picture(k), sample, None) for k in range(count)]
    fig, columns = figure(count)
    scale = scale_of(*(heat for heat, _ in found))
    for i, (axes, (heat, image)) in enumerate(zip(columns, found, strict=True)):
        show_heatmap(axes, heat, f"{title}, {i + 1} of {count}", image, scale=scale)
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
    shape = first.scores.shape
    same = {label: e for label, e in explanations.items() if maps or e.scores.shape == shape}
    drawn = compare(same, image, sample=sample, scale="own", colorbar=False)[0].figure
    return drawn  # type: ignore[return-value]
