"""Texts, their tokenizer, the model that classifies them, and what is measured: perturbation, AOPC,
LOdds, Kendall's τ, rationales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from relprop.data import Sample, Word, split_words, word_pieces
from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError
from relprop.evaluation.base import finite
from relprop.evaluation.confidence import KendallConfidence
from relprop.evaluation.entries import Entry
from relprop.evaluation.faithfulness import AOPC, LOdds
from relprop.evaluation.measures import (
    Batch,
    BothCurves,
    ClassCorrelation,
    Maps,
    Measure,
    OfLabel,
    Randomisation,
    Statistic,
    mean_of,
)
from relprop.evaluation.perturbation import TextPerturbation
from relprop.evaluation.tasks import Task
from relprop.evaluation.words import PrecisionAtK, TokenF1
from relprop.explanation import Explanation
from relprop.runs.preparing import Texts


@guarded
@dataclass(frozen=True, eq=False)
class TextTask(Task):
    """Texts (or pairs of texts) and a fast tokenizer with a padding token. ``max_length``: longer
    texts are cut; ``None``: at what the tokenizer says its model takes."""

    tokenizer: Any = None
    max_length: int | None = None

    kind: ClassVar[str] = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self.tokenizer, "pad_token_id", None) is None:
            fact = "TextTask(tokenizer=): a fast tokenizer with a padding token is needed"
            raise OptionError(fact)

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), **self.texts.identity()}

    @cached_property
    def texts(self) -> Texts:
        """What turns samples into inputs."""
        return Texts(self.tokenizer, self.max_length)

    def possible(self, sample: Sample) -> list[Measure]:
        found: list[Measure] = []
        if sample.label is not None:
            found += [TextCurve("negative"), TextCurve("positive")]
        found += [Removal(AOPC()), Removal(LOdds()), Confidence(), ClassCorrelation()]
        if sample.rationale is not None:
            found += [Rationale(), Answer()]
        return [*found, Randomisation()]

    def inputs(self, samples: Sequence[Sample]) -> Any:
        (group,) = self.texts.groups(samples, self.model)
        return group.inputs

    def parts(self, samples: Sequence[Sample], inputs: Any) -> dict[str, Any]:
        given = [_words(s.inputs) if s.words is None else s.words for s in samples]
        pieces = [word_pieces(words, inputs, row) for row, words in enumerate(given)]
        special = torch.tensor([record.special_tokens_mask for record in inputs.encodings]).bool()
        own = [_apart(found) for found in pieces]
        if empty := [sample.key for sample, words in zip(samples, own, strict=True) if not words]:
            raise InputError(f"text {empty[0]!r} has no words that the model sees")
        return {"content": ~special, "pieces": pieces, "words": own}

    def scores(self, e: Explanation, batch: Batch) -> Tensor:
        return e["input_ids"].scores.cpu()

    def own(self, values: Tensor, batch: Batch) -> Tensor:
        tokens = batch.parts["content"].shape[1]
        if values.dim() != 2 or values.shape[1] != tokens:
            given = f"maps of shape {list(values.shape)}"
            needed = f"a number for each of {tokens} tokens is needed, (batch, {tokens})"
            raise InputError(f"{given}: {needed}")
        return finite("maps", values, "batch, tokens")

    def floor(self, entry: Entry, batch: Batch) -> Tensor:
        tokens = batch.parts["content"].shape[1]
        if entry.name == "random":
            # a text's noise does not depend on how far its batch is padded
            return self.noise(batch, [-(-tokens // 512) * 512])[:, :tokens]
        return -torch.arange(tokens, dtype=torch.float32).expand(len(batch.samples), -1)


def _words(given: str | tuple[str, ...]) -> tuple[Word, ...]:
    texts = (given,) if isinstance(given, str) else given
    return tuple(word for number, text in enumerate(texts) for word in split_words(text, number))


def _apart(pieces: Sequence[Sequence[int]]) -> list[list[int]]:
    """The words the model sees, each with tokens of its own: one that two words share belongs to
    the first."""
    taken: set[int] = set()
    found = []
    for word in pieces:
        own = [token for token in word if token not in taken]
        taken.update(own)
        if own:
            found.append(own)
    return found


class TextCurve(BothCurves):
    """Perturbation of texts."""

    kind = TextPerturbation

    def curve(self, metric: Any, task: Any, batch: Batch, values: Tensor) -> Any:
        given = task.model, batch.inputs, values, batch.labels
        return metric(*given, content=batch.parts["content"])


@dataclass(frozen=True)
class Removal(OfLabel):
    """AOPC or LOdds of the predicted class: a change of probability, or of its logarithm, at every
    share of words."""

    metric: AOPC | LOdds

    statistics = (mean_of("mean", lambda t: t.mean(1)),)

    def classes(self, batch: Batch) -> list[Tensor]:
        return [batch.predicted]

    def __call__(self, task: Any, batch: Batch, maps: Maps) -> Tensor:
        given = task.model, batch.inputs, maps.of(batch.predicted)
        words, pad = batch.parts["words"], task.tokenizer.pad_token_id
        if isinstance(self.metric, AOPC):
            return self.metric(*given, pad_id=pad, words=words).changes
        token = pad if self.metric.protocol == "paper" else task.tokenizer.mask_token_id
        return self.metric(*given, replace_with=token, words=words).changes


@dataclass(frozen=True)
class Confidence(OfLabel):
    """Kendall's τ of the predicted class's scores and every other class's."""

    metric: KendallConfidence = field(default_factory=KendallConfidence)
    name: str = "Kendall τ"

    statistics = (mean_of("τ", of_classes=True),)

    def classes(self, batch: Batch) -> list[Tensor]:
        return [torch.full_like(batch.predicted, c) for c in range(batch.logits.shape[1])]

    def __call__(self, task: Any, batch: Batch, maps: Maps) -> Tensor:
        scores = torch.stack([maps.of(classes) for classes in self.classes(batch)], 1)
        return self.metric(scores, batch.predicted, content=batch.parts["content"])[:, None]


