"""One operation's books: what arrived, to which inputs it went, what was absorbed and what lost.

Lost is measured where it happens, never as the difference; the residual is the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar
from weakref import ref

import torch
from torch import Tensor, fx
from torch.utils._pytree import register_pytree_node

from relprop.numerics import total, totals
from relprop.plan import Step
from relprop.rules.call import Placed, Split, Total
from relprop.tracer.calls import HoldsTensors

Key = TypeVar("Key")
TO_INPUTS, UNREAD = "to_inputs", "unread"
#: How many numbers of one sample are summed together at most.
TOGETHER = 2**15


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


class _Sums:
    """Σ and Σ|·| of a tensor, once they have been made."""

    __slots__ = ("absolute", "sum")

    def __init__(self) -> None:
        self.sum: Tensor | None = None
        self.absolute: Tensor | None = None

    def both(self) -> tuple[Tensor, Tensor]:
        """Σ and Σ|·|."""
        assert self.sum is not None
        assert self.absolute is not None
        return self.sum, self.absolute


@dataclass(frozen=True)
class _Entry:
    """What is known of one step before the sums are: those of what arrived and of each share."""

    step: Step
    arrived: Sequence[_Sums]
    shares: Sequence[tuple[int, _Sums | Total]]
    lost: Mapping[str, Tensor]


class LedgerBuilder:
    """The accounts of a walk that is under way, for one sample. Each tensor is summed once: many
    rules hand on what has arrived, and what one hands on arrives at the next. Small ones of one
    shape are summed together."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ref[Tensor], _Sums]] = {}
        self._entries: list[_Entry] = []
        self._ends: dict[fx.Node, _Sums] = {}
        self._waiting: dict[tuple[object, ...], list[tuple[Tensor, _Sums]]] = {}

    def note(self, step: Step, relevance: Tensor | tuple[Tensor, ...], split: Split) -> None:
        """One step: what became of ``relevance`` by the rule's ``split``."""
        arrived = relevance if isinstance(relevance, tuple) else (relevance,)
        shares = list[tuple[int, _Sums | Total]]()
        for i, share in enumerate(split.shares):
            if isinstance(share, Total):
                shares.append((i, share))
            elif share is not None:
                shares.append((i, self._of(share.part if isinstance(share, Placed) else share)))
        self._entries.append(_Entry(step, [*map(self._of, arrived)], shares, dict(split.lost)))

    def end(self, node: fx.Node, relevance: Tensor) -> None:
        """Relevance that goes no further."""
        self._ends[node] = self._of(relevance)

    def closed(self) -> tuple[list[Account], dict[fx.Node, Tensor]]:
        """Each step's account, and the sums where relevance ended."""
        for same in self._waiting.values():
            _sum_up(same)
        ended = {node: sums.both()[0] for node, sums in self._ends.items()}
        nothing = dict[torch.device, Tensor]()
        return [_account_of(entry, nothing) for entry in self._entries], ended

    def _of(self, x: Tensor) -> _Sums:
        known = self._known.get(id(x))
        if known is not None and known[0]() is x:
            return known[1]
        sums = _Sums()
        self._known[id(x)] = ref(x), sums
        key = x.shape, x.dtype, x.device
        waiting = self._waiting.setdefault(key, [])
        waiting.append((x, sums))
        if (len(waiting) + 1) * x.numel() > TOGETHER:
            _sum_up(self._waiting.pop(key))
        return sums


def _sum_up(same: Sequence[tuple[Tensor, _Sums]]) -> None:
    """The sums of tensors of one shape."""
    if len(same) == 1:
        x, sums = same[0]
        sums.sum, sums.absolute = total(x), total(x.abs())
        return
    x = torch.stack([x for x, _ in same])
    made = zip(totals(x).unbind(), totals(x.abs()).unbind(), strict=True)
    for (_, sums), both in zip(same, made, strict=True):
        sums.sum, sums.absolute = both


def _account_of(entry: _Entry, nothing: dict[torch.device, Tensor]) -> Account:
    """One step's books. ``nothing``: zeros, by device."""
    step = entry.step
    came, magnitude = _added([sums.both() for sums in entry.arrived])
    handed = [sums.both() for _, sums in entry.shares if isinstance(sums, _Sums)]
    flowed: dict[str, Tensor] = {}
    absorbed: dict[str, Tensor] = {}
    for i, sums in entry.shares:
        amount = sums.value if isinstance(sums, Total) else sums.both()[0]
        activation = step.roles[i] == "activation"
        to = flowed if activation else absorbed
        name = step.names[i] if not activation else TO_INPUTS if step.needed[i] else UNREAD
        to[name] = to[name] + amount if name in to else amount
    if came.device not in nothing:
        nothing[came.device] = torch.zeros_like(came)
    return Account(
        step.node.name,
        step.path,
        step.op_name,
        step.rule.name,
        came,
        torch.maximum(magnitude, _added(handed)[1]) if handed else magnitude,
        flowed.get(TO_INPUTS, nothing[came.device]),
        flowed.get(UNREAD, nothing[came.device]),
        absorbed,
        dict(entry.lost),
    )


def _added(amounts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Σ and Σ|·| of several tensors together."""
    if len(amounts) == 1:
        return amounts[0]
    sums, magnitudes = zip(*amounts, strict=True)
    return sum(sums[1:], sums[0]), sum(magnitudes[1:], magnitudes[0])


def added(a: Mapping[Key, Tensor], b: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """Two maps of amounts, added where both have one."""
    return {**a, **{k: a[k] + v if k in a else v for k, v in b.items()}}


def added_accounts(some: Iterable[Account], others: Iterable[Account]) -> list[Account]:
    """The books of both together, node by node, of one plan and one batch."""
    theirs = {a.node: a for a in others}
    both = [a + theirs.pop(a.node) if a.node in theirs else a for a in some]
    return [*both, *theirs.values()]


def joined(maps: Sequence[Mapping[str, Tensor]], zeros: Sequence[Tensor]) -> dict[str, Tensor]:
    """The amounts of parts of a batch, one after the other; 0 where a part has none of a name."""
    names = dict.fromkeys(name for m in maps for name in m)
    return {
        name: torch.cat([m.get(name, zero) for m, zero in zip(maps, zeros, strict=True)])
        for name in names
    }
