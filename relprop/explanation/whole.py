"""What a whole answer rests on: the explanations of its tokens added up, over the prompt alone."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relprop.adapters.texts import Text
from relprop.adapters.words import Pieces
from relprop.explanation.explanation import Explanation
from relprop.explanation.tokens import ON_THE_ANSWER, TokenScores

if TYPE_CHECKING:
    from relprop.explanation.generation import Generation

SUMS = ("scores", "row", "identity")


def whole(generation: Generation) -> Explanation:
    """One explanation of each sample's answer, whose scores are the sums of its tokens' over the
    prompt, and 0 elsewhere; an input that holds nothing of the prompt is left out."""
    steps, first = generation.steps, generation.steps[0]
    streams = {n: _summed([e.streams[n] for e in steps]) for n in first.streams}
    sizes = {n: s.scores.detach().double().abs() for n, s in streams.items()}
    every = torch.stack([size.sum(1) for size in sizes.values()]).sum(0)
    own = torch.zeros_like(every)
    if generation.stream in streams:
        stream = streams[generation.stream]
        before = (stream.source < generation.prompt).to(stream.scores.device)
        own = sizes[stream.name][:, ~before].sum(1)
        streams[stream.name] = _of_the_prompt(stream, before)
    shares = (own / every).where(every > 0, 0.0).tolist()
    ledgers = [e.ledger for e in steps if e.ledger is not None]
    started = [e.started for e in steps if e.started is not None]
    none: dict[str, Any] = dict.fromkeys(("blocks", "labels", "probability", "predictions"))
    return replace(
        first,
        streams={n: s for n, s in streams.items() if bool(s.content.any())} or streams,
        target=tuple(f"the answer {answer_text(generation, i)!r}" for i in range(len(generation))),
        output=generation.output.sum(1),
        ledger=reduce(add, ledgers) if ledgers else None,
        started=torch.stack(started).sum(0) if started else None,
        facts={**first.facts, ON_THE_ANSWER: shares},
        **none,
    )


def answer_text(generation: Generation, sample: int) -> str:
    """What a sample's answer reads."""
    labels = [label for label in generation.labels[sample] if label]
    return " ".join(word for word, _ in Pieces(labels, [False] * len(labels)).words())


def _summed(steps: list[TokenScores]) -> TokenScores:
    """One input's scores of all steps together, without what ``keep=`` kept of each."""
    sums: dict[str, Any] = {n: torch.stack([getattr(s, n) for s in steps]).sum(0) for n in SUMS}
    return replace(steps[0], **sums, matrix=None, input=None, layers=None)


def _of_the_prompt(stream: TokenScores, before: Tensor) -> TokenScores:
    """The same where nothing but the tokens ``before`` the answer scores or is content."""
    kept: dict[str, Any] = {n: getattr(stream, n).where(before, 0) for n in SUMS}
    there, words = before.tolist(), stream.words
    cut = [[(w, [t for t in made if there[t]]) for w, made in row] for row in words or ()]
    return replace(
        stream,
        **kept,
        content=stream.content & before.to(stream.content.device),
        words=words and [[(w, made) for w, made in row if made] for row in cut],
        texts=stream.texts and [_typed(text, there) for text in stream.texts],
    )


def _typed(text: Text, there: list[bool]) -> Text:
    """A text as far as the tokens that are ``there`` go."""
    both = list(zip(text.spans, there, strict=True))
    end = min((a for (a, b), here in both if a < b and not here), default=len(text.text))
    spans = [(a, min(b, end)) if here else (0, 0) for (a, b), here in both]
    return Text(text.text[:end], spans, [(a, min(b, end)) for a, b in text.turns if a < end])
