"""Perturbation curves: what the model still gets right as more and more is removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError, first_line
from relprop.views.figure import LABEL, TICK, axes_or_new, bare, write_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = (
    ("#0072b2", "o-"),
    ("#d55e00", "s-"),
    ("#009e73", "^-"),
    ("#cc79a7", "D-"),
    ("#000000", "v-"),
    ("#56b4e9", "o--"),
    ("#e69f00", "s--"),
    ("#999999", "^--"),
)
"""Colour, and marker and line, of each curve in turn: Okabe and Ito's colours (2008), made for the colour-blind; markers tell them apart without colour."""  # noqa: E501


@guarded
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
    axes = axes_or_new(ax, 4.6, 3.2)
    for i, (label, curve) in enumerate(named.items()):
        _draw(axes, label, curve, STYLES[i % len(STYLES)], band)
    axes.set_xlabel("share removed (%)" if xlabel is None else xlabel, fontsize=LABEL)
    axes.set_ylabel("accuracy" if ylabel is None else ylabel, fontsize=LABEL)
    write_title(axes, title)
    bare(axes)
    if any(label or hasattr(curve, "auc") for label, curve in named.items()):
        for entry in axes.legend(frameon=False, fontsize=TICK).get_texts():
            entry.set_parse_math(False)
    return axes


def _draw(axes: Axes, label: Any, curve: Any, style: tuple[str, str], band: bool) -> None:
    shares, values = _points(label, curve)
    (colour, line), name = style, _legend(label, curve) or None
    axes.plot(shares, values, line, color=colour, markersize=3.5, linewidth=1.5, label=name)
    hits = getattr(curve, "hits", None)
    if band and isinstance(hits, Tensor) and len(hits) > 1:
        error = 1.96 * np.sqrt(values * (1 - values) / len(hits))
        low, high = values - error, values + error
        axes.fill_between(shares, low, high, color=colour, alpha=0.12, linewidth=0)


def _legend(label: Any, curve: Any) -> str:
    """The curve's name, with its area where that is known."""
    auc = getattr(curve, "auc", None)
    if auc is None:
        return str(label)
    return f"{label} (AUC {float(auc):.1f})" if label else f"AUC {float(auc):.1f}"


def _points(label: Any, curve: Any) -> tuple[np.ndarray, np.ndarray]:
    """Shares in percent and values."""
    if hasattr(curve, "accuracy"):
        values = _array(label, curve.accuracy)
        shares = 10.0 * np.arange(len(values))
    elif _is_pair(curve):
        shares, values = _array(label, curve[0]), _array(label, curve[1])
    else:
        values = _array(label, curve)
        shares = 10.0 * np.arange(10) if len(values) == 10 else np.linspace(0, 100, len(values))
    if len(shares) != len(values):
        raise InputError(f"curve {label!r}: {len(shares)} shares and {len(values)} values")
    return shares, values


def _is_pair(curve: Any) -> bool:
    """Whether a curve is given as its shares and its values."""
    if not isinstance(curve, Sequence) or len(curve) != 2:
        return False
    return not any(isinstance(part, (int, float)) for part in curve)


def _array(label: Any, values: Any) -> np.ndarray:
    try:
        given = values.detach().double().cpu() if isinstance(values, Tensor) else values
        found = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"curve {label!r}: {first_line(error)}: numbers are needed") from error
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise InputError(
            f"curve {label!r}: shape {list(found.shape)}; a row of finite numbers is needed"
        )
    return found
