"""What is measured of each map of a run: how much of it is rounding, and what the model says when
the strongest fifth of the input is covered, or a random one; and what follows from both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relprop.adapters import adapter_for
from relprop.api.explain import explain
from relprop.api.rounding import content_scores, rank_correlation
from relprop.cards.trials import places_of
from relprop.data import Sample
from relprop.error_boundary import guarded
from relprop.errors import RelpropError, counted, first_line, quietly
from relprop.explanation import Explanation, TokenScores
from relprop.opening.wrapped import base_model
from relprop.runs import ExplainWork
from relprop.runs.explaining import class_scores
from relprop.views.heat import patches
from relprop.views.regions import AREAS, single_pixels

#: A map whose rank correlation with that in float64 is below this is partly rounding.
STABLE = 0.95
#: The share of the input's content that is covered.
FIFTH = 0.2
CERTAIN, DOUBTFUL, NOT_JUDGED = "certain", "doubtful", "not judged"
NO_CLASS = "what was explained is no single class of which the model gives a probability"
NO_CHECKS = "it was not asked for"


@dataclass(frozen=True, eq=False)
class Judged:
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
        found = self.explanation.probability
        return None if found is None else float(found[0])

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
        if self.covered and not self.covered[0] < min(self.covered[1:]):
            found.append(
                f"with the strongest fifth covered the probability is {self.covered[0]:.2g}, with "
                f"a random fifth it was as low as {min(self.covered[1:]):.2g}"
            )
        return found

    @property
    def verdict(self) -> tuple[str, str]:
        """``CERTAIN``, ``DOUBTFUL`` or ``NOT_JUDGED``, and the reason."""
        if doubts := self.doubts:
            return DOUBTFUL, "; ".join(doubts)
        if self.why:
            return NOT_JUDGED, "; ".join(f"no {name}: {why}" for name, why in self.why.items())
        return CERTAIN, "no concerns, stable, and the strongest fifth takes more than any random"


@dataclass(frozen=True, eq=False)
class Checker:
    """Measures the maps of a run's samples with the run's own model and preparation."""

    work: ExplainWork

    def __call__(
        self, indices: Sequence[int], found: Sequence[Sequence[Explanation]]
    ) -> list[list[Judged]]:
        """The maps of some samples, each by every method."""
        samples = [self.work.source[i] for i in indices]
        by_method = [
            list(map(self._of, samples, own, self._doubles(samples, own), indices))
            for own in zip(*found, strict=True)
        ]
        return [list(row) for row in zip(*by_method, strict=True)]

    def _of(
        self, sample: Sample, e: Explanation, double: Explanation | RelpropError, seed: int
    ) -> Judged:
        why: dict[str, str] = {}
        stability: float | None = None
        covered: tuple[float, ...] = ()
        if isinstance(double, RelpropError):
            why["stability"] = first_line(double)
        else:
            own, other = (content_scores(one, 0).cpu() for one in (e, double))
            stability = float(rank_correlation(own, other))
            e = replace(_with_words(e, double), ledger=double.ledger, started=double.started)
        try:
            covered = self._covered(sample, e, seed)
        except RelpropError as error:
            why["covering"] = first_line(error)
        return Judged(e, stability, covered, why)

    def _doubles(
        self, samples: Sequence[Sample], own: Sequence[Explanation]
    ) -> list[Explanation | RelpropError]:
        """The same maps in float64, of the classes that were explained, or why there is none: a
        model need not run in float64."""
        work, question = self.work, self.work.calls[own[0].method]
        how: dict[str, Any] = {"processor": work.preparation.processor, "memory": work.memory}
        how |= {"on_unknown": work.on_unknown, "rules": question.rules, **question.options}
        found: dict[int, Explanation | RelpropError] = {}
        try:
            for group in work.preparation.groups(samples, work.model):
                targets = [own[place].target[0] for place in group.places]
                chosen = targets if all(isinstance(t, int) for t in targets) else None
                how |= {"method": question.method, "precision": "float64"}
                with quietly():  # the run has warned
                    each = explain(work.model, group.inputs, chosen, **how)
                found |= {place: each[k] for k, place in enumerate(group.places)}
        except RelpropError as error:
            if len(samples) == 1:
                return [error]
            alone = zip(samples, own, strict=True)
            return [one for sample, e in alone for one in self._doubles([sample], [e])]
        return [found[place] for place in range(len(samples))]

    def _covered(self, sample: Sample, e: Explanation, seed: int) -> tuple[float, ...]:
        """How likely the explained class is with the strongest fifth covered, and with each random
        one. Raises ``RelpropError`` where nothing can be covered."""
        target = e.target[0]
        if not isinstance(target, int) or e.probability is None:
            raise RelpropError(NO_CLASS)
        if len(e.streams) > 1:
            raise RelpropError("several inputs are explained")
        stream = next(iter(e.streams.values()))
        parts = _words if self.work.source.kind == "text" else _areas
        scores, inputs_of = parts(self.work, sample, stream)
        gone = places_of(scores, seed) < round(FIFTH * len(scores))
        logits = answers_when_covered(self.work, inputs_of(gone), len(gone))
        return tuple(chances(self.work, logits)[:, target].tolist())


@guarded
def answers_when_covered(work: ExplainWork, inputs: object, count: int) -> Tensor:
    """The class scores, (count, classes): what the user's model raises is a ``RelpropError``."""
    found = class_scores(work.model, inputs, count)
    if found is None:
        raise RelpropError(NO_CLASS)
    return found


