"""An explanation in one sentence, and what speaks against resting on it.

The sentence gives *shares of the positive scores* of content, which sum to 1. Each limit below is a
named constant; a map that crosses one is not wrong, but its reader should know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from relprop.errors import OptionError
from relprop.views.escape import visible
from relprop.views.shown import checked, named, target_of, units

if TYPE_CHECKING:
    from relprop.explanation import Explanation, TokenScores

LOST = 0.2
"""Concern if more than this share of the relevance that started was lost to denominators near 0, by cause (``Ledger.lost``)."""  # noqa: E501
UNBALANCED = 1e-5
"""Concern if any node's books differ by more than this share of the relevance there (``Ledger.worst``)."""  # noqa: E501
SPECIAL = 0.5
"""Concern if special tokens, padding and the model's own tokens hold more than this share of Σ|score|: attention sinks, not the input."""  # noqa: E501
ONE = 0.8
"""Concern if one token of at least ``MANY`` holds more than this share of content's Σ|score|."""
MANY = 8
SHOWN = 0.005
"""``summary`` names no part whose share is smaller (it would read 0.00), but the first."""


def concerns(explanation: Explanation, sample: int) -> list[str]:
    """A sentence for each limit that one sample crosses; none for a sound map."""
    sample = checked(explanation, sample)
    found = []
    for name, stream in explanation.streams.items():
        prefix = f"{name}: " if len(explanation.streams) > 1 else ""
        found += [prefix + line for line in _of_scores(stream, sample)]
    return found + _of_books(explanation, sample)


def _of_scores(stream: TokenScores, sample: int) -> list[str]:
    weights, content = (
        stream.scores[sample].detach().abs().double().cpu(),
        stream.content[sample].cpu(),
    )
    total, inside = float(weights.sum()), float(weights[content].sum())
    if total == 0:
        return ["all scores are 0: the map says nothing"]
    found = []
    if (total - inside) / total > SPECIAL:
        found.append(
            f"{(total - inside) / total:.0%} of the score is on special tokens or the "
            "model's own (attention sinks), not on the input's content"
        )
    if int(content.sum()) >= MANY and inside > 0 and float(weights[content].max()) / inside > ONE:
        at = int((weights * content).argmax())
        which = (
            f" ({visible(stream.tokens[sample][at], 24)!r})" if stream.tokens is not None else ""
        )
        found.append(
            f"{float(weights[at]) / inside:.0%} of the score is on one of "
            f"{int(content.sum())} tokens{which}"
        )
    return found


def _of_books(explanation: Explanation, sample: int) -> list[str]:
    ledger = explanation.ledger
    if ledger is None:
        return []
    started = float(ledger.started[sample].abs()) or 1.0
    lost = {cause: float(amount[sample].abs()) / started for cause, amount in ledger.lost().items()}
    found = []
    if sum(lost.values()) > LOST:
        causes = ", ".join(
            f"{cause} {share:.0%}"
            for cause, share in sorted(lost.items(), key=lambda c: -c[1])
            if share > 0.01
        )
        found.append(f"{sum(lost.values()):.0%} of the relevance was lost on the way ({causes})")
    tiny = torch.finfo(torch.float32).tiny
    worst = max(
        (
            float(a.residual[sample].abs() / a.absolute[sample].clamp(min=tiny))
            for a in ledger.accounts
        ),
        default=0.0,
    )
    if worst > UNBALANCED:
        found.append(
            f"the books of a node differ by {worst:.1e} of its relevance (limit {UNBALANCED:.0e})"
        )
    return found


def head_line(explanation: Explanation, sample: int) -> str:
    """What was explained: ``the prediction 'negative' (0.97)``, or the target by name with its
    y_t."""
    named_class = explanation.labels is not None and explanation.labels[sample] is not None
    target = target_of(explanation, sample)
    target = (
        repr(target)
        if named_class
        else f"class {target}"
        if isinstance(explanation.target[sample], int)
        else target
    )
    if explanation.probability is not None:
        chance = float(explanation.probability[sample])
        return f"{'the prediction ' if chance > 0.5 else ''}{target} ({chance:.2f})"
    return f"{target} (y = {float(explanation.output[sample]):.3g})"


def summary(explanation: Explanation, sample: int, *, k: int) -> str:
    """One sentence, and a line for each concern."""
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise OptionError(f"summary(k={k!r}): a positive number of words, tokens or patches")
    sample = checked(explanation, sample)
    found = units(explanation, sample, what="summary()")
    parts = [
        (name, score)
        for name, score, content in zip(found.names, found.scores, found.content, strict=True)
        if content
    ]
    positive = sum(score for _, score in parts if score > 0)
    ordered = [
        (name, score / positive)
        for name, score in sorted(parts, key=lambda p: -p[1])[:k]
        if score > 0
    ]
    best = [part for i, part in enumerate(ordered) if i == 0 or part[1] >= SHOWN]
    rests = ", ".join(f"{visible(named(name), 40)} ({share:.2f})" for name, share in best)
    left = sum(score > 0 for _, score in parts) - len(best)
    more = f" and {left} more" if left > 0 else ""
    against = [(name, score) for name, score in sorted(parts, key=lambda p: p[1])[:1] if score < 0]
    minus = f"; against it most: {visible(named(against[0][0]), 40)}" if against else ""
    sentence = f"{head_line(explanation, sample)} rests on" + (
        f": {rests}{more}" if best else " nothing: no part has a positive score"
    )
    return "\n".join(
        [f"{sentence}{minus}.", *(f"warning: {line}" for line in concerns(explanation, sample))]
    )
