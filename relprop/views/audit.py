"""An explanation in one sentence, and what speaks against resting on it.

The sentence gives *shares of the positive scores* of content, which sum to 1. Each limit below is a
named constant; a map that crosses one is not wrong, but its reader should know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from relprop.errors import OptionError
from relprop.explanation.tokens import ON_THE_ANSWER
from relprop.views.escape import visible
from relprop.views.regions import measure, regions
from relprop.views.shown import checked, target_of

if TYPE_CHECKING:
    from relprop.explanation import Explanation, Prediction, TokenScores
    from relprop.interpreter.ledger import Ledger

LOST = 0.2
"""Concern if more than this share of the relevance that started was lost to denominators near 0, by cause (``Ledger.lost``); of a whole answer, if so much of the score is on its own words."""  # noqa: E501
UNBALANCED = 1e-5
"""Concern if any node's books differ by more than this share of the relevance there (``Ledger.worst``)."""  # noqa: E501
SPECIAL = 0.5
"""Concern if special tokens, padding and the model's own tokens hold more than this share of Σ|score|: attention sinks, not the input."""  # noqa: E501
ONE = 0.8
"""Concern if one token of at least ``MANY`` that is no word holds more than this share of content's Σ|score|."""  # noqa: E501
MANY = 8
EVEN = 1.25
"""A map of at least ``MANY`` parts is spread over all if none has more than so many times the mean."""  # noqa: E501
SHOWN = 0.005
"""``summary`` names no part whose share is smaller (it would read 0.00), but the first."""


def concerns(explanation: Explanation, sample: int) -> list[str]:
    """A sentence for each limit that one sample crosses; none for a sound map."""
    sample = checked(explanation, sample)
    found = []
    for name, stream in explanation.streams.items():
        prefix = f"{name}: " if len(explanation.streams) > 1 else ""
        found += [prefix + line for line in _of_scores(stream, sample)]
    own = explanation.facts.get(ON_THE_ANSWER, [0.0] * len(explanation))[sample]
    if own > LOST:
        found.append(
            f"{own:.0%} of the score is on the answer's own words, not on the prompt: "
            "generation.sent_on(hops) sends it on to what these rest on"
        )
    exploded = [s for s in [explanation.exploded[sample]] if s]
    return [*exploded, *found, *_of_books(explanation, sample)]


def _of_scores(stream: TokenScores, sample: int) -> list[str]:
    weights = stream.scores[sample].detach().abs().double().cpu()
    content = stream.content[sample].cpu()
    total, inside = float(weights.sum()), float(weights[content].sum())
    if total == 0:
        return ["all scores are 0: the map says nothing"]
    found = []
    outside = (total - inside) / total
    if outside > SPECIAL:
        found.append(
            f"{outside:.0%} of the score is on special tokens or the "
            "model's own (attention sinks), not on the input's content"
        )
    count, at = int(content.sum()), int((weights * content).argmax())
    token = "" if stream.tokens is None else stream.tokens[sample][at]
    share = float(weights[at]) / (inside or 1.0)
    if count >= MANY and share > ONE and _says_nothing(token):
        found.append(
            f"{share:.0%} of the score is on one of {count} tokens ({visible(token, 24)!r}), "
            "which is no word: attention is often parked there"
        )
    return found


def _says_nothing(token: str) -> bool:
    """Whether a token is a mark or a special token that passes for a word. One word or patch that
    decides is what a sound map often shows."""
    special = token[:1] + token[-1:] in ("[]", "<>")
    return bool(token) and (special or not any(c.isalnum() for c in token))


def _of_books(explanation: Explanation, sample: int) -> list[str]:
    ledger = explanation.ledger
    if ledger is None:
        return []
    found = []
    started = float(ledger.started[sample].abs()) or 1.0
    lost = {cause: float(v[sample].abs()) / started for cause, v in ledger.lost().items()}
    if sum(lost.values()) > LOST:
        largest = sorted(lost.items(), key=lambda cause: -cause[1])
        causes = ", ".join(f"{cause} {share:.0%}" for cause, share in largest if share > 0.01)
        found.append(f"{sum(lost.values()):.0%} of the relevance was lost on the way ({causes})")
    worst = worst_residual(ledger, sample)
    if worst > UNBALANCED:
        found.append(
            f"the books of a node differ by {worst:.1e} of its relevance (limit {UNBALANCED:.0e})"
        )
    return found


def worst_residual(ledger: Ledger, sample: int) -> float:
    """The largest difference in any operation's books, as a share of the relevance there."""
    tiny = torch.finfo(torch.float32).tiny
    shares = (
        a.residual[sample].abs() / a.absolute[sample].clamp(min=tiny) for a in ledger.accounts
    )
    return max(map(float, shares), default=0.0)


