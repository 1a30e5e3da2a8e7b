"""How much of an explanation rests where nothing is said: on the first token, on special tokens, on
position terms and biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relprop.error_boundary import guarded

if TYPE_CHECKING:
    from relprop.explanation.explanation import Explanation
    from relprop.explanation.tokens import TokenScores
    from relprop.interpreter.ledger import Ledger


@dataclass(frozen=True)
class Shares:
    """Shares of a whole, each (batch,), of the absolute amounts: of the ``first`` token that is no
    padding, of other ``special`` ones (separators, registers, padding, the model's own), of other
    ``content``. They sum to 1, or are 0 where the whole is 0."""

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
    each parameter kept, by name: position tables, biases; (batch,). ``absorbed_in``: the same by
    block, the numbered part of the model that the operation is in.
    """

    scores: Mapping[str, Shares]
    attention: Mapping[str, Shares]
    relevance: Mapping[str, Shares]
    absorbed: Mapping[str, Tensor]
    absorbed_in: Mapping[str, Tensor]

    def __str__(self) -> str:
        lines = [f"{'mean of the samples':<40}  first  special  content"]
        kinds = (("scores", self.scores), ("attention", self.attention))
        for kind, found in (*kinds, ("relevance", self.relevance)):
            for name, s in found.items():
                means = (float(part.mean()) for part in (s.first, s.special, s.content))
                lines.append(
                    f"{f'{kind} {name}'.strip():<40}" + "".join(f"{m:8.1%}" for m in means)
                )
        kept = {f"absorbed by {name}": share for name, share in self.absorbed.items()}
        kept |= {f"absorbed in {name}": share for name, share in self.absorbed_in.items()}
        lines += [f"{name:<40}{float(share.mean()):8.1%}" for name, share in kept.items()]
        return "\n".join(lines)

    __repr__ = __str__


def sinks_of(explanation: Explanation) -> Sinks:
    """The shares of everything that an explanation holds."""
    streams, ledger = explanation.streams, explanation.ledger
    one, *others = streams.values()
    count = one.scores.shape[1]
    # the sites whose keys are the tokens of the one input
    kept = () if others else explanation.blocks or ()
    blocks = [b for b in kept if b.attention.shape[-1] == count]
    relevance = {b.path: b.relevance for b in blocks if b.relevance is not None}
    return Sinks(
        {name: _shares(s.scores, s) for name, s in streams.items()},
        {b.path: _shares(b.attention.sum((1, 2)), one) for b in blocks},
        {path: _shares(r.abs().sum((1, 2)), one) for path, r in relevance.items()},
        {} if ledger is None else _absorbed(ledger),
        {} if ledger is None else _absorbed_in(ledger),
    )


def _shares(amounts: Tensor, stream: TokenScores) -> Shares:
    """Of (batch, tokens) amounts."""
    whole = amounts.abs().double()
    total = whole.sum(1)
    content = stream.content.to(whole.device).double()
    first = torch.zeros_like(whole)
    if stream.padding is None:
        first[:, 0] = 1
    else:
        first.scatter_(1, (~stream.padding).int().argmax(1, keepdim=True).to(first.device), 1)
    others = whole * (1 - first)
    parts = ((whole * first).sum(1), (others * (1 - content)).sum(1), (others * content).sum(1))
    return Shares(*((part / total).where(total > 0, 0.0) for part in parts))


def _absorbed(ledger: Ledger) -> dict[str, Tensor]:
    """The parameters that kept anything, the largest share first."""
    found = _of_started(ledger, ledger.absorbed())
    return dict(sorted(found.items(), key=lambda item: -float(item[1].abs().mean())))


def _absorbed_in(ledger: Ledger) -> dict[str, Tensor]:
    """The blocks in which parameters kept anything, from the input on."""
    sums: dict[str, Tensor] = {}
    for account, block in zip(ledger.accounts, _blocks_of(ledger), strict=True):
        for amount in account.absorbed.values():
            sums[block] = sums[block] + amount if block in sums else amount
    return dict(reversed(_of_started(ledger, sums).items()))


def _blocks_of(ledger: Ledger) -> list[str]:
    """The block of each account's module: its path up to its first number (PyTorch numbers what a
    list of modules holds), else up to where the paths part."""
    paths = [account.path.split("@")[0].split(".") for account in ledger.accounts]
    named = [path for path in paths if path != [""]]
    extremes = zip(min(named, default=[]), max(named, default=[]), strict=False)
    same = len(list(takewhile(lambda both: both[0] == both[1], extremes)))
    ends = [next((i for i, p in enumerate(path) if p.isdigit()), same) for path in paths]
    return [
        ".".join(path[: end + 1]) or "the model itself"
        for path, end in zip(paths, ends, strict=True)
    ]


def _of_started(ledger: Ledger, amounts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Amounts as shares of what relevance started with; those that are 0 are left out."""
    started = ledger.started.double()
    found = {n: (a.double() / started).where(started != 0, 0.0) for n, a in amounts.items()}
    return {name: share for name, share in found.items() if bool(share.abs().max() > 0)}
