"""How much of an explanation rests where nothing is said: on the first token, on special tokens, on
position terms and biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from relprop.door import guarded

if TYPE_CHECKING:
    from relprop.explanation.explanation import Explanation
    from relprop.explanation.tokens import Block, TokenScores


@dataclass(frozen=True)
class Shares:
    """Shares of a whole, each (batch,), of the absolute amounts: of the ``first`` token, of
    ``special`` ones behind it (separators, registers, padding, the model's own), of ``content``
    behind it. They sum to 1, or are 0 where the whole is 0."""

    first: Tensor
    special: Tensor
    content: Tensor


@guarded
@dataclass(frozen=True)
class Sinks:
    """Where an explanation rests on what says nothing; ``print`` it.

    ``scores``: the shares of each input's scores. ``attention`` and ``relevance``: of what the
    tokens receive at each attention site, by its module path, if ``keep="blocks"`` kept them and
    the site's keys are the tokens. ``absorbed``: of what relevance started with, the share that
    each parameter kept, by name: position tables, biases; (batch,).
    """

    scores: Mapping[str, Shares]
    attention: Mapping[str, Shares]
    relevance: Mapping[str, Shares]
    absorbed: Mapping[str, Tensor]

    def __str__(self) -> str:
        lines = [f"{'mean of the samples':<40}  first  special  content"]
        kinds = (("scores", self.scores), ("attention", self.attention))
        for kind, found in (*kinds, ("relevance", self.relevance)):
            for name, s in found.items():
                means = (float(part.mean()) for part in (s.first, s.special, s.content))
                lines.append(
                    f"{f'{kind} {name}'.strip():<40}" + "".join(f"{m:8.1%}" for m in means)
                )
        for name, share in self.absorbed.items():
            lines.append(f"{'absorbed by ' + name:<40}{float(share.mean()):8.1%}")
        return "\n".join(lines)


def sinks_of(explanation: Explanation) -> Sinks:
    """The shares of everything that an explanation holds."""
    streams = explanation.streams
    one = next(iter(streams.values())) if len(streams) == 1 else None
    blocks = {} if one is None else dict(_blocks(explanation.blocks or (), one))
    relevance = {p: b.relevance for p, b in blocks.items() if b.relevance is not None}
    return Sinks(
        {name: _shares(s.scores, s) for name, s in streams.items()},
        {p: _shares(b.attention.sum((1, 2)), one) for p, b in blocks.items() if one},
        {p: _shares(r.abs().sum((1, 2)), one) for p, r in relevance.items() if one},
        _absorbed(explanation),
    )


def _blocks(blocks: tuple[Block, ...], stream: TokenScores) -> list[tuple[str, Block]]:
    """The sites whose keys are the tokens, by their paths."""
    return [(b.path, b) for b in blocks if b.attention.shape[-1] == stream.scores.shape[1]]


def _shares(amounts: Tensor, stream: TokenScores) -> Shares:
    """Of (batch, tokens) amounts."""
    whole = amounts.abs().double()
    total = whole.sum(1)
    content = stream.content.to(whole.device).double()
    behind = whole.clone()
    behind[:, 0] = 0
    parts = (whole[:, 0], (behind * (1 - content)).sum(1), (behind * content).sum(1))
    return Shares(*((part / total).where(total > 0, 0.0) for part in parts))


def _absorbed(explanation: Explanation) -> dict[str, Tensor]:
    """The parameters that kept anything, the largest share first."""
    if explanation.ledger is None:
        return {}
    started = explanation.ledger.started.double()
    found = {
        name: (amount.double() / started).where(started != 0, 0.0)
        for name, amount in explanation.ledger.absorbed().items()
    }
    kept = {name: share for name, share in found.items() if bool(share.abs().max() > 0)}
    return dict(sorted(kept.items(), key=lambda item: -float(item[1].abs().mean())))
