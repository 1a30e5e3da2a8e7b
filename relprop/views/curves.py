"""Perturbation curves: what the model still gets right as more and more is removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from relprop.errors import InputError, OptionError
from relprop.views.figure import LABEL, TICK, bare, given, write_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = (
    ("#0072b2", "-", "o"),
    ("#d55e00", "-", "s"),
    ("#009e73", "-", "^"),
    ("#cc79a7", "-", "D"),
    ("#000000", "-", "v"),
    ("#56b4e9", "--", "o"),
    ("#e69f00", "--", "s"),
    ("#999999", "--", "^"),
)
"""Colour, line and marker of each curve in turn: Okabe and Ito's colours (2008), made for the colour-blind; markers tell them apart without colour."""  # noqa: E501


def curves(
    found: Any,
    *,
    ax: Axes | None = None,
    title: str = "",
    xlabel: str | None = None,
    ylabel: str | None = None,
    band: bool = True,
) -> Axes:
    """Accuracy (or any measure) against the share removed, a line per method, each with its area in
    the legend where it is known.

    Args:
        found: a mapping from labels to curves, or one curve. A curve is a ``PerturbationCurve`` of
            ``relprop.evaluation`` (or anything with ``accuracy``, at 0, 10, ..., 90 %); an array of
            values at even steps of 10 %, or, of another length than 10, from 0 to 100 %; or a pair
            (shares, values).
        band: where the hits of each sample are known, shade ±1.96 standard errors of the mean.

    Raises ``InputError`` for values that are no numbers or do not fit their shares.
    """
    named = found if isinstance(found, Mapping) else {"": found}
    if not named:
        raise OptionError("curves(): none given")
    axes = given(ax, 4.6, 3.2)
    for i, (label, curve) in enumerate(named.items()):
        shares, values = _points(label, curve)
        colour, line, marker = STYLES[i % len(STYLES)]
        auc = getattr(curve, "auc", None)
        shown = (
            f"{label} (AUC {float(auc):.1f})"
            if auc is not None and label
            else f"AUC {float(auc):.1f}"
            if auc is not None
            else str(label)
        )
        axes.plot(
            shares,
            values,
            color=colour,
            linestyle=line,
            marker=marker,
            markersize=3.5,
            linewidth=1.5,
            label=shown or None,
        )
        hits = getattr(curve, "hits", None)
        if band and isinstance(hits, Tensor) and len(hits) > 1:
            error = 1.96 * np.sqrt(values * (1 - values) / len(hits))
            axes.fill_between(
                shares, values - error, values + error, color=colour, alpha=0.12, linewidth=0
            )
    axes.set_xlabel("share removed (%)" if xlabel is None else xlabel, fontsize=LABEL)
    axes.set_ylabel("accuracy" if ylabel is None else ylabel, fontsize=LABEL)
    write_title(axes, title)
    bare(axes)
    legend = (
        axes.legend(frameon=False, fontsize=TICK)
        if any(label or hasattr(c, "auc") for label, c in named.items())
        else None
    )
    for entry in legend.get_texts() if legend is not None else ():
        entry.set_parse_math(False)
    return axes


def _points(label: Any, curve: Any) -> tuple[np.ndarray, np.ndarray]:
    """Shares in percent and values."""
    shares: Any = None
    if hasattr(curve, "accuracy"):
        values = _array(label, curve.accuracy)
        shares = 10.0 * np.arange(len(values))
    elif (
        isinstance(curve, Sequence)
        and len(curve) == 2
        and not any(isinstance(part, (int, float)) for part in curve)
    ):
        shares, values = _array(label, curve[0]), _array(label, curve[1])
    else:
        values = _array(label, curve)
        shares = 10.0 * np.arange(10) if len(values) == 10 else np.linspace(0, 100, len(values))
    if len(shares) != len(values):
        raise InputError(f"curve {label!r}: {len(shares)} shares and {len(values)} values")
    return shares, values


def _array(label: Any, values: Any) -> np.ndarray:
    found = (
        values.detach().double().cpu().numpy()
        if isinstance(values, Tensor)
        else np.asarray(values, dtype=np.float64)
    )
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise InputError(
            f"curve {label!r}: shape {list(found.shape)}; a row of finite numbers is needed"
        )
    return found
