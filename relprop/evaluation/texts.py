"""Texts as the metrics take them: token ids, a score for every token, which of them count, and
which of them make up a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import InputError
from relprop.evaluation.base import bools, finite
from relprop.explanation import Explanation

Words = Sequence[Sequence[Sequence[int]]]


def scores_and_content(
    scores: Explanation | Tensor, content: Any, ids: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Scores and which tokens count, each (batch, tokens) as ``ids`` are, on the CPU. Raises
    ``InputError``."""
    if isinstance(scores, Explanation):
        content, scores = scores.content if content is None else content, scores.scores
    if content is None:
        fact = "content says which tokens are not special, and scores as a tensor do not"
        raise InputError(fact, then=["content=   # (batch, tokens), 1 for the words' tokens"])
    values = finite("scores", scores, "batch, tokens").cpu()
    if ids is not None and values.shape != ids.shape:
        given = f"scores are {list(values.shape)}, input_ids {list(ids.shape)}"
        raise InputError(f"{given}: a score for every token is needed")
    return values, bools("content", content, values.shape)


def text_of(
    inputs: Mapping[str, Tensor], scores: Explanation | Tensor, content: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, their scores, and which of them are content, each (batch, tokens), the last two on
    the CPU. Raises ``InputError``."""
    if not hasattr(inputs, "items"):
        fact = f"inputs is {type(inputs).__name__}: a text's tensors by name are needed"
        series = "InputPerturbation   # of pictures, series, tables, embeddings"
        raise InputError(fact, then=["{'input_ids': ids, 'attention_mask': mask}", series])
    if other := [name for name, value in inputs.items() if not isinstance(value, Tensor)]:
        fact = f"inputs: {', '.join(map(repr, other))} is no tensor"
        raise InputError(fact, then=['tokenizer(..., padding=True, return_tensors="pt")'])
    ids = inputs.get("input_ids")
    shapes = {name: f"{name} {list(value.shape)}" for name, value in inputs.items()}
    if ids is None or ids.dim() != 2 or not len(ids):
        there = ", ".join(shapes.values()) or "none"
        raise InputError(f"inputs: input_ids (batch, tokens) are needed; there are {there}")
    if uneven := [shapes[k] for k, v in inputs.items() if v.dim() == 0 or len(v) != len(ids)]:
        there = f"{', '.join(uneven)} beside {shapes['input_ids']}"
        raise InputError(f"inputs: {there}: one row per sample is needed")
    values, found = scores_and_content(scores, content, ids)
    mask = inputs.get("attention_mask")
    if mask is not None and (found & (mask.cpu() == 0)).any():
        raise InputError("content: some of these tokens are padding, their attention mask is 0")
    return ids, values, found


@guarded
def word_scores(scores: Explanation | Tensor, words: Words | None = None) -> list[Tensor]:
    """For each sample the scores of its words, (words,): a word scores as the best of its pieces;
    tokens of no word (special ones, padding) are left out.

    ``scores``: an explanation, which knows the words where ``explain`` knew the tokenizer, or
    (batch, tokens) with ``words``: of each sample the words, each with its tokens' places. Raises
    ``InputError``.
    """
    values, words = words_of(scores, words)
    return [
        torch.stack([row[list(word)].max() for word in sample]) if sample else row[:0]
        for row, sample in zip(values, words, strict=True)
    ]


def words_of(scores: Explanation | Tensor, words: Words | None) -> tuple[Tensor, Words]:
    """The tokens' scores, (batch, tokens), on the CPU, and of each sample the words' tokens. Raises
    ``InputError``."""
    if isinstance(scores, Explanation):
        known = scores.streams[scores.stream].words
        if words is None and known is not None:
            words = [[tokens for _, tokens in sample] for sample in known]
        scores = scores.scores
    if words is None:
        then = [
            "relprop.explain(model, inputs, processor=tokenizer)",
            "words=   # of each sample the words, each with its tokens' places",
        ]
        raise InputError("the words are not known", then=then)
    values = finite("scores", scores, "batch, tokens").cpu()
    if len(words) != len(values):
        raise InputError(f"words of {len(words)} samples, scores of {len(values)}")
    for i, sample in enumerate(words):
        _check_words(i, sample, values.shape[1])
    return values, words


def _check_words(number: int, sample: Sequence[Sequence[int]], tokens: int) -> None:
    places = [place for word in sample for place in word]
    inside = all(0 <= place < tokens for place in places)
    if not inside or not all(map(len, sample)) or len(set(places)) != len(places):
        fact = f"words of sample {number}: each needs tokens of its own"
        raise InputError(f"{fact}, with places from 0 to {tokens - 1}")
