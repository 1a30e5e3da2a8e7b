"""Faithfulness of texts' explanations: what becomes of the predicted class's probability without
the top words (AOPC), or with others in their place (LOdds)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError, UndefinedValueWarning, warn
from relprop.evaluation.base import answering, chosen, logits_of, place_of, ranked, rankings
from relprop.evaluation.texts import Words, text_of, word_scores, words_of
from relprop.explanation import Explanation

PROTOCOLS = ("paper", "paper-code")
SHORT = 10


@guarded
@dataclass(frozen=True, eq=False)
class FaithfulnessCurve:
    """What was measured at every share: ``changes`` (batch, shares), float64, after ``shares`` of
    the words were removed; NaN for a text that was skipped."""

    changes: Tensor
    shares: tuple[float, ...]

    @property
    def values(self) -> Tensor:
        """(batch,), float64: each text's mean over shares, for ``bootstrap``; NaN for a text that
        was skipped."""
        return self.changes.mean(1)

    @property
    def at(self) -> Tensor:
        """(shares,), float64: the mean over texts at each share, AOPC(k) or LOdds(k)."""
        return self.changes.nanmean(0)

    @property
    def mean(self) -> float:
        """The mean over texts and shares."""
        return float(self.values.nanmean())


@dataclass(frozen=True)
class _Removal:
    """How the words of texts go, in order of falling score: deleted, so that the text becomes
    shorter and is filled up with ``token``; or with ``token`` in their place."""

    inputs: Mapping[str, Tensor]
    order: Sequence[Sequence[Sequence[int]]]
    token: int
    delete: bool

    @cached_property
    def present(self) -> Tensor:
        """(texts, tokens), bool: what is no padding."""
        ids = self.inputs["input_ids"]
        return self.inputs.get("attention_mask", torch.ones_like(ids)).cpu() != 0

    def gone(self, tenths: Sequence[tuple[int, int]]) -> Tensor:
        """(texts, 1 + shares, tokens), bool: what is removed at every share, before them nothing.
        Raises ``InputError``."""
        if self.delete:
            _check_deletable(self.inputs)
        texts, tokens = self.inputs["input_ids"].shape
        gone = torch.zeros(texts, len(tenths) + 1, tokens, dtype=torch.bool)
        for i, words in enumerate(self.order):
            for j, (over, under) in enumerate(tenths):
                first = words[: len(words) * over // under]
                gone[i, j + 1, [place for word in first for place in word]] = True
        return gone

    def log_probabilities(self, model: Any, texts: Tensor, gone: Tensor, batch: int) -> Tensor:
        """(texts, variants), float64: of each text's first variant's class in all of them; like
        lengths share a batch."""
        device, _ = place_of(model, self.inputs["input_ids"])
        rows, removed = texts.repeat_interleave(gone.shape[1]), gone[texts].flatten(0, 1)
        lengths = (self.present[rows] & ~removed if self.delete else self.present[rows]).sum(1)
        found: dict[int, Tensor] = {}
        with answering(model):
            for at in lengths.argsort(descending=True, stable=True).split(batch):
                inputs = {n: v.to(device) for n, v in self._left(rows[at], removed[at]).items()}
                found.update(zip(at.tolist(), logits_of(model, **inputs), strict=True))
        logits = torch.stack([found[i] for i in range(len(rows))]).unflatten(0, (len(texts), -1))
        predicted = logits[:, :1].argmax(2, keepdim=True).expand(-1, logits.shape[1], 1)
        return logits.double().log_softmax(2).gather(2, predicted)[..., 0]

    def _left(self, rows: Tensor, removed: Tensor) -> dict[str, Tensor]:
        named = {name: value[rows.to(value.device)].cpu() for name, value in self.inputs.items()}
        if not self.delete:
            return named | {"input_ids": named["input_ids"].masked_fill(removed, self.token)}
        left = self.present[rows] & ~removed
        together = left.int().sort(dim=1, descending=True, stable=True).indices
        together = together[:, : int(left.sum(1).max())]
        gone = ~left.gather(1, together)
        fills = dict.fromkeys(named, 0) | {"input_ids": self.token}
        return {n: v.gather(1, together).masked_fill(gone, fills[n]) for n, v in named.items()}


@dataclass(frozen=True)
class _Faithfulness:
    """What AOPC and LOdds share."""

    protocol: str = "paper"

    source: ClassVar[str]

    def __post_init__(self) -> None:
        chosen("protocol", self.protocol, PROTOCOLS)

    @property
    def tenths(self) -> tuple[tuple[int, int], ...]:
        """The shares removed, each as a fraction (over, under)."""
        first, parts = (0, 10) if self.protocol == "paper" else (1, 9)
        return tuple((i, parts) for i in range(first, parts + 1))

    def _measure(
        self, model: Any, removal: _Removal, ranks: Tensor, batch_size: int
    ) -> FaithfulnessCurve:
        """log p(ŷ | x̃) at every share beside log p(ŷ | x), of every text, and of these what the
        metric makes of them."""
        if batch_size < 1 or removal.token < 0:
            numbers = f"batch_size={batch_size}, token id {removal.token}"
            raise OptionError(f"{numbers}: at least 1 and 0")
        present, gone = removal.present, removal.gone(self.tenths)
        skipped = present.sum(1) < (SHORT if self.protocol == "paper-code" else 0)
        if skipped.any():
            fact = f"protocol='paper-code': {int(skipped.sum())} of {len(present)} texts have fewer"
            then = "and are skipped; their value is NaN"
            warn(UndefinedValueWarning(f"{fact} than {SHORT} tokens {then}"))
        if removal.delete and not (present[:, None] & ~gone).any(2).all():
            fact = "some text has no token left after its words are deleted"
            raise InputError(f"{fact}: content= must be False at special tokens")
        texts = (~skipped & ranks).nonzero()[:, 0]
        logs = torch.full(gone.shape[:2], torch.nan, dtype=torch.float64)
        if len(texts):
            logs[texts] = removal.log_probabilities(model, texts, gone, batch_size)
        shares = tuple(over / under for over, under in self.tenths)
        return FaithfulnessCurve(self._change(logs[:, :1], logs[:, 1:]), shares)

    def _change(self, before: Tensor, after: Tensor) -> Tensor:
        raise NotImplementedError


def _check_deletable(inputs: Mapping[str, Tensor]) -> None:
    shape = inputs["input_ids"].shape
    if "attention_mask" not in inputs:
        fact = "AOPC deletes tokens and pads the rest"
        raise InputError(f"{fact}: an attention_mask is needed among the inputs")
    if other := [f"{name} {list(v.shape)}" for name, v in inputs.items() if v.shape != shape]:
        needed = f"everything must be (batch, tokens) like input_ids {list(shape)}"
        raise InputError(f"inputs: {', '.join(other)}: AOPC deletes tokens, so {needed}")
    if "position_ids" in inputs:
        fact = "inputs: AOPC deletes tokens, after which position_ids would have gaps"
        raise InputError(f"{fact}: let the model number the positions")


@guarded
@dataclass(frozen=True)
class AOPC(_Faithfulness):
    """Area over the perturbation curve (AttCAT, Eq. 13): p(ŷ|x) − p(ŷ|x̃ᵏ), x̃ᵏ without its top k %
    of words. Higher is better.

    k = 0, 10, ..., 100 (``paper``), then the mean over k. ``paper-code``: |p(ŷ|x) − p(ŷ|x̃ᵏ)|, k in
    ninths, texts of fewer than 10 tokens skipped. ŷ is the class predicted for x. Of n words
    ⌊kn/100⌋ are deleted: the text becomes shorter, and is padded only to share a batch.
    """

    name: ClassVar[str] = "AOPC"
    higher_is_better: ClassVar[bool] = True
    source: ClassVar[str] = "Qiang et al., NeurIPS 2022 (AttCAT), Eq. 13 and Tab. 1"
    deviations: ClassVar[tuple[str, ...]] = (
        "The notebook takes absolute differences, so that a rise counts like a fall "
        "(paper-code); the paper's differences are signed (paper, the default).",
        "The notebook removes in nine steps of 1/9, here read as 1/9, 2/9, ..., 9/9; the "
        "paper in eleven from 0 to 100 %.",
        "The notebook skips texts of fewer than 10 tokens (paper-code; special tokens "
        "are counted here, padding is not).",
        "The notebook masks [CLS] and [SEP] out of attention while it explains; that is "
        "a matter of the explanation, not of this metric.",
        "Words where they are known, each scoring as its best piece, else tokens; the "
        "paper says both. Of equal scores the earlier goes first.",
    )

    def __call__(
        self,
        model: Any,
        inputs: Mapping[str, Tensor],
        scores: Explanation | Tensor,
        *,
        pad_id: int,
        words: Words | None = None,
        content: Any = None,
        batch_size: int = 64,
    ) -> FaithfulnessCurve:
        """The curve of a batch of texts.

        ``inputs``: ``input_ids`` and ``attention_mask`` (batch, tokens), and others of that shape.
        ``scores`` (batch, tokens) or an explanation. ``words``: of each text its words, each with
        its tokens' places; or ``content`` (batch, tokens): each content token is a word; an
        explanation knows one of them. ``pad_id`` fills up shortened texts, masked out.
        ``batch_size``: texts per forward pass. Raises ``InputError``.
        """
        order, ranks = _order(self.name, inputs, scores, words, content)
        return self._measure(model, _Removal(inputs, order, pad_id, True), ranks, batch_size)

    def _change(self, before: Tensor, after: Tensor) -> Tensor:
        change = before.exp() - after.exp()
        return change.abs() if self.protocol == "paper-code" else change


@guarded
@dataclass(frozen=True)
class LOdds(_Faithfulness):
    """Log-odds (AttCAT, Eq. 14): log p(ŷ|x̃ᵏ)/p(ŷ|x), x̃ᵏ with its top k % of words replaced, the
    attention mask left at 1. Lower is better.

    k = 0, 10, ..., 100 and replacement by [PAD] (``paper``); k in ninths, by [MASK], and texts of
    fewer than 10 tokens skipped (``paper-code``). ŷ is the class predicted for x; of n words
    ⌊kn/100⌋ are replaced, token by token.
    """

    name: ClassVar[str] = "LOdds"
    higher_is_better: ClassVar[bool] = False
    source: ClassVar[str] = "Qiang et al., NeurIPS 2022 (AttCAT), Eq. 14 and Tab. 1"
    deviations: ClassVar[tuple[str, ...]] = (
        "The paper replaces by [PAD] (paper, the default), the notebook by [MASK] "
        "(paper-code): replace_with is that token's id.",
        *AOPC.deviations[1:],
    )

    def __call__(
        self,
        model: Any,
        inputs: Mapping[str, Tensor],
        scores: Explanation | Tensor,
        *,
        replace_with: int,
        words: Words | None = None,
        content: Any = None,
        batch_size: int = 64,
    ) -> FaithfulnessCurve:
        """The curve of a batch of texts. ``replace_with``: the id of [PAD] (``paper``) or [MASK]
        (``paper-code``); the rest as for ``AOPC``. Raises ``InputError``."""
        order, ranks = _order(self.name, inputs, scores, words, content)
        removal = _Removal(inputs, order, replace_with, False)
        return self._measure(model, removal, ranks, batch_size)

    def _change(self, before: Tensor, after: Tensor) -> Tensor:
        return after - before


def _order(
    name: str,
    inputs: Mapping[str, Tensor],
    scores: Explanation | Tensor,
    words: Words | None,
    content: Any,
) -> tuple[list[list[Sequence[int]]], Tensor]:
    """Of each text its words (as their tokens' places) in order of falling score, and which texts
    have one. Raises ``InputError``."""
    if words is not None and content is not None:
        raise InputError("words and content are both given: one of them says what is removed")
    knows = isinstance(scores, Explanation) and scores.streams[scores.stream].words is not None
    if words is None and (content is not None or not knows):
        _, values, kept = text_of(inputs, scores, content)
        words = [[[int(place)] for place in row.nonzero()[:, 0]] for row in kept]
    else:
        values, words = words_of(scores, words)
        kept = torch.zeros(values.shape, dtype=torch.bool)
        for row, sample in zip(kept, words, strict=True):
            row[[place for word in sample for place in word]] = True
        text_of(inputs, values, kept)
    if empty := [i for i, sample in enumerate(words) if not sample]:
        raise InputError(f"text {empty[0]} has no words", then=["leave it out, and say so"])
    scored = word_scores(values, words)
    order = [[w[i] for i in ranked(of).tolist()] for of, w in zip(scored, words, strict=True)]
    return order, rankings(name, scored)
