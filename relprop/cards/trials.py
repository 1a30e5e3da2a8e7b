"""What speaks for and against a map: the same map of a model whose weights are shuffled, and what
the model says when parts of the input are covered, the strongest first or in random order."""

from __future__ import annotations

import copy
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import torch
from torch import Tensor, nn

from relprop.api.rounding import rank_correlation
from relprop.explanation import Explanation
from relprop.views.escape import markup

#: Shares of the input that are covered, and how many random orders stand beside the map's.
COVERED, ORDERS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8), 5


@dataclass(frozen=True)
class Deletion:
    """What the model says when the shares ``COVERED`` of its input are covered. ``by_map``: the
    strongest parts first; ``by_chance``: in each of ``ORDERS`` random orders. ``what``: what the
    numbers are (``"probability of 'cat'"``); ``parts``: what was covered, and how."""

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
            f"{self.by_map[0]:.2f} to {self.by_map[at]:.2f}; a random fifth, to "
            f"{self.chance[at]:.2f} (mean of {len(self.by_chance)})."
        )


@dataclass(frozen=True)
class Checks:
    """``control``: Spearman's ρ of a map and that of the same model with shuffled weights (NaN: one
    of them is constant); ``None`` with ``why_no_control``. ``deletion``: ``None`` with
    ``why_no_deletion``. ``concerns``: what speaks against the map, of ``Explanation.concerns``."""

    control: float | None = None
    deletion: Deletion | None = None
    concerns: tuple[str, ...] = ()
    why_no_control: str = "it was not asked for"
    why_no_deletion: str = "it was not asked for"

    @property
    def control_sentence(self) -> str:
        """What the model with shuffled weights says."""
        if self.control is None:
            return f"There is no map of a model with shuffled weights: {self.why_no_control}."
        if math.isnan(self.control):
            return "One of the maps, this one or that of the shuffled weights, is constant."
        alike = "alike: this map shows little of what the model has learned"
        unlike = "not alike: this map depends on what the model has learned"
        verdict = alike if self.control > 0.5 else unlike
        return (
            f"The same map of this model with its weights shuffled: rank correlation "
            f"{self.control:+.2f} ({verdict})."
        )

    def html(self) -> str:
        """The section of a page."""
        lines = "".join(f"<li>{markup(line, 400)}</li>" for line in self.concerns)
        concerns = f'<ul class="concerns">{lines}</ul>' if lines else ""
        if self.deletion is None:
            curve = f"<p>Nothing was covered: {markup(self.why_no_deletion, 400)}.</p>"
        else:
            curve = f"<p>{markup(self.deletion.sentence, 600)}</p>{_chart(self.deletion)}"
        return (
            f'<section class="checks"><h2>How far to trust it</h2>{concerns}'
            f"<p>{markup(self.control_sentence, 600)}</p>{curve}</section>"
        )


def _chart(deletion: Deletion) -> str:
    """Both curves as SVG, and the numbers as a table for who does not see it."""
    every = [*deletion.by_map, *(p for row in deletion.by_chance for p in row)]
    low, high = min(0.0, *every), max(1.0 if min(every) >= 0 else 0.0, *every)
    width, height, left, top = 300, 150, 40, 10

    def line(values: Sequence[float], kind: str) -> str:
        points = " ".join(
            f"{left + width * x / COVERED[-1]:.1f},"
            f"{top + height * (1 - (y - low) / ((high - low) or 1)):.1f}"
            for x, y in zip(COVERED, values, strict=True)
        )
        return f'<polyline class="{kind}" points="{points}"/>'

    curves = "".join(line(row, "chance thin") for row in deletion.by_chance)
    curves += line(deletion.chance, "chance") + line(deletion.by_map, "by-map")
    head = "".join(f"<th scope=col>{share:.0%}</th>" for share in COVERED)
    rows = "".join(
        f"<tr><th scope=row>{name}</th>{''.join(f'<td>{p:.2f}</td>' for p in values)}</tr>"
        for name, values in (("strongest first", deletion.by_map), ("random", deletion.chance))
    )
    base, end = top + height, left + width
    return (
        f'<figure class="curve"><svg viewBox="0 0 360 195" role="img" aria-label="'
        f"{markup(deletion.what, 200)} as parts of the input are covered; the table below has the "
        f'numbers"><path class="axis" d="M{left},{top}V{base}H{end}"/>{curves}'
        f'<text x="{left - 5}" y="{top + 8}" text-anchor="end">{high:.3g}</text>'
        f'<text x="{left - 5}" y="{base}" text-anchor="end">{low:.3g}</text>'
        f'<text x="{left}" y="{base + 16}">0 %</text><text x="{end}" y="{base + 16}" '
        f'text-anchor="end">{COVERED[-1]:.0%} covered</text></svg>'
        '<figcaption><span class="key by-map"></span> strongest first '
        '<span class="key chance"></span> in random order</figcaption>'
        f"<details><summary>The numbers</summary><table><caption>"
        f"{markup(deletion.what, 200)} by share covered</caption>"
        f"<tr><td></td>{head}</tr>{rows}</table></details></figure>"
    )


