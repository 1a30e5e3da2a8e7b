"""What is measured of each map of a run: how much of it is rounding, and what the model says when
the strongest fifth of the input is covered, or a random one; and what follows from both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F

from relprop.adapters import adapter_for
from relprop.api.explain import explain
from relprop.api.rounding import content_scores, rank_correlation
from relprop.cards import covering
from relprop.cards.answer_data import probability_of, scores_of, words_of
from relprop.cards.chances import chance_of
from relprop.cards.trials import places_of
from relprop.data import Sample
from relprop.errors import RelpropError, counted, first_line, quietly
from relprop.explanation import Explanation
from relprop.opening.wrapped import base_model
from relprop.runs import ExplainWork
from relprop.tracer.binding import bind
from relprop.views.heat import patches
from relprop.views.regions import AREAS, single_pixels

#: A map whose rank correlation with that in float64 is below this is partly rounding; the share of
#: the input's content that is covered.
STABLE, FIFTH = 0.95, 0.2
SAME = 0.05  # a smaller difference of two probabilities is none
CERTAIN, DOUBTFUL, NOT_JUDGED = "certain", "doubtful", "not judged"
NO_CLASS = "what was explained is no single class of which the model gives a probability"


@dataclass(frozen=True, eq=False)
class CheckedMap:
    """One method's map of one sample.

    ``stability``: its rank correlation with the same run in float64 (NaN: all scores are equal).
    ``covered``: how likely the explained class is once the strongest fifth of the content is
    covered, and once each of the random fifths is. ``why``: why there is no ``stability`` or
    ``covered``, by that name.
    """

    explanation: Explanation
    stability: float | None = None
    covered: tuple[float, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def probability(self) -> float | None:
        """How likely the model finds the explained class, if it is one."""
        return probability_of(self.explanation, 0)

    @property
    def concerns(self) -> list[str]:
        """What speaks against the map, of ``Explanation.concerns``."""
        return self.explanation.concerns()

    @property
    def chance(self) -> float:
        """The mean of ``covered`` over the random fifths."""
        return math.fsum(self.covered[1:]) / len(self.covered[1:])

    @property
    def doubts(self) -> list[str]:
        """Why the map is doubtful; empty if nothing that was measured says so."""
        found = [counted(len(self.concerns), "concern")] if self.concerns else []
        if self.stability is not None and not self.stability >= STABLE:
            equal = math.isnan(self.stability)
            low = f"rank correlation with float64 {self.stability:.2f}, below {STABLE}"
            found.append("all scores are equal" if equal else low)
        least, mean = (min(self.covered[1:]), self.chance) if self.covered else (1.0, 1.0)
        if self.covered and self.covered[0] > min(least + SAME, mean - SAME):
            found.append(
                f"with the strongest fifth covered the probability is {self.covered[0]:.2g}, with "
                f"a random fifth {mean:.2g} (lowest: {least:.2g})"
            )
        return found

    @property
    def verdict(self) -> tuple[str, str]:
        """``CERTAIN``, ``DOUBTFUL`` or ``NOT_JUDGED``, and the reason."""
        if doubts := self.doubts:
            return DOUBTFUL, "; ".join(doubts)
        if self.why:
            return NOT_JUDGED, "; ".join(f"no {name}: {why}" for name, why in self.why.items())
        return CERTAIN, "no concerns, stable, and the strongest fifth takes more than a random one"


def checked(
    work: ExplainWork, indices: Sequence[int], found: Sequence[Sequence[Explanation]]
) -> list[list[CheckedMap]]:
    """The maps of some samples of a run, each by every method, measured with the run's own model
    and preparation."""
    samples = [work.source[i] for i in indices]
    by_method = []
    for own in zip(*found, strict=True):
        four = zip(samples, own, _doubles(work, samples, own), indices, strict=True)
        by_method.append([_checked(work, *one) for one in four])
    return [list(row) for row in zip(*by_method, strict=True)]


def _checked(
    work: ExplainWork, sample: Sample, e: Explanation, double: Explanation | RelpropError, seed: int
) -> CheckedMap:
    why: dict[str, str] = {}
    stability: float | None = None
    covered: tuple[float, ...] = ()
    if isinstance(double, RelpropError):
        why["stability"] = first_line(double)
    else:
        own, other = (content_scores(one, 0).cpu() for one in (e, double))
        stability = float(rank_correlation(own, other))
        # a run keeps neither the words of its tokens nor the books
        streams = {n: replace(s, words=double.streams[n].words) for n, s in e.streams.items()}
        e = replace(e, streams=streams, ledger=double.ledger, started=double.started)
    try:
        covered = _covered(work, sample, e, seed)
    except RelpropError as error:
        why["covering"] = first_line(error)
    return CheckedMap(e, stability, covered, why)


def _doubles(
    work: ExplainWork, samples: Sequence[Sample], own: Sequence[Explanation]
) -> list[Explanation | RelpropError]:
    """The same maps in float64, of the classes that were explained, or why there is none: a model
    need not run in float64."""
    question, found = work.calls[own[0].method], dict[int, Explanation | RelpropError]()
    how: dict[str, Any] = {"processor": work.preparation.processor, "memory": work.memory}
    how |= {"on_unknown": work.on_unknown, "rules": question.rules, **question.options}
    how |= {"method": question.method, "precision": "float64"}
    try:
        for group in work.preparation.groups(samples, work.model):
            targets = [own[place].target[0] for place in group.places]
            chosen = targets if all(isinstance(t, int) for t in targets) else None
            with quietly():  # the run has warned
                each = explain(work.model, group.inputs, chosen, **how)
            found |= {place: each[k] for k, place in enumerate(group.places)}
    except RelpropError as error:
        if len(samples) == 1:
            return [error]
        alone = zip(samples, own, strict=True)
        return [one for sample, e in alone for one in _doubles(work, [sample], [e])]
    return [found[place] for place in range(len(samples))]


def _covered(work: ExplainWork, sample: Sample, e: Explanation, seed: int) -> tuple[float, ...]:
    """How likely the explained class is with the strongest fifth of the words or patches covered
    (of a map of single pixels: of ``AREAS`` areas along each side), and with each random fifth.
    Raises ``RelpropError`` where nothing can be covered."""
    model, base = work.model, base_model(work.model)
    chance = chance_of(e, exclusive=not adapter_for(base).is_multi_label(base))
    if chance is None or e.probability is None:
        raise RelpropError(NO_CLASS)
    if len(e.streams) > 1:
        raise RelpropError("several inputs are explained")
    ((name, stream),) = e.streams.items()
    inputs = next(work.preparation.groups([sample], model)).inputs
    words, text = words_of(e, 0), work.source.kind == "text"
    if not text and len(stream.grid or ()) != 2:
        raise RelpropError("what has scores are no patches of a picture")
    scores = torch.tensor(scores_of(e, 0, words)) if text else torch.from_numpy(patches(stream, 0))
    if not text and single_pixels(stream):
        height, width = (min(AREAS, n) for n in scores.shape)
        scores = F.adaptive_avg_pool2d(scores[None], (height, width))[0]
    if scores.numel() < 2:
        raise RelpropError("there is one word or patch")
    gone = places_of(scores.flatten(), seed) < max(1, round(FIFTH * scores.numel()))
    if text:
        changed = covering.covered_words(model, inputs, words, gone, e)
    else:
        image = bind(inputs).tensors[0][0]
        changed = {name: covering.covered_picture(image, gone.view(-1, *scores.shape))}
    return tuple(covering.logits_with(model, inputs, changed, chance).tolist())
