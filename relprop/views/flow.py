"""The ledger as a flow from the target to the inputs: what each part of the model lets through, and
what is absorbed, lost or unread there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
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

FLOW, KINDS = "#c7d8ea", {"absorbed": "#009e73", "lost": "#d55e00", "unread": "#808080"}
ARRIVED = "#2f5f9e"
MODULES = ("#0072b2", "#cc79a7", "#e69f00", "#56b4e9")
BETWEEN = "\0"  # begins the key of operations between parts; no module's path does
SMALL = 0.002  # shares of Σ|R| at the start below which a part is drawn without a number


@dataclass(frozen=True)
class Stage:
    """The accounts of one part of the model, for one sample: what left the flow there, by kind, and
    what entered its own parts, by name."""

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
    """The parts of the model in the order relevance comes to them: its top modules, and each entry
    of a list of blocks by itself.

    Operations between the parts (a pick of the class token, an added position embedding) are a
    stage of their own where something ends there. What is left after all stages is what the
    explained inputs received: started − Σ ``Stage.left`` = Σ ``Ledger.reached``.
    """
    lists = {
        account.path.split(".")[0]
        for account in ledger.accounts
        if any(name.isdigit() for name in account.path.split("."))
    }
    groups: dict[str, list[Account]] = {}
    current = 0
    for account in ledger.accounts:
        name = part_of(account.path, lists)
        if name == "" and (not groups or not next(reversed(groups)).startswith(BETWEEN)):
            current += 1
        groups.setdefault(name or f"{BETWEEN}{current}", []).append(account)
    start = abs(float(ledger.started[sample])) or 1.0
    found, carried = [], 0.0
    for name, accounts in groups.items():
        stage = _stage("" if name.startswith(BETWEEN) else name, accounts, sample)
        if stage.name or max(abs(getattr(stage, kind)) for kind in KINDS) >= SMALL * start:
            found.append(
                replace(
                    stage,
                    name=stage.name or _named_by_what_ends(accounts, sample),
                    residual=stage.residual + carried,
                )
            )
            carried = 0.0
        else:
            carried += stage.left
    if found and carried:
        found[-1] = replace(found[-1], residual=found[-1].residual + carried)
    return found


def part_of(path: str, lists: set[str]) -> str:
    """The module path up to its first number (``encoder.layer.3``), else its first name, or its
    first two where that holds blocks (``bert.pooler``)."""
    names = path.split(".")
    number = next((i for i, name in enumerate(names) if name.isdigit()), None)
    return ".".join(
        names[: number + 1] if number is not None else names[:2] if names[0] in lists else names[:1]
    )


def short_names(names: Sequence[str]) -> list[str]:
    """Each name's end, with what comes before it where that is a number's list or two ends are the
    same."""
    ends = [
        ".".join(name.split(".")[-2:]) if name.split(".")[-1].isdigit() else name.split(".")[-1]
        for name in names
    ]
    return [end if ends.count(end) == 1 else name for end, name in zip(ends, names, strict=True)]


def _named_by_what_ends(accounts: Sequence[Account], sample: int) -> str:
    """The parameter or constant that absorbed most between two parts, else the operation at which
    most ended."""
    absorbed = {
        name: abs(float(amount[sample])) for a in accounts for name, amount in a.absorbed.items()
    }
    best = max(absorbed, key=lambda name: absorbed[name], default="")
    if best and absorbed[best] > 0:
        return best
    last = max(
        accounts,
        key=lambda a: (
            abs(float(a.unread[sample])) + sum(abs(float(v[sample])) for v in a.lost.values())
        ),
    )
    return last.op.split(".")[1] if last.op.count(".") > 1 else last.op


def _stage(name: str, accounts: list[Account], sample: int) -> Stage:
    def summed(amounts: Any) -> float:
        return float(sum(float(a[sample]) for a in amounts))

    entered: dict[str, float] = {}
    counts: dict[str, int] = {}
    for account in accounts:
        child = (
            account.path[len(name) + 1 :].split(".")[0]
            if name and account.path.startswith(f"{name}.")
            else ""
        )
        if child:
            entered.setdefault(child, float(account.arrived[sample]))
            counts[child] = counts.get(child, 0) + 1
    return Stage(
        name,
        summed(v for a in accounts for v in a.absorbed.values()),
        summed(v for a in accounts for v in a.lost.values()),
        summed(a.unread for a in accounts),
        summed(a.residual for a in accounts),
        {child: amount for child, amount in entered.items() if counts[child] > 1},
    )


def ledger(
    explanation: Explanation, *, sample: int = 0, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Relevance of one sample from the target (left) to the inputs (right): the band is as wide as
    what is on its way; what ends at a part falls out of it.

    A part is a block, or a top module. Below it: how much was absorbed (by parameters and
    constants), lost (to denominators near 0) or unread (handed to what leads to no explained
    input). Above it: what entered its own parts (its attention, its MLP); the rest passed along the
    skip connections. Numbers are those of ``explanation.ledger``, in shares of what started;
    negative ones are hatched.

    Raises ``OptionError`` for a method without relevance.
    """
    sample, books = checked(explanation, sample), explanation.ledger
    if books is None or not books.accounts:
        raise OptionError(
            message(
                f"ledger() needs relevance: method {explanation.method!r} has no ledger",
                then=["relprop.explain(model, inputs)   # method='transformer_attribution'"],
            )
        )
    found = stages(books, sample)
    start = float(books.started[sample])
    unit = abs(start) or 1.0
    widths = [start / unit]
    for stage in found:
        widths.append(widths[-1] - stage.left / unit)
    ends = {name: float(amount[sample]) / unit for name, amount in books.reached.items()}
    most = max(1.0, *(abs(w) for w in widths))
    amounts = [abs(getattr(s, kind)) / unit for s in found for kind in KINDS]
    deep = min(0.4, 0.5 * most / max(amounts)) if max(amounts) >= SMALL else 0.0
    foot = -0.85 * most
    under = foot - deep * max(amounts) - 0.22 * most
    axes = given(ax, max(6.4, 0.6 * (len(found) + 4)), 4.2)
    _band(axes, widths)
    _write(
        axes,
        -1.0,
        0,
        f"{visible(target_of(explanation, sample), 16)}\n{start:.3g}",
        ha="right",
        color="black",
    )
    for i, (stage, name) in enumerate(
        zip(found, short_names([s.name for s in found]), strict=True)
    ):
        _fall(axes, i, stage, widths[i + 1], unit, foot, deep)
        _write(
            axes,
            i,
            under,
            visible(name, 28),
            rotation=40,
            ha="right",
            va="top",
            color="black",
            rotation_mode="anchor",
        )
    _arrive(axes, len(found), ends, widths[-1], most)
    top = _inside(axes, found, unit, 0.5 * most + 0.12 * most, most)
    for kind in KINDS:
        if any(abs(getattr(s, kind)) / unit >= SMALL for s in found):
            axes.scatter([], [], marker="s", color=KINDS[kind], label=kind)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(
            loc="lower left",
            frameon=False,
            fontsize=TICK,
            ncols=8,
            handletextpad=0.1,
            columnspacing=1.0,
            borderaxespad=0.0,
        )
    axes.set_xlim(-2.6, len(found) + 3.2)
    axes.set_ylim(under - 0.75 * most, top)
    axes.set_axis_off()
    whose = (
        f"relevance of {visible(target_of(explanation, sample), 30)}: "
        f"{explanation.method}, rules {explanation.rules}"
    )
    write_title(axes, whose if title is None else title)
    return axes


