"""The head view as a matplotlib figure: all heads together, and beside them every head's map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from relprop.cards.head_parts import parts_of, percent
from relprop.views.figure import GREY, TICK, blank, grid_of, scale_of, show_heatmap, write_ticks
from relprop.views.shaded_text import draw_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from relprop.cards.heads import HeadView

LEFT, BESIDE = 3.4, 0.9  # inches: the left part, and the room around it
SIDE, STRIP_HIGH = 0.7, 0.4  # of a small map, and how high a text's is


def drawn(view: HeadView) -> Figure:
    """Left all heads together, over the picture or the words; right a map for each head, the last
    layer on top."""
    whole, most = view.whole, max(map(len, view.vectors))
    high = STRIP_HIGH if whole.names is not None else SIDE
    wide, height = 0.6 + SIDE * most, 0.6 + (high + 0.15) * len(view.vectors)
    fig = blank(LEFT + BESIDE + wide, max(height, LEFT) + 0.4)
    left, right = grid_of(fig, 1, 2, [LEFT + BESIDE, wide])[0]
    strongest = float(whole.cells.max()) or 1.0
    if whole.names is not None:
        shares = (whole.cells / strongest).flat[: len(whole.names)].tolist()
        draw_words(left, list(whole.names), shares, LEFT, 9.0)
    elif view.seen is not None:
        heat = view.explanation.heatmap(view.seen.shape[:2])[0].cpu()
        show_heatmap(left, heat, "all heads together", view.seen)
    else:
        show_heatmap(left, torch.tensor(whole.cells), "all heads together")
    _draw_heads(right, view)
    fig.suptitle(view.said, fontsize=TICK + 1).set_parse_math(False)
    return fig


def _draw_heads(axes: Axes, view: HeadView) -> None:
    """A unit square for each head: its map on a scale of its own, and its share below."""
    layers, most = len(view.vectors), max(map(len, view.vectors))
    for layer, (vectors, shares) in enumerate(zip(view.vectors, view.shares, strict=True)):
        top = layers - 1 - layer
        for head, part in enumerate(parts_of(view.explanation, list(vectors))):
            extent = (head - 0.45, head + 0.45, top + 0.25, top - 0.45)
            axes.imshow(part.cells, extent=extent, aspect="auto", **scale_of(part.cells))
            share = percent(float(shares[head]))
            axes.text(head, top + 0.29, share, ha="center", va="top", fontsize=TICK - 1, color=GREY)
    axes.set_xlim(-0.5, most - 0.5)
    axes.set_ylim(layers - 0.5, -0.5)
    write_ticks(axes, "x", [f"head {k}" if k == 0 else str(k) for k in range(most)])
    write_ticks(axes, "y", [f"layer {layers - 1 - k}" for k in range(layers)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
