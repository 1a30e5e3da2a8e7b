"""Faithfulness of texts' explanations: what becomes of the predicted class's probability without
the top words (AOPC), or with others in their place (LOdds)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from relprop.errors import InputError, OptionError, message, warn
from relprop.evaluation.base import chosen, logits_of, place_of, ranked
from relprop.evaluation.texts import Words, text_of, words_of
from relprop.explanation import Explanation
from relprop.tracer.surroundings import evaluating

PROTOCOLS = ("paper", "paper-code")
SHORT = 10


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
class _Faithfulness:
    """What AOPC and LOdds share."""

    protocol: str = "paper"

    source: ClassVar[str]

    def __post_init__(self) -> None:
        chosen("protocol", self.protocol, PROTOCOLS)

    @property
    def tenths(self) -> tuple[tuple[int, int], ...]:
        """The shares removed, each as a fraction (over, under)."""
        return (
            tuple((i, 10) for i in range(11))
            if self.protocol == "paper"
            else tuple((i, 9) for i in range(1, 10))
        )

    def _measure(
        self,
        model: Any,
        inputs: Mapping[str, Tensor],
        scores: Explanation | Tensor,
        words: Words | None,
        content: Any,
        token: int,
        batch_size: int,
        delete: bool,
    ) -> FaithfulnessCurve:
        """log p(ŷ | x̃) at every share beside log p(ŷ | x), of every text, and of these what the
        metric makes of them."""
        if batch_size < 1 or token < 0:
            raise OptionError(f"batch_size={batch_size}, token id {token}: at least 1 and 0")
        ids, order = _orders(inputs, scores, words, content)
        if delete and "attention_mask" not in inputs:
            raise InputError(
                "AOPC deletes tokens and pads the rest: an attention_mask is needed "
                "among the inputs"
            )
        if delete and (
            other := [
                f"{name} {list(v.shape)}" for name, v in inputs.items() if v.shape != ids.shape
            ]
        ):
            raise InputError(
                f"inputs: {', '.join(other)}: AOPC deletes tokens, so everything must be "
                f"(batch, tokens) like input_ids {list(ids.shape)}"
            )
        if delete and "position_ids" in inputs:
            raise InputError(
                "inputs: AOPC deletes tokens, after which position_ids would have gaps: "
                "let the model number the positions"
            )
        present = inputs.get("attention_mask", torch.ones_like(ids)).cpu() != 0
        gone = torch.zeros(
            len(ids), len(self.tenths) + 1, ids.shape[1], dtype=torch.bool
        )  # the first of each text: nothing
        for i, sample in enumerate(order):
            for j, (over, under) in enumerate(self.tenths):
                places = [place for word in sample[: len(sample) * over // under] for place in word]
                gone[i, j + 1, places] = True
        short = (
            present.sum(1) < SHORT
            if self.protocol == "paper-code"
            else torch.zeros(len(ids), dtype=torch.bool)
        )
        if short.any():
            warn(
                f"protocol='paper-code': {int(short.sum())} of {len(ids)} texts have "
                f"fewer than {SHORT} tokens and are skipped; their value is NaN"
            )
        if delete and not (present[:, None] & ~gone).any(2).all():
            raise InputError(
                "some text has no token left after its words are deleted: content must "
                "leave special tokens out"
            )
        texts = (~short).nonzero()[:, 0]
        logs = torch.full(gone.shape[:2], torch.nan, dtype=torch.float64)
        if len(texts):
            rows, removed = texts.repeat_interleave(gone.shape[1]), gone[texts].flatten(0, 1)
            logits = _all_logits(
                model, inputs, rows, removed, present, token, batch_size, delete
            ).unflatten(0, (len(texts), -1))
            predicted = logits[:, :1].argmax(2, keepdim=True).expand(-1, logits.shape[1], 1)
            logs[texts] = logits.double().log_softmax(2).gather(2, predicted)[..., 0]
        return FaithfulnessCurve(
            self._change(logs[:, :1], logs[:, 1:]),
            tuple(over / under for over, under in self.tenths),
        )

    def _change(self, before: Tensor, after: Tensor) -> Tensor:
        raise NotImplementedError


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
        (
            "The notebook takes absolute differences, so that a rise counts like a fall "
            "(paper-code); the paper's differences are signed (paper, the default)."
        ),
        (
            "The notebook removes in nine steps of 1/9, here read as 1/9, 2/9, ..., 9/9; the "
            "paper in eleven from 0 to 100 %."
        ),
        (
            "The notebook skips texts of fewer than 10 tokens (paper-code; special tokens "
            "are counted here, padding is not)."
        ),
        (
            "The notebook masks [CLS] and [SEP] out of attention while it explains; that is "
            "a matter of the explanation, not of this metric."
        ),
        (
            "Words where they are known, each scoring as its best piece, else tokens; the "
            "paper says both. Of equal scores the earlier goes first."
        ),
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
        return self._measure(model, inputs, scores, words, content, pad_id, batch_size, True)

    def _change(self, before: Tensor, after: Tensor) -> Tensor:
        change = before.exp() - after.exp()
        return change.abs() if self.protocol == "paper-code" else change


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
        (
            "The paper replaces by [PAD] (paper, the default), the notebook by [MASK] "
            "(paper-code): replace_with is that token's id."
        ),
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
        return self._measure(model, inputs, scores, words, content, replace_with, batch_size, False)

    def _change(self, before: Tensor, after: Tensor) -> Tensor:
        return after - before


def _orders(
    inputs: Mapping[str, Tensor], scores: Explanation | Tensor, words: Words | None, content: Any
) -> tuple[Tensor, list[list[Sequence[int]]]]:
    """Token ids, and of each text its words (as their tokens' places) in order of falling score.
    Raises ``InputError``."""
    if words is not None and content is not None:
        raise InputError("words and content are both given: one of them says what is removed")
    known = (
        isinstance(scores, Explanation)
        and content is None
        and scores.streams[scores.stream].words is not None
    )
    if words is None and not known:
        ids, values, kept = text_of(inputs, scores, content)
        words = [[[int(place)] for place in row.nonzero()[:, 0]] for row in kept]
    else:
        values, words = words_of(scores, words)
        kept = torch.zeros(values.shape, dtype=torch.bool)
        for row, sample in zip(kept, words, strict=True):
            row[[place for word in sample for place in word]] = True
        ids, _, _ = text_of(inputs, values, kept)
    if empty := [i for i, sample in enumerate(words) if not sample]:
        raise InputError(
            message(f"text {empty[0]} has no words", then=["leave it out, and say so"])
        )
    best = [
        torch.stack([row[list(word)].max() for word in sample])
        for row, sample in zip(values, words, strict=True)
    ]
    return ids, [
        [sample[i] for i in ranked(of).tolist()] for of, sample in zip(best, words, strict=True)
    ]


def _all_logits(
    model: Any,
    inputs: Mapping[str, Tensor],
    rows: Tensor,
    removed: Tensor,
    present: Tensor,
    token: int,
    batch_size: int,
    delete: bool,
) -> Tensor:
    """(variants, classes): the logits of each variant, text ``rows[i]`` without the tokens
    ``removed[i]``; like lengths share a batch."""
    device, _ = place_of(model, inputs["input_ids"])
    left = present[rows] & ~removed if delete else present[rows]
    lengths = left.sum(1)
    found: dict[int, Tensor] = {}
    with torch.no_grad(), evaluating(model) if isinstance(model, nn.Module) else nullcontext():
        for at in lengths.argsort(descending=True, stable=True).split(batch_size):
            if delete:
                order = (
                    left[at]
                    .int()
                    .sort(dim=1, descending=True, stable=True)
                    .indices[:, : int(lengths[at].max())]
                )  # what is left, moved together
                kept = left[at].gather(1, order)
                fill = {name: token if name == "input_ids" else 0 for name in inputs}
                named = {
                    name: value[rows[at].to(value.device)]
                    .cpu()
                    .gather(1, order)
                    .masked_fill(~kept, fill[name])
                    for name, value in inputs.items()
                }
            else:
                named = {
                    name: value[rows[at].to(value.device)].cpu() for name, value in inputs.items()
                }
                named["input_ids"] = named["input_ids"].masked_fill(removed[at], token)
            logits = logits_of(model, **{name: value.to(device) for name, value in named.items()})
            found.update(zip(at.tolist(), logits, strict=True))
    return torch.stack([found[i] for i in range(len(rows))])
