"""Figures and axes that show themselves as a notebook cell's last line, in any notebook, without
pyplot and without ``%matplotlib inline``. Imports matplotlib: only ``figure.py`` imports this."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DPI = 100


class Picture(Figure):
    """A figure with a canvas of its own, which pyplot knows nothing of."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=DPI)
        return file.getvalue()


class Panel(Axes):
    """Axes that are shown as the figure they stand in."""

    def _repr_png_(self) -> bytes | None:
        show = getattr(self.figure, "_repr_png_", None)
        return None if show is None else show()
