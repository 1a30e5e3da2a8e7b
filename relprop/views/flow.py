"""The ledger as a flow from the target to the inputs: what each part of the model lets through, and what is absorbed, lost or unread there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from relprop.errors import OptionError, message
from relprop.interpreter.ledger import Account, Ledger
from relprop.views.escape import visible
from relprop.views.figure import GREY, TICK, given, write_title
from relprop.views.shown import checked, target_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from relprop.explanation import Explanation

FLOW, KINDS = "#c7d8ea", {"absorbed": "#009e73", "lost": "#d55e00", "unread": "#999999"}
ARRIVED = "#2f5f9e"
SMALL = 0.002  # shares of Σ|R| at the start below which a part is drawn without a number


@dataclass(frozen=True)
class Stage:
    """The accounts of one part of the model, for one sample: what left the flow there, by kind, and what entered its own parts, by name."""

    name: str
    absorbed: float
    lost: float
    unread: float
    residual: float
    entered: dict[str, float]

    @property
    def left(self) -> float:
        """What of the flow ends here."""
        return self.absorbed + self.lost + self.unread + self.residual


def stages(ledger: Ledger, sample: int) -> list[Stage]:
    """The parts of the model in the order relevance comes to them: its top modules, and each entry of a list of blocks by itself.

    What is left after all of them is what the explained inputs received: started − Σ ``Stage.left`` = Σ ``Ledger.reached``.
    """
    groups: dict[str, list[Account]] = {}
    for account in ledger.accounts:
        groups.setdefault(part_of(account.path), []).append(account)
    if "" in groups and len(groups) > 1:  # operations between the parts: a pick of the class token, an added position embedding
        groups = _between(ledger.accounts, groups)
    return [_stage(name, accounts, sample) for name, accounts in groups.items()]


def part_of(path: str) -> str:
    """The module path up to its first number (``encoder.layer.3``), else its first two names at most."""
    names = path.split(".")
    numbers = [i for i, name in enumerate(names) if name.isdigit()]
    return ".".join(names[:numbers[0] + 1] if numbers else names[:2])


def _between(accounts: Sequence[Account], groups: dict[str, list[Account]]) -> dict[str, list[Account]]:
    """Top-level operations with the part that comes before them in the walk; those before the first part, with it."""
    found: dict[str, list[Account]] = {name: [] for name in groups if name}
    current = next(name for name in found)
    for account in accounts:
        current = part_of(account.path) or current
        found[current].append(account)
    return found


def _stage(name: str, accounts: list[Account], sample: int) -> Stage:
    def summed(amounts: Any) -> float:
        return float(sum(float(a[sample]) for a in amounts))
    entered: dict[str, float] = {}
    counts: dict[str, int] = {}
    for account in accounts:
        child = account.path[len(name) + 1:].split(".")[0] if account.path.startswith(f"{name}.") else ""
        if child:
            entered.setdefault(child, float(account.arrived[sample]))
            counts[child] = counts.get(child, 0) + 1
    return Stage(
        name, summed(v for a in accounts for v in a.absorbed.values()), summed(v for a in accounts for v in a.lost.values()), summed(a.unread for a in accounts),
        summed(a.residual for a in accounts), {child: amount for child, amount in entered.items() if counts[child] > 1},
    )


def ledger(explanation: Explanation, *, sample: int = 0, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Relevance of one sample from the target (left) to the inputs (right): the band is as wide as what is on its way; what ends at a part falls out of it.

    A part is a block, or a top module. Below it: how much was absorbed (by parameters and constants), lost (to denominators near 0) or unread (handed to what
    leads to no explained input). Above it: what entered its own parts (its attention, its MLP); the rest passed along the skip connections. Numbers are
    those of ``explanation.ledger``, in shares of what started; negative ones are hatched.

    Raises ``OptionError`` for a method without relevance.
    """
    sample, books = checked(explanation, sample), explanation.ledger
    if books is None or not books.accounts:
        raise OptionError(message(f"ledger() needs relevance: method {explanation.method!r} has no ledger", then=["relprop.explain(model, inputs)   # method='transformer_attribution'"]))
    found = stages(books, sample)
    start = float(books.started[sample])
    unit = abs(start) or 1.0
    widths = [start / unit]
    for stage in found:
        widths.append(widths[-1] - stage.left / unit)
    ends = {name: float(amount[sample]) / unit for name, amount in books.reached.items()}
    axes = given(ax, max(5.5, 0.62 * (len(found) + 2) + 1.2), 4.0)
    most = max(1.0, *(abs(w) for w in widths))
    _band(axes, widths)
    _write(axes, -0.95, 0, f"{visible(target_of(explanation, sample), 18)}\n{start:.3g}", ha="right", color="black")
    floor = -0.5 * most - 0.38 * most
    used = [kind for kind in KINDS if any(abs(getattr(s, kind)) / unit >= SMALL for s in found)]
    for i, stage in enumerate(found):
        _fall(axes, i, stage, widths[i + 1], unit, floor, most)
        _write(axes, i, floor - 0.34 * most, visible(stage.name or "model", 28), rotation=40, ha="right", va="top", color="black", rotation_mode="anchor")
        lines = [f"{visible(child, 9)} {amount / unit:.2f}" for child, amount in list(stage.entered.items())[:3]]
        _write(axes, i, 0.5 * most + 0.08 * most, "\n".join(lines), rotation=60, ha="left", va="bottom", size=TICK - 1.5, rotation_mode="anchor")
    _arrive(axes, len(found), ends, widths[-1])
    for k, kind in enumerate(used):
        axes.scatter([], [], marker="s", color=KINDS[kind], label=kind)
    if used:
        axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.02), frameon=False, fontsize=TICK, ncols=len(used), handletextpad=0.2, borderaxespad=0.0)
    axes.set_xlim(-2.2, len(found) + 2.6)
    axes.set_ylim(floor - 0.95 * most, 0.5 * most + 0.5 * most)
    axes.set_axis_off()
    write_title(axes, f"where the relevance of {target_of(explanation, sample)} went ({explanation.method}, rules {explanation.rules})" if title is None else title)
    return axes