def deleted(
    scores: Tensor, answers: Callable[[Tensor], Tensor], what: str, parts: str, seed: int = 0
) -> Deletion:
    """The curve of one sample. ``scores`` (parts,); ``answers``: from (runs, parts), bool, which of
    the parts are covered, to (runs,), what the model says."""
    places, count = places_of(scores, seed), len(scores)
    covered = torch.stack([places < round(share * count) for share in COVERED], 1)
    found = answers(covered.flatten(0, 1)).view(len(places), len(COVERED)).tolist()
    return Deletion(tuple(found[0]), tuple(map(tuple, found[1:])), what, parts)


def places_of(scores: Tensor, seed: int = 0) -> Tensor:
    """(1 + ORDERS, parts): when each part is covered, the strongest first, and in random orders."""
    generator = torch.Generator().manual_seed(seed)
    orders = [scores.detach().cpu().double().sort(descending=True, stable=True).indices]
    orders += [torch.randperm(len(scores), generator=generator) for _ in range(ORDERS)]
    return torch.stack([order.argsort() for order in orders])


def shuffled(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy of a model, the numbers of each of its parameters in random order (Adebayo et al. 2018
    draw them anew, which a trained module no longer knows how to)."""
    drawn, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    for parameter in drawn.parameters():
        order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
        parameter.data = parameter.data.flatten()[order].view_as(parameter)
    return drawn


def control_of(
    explanation: Explanation, again: Callable[[nn.Module], Explanation], model: nn.Module
) -> float:
    """Spearman's ρ over the content of the first sample, of all explained inputs, with the map of
    shuffled weights. ``again``: explains a model for the same input and target."""

    def numbers(found: Explanation) -> Tensor:
        streams = found.streams.values()
        return torch.cat([s.scores[0][s.content[0]].detach().cpu().double() for s in streams])

    other = numbers(again(shuffled(model)))
    own = numbers(explanation)
    return float(rank_correlation(own, other)) if own.shape == other.shape else math.nan


def made_by(model: nn.Module, explanation: Explanation, call: str) -> str:
    """Version, weights, method, date and call of a card, in one line that can be copied."""
    from relprop import __version__
    from relprop.runs.fingerprints import of_model

    facts = of_model(model)
    return " · ".join(
        [
            f"relprop {__version__}",
            f"{facts['class'].rpartition('.')[2]}, weights SHA-256 {facts['weights'][:16]}",
            f"{explanation.method}, rules {explanation.rules}",
            date.today().isoformat(),
            call,
        ]
    )


def command_line(arguments: Sequence[str]) -> str:
    """What was typed, fit to be typed again."""
    return shlex.join(["relprop", *arguments])


def chance_of(explanation: Explanation) -> Callable[[Any], Tensor] | None:
    """How likely the explained class is, from logits (batch, classes): a softmax where classes
    exclude each other, a sigmoid where they are true side by side; ``None`` for other targets."""
    target = explanation.target[0]
    if not isinstance(target, int) or isinstance(target, bool):
        return None
    if explanation.predictions is not None:
        return lambda logits: logits.double().softmax(-1)[:, target]
    return lambda logits: logits.double()[:, target].sigmoid()
