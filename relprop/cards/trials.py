"""What speaks for and against a map: the same map of a model whose weights are shuffled, and what
the model says when parts of the input are covered, or heads taken away, beside others by chance."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from relprop.api.rounding import content_scores, rank_correlation
from relprop.error_boundary import answered
from relprop.errors import RelpropError, first_line, quietly
from relprop.explanation import Explanation
from relprop.progress import doing
from relprop.views.escape import markup

#: Shares of the input that are covered, and how many random orders stand beside the map's.
COVERED, ORDERS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8), 5
SAME, CLEAR = 0.005, 0.05
UNASKED = "it was not asked for"
WIDTH, HEIGHT, LEFT, TOP = 300, 150, 40, 10  # of the curves, in the picture's own units
Result = TypeVar("Result")


@dataclass(frozen=True)
class Comparison:
    """What a model says ``before`` and ``after`` something was done, and after it was done to each
    of ``others`` that chance chose.

    ``what``: what these numbers are (``"probability of 'cat'"``). ``done``, ``beside``: what was
    done, and to what others. ``verdicts``: the sentences for an ``after`` below almost all others,
    among them, and above them.
    """

    before: float
    after: float
    others: tuple[float, ...]
    what: str
    done: str
    beside: str
    verdicts: tuple[str, str, str]

    @property
    def interval(self) -> tuple[float, float, float]:
        """Of the others: the 5 % quantile, the median, the 95 % quantile."""
        low, middle, high = np.quantile(self.others, (0.05, 0.5, 0.95)).tolist()
        return low, middle, high

    def written(self, value: float) -> str:
        """A number as it is shown: three digits."""
        if not self.what.startswith("probability"):
            return f"{value:.3g}"
        return "under 0.001" if value < 0.001 else f"{value:.3f}"

    @property
    def verdict(self) -> str:
        """Whether it does more than chance; of two probabilities a difference below ``SAME`` is
        none."""
        (low, _, high), (below, among, above) = self.interval, self.verdicts
        same = SAME if self.what.startswith("probability") else 0.0
        if self.after < low - same:
            return below
        return above if self.after > high + same else among

    @property
    def sentence(self) -> str:
        """The numbers, and what they say."""
        low, middle, high = map(self.written, self.interval)
        return (
            f"{self.done} takes the {self.what} from {self.written(self.before)} to "
            f"{self.written(self.after)}; {self.beside}, to {middle} (median of "
            f"{len(self.others)}; 5–95\u00a0%: {low} to {high}). {self.verdict}"
        )


@dataclass(frozen=True)
class Deletion:
    """What the model says when the shares ``COVERED`` of its input are covered. ``by_map``: the
    strongest parts first; ``by_chance``: in each of ``ORDERS`` random orders. ``what``: what the
    numbers are (``"probability of 'cat'"``); ``parts``: what was covered."""

    by_map: tuple[float, ...]
    by_chance: tuple[tuple[float, ...], ...]
    what: str
    parts: str

    @property
    def chance(self) -> list[float]:
        """The mean over the random orders."""
        return [math.fsum(column) / len(column) for column in zip(*self.by_chance, strict=True)]

    @property
    def sentence(self) -> str:
        """What a fifth of the input does."""
        at = COVERED.index(0.2)
        return (
            f"Covering the strongest fifth of the {self.parts} takes the {self.what} from "
            f"{self.by_map[0]:.2f} to {self.by_map[at]:.2f}; covering a fifth drawn at random, "
            f"in scattered parts, to {self.chance[at]:.2f} (mean of {len(self.by_chance)})."
            f"{self._elsewhere(at)}"
        )

    def _elsewhere(self, at: int) -> str:
        """Where a fifth shows no difference, the share that shows the largest."""
        differences = [c - m for c, m in zip(self.chance, self.by_map, strict=True)]
        best = max(range(len(differences)), key=lambda k: abs(differences[k]))
        if abs(differences[at]) >= CLEAR or abs(differences[best]) < CLEAR:
            return ""
        both = f"{self.by_map[best]:.2f} and {self.chance[best]:.2f}"
        return f" The largest difference is at {COVERED[best]:.0%}: {both}."

    def html(self) -> str:
        """The sentence; the curves as SVG, and the numbers as a table for who does not see it."""
        every = [*self.by_map, *(p for row in self.by_chance for p in row)]
        low, high = min(0.0, *every), max(1.0 if min(every) >= 0 else 0.0, *every)

        def line(kind: str, values: Sequence[float]) -> str:
            across = [LEFT + WIDTH * x / COVERED[-1] for x in COVERED]
            down = [TOP + HEIGHT * (high - y) / ((high - low) or 1) for y in values]
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
            return f'<polyline class="{kind}" points="{points}"/>'

        curves = "".join(line("chance thin", row) for row in self.by_chance)
        curves += line("chance", self.chance) + line("by-map", self.by_map)
        base, end, what = TOP + HEIGHT, LEFT + WIDTH, markup(self.what, 200)
        marks = [(LEFT - 5, TOP + 8, f"{high:.3g}"), (LEFT - 5, base, f"{low:.3g}")]
        marks += [(LEFT + 16, base + 16, "0 %"), (end, base + 16, f"{COVERED[-1]:.0%} covered")]
        quarters = [(LEFT + WIDTH * k // 4 + 12, base + 16, COVERED[-1] * k / 4) for k in (1, 2)]
        marks += [(x, y, f"{share:.0%}") for x, y, share in quarters]
        texts = "".join(f'<text x="{x}" y="{y}" text-anchor="end">{t}</text>' for x, y, t in marks)
        head = "".join(f"<th scope=col>{share:.0%}</th>" for share in COVERED)
        rows = "".join(
            f"<tr><th scope=row>{name}</th>{''.join(f'<td>{p:.2f}</td>' for p in values)}</tr>"
            for name, values in (("strongest first", self.by_map), ("random", self.chance))
        )
        return (
            f'<p>{markup(self.sentence, 600)}</p><figure class="curve"><svg viewBox="0 0 360 195" '
            f'role="img" aria-label="{what} as parts of the input are covered; the table below '
            f'has the numbers"><path class="axis" d="M{LEFT},{TOP}V{base}H{end}"/>{curves}{texts}'
            '</svg><figcaption><span class="key by-map"></span> strongest first <span class="key '
            'chance"></span> in random order, mean <span class="key thin"></span> each of them'
            "</figcaption><details><summary>The numbers</summary>"
            f"<table><caption>{what} by share covered</caption><tr><td></td>{head}</tr>{rows}"
            "</table></details></figure>"
        )


@dataclass(frozen=True)
class Checks:
    """``concerns``: what speaks against the map, of ``Explanation.concerns``. ``control``:
    Spearman's ρ of a map and that of the same model with shuffled weights (NaN: one of them is
    constant). ``deletion``: what covering parts does. A text in place of one says why there is
    none."""

    concerns: tuple[str, ...] = ()
    control: float | str = UNASKED
    deletion: Deletion | str = UNASKED

    @property
    def control_sentence(self) -> str:
        """What the model with shuffled weights says."""
        if isinstance(self.control, str):
            return f"There is no map of a model with shuffled weights: {self.control}."
        if math.isnan(self.control):
            return "One of the maps, this one or that of the shuffled weights, is constant."
        alike = "alike: this map shows little of what the model has learned"
        unlike = "not alike: this map depends on what the model has learned"
        return (
            f"The same map of this model with its weights shuffled: rank correlation "
            f"{self.control:+.2f} ({alike if self.control > 0.5 else unlike})."
        )

    def html(self) -> str:
        """The section of a page."""
        if isinstance(self.deletion, str):
            covered = f"<p>Nothing was covered: {markup(self.deletion, 400)}.</p>"
        else:
            covered = self.deletion.html()
        return (
            f'<section class="checks"><h2>How far to trust it</h2>{listed(self.concerns)}'
            f"<p>{markup(self.control_sentence, 600)}</p>{covered}</section>"
        )


def listed(concerns: Iterable[str]) -> str:
    """What speaks against a map, as HTML."""
    lines = "".join(f"<li>{markup(line, 400)}</li>" for line in concerns)
    return f'<ul class="concerns">{lines}</ul>' if lines else ""


def tried(made: Callable[[], Result], what: str) -> Result | str:
    """What was made, or why nothing was. ``what``: what is being done, for who waits. What relprop
    warns of beside the map that is shown does not matter here."""
    try:
        with doing(what), quietly():
            return made()
    except RelpropError as error:
        return first_line(error)
    except Exception as error:  # of the user's model, or no memory: the card goes on without
        return first_line(answered(error, what))


def deleted(scores: Tensor, answers: Callable[[Tensor], Tensor], what: str, parts: str) -> Deletion:
    """The curve of one sample. ``scores`` (parts,); ``answers``: from (runs, parts), bool, which of
    the parts are covered, to (runs,), what the model says."""
    places, count = places_of(scores), len(scores)
    counts = [max(1, round(share * count)) for share in COVERED[1:]]
    covered = torch.stack([places < number for number in counts], 1).flatten(0, 1)
    plain, *found = answers(torch.cat([torch.zeros_like(covered[:1]), covered])).tolist()
    starts = range(0, len(found), len(counts))
    by_map, *by_chance = ((plain, *found[i : i + len(counts)]) for i in starts)
    return Deletion(by_map, tuple(by_chance), what, parts)


def places_of(scores: Tensor, seed: int = 0) -> Tensor:
    """(1 + ORDERS, parts): when each part is covered, the strongest first, and in random orders."""
    generator = torch.Generator().manual_seed(seed)
    orders = [scores.detach().cpu().double().sort(descending=True, stable=True).indices]
    orders += [torch.randperm(len(scores), generator=generator) for _ in range(ORDERS)]
    return torch.stack([order.argsort() for order in orders])


def shuffled(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy of a model, the numbers of each of its parameters in random order (Adebayo et al. 2018
    draw them anew, which a trained module no longer knows how to). Raises ``RelpropError`` for
    weights that are not at hand."""
    weights = list(model.parameters())
    if not all(type(p) is nn.Parameter and p.is_floating_point() for p in weights):
        raise RelpropError("its weights are no plain floating-point numbers")
    if any(p.is_meta for p in weights):
        raise RelpropError("its weights are not all in memory")
    drawn, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    for parameter in drawn.parameters():
        order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
        parameter.data = parameter.data.flatten()[order].view_as(parameter)
    return drawn


def control_of(
    model: nn.Module, own: Explanation, again: Callable[[nn.Module], Explanation]
) -> float | str:
    """Spearman's ρ over the content of the first sample, of all explained inputs, with the map of
    shuffled weights, or why there is none. ``again``: explains a model for the same input and
    target."""

    def alike() -> float:
        one, other = (content_scores(e, 0).detach().cpu() for e in (own, again(shuffled(model))))
        return float(rank_correlation(one, other)) if one.shape == other.shape else math.nan

    return tried(alike, "explaining the model with shuffled weights")


def made_by(method: str, rules: str, model: Mapping[str, Any] | None = None, call: str = "") -> str:
    """Version, weights, method, date and call of a card, in one line that can be copied.
    ``model``: what ``of_model`` says of it."""
    from relprop import __version__

    parts = [f"relprop {__version__}", f"{method}, rules {rules}"]
    if model is not None:
        name, weights = model["class"].rpartition(".")[2], model["weights"][:16]
        parts.insert(1, f"{name}, weights SHA-256 {weights}")
        parts += [date.today().isoformat(), call]
    return " · ".join(parts)