def _inside(axes: Axes, found: list[Stage], unit: float, foot: float, most: float) -> float:
    """Above the band, what entered each part's own modules, a bar each; returns where the picture
    ends."""
    names = list(dict.fromkeys(child for stage in found for child in stage.entered))[: len(MODULES)]
    largest = max((abs(a) / unit for s in found for a in s.entered.values()), default=0.0)
    if not names or not largest:
        return foot + 0.1 * most
    high = 0.5 * most / largest
    for i, stage in enumerate(found):
        shown = [child for child in names if child in stage.entered]
        for k, child in enumerate(shown):
            amount, wide = stage.entered[child] / unit, 0.8 / len(shown)
            x = i - 0.4 + (k + 0.5) * wide
            axes.bar(
                x,
                abs(amount) * high,
                wide * 0.85,
                bottom=foot,
                color=MODULES[names.index(child)],
                linewidth=0,
                label="_entered",
                **_sign(amount),
            )
            _write(
                axes,
                x,
                foot + abs(amount) * high + 0.03 * most,
                f"{amount:.2f}",
                rotation=90,
                va="bottom",
                size=TICK - 2,
            )
    for child in names:
        axes.scatter(
            [],
            [],
            marker="s",
            color=MODULES[names.index(child)],
            label=f"entered {visible(child, 20)}",
        )
    return foot + 0.5 * most + 0.35 * most


