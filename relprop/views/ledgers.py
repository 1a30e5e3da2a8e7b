"""The ledger as a picture: relevance runs from the target to the inputs, and at each part of the
model it shows how much is let through, and how much is absorbed, lost or unread there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from relprop.error_boundary import guarded
from relprop.errors import OptionError
from relprop.interpreter.ledger import Ledger
from relprop.views.escape import visible
from relprop.views.figure import GREY, TICK, axes_or_new, write_title
from relprop.views.shown import checked, target_of
from relprop.views.stages import KINDS, SMALL, Stage, short_names, stages

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from relprop.explanation import Explanation

BAND, ARRIVED = "#c7d8ea", "#2f5f9e"
COLOURS = dict(zip(KINDS, ("#009e73", "#d55e00", "#808080"), strict=True))
MODULES = ("#0072b2", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True)
class Frame:
    """How the picture is laid out. Its unit is the relevance that started, so that heights are
    shares of it. ``widths``: of the band, before the first stage and after each, ``most`` the
    largest; ``depth``: how long the bar of one whole share that ends is. Heights: ``roof``, above
    the band, at which the bars of what entered begin; ``foot``, below it, at which those of what
    ends begin; ``names``, at which the stages' names begin."""

    unit: float
    widths: tuple[float, ...]
    most: float
    depth: float
    roof: float
    foot: float
    names: float


