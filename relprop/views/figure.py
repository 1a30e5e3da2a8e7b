"""Figures and axes without pyplot: nothing global is read or changed. matplotlib is an extra,
looked up when a picture is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError
from relprop.views.colours import STEPS, table
from relprop.views.escape import visible
from relprop.views.overlay import grey, opacity, pixels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

TITLE, LABEL, TICK = 10.0, 9.0, 8.0  # points, as journals set figures
GREY = "#6b6b6b"


@guarded
def figure(columns: int, width: float = 3.2, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """A figure with a row of axes, ``width``·``columns`` by ``height`` inches. Raises
    ``OptionError`` without matplotlib."""
    fig = blank(width * columns, height)
    return fig, grid_of(fig, 1, columns)[0]


def grid_of(
    fig: Figure, rows: int, columns: int, widths: Sequence[float] | None = None
) -> list[list[Axes]]:
    """``rows`` by ``columns`` axes in a figure of ``blank``, ``widths`` of the columns relative to
    each other."""
    from relprop.views.canvas import Panel

    made = fig.subplots(
        rows, columns, squeeze=False, width_ratios=widths, subplot_kw={"axes_class": Panel}
    )
    return [list(row) for row in made]


def blank(width: float, height: float) -> Figure:
    """An empty figure (inches) that lays itself out. Raises ``OptionError`` without matplotlib."""
    try:
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        from relprop.views.canvas import Picture
    except ImportError:
        raise OptionError('plots need matplotlib: pip install "relprop[plot]"') from None
    return Picture(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.04, h_pad=0.06))


def axes_or_new(ax: Axes | None, width: float, height: float) -> Axes:
    """``ax``, or the axes of a new figure of that size in inches."""
    if ax is not None and not hasattr(ax, "imshow"):
        raise OptionError(f"ax={ax!r}: axes of matplotlib, or None for new ones, are needed")
    return figure(1, width, height)[1][0] if ax is None else ax


class Panels(list[Any]):
    """Axes of one figure, which a notebook shows as that."""

    def _repr_png_(self) -> bytes | None:
        show = getattr(self[0].figure, "_repr_png_", None) if self else None
        return None if show is None else show()


def several(ax: Any, rows: int, columns: int, width: float, height: float) -> list[list[Axes]]:
    """``rows`` by ``columns`` axes: those of ``ax`` (as many, in any nesting), or of a new figure,
    each ``width`` by ``height`` inches."""
    if ax is None:
        return grid_of(blank(width * columns, height * rows), rows, columns)
    flat = list(np.asarray(ax, dtype=object).flat)
    if len(flat) < rows * columns:
        raise OptionError(
            f"ax has {len(flat)} axes; this picture needs {rows * columns}, {rows} by {columns}"
        )
    return [flat[r * columns : (r + 1) * columns] for r in range(rows)]


def scale_of(*values: Any, strongest: float | None = None) -> dict[str, Any]:
    """``cmap``, ``vmin`` and ``vmax`` for these values: from 0 (white) to the largest (orange), or,
    where any is negative (blue), even on both sides of 0. The scales are registered nowhere."""
    from matplotlib.colors import ListedColormap

    least, most = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    top = (max(most, -least) if strongest is None else strongest) or 1.0
    signed = least < 0
    shown = table() if signed else table()[STEPS:]
    return {
        "cmap": ListedColormap(shown.tolist(), name="relprop signed" if signed else "relprop"),
        "vmin": -top if signed else 0.0,
        "vmax": top,
    }


@guarded
def show_image(axes: Axes, image: Any, title: str) -> None:
    """An image (C, H, W), (H, W) or (H, W, C), values in [0, 1] or bytes."""
    shown = pixels(image)
    axes.imshow(shown, cmap="gray" if shown.ndim == 2 else None, vmin=0, vmax=1)
    write_title(axes, title)
    axes.set_axis_off()


@guarded
def show_heatmap(
    axes: Axes, heat: Tensor, title: str, image: Any = None, *, scale: dict[str, Any] | None = None
) -> AxesImage:
    """A heat map (H, W), over the grey image it explains, where it is the more opaque the stronger
    it is; with negative values diverging about 0. Raises ``InputError`` for an image of another
    size."""
    values = heat.detach().float().cpu()
    scale = scale_of(values) if scale is None else scale
    alpha: Any = 1.0
    if image is not None:
        under = grey(pixels(image))
        if under.shape != values.shape:
            raise InputError(
                f"the image is {list(under.shape)} pixels (H, W), its map {list(values.shape)}: "
                "relprop.plot.heatmap(explanation, image) fits the map to the picture"
            )
        axes.imshow(under, cmap="gray", vmin=0, vmax=1)
        alpha = opacity((values / scale["vmax"]).numpy())
    drawn = axes.imshow(values.numpy(), alpha=alpha, **scale)
    write_title(axes, title)
    axes.set_axis_off()
    return drawn


def write_title(axes: Axes, title: str) -> None:
    """A title in which nothing is read as mathematics."""
    axes.set_title(title, fontsize=TITLE).set_parse_math(False)


def write_ticks(
    axes: Axes, which: str, labels: Sequence[str], *, rotation: float = 0.0, most: int = 80
) -> None:
    """Labels at 0, 1, ... along the axis ``which``, as they are; of many, every n-th."""
    step = -(-len(labels) // most)
    places = list(range(0, len(labels), step))
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(places, [visible(labels[i], 24) for i in places])
    axis.set_tick_params(
        length=0 if len(labels) <= most else 2, labelsize=TICK if len(places) <= 40 else TICK - 2
    )
    for label in axis.get_ticklabels():
        label.set_rotation(rotation)
        label.set_parse_math(False)


def room_for(labels: Sequence[str]) -> float:
    """Inches that the longest of some labels takes, as ``write_ticks`` writes them."""
    return 0.07 * max((len(visible(label, 24)) for label in labels), default=1) + 0.1


def add_scale(drawn: Any, axes: Any, label: str, **where: Any) -> Any:
    """A slim colour bar beside ``axes``."""
    first = axes[0] if isinstance(axes, list) else axes
    bar = first.figure.colorbar(
        drawn, ax=axes, **{"shrink": 0.8, "aspect": 25, "pad": 0.02} | where
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=TICK, length=2)
    bar.set_label(label, fontsize=TICK)
    return bar


def bare(axes: Axes) -> None:
    """Without the lines above and to the right."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=TICK)
