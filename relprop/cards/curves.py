"""What a model says as more and more of an input is covered: its words, or the stretches of a
recording."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relprop.cards import answer_data, covering
from relprop.cards.answer import Answer
from relprop.cards.over_time import over_time, silenced, time_axis
from relprop.cards.recording import Recording
from relprop.cards.trials import Deletion, deleted
from relprop.explanation import Explanation
from relprop.tracer.binding import bind

STRETCHES = 32  # of a recording that are covered one after another, at most


def covered_curve(
    model: nn.Module, inputs: Any, of: Explanation, answer: Answer, says: Any, what: str
) -> Deletion:
    """The curve of covered words, or, where there are none, of a recording's stretches of time.
    ``says``: from logits to ``what`` the model says, (runs,)."""
    words = answer_data.words_of(of, 0)
    recorded = next((m for m in answer.maps if isinstance(m, Recording)), None)
    if recorded is not None and not words:
        name, given = recorded.name, named(inputs)[recorded.name]
        axis, scores = time_axis(given, of.streams[name]), over_time(of[name], 0)
        heat = F.adaptive_avg_pool1d(scores.sum(0)[None], min(STRETCHES, scores.shape[1]))[0]

        def without(gone: Tensor) -> Tensor:
            changed = {name: silenced(given, axis, gone)}
            return covering.logits_with(model, inputs, changed, says)

        return deleted(heat, without, what, recorded.kind)

    def answers(gone: Tensor) -> Tensor:
        masks = covering.covered_words(model, inputs, words, gone, of)
        return covering.logits_with(model, inputs, masks, says)

    return deleted(torch.tensor(answer.whole[: len(words)]), answers, what, "words")


def named(inputs: Any) -> dict[str, Tensor]:
    """The tensors of a call, by name."""
    bound = bind(inputs)
    return dict(zip(bound.names, bound.tensors, strict=True))