@guarded
def ledger(
    explanation: Explanation, *, sample: int = 0, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Relevance of one sample from the target (left) to the inputs (right): the band is as wide as
    what is on its way; what ends at a part of the model leaves it there.

    A part is a block, or a top module. Below it: how much was absorbed (by parameters and
    constants), lost (to denominators near 0) or unread (it flowed past what the method
    reads). Above it: what entered its own parts (its attention, its MLP); the rest passed along the
    skip connections. Numbers are those of ``explanation.ledger``, in shares of what started;
    negative ones are hatched.

    Raises ``OptionError`` for a method without relevance.
    """
    sample, whole = checked(explanation, sample), _ledger_of(explanation)
    found, start = stages(whole, sample), float(whole.started[sample])
    frame = _frame(found, start)
    axes = axes_or_new(ax, max(6.4, 0.6 * (len(found) + 4)), 4.2)
    _draw_band(axes, frame.widths)
    about = f"{visible(target_of(explanation, sample), 16)}\n{start:.3g}"
    _write(axes, -1.0, 0, about, ha="right", color="black")
    _draw_stages(axes, found, frame)
    ends = {name: float(amount[sample]) / frame.unit for name, amount in whole.reached.items()}
    _draw_arrivals(axes, len(found), ends, frame)
    top = _draw_entered(axes, found, frame)
    _draw_legend(axes, found, frame)
    axes.set_xlim(-2.6, len(found) + 3.2)
    axes.set_ylim(frame.names - 0.75 * frame.most, top)
    axes.set_axis_off()
    write_title(axes, _title(explanation, sample) if title is None else title)
    return axes


def _ledger_of(explanation: Explanation) -> Ledger:
    whole = explanation.ledger
    if whole is None or not whole.accounts:
        raise OptionError(
            f"ledger() needs relevance: method {explanation.method!r} has no ledger",
            then=["relprop.explain(model, inputs)   # method='transformer_attribution'"],
        )
    return whole


def _title(explanation: Explanation, sample: int) -> str:
    return (
        f"relevance of {visible(target_of(explanation, sample), 30)}: "
        f"{explanation.method}, rules {explanation.rules}"
    )


def _frame(found: Sequence[Stage], start: float) -> Frame:
    unit = abs(start) or 1.0
    widths = tuple(accumulate((-stage.left / unit for stage in found), initial=start / unit))
    most = max(1.0, *map(abs, widths))
    largest = max(abs(getattr(stage, kind)) / unit for stage in found for kind in KINDS)
    depth = min(0.4, 0.5 * most / largest) if largest >= SMALL else 0.0
    foot = -0.85 * most
    names = foot - depth * largest - 0.22 * most
    return Frame(unit, widths, most, depth, roof=0.62 * most, foot=foot, names=names)


def _draw_band(axes: Axes, widths: Sequence[float]) -> None:
    """What is on its way: at each part it narrows (or, where a part gave relevance back, widens)
    smoothly; where its sign turns, it pinches."""
    x, y = [-0.9], [abs(widths[0]) / 2]
    bend = (1 - np.cos(np.linspace(0, np.pi, 17))) / 2
    for i, (before, after) in enumerate(pairwise(widths)):
        x += (i - 0.35 + 0.7 * np.linspace(0, 1, 17)).tolist()
        y += (np.abs(before + (after - before) * bend) / 2).tolist()
    x.append(len(widths) - 0.4)
    y.append(abs(widths[-1]) / 2)
    axes.fill_between(x, [-v for v in y], y, color=BAND, linewidth=0, label="_band")


def _draw_stages(axes: Axes, found: Sequence[Stage], frame: Frame) -> None:
    """What ends at each part falls to its foot, and its name stands below."""
    names = short_names([stage.name for stage in found])
    slanted = {"rotation": 40, "rotation_mode": "anchor", "ha": "right", "va": "top"}
    for i, (stage, name) in enumerate(zip(found, names, strict=True)):
        shares = {kind: getattr(stage, kind) / frame.unit for kind in KINDS}
        shown = [(kind, share) for kind, share in shares.items() if abs(share) >= SMALL]
        for k, (kind, share) in enumerate(shown):
            _draw_fall(axes, (i, k, len(shown)), kind, share, frame)
        _write(axes, i, frame.names, visible(name, 28), color="black", **slanted)


def _draw_fall(
    axes: Axes, place: tuple[int, int, int], kind: str, share: float, frame: Frame
) -> None:
    """One way in which relevance ends at a part. ``place``: the stage, and which of how many."""
    stage, k, count = place
    wide, colour = 0.8 / count, COLOURS[kind]
    x = stage - 0.4 + (k + 0.5) * wide
    edge = -abs(frame.widths[stage + 1]) / 2
    sides = [x - 0.4 * wide, x + 0.4 * wide]
    axes.fill_between(sides, [edge] * 2, [frame.foot] * 2, color=colour, alpha=0.15, linewidth=0)
    high = abs(share) * frame.depth
    _draw_bar(axes, x, -high, wide * 0.8, share, bottom=frame.foot, color=colour, label="_left")
    text = f"{share:.2f}" if abs(share) >= 0.01 else f"{share:.3f}"
    size = TICK if count == 1 else TICK - 2
    _write(axes, x, frame.foot - high - 0.02, text, va="top", color=colour, size=size)


def _draw_arrivals(axes: Axes, at: int, ends: Mapping[str, float], frame: Frame) -> None:
    """What the inputs (or the first attention map) received."""
    width = abs(frame.widths[-1])
    top, total = width / 2, sum(map(abs, ends.values())) or 1.0
    middles = []
    for share in ends.values():
        high = width * abs(share) / total
        _draw_bar(axes, at + 0.72, -high, 0.22, share, bottom=top, color=ARRIVED, label="_arrived")
        middles.append(top - high / 2)
        top -= high
    least = 0.24 * frame.most  # from one label to the next
    middles = list(accumulate(middles, lambda above, own: min(own, above - least)))
    for (name, share), middle in zip(ends.items(), middles, strict=True):
        _write(axes, at + 0.95, middle, f"{_end(name)}\n{share:.2f}", ha="left", color=ARRIVED)


def _draw_entered(axes: Axes, found: Sequence[Stage], frame: Frame) -> float:
    """Above the band, what entered each part's own modules, a bar each; returns where the picture
    ends."""
    names = list(dict.fromkeys(child for stage in found for child in stage.entered))
    colours = dict(zip(names, MODULES, strict=False))
    largest = max((abs(a) / frame.unit for s in found for a in s.entered.values()), default=0.0)
    if not colours or not largest:
        return frame.roof + 0.1 * frame.most
    scale = 0.5 * frame.most / largest
    for i, stage in enumerate(found):
        shown = {child: stage.entered[child] for child in colours if child in stage.entered}
        wide = 0.8 / max(len(shown), 1)
        for k, (child, amount) in enumerate(shown.items()):
            x, share = i - 0.4 + (k + 0.5) * wide, amount / frame.unit
            high = abs(share) * scale
            style = {"bottom": frame.roof, "color": colours[child], "label": "_entered"}
            _draw_bar(axes, x, high, wide * 0.85, share, **style)
            above = frame.roof + high + 0.03 * frame.most
            _write(axes, x, above, f"{share:.2f}", rotation=90, va="bottom", size=TICK - 2)
    for child, colour in colours.items():
        axes.scatter([], [], marker="s", color=colour, label=f"entered {visible(child, 20)}")
    return frame.roof + 0.85 * frame.most


def _draw_legend(axes: Axes, found: Sequence[Stage], frame: Frame) -> None:
    for kind, colour in COLOURS.items():
        if any(abs(getattr(stage, kind)) / frame.unit >= SMALL for stage in found):
            axes.scatter([], [], marker="s", color=colour, label=kind)
    if axes.get_legend_handles_labels()[1]:
        dense = {"handletextpad": 0.1, "columnspacing": 1.0, "borderaxespad": 0.0}
        axes.legend(loc="lower left", frameon=False, fontsize=TICK, ncols=8, **dense)


def _draw_bar(axes: Axes, x: float, high: float, wide: float, share: float, **style: Any) -> None:
    """A bar, hatched if the share it stands for is negative."""
    if share < 0:
        style |= {"hatch": "////", "edgecolor": "white"}
    axes.bar(x, high, wide, linewidth=0, **style)


def _end(name: str) -> str:
    """An end of the walk as a label: what it is, and the last names of where."""
    kind, _, path = name.partition(" ")
    return f"{visible(kind, 12)}\n{visible('.'.join(path.split('.')[-3:]), 24)}"


def _write(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    usual = {"fontsize": style.pop("size", TICK), "color": GREY, "ha": "center", "va": "center"}
    axes.text(x, y, text, **{**usual, "parse_math": False, **style})