def _band(axes: Axes, widths: list[float]) -> None:
    """What is on its way: at each part it narrows (or, where a part gave relevance back, widens) smoothly."""
    x, y = [-0.9], [abs(widths[0]) / 2]
    bend = (1 - np.cos(np.linspace(0, np.pi, 17))) / 2
    for i, (before, after) in enumerate(zip(widths[:-1], widths[1:], strict=True)):
        x += (i - 0.35 + 0.7 * np.linspace(0, 1, 17)).tolist()
        y += ((abs(before) + (abs(after) - abs(before)) * bend) / 2).tolist()
    x.append(len(widths) - 0.4)
    y.append(abs(widths[-1]) / 2)
    axes.fill_between(x, [-v for v in y], y, color=FLOW, linewidth=0, label="_band")


def _fall(axes: Axes, i: int, stage: Stage, after: float, unit: float, floor: float, most: float) -> None:
    """What ends at a part, as streams that fall to its foot."""
    left = i - 0.3
    shown = [(kind, getattr(stage, kind) / unit) for kind in KINDS if abs(getattr(stage, kind)) / unit >= SMALL]
    for kind, amount in shown:
        wide = 0.6 / len(shown)
        top, height = -abs(after) / 2, abs(amount)
        hatch: dict[str, Any] = {"hatch": "////", "edgecolor": "white"} if amount < 0 else {}
        axes.fill_between([left + 0.06, left + wide - 0.06], [top, top], [floor, floor], color=KINDS[kind], alpha=0.15, linewidth=0)
        axes.bar(left + wide / 2, -height * 0.3, wide - 0.04, bottom=floor, color=KINDS[kind], linewidth=0, label="_left", **hatch)
        text = f"{amount:.2f}" if abs(amount) >= 0.01 else f"{amount:.3f}"
        _write(axes, left + wide / 2, floor - 0.3 * height - 0.02 * most, text, va="top", color=KINDS[kind])
        left += wide


def _arrive(axes: Axes, at: int, ends: dict[str, float], width: float) -> None:
    """What the inputs (or the first attention map) received."""
    top, total = abs(width) / 2, sum(abs(v) for v in ends.values()) or 1.0
    middles = []
    for amount in ends.values():
        high = abs(width) * abs(amount) / total
        axes.bar(at + 0.72, -high, 0.22, bottom=top, color=ARRIVED, linewidth=0, label="_arrived", **({"hatch": "////", "edgecolor": "white"} if amount < 0 else {}))
        middles.append(top - high / 2)
        top -= high
    middles = _spread(middles, 0.13)
    for (name, amount), middle in zip(ends.items(), middles, strict=True):
        _write(axes, at + 0.95, middle, f"{visible(name, 26)} {amount:.2f}", ha="left", color=ARRIVED)


def _spread(places: list[float], least: float) -> list[float]:
    """Places from top to bottom with at least that much between them."""
    found: list[float] = []
    for place in places:
        found.append(min(place, found[-1] - least) if found else place)
    return found


def _write(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    axes.text(x, y, text, **{"fontsize": style.pop("size", TICK), "color": GREY, "ha": "center", "va": "center", "parse_math": False} | style)