def _sign(amount: float) -> dict[str, Any]:
    """How a negative amount is told from a positive one."""
    return {"hatch": "////", "edgecolor": "white"} if amount < 0 else {}


def _band(axes: Axes, widths: list[float]) -> None:
    """What is on its way: at each part it narrows (or, where a part gave relevance back, widens)
    smoothly; where its sign turns, it pinches."""
    x, y = [-0.9], [abs(widths[0]) / 2]
    bend = (1 - np.cos(np.linspace(0, np.pi, 17))) / 2
    for i, (before, after) in enumerate(pairwise(widths)):
        x += (i - 0.35 + 0.7 * np.linspace(0, 1, 17)).tolist()
        y += (np.abs(before + (after - before) * bend) / 2).tolist()
    x.append(len(widths) - 0.4)
    y.append(abs(widths[-1]) / 2)
    axes.fill_between(x, [-v for v in y], y, color=FLOW, linewidth=0, label="_band")


def _fall(
    axes: Axes, i: int, stage: Stage, after: float, unit: float, foot: float, deep: float
) -> None:
    """What ends at a part, as streams that fall to its foot."""
    shown = [
        (kind, getattr(stage, kind) / unit)
        for kind in KINDS
        if abs(getattr(stage, kind)) / unit >= SMALL
    ]
    wide = 0.8 / max(len(shown), 1)
    for k, (kind, amount) in enumerate(shown):
        x = i - 0.4 + (k + 0.5) * wide
        axes.fill_between(
            [x - 0.4 * wide, x + 0.4 * wide],
            [-abs(after) / 2] * 2,
            [foot] * 2,
            color=KINDS[kind],
            alpha=0.15,
            linewidth=0,
        )
        axes.bar(
            x,
            -abs(amount) * deep,
            wide * 0.8,
            bottom=foot,
            color=KINDS[kind],
            linewidth=0,
            label="_left",
            **_sign(amount),
        )
        text = f"{amount:.2f}" if abs(amount) >= 0.01 else f"{amount:.3f}"
        _write(
            axes,
            x,
            foot - deep * abs(amount) - 0.02,
            text,
            va="top",
            color=KINDS[kind],
            size=TICK if len(shown) == 1 else TICK - 2,
        )


def _arrive(axes: Axes, at: int, ends: dict[str, float], width: float, most: float) -> None:
    """What the inputs (or the first attention map) received."""
    top, total = abs(width) / 2, sum(abs(v) for v in ends.values()) or 1.0
    middles = []
    for amount in ends.values():
        high = abs(width) * abs(amount) / total
        axes.bar(
            at + 0.72,
            -high,
            0.22,
            bottom=top,
            color=ARRIVED,
            linewidth=0,
            label="_arrived",
            **_sign(amount),
        )
        middles.append(top - high / 2)
        top -= high
    middles = _spread(middles, 0.24 * most)
    for (name, amount), middle in zip(ends.items(), middles, strict=True):
        _write(axes, at + 0.95, middle, f"{_end(name)}\n{amount:.2f}", ha="left", color=ARRIVED)


def _end(name: str) -> str:
    """An end of the walk as a label: what it is, and the last names of where."""
    kind, _, path = name.partition(" ")
    return f"{visible(kind, 12)}\n{visible('.'.join(path.split('.')[-3:]), 24)}"


def _spread(places: list[float], least: float) -> list[float]:
    """Places from top to bottom with at least that much between them."""
    found: list[float] = []
    for place in places:
        found.append(min(place, found[-1] - least) if found else place)
    return found


def _write(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    axes.text(
        x,
        y,
        text,
        **{
            "fontsize": style.pop("size", TICK),
            "color": GREY,
            "ha": "center",
            "va": "center",
            "parse_math": False,
        }
        | style,
    )
