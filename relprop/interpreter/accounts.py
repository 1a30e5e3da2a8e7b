"""One operation's books: what arrived, to which inputs it went, what was absorbed and what lost.

Lost is measured where it happens, never as the difference; the residual is the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar
from weakref import ref

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from relprop.numerics import total
from relprop.plan import Step
from relprop.rules.call import Placed, Split, Total
from relprop.tracer.calls import HoldsTensors

Key = TypeVar("Key")
TO_INPUTS, UNREAD = "to_inputs", "unread"


@dataclass(frozen=True)
class Account(HoldsTensors):
    """One node's books; every tensor is (batch,), float64 where the device has it. ``absolute`` is
    Σ|R| (of what arrived or of what was handed on, whichever is larger), to which rounding is
    proportional."""

    node: str
    path: str
    op: str
    rule: str
    arrived: Tensor
    absolute: Tensor
    to_inputs: Tensor
    unread: Tensor
    absorbed: Mapping[str, Tensor] = field(default_factory=dict)
    lost: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Whose books these are."""
        return self.node, self.path, self.op, self.rule

    @property
    def residual(self) -> Tensor:
        """What none of the columns explains, (batch,)."""
        explained = self.to_inputs + self.unread
        for amount in (*self.absorbed.values(), *self.lost.values()):
            explained = explained + amount
        return self.arrived - explained

    def with_tensors(self, made: Callable[[Tensor], Tensor]) -> Account:
        """The same books in other tensors."""
        return Account(
            *self.key,
            made(self.arrived),
            made(self.absolute),
            made(self.to_inputs),
            made(self.unread),
            {name: made(amount) for name, amount in self.absorbed.items()},
            {name: made(amount) for name, amount in self.lost.items()},
        )

    def __add__(self, other: Account) -> Account:
        """The books of both together, of one node and one batch."""
        return Account(
            *self.key,
            self.arrived + other.arrived,
            self.absolute + other.absolute,
            self.to_inputs + other.to_inputs,
            self.unread + other.unread,
            added(self.absorbed, other.absorbed),
            added(self.lost, other.lost),
        )

    def __rmul__(self, factor: float) -> Account:
        """The books of a start ``factor`` times as large."""
        scaled = self.with_tensors(lambda amount: factor * amount)
        return replace(scaled, absolute=abs(factor) * self.absolute)

    @staticmethod
    def join(parts: Sequence[Account]) -> Account:
        """The books of one node for parts of a batch, one after the other."""
        zeros = [torch.zeros_like(a.arrived) for a in parts]
        return Account(
            *parts[0].key,
            torch.cat([a.arrived for a in parts]),
            torch.cat([a.absolute for a in parts]),
            torch.cat([a.to_inputs for a in parts]),
            torch.cat([a.unread for a in parts]),
            joined([a.absorbed for a in parts], zeros),
            joined([a.lost for a in parts], zeros),
        )


Outline = tuple[tuple[str, str, str, str], tuple[str, ...], tuple[str, ...]]


def _amounts(a: Account) -> tuple[list[Tensor], Outline]:
    """All amounts of an account side by side, and whose they are."""
    named = (*a.absorbed.values(), *a.lost.values())
    own = [a.arrived, a.absolute, a.to_inputs, a.unread, *named]
    return own, (a.key, tuple(a.absorbed), tuple(a.lost))


def _account(amounts: Iterable[Tensor], outline: Outline) -> Account:
    """The inverse."""
    key, absorbed, lost = outline
    arrived, absolute, to_inputs, unread, *named = amounts
    where = len(absorbed)
    return Account(
        *key,
        arrived,
        absolute,
        to_inputs,
        unread,
        dict(zip(absorbed, named[:where], strict=True)),
        dict(zip(lost, named[where:], strict=True)),
    )


register_pytree_node(Account, _amounts, _account)


class Amounts:
    """Σ and Σ|·| of tensors, of each once while it is there: many rules hand on what has arrived,
    and what one hands on arrives at the next."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ref[Tensor], Tensor, Tensor]] = {}
        self._nothing: Tensor | None = None

    def of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both sums."""
        known = self._known.get(id(x))
        if known is None or known[0]() is not x:
            known = self._known[id(x)] = ref(x), total(x), total(x.abs())
        return known[1:]

    def nothing(self, like: Tensor) -> Tensor:
        """The sum of what there is not, as other sums are."""
        if self._nothing is None or self._nothing.device != like.device:
            self._nothing = torch.zeros_like(like)
        return self._nothing


def account_of(
    step: Step, relevance: Tensor | tuple[Tensor, ...], split: Split, amounts: Amounts
) -> Account:
    """One step's books, for one sample: what became of ``relevance`` by the rule's ``split``."""
    arrived = relevance if isinstance(relevance, tuple) else (relevance,)
    came, magnitude = _added([amounts.of(r) for r in arrived])
    handed: list[tuple[Tensor, Tensor]] = []
    flowed: dict[str, Tensor] = {}
    absorbed: dict[str, Tensor] = {}
    for i, share in enumerate(split.shares):
        if share is None:
            continue
        if not isinstance(share, Total):
            handed.append(amounts.of(share.part if isinstance(share, Placed) else share))
        amount = share.value if isinstance(share, Total) else handed[-1][0]
        activation = step.roles[i] == "activation"
        to = flowed if activation else absorbed
        name = step.names[i] if not activation else TO_INPUTS if step.needed[i] else UNREAD
        to[name] = to[name] + amount if name in to else amount
    nothing = amounts.nothing(came)
    return Account(
        step.node.name,
        step.path,
        step.op_name,
        step.rule.name,
        came,
        torch.maximum(magnitude, _added(handed)[1]) if handed else magnitude,
        flowed.get(TO_INPUTS, nothing),
        flowed.get(UNREAD, nothing),
        absorbed,
        dict(split.lost),
    )


def sum_of(share: Tensor | Placed | Total) -> Tensor:
    """Σ of a share, also of one that is only its sum."""
    if isinstance(share, Total):
        return share.value
    return total(share.part if isinstance(share, Placed) else share)


def _added(amounts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Σ and Σ|·| of several tensors together."""
    if len(amounts) == 1:
        return amounts[0]
    sums, magnitudes = zip(*amounts, strict=True)
    return sum(sums[1:], sums[0]), sum(magnitudes[1:], magnitudes[0])


def added(a: Mapping[Key, Tensor], b: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """Two maps of amounts, added where both have one."""
    return {**a, **{k: a[k] + v if k in a else v for k, v in b.items()}}


def joined(maps: Sequence[Mapping[str, Tensor]], zeros: Sequence[Tensor]) -> dict[str, Tensor]:
    """The amounts of parts of a batch, one after the other; 0 where a part has none of a name."""
    names = dict.fromkeys(name for m in maps for name in m)
    return {
        name: torch.cat([m.get(name, zero) for m, zero in zip(maps, zeros, strict=True)])
        for name in names
    }