def chances(work: ExplainWork, logits: Tensor) -> Tensor:
    """How likely each class is, from logits (..., classes): of a model whose labels are true side
    by side each by itself."""
    model = base_model(work.model)
    return logits.sigmoid() if adapter_for(model).is_multi_label(model) else logits.softmax(-1)


Covering = tuple[Tensor, Callable[[Tensor], object]]


def _areas(work: ExplainWork, sample: Sample, stream: TokenScores) -> Covering:
    """The patches of a picture (of a map of single pixels areas, ``AREAS`` along each side), and
    what covers some of them, (runs, patches), with the picture's mean colour."""
    image = sample.inputs
    if stream.grid is None or len(stream.grid) != 2:
        raise RelpropError("what has scores are no patches of a picture")
    scores = torch.from_numpy(patches(stream, 0))
    if single_pixels(stream):
        height, width = (min(AREAS, n) for n in scores.shape)
        scores = F.adaptive_avg_pool2d(scores[None], (height, width))[0]

    def covered(gone: Tensor) -> object:
        small = gone.view(-1, 1, *scores.shape).double()
        mask = F.interpolate(small, image.shape[1:]).bool()
        images = torch.where(mask, image.mean((1, 2), keepdim=True), image)
        samples = [replace(sample, inputs=one) for one in images]
        return next(work.preparation.groups(samples, work.model)).inputs

    return scores.flatten(), covered


def _words(work: ExplainWork, sample: Sample, stream: TokenScores) -> Covering:
    """The words of a text, else its tokens, and what covers some of them, (runs, words): their
    attention mask is 0."""
    group = next(work.preparation.groups([sample], work.model))
    if "attention_mask" not in group.inputs:
        raise RelpropError("the model takes no attention_mask")
    tokens = [[i] for i in stream.content[0].nonzero().flatten().tolist()]
    words = [made for _, made in stream.words[0]] if stream.words is not None else tokens
    scores = torch.stack([stream.scores[0][made].sum() for made in words])

    def covered(gone: Tensor) -> object:
        inputs = {k: v.expand(len(gone), *v.shape[1:]) for k, v in group.inputs.items()}
        mask = inputs["attention_mask"].clone()
        for run, row in enumerate(gone.tolist()):
            mask[run, [t for k, made in enumerate(words) if row[k] for t in made]] = 0
        return inputs | {"attention_mask": mask}

    return scores, covered


def _with_words(e: Explanation, double: Explanation) -> Explanation:
    """A stored explanation with the words of its tokens, which a run does not keep."""
    streams = {n: replace(s, words=double.streams[n].words) for n, s in e.streams.items()}
    return replace(e, streams=streams)