@dataclass(frozen=True)
class Rationale(OfLabel):
    """Token-F1 of the best words against the rationale, for the label's class."""

    metric: TokenF1 = field(default_factory=TokenF1)

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        each = tuple(
            mean_of(f"k = {k}", lambda t, i=i: t[:, i], 100)  # type: ignore[misc]
            for i, k in enumerate(self.metric.k)
        )
        return (mean_of("mean over k", lambda t: t.mean(1), 100), *each)

    def __call__(self, task: Any, batch: Batch, maps: Maps) -> Tensor:
        found, truth = [], []
        samples = zip(maps.of(batch.main()), batch.parts["pieces"], batch.samples, strict=True)
        for scores, pieces, sample in samples:
            seen = [i for i, word in enumerate(pieces) if word]
            cut = [i for i, word in enumerate(pieces) if not word]  # off: missed, so at the end
            found.append(torch.stack([scores[list(pieces[i])].max() for i in seen]))
            truth.append([sample.rationale[i] for i in (*seen, *cut)])
        return self.metric(found, truth)


@dataclass(frozen=True)
class Answer(OfLabel):
    """How many tokens of the rationale's words are among the best K, for the label's class."""

    metric: PrecisionAtK = field(default_factory=PrecisionAtK)

    statistics = (mean_of("tokens"),)

    def __call__(self, task: Any, batch: Batch, maps: Maps) -> Tensor:
        truth = torch.zeros_like(batch.parts["content"])
        for row, pieces, sample in zip(truth, batch.parts["pieces"], batch.samples, strict=True):
            words = zip(pieces, sample.rationale, strict=True)
            row[[token for word, reason in words if reason for token in word]] = True
        return self.metric(maps.of(batch.main()), truth, content=batch.parts["content"])[:, None]