def heading(explanation: Explanation, sample: int) -> str:
    """What was explained: ``the prediction 'negative' (0.97)``, or the target by name with its
    probability or its y_t."""
    label = None if explanation.labels is None else explanation.labels[sample]
    target = target_of(explanation, sample)
    is_class = isinstance(explanation.target[sample], int)
    if is_class:
        named = label is not None and explanation.probability is not None
        target = repr(target) if named else f"class {target}"
    if explanation.probability is None:
        return f"{target} (y = {float(explanation.output[sample]):.3g})"
    probability = float(explanation.probability[sample])
    own = probability > 0.5 or (
        explanation.predictions is not None and prediction_instead(explanation, sample) is None
    )
    return f"{'the prediction ' if own and is_class else ''}{target} ({_chance(probability)})"


def _chance(probability: float) -> str:
    """A probability in two digits; a small one is said to be small, not 0."""
    return f"{probability:.2f}" if probability >= 0.005 else "less than 0.005"


def prediction_instead(explanation: Explanation, sample: int) -> Prediction | None:
    """What the model itself says of a sample, if that is known and is not what was explained."""
    if explanation.predictions is None:
        return None
    found, target = explanation.predictions[sample], explanation.target[sample]
    index = target[-1] if isinstance(target, tuple) else target
    return None if found.target == index else found


def instead(explanation: Explanation, sample: int) -> str:
    """``The model itself says 'positive' (0.98).``; empty where it says what was explained."""
    found = prediction_instead(explanation, sample)
    if found is None:
        return ""
    name = f"class {found.target}" if found.label is None else repr(found.label)
    if isinstance(explanation.target[sample], tuple):
        name = f"token {found.target}" if found.label is None else found.label
    if found.probability is None:
        return f"The model's largest output is that of {name} (y = {found.output:.3g})."
    return f"The model itself says {name} ({_chance(found.probability)})."


def said_instead(explanation: Explanation, sample: int) -> str:
    """``instead`` where what the model says has a name; beside a map a bare number tells nobody
    anything."""
    found = prediction_instead(explanation, sample)
    named = found is not None and found.label is not None
    return visible(instead(explanation, sample), 200) if named else ""


def summary(explanation: Explanation, sample: int, *, k: int) -> str:
    """One sentence, a second one where the model says something else, and a line for each
    concern."""
    text = f"{sentence(explanation, sample, k=k)} {said_instead(explanation, sample)}".rstrip()
    warnings = [visible(f"warning: {line}", 400) for line in concerns(explanation, sample)]
    return "\n".join([text, *warnings])


def sentence(explanation: Explanation, sample: int, *, k: int) -> str:
    """What was explained and what it rests on."""
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise OptionError(f"summary(k={k!r}): a positive number of words, tokens or patches")
    sample = checked(explanation, sample)
    parts = regions(explanation, sample)
    name, least = min(parts, key=lambda part: part[1], default=("", 0.0))
    against = f"; against it most: {visible(name, 40)}" if least < 0 else ""
    begins = f"{heading(explanation, sample)} rests on"
    if explanation.facts.get("part") == "negative":
        begins = f"against {heading(explanation, sample)} speaks"
    text = f"{begins}{_strongest(parts, k)}{against}."
    return f"{text} {measure(explanation, sample)}".rstrip()


def _strongest(parts: list[tuple[str, float]], k: int) -> str:
    """The ``k`` parts with the largest positive scores, in shares of all positive scores."""
    positive = [part for part in parts if part[1] > 0]
    total = sum(score for _, score in positive)
    best = best_shares(positive, k, total)
    if not best:
        return " nothing: no part has a positive score"
    names = ", ".join(f"{visible(name, 40)} ({share:.2f})" for name, share in best)
    left, largest = len(positive) - len(best), best[0][1]
    if len(positive) == len(parts) >= MANY and largest * len(parts) <= EVEN:
        return f" all {len(parts)} parts alike: none has more than {largest:.2g} of the score"
    return f": {names}" + (f" and {left} more" if left > 0 else "")


def best_shares(parts: list[tuple[str, float]], k: int, total: float) -> list[tuple[str, float]]:
    """The ``k`` parts with the largest scores, in shares of ``total``: the first, and those that do
    not read 0.00."""
    ordered = sorted(parts, key=lambda part: -part[1])[:k]
    shares = [(name, score / total) for name, score in ordered]
    return [part for i, part in enumerate(shares) if i == 0 or part[1] >= SHOWN]
