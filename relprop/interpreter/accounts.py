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
from relprop.rules.call import Split, Total, ZeroPadded
from relprop.tracer.calls import HoldsTensors

Key = TypeVar("Key")
#: Node, path, operation and rule.
Whose = tuple[str, str, str, str]
Named = Mapping[str, Tensor]
Outline = tuple[Whose, tuple[str, ...], tuple[str, ...]]
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
    absorbed: Named = field(default_factory=dict)
    lost: Named = field(default_factory=dict)

    @property
    def key(self) -> Whose:
        """Whose books these are."""
        return self.node, self.path, self.op, self.rule

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """The amounts that all books have."""
        return self.arrived, self.absolute, self.to_inputs, self.unread

    @property
    def residual(self) -> Tensor:
        """What none of the columns explains, (batch,)."""
        explained = self.to_inputs + self.unread
        for amount in (*self.absorbed.values(), *self.lost.values()):
            explained = explained + amount
        return self.arrived - explained

    def with_tensors(self, made: Callable[[Tensor], Tensor]) -> Account:
        """The same books in other tensors."""
        amounts, outline = _amounts(self)
        return _account(map(made, amounts), outline)

    def __add__(self, other: Account) -> Account:
        """The books of both together, of one node and one batch."""
        columns = (a + b for a, b in zip(self.columns, other.columns, strict=True))
        absorbed, lost = added(self.absorbed, other.absorbed), added(self.lost, other.lost)
        return _books(self.key, columns, absorbed, lost)

    def __rmul__(self, factor: float) -> Account:
        """The books of a start ``factor`` times as large."""
        scaled = self.with_tensors(lambda amount: factor * amount)
        return replace(scaled, absolute=abs(factor) * self.absolute)

    @staticmethod
    def join(parts: Sequence[Account]) -> Account:
        """The books of one node for parts of a batch, one after the other."""
        zeros = [torch.zeros_like(a.arrived) for a in parts]
        columns = (torch.cat(same) for same in zip(*(a.columns for a in parts), strict=True))
        absorbed = joined([a.absorbed for a in parts], zeros)
        return _books(parts[0].key, columns, absorbed, joined([a.lost for a in parts], zeros))


def _books(whose: Whose, columns: Iterable[Tensor], absorbed: Named, lost: Named) -> Account:
    arrived, absolute, to_inputs, unread = columns
    return Account(*whose, arrived, absolute, to_inputs, unread, absorbed, lost)


def _amounts(a: Account) -> tuple[list[Tensor], Outline]:
    """All amounts of an account side by side, and whose they are."""
    own = [*a.columns, *a.absorbed.values(), *a.lost.values()]
    return own, (a.key, tuple(a.absorbed), tuple(a.lost))


def _account(amounts: Iterable[Tensor], outline: Outline) -> Account:
    """The inverse."""
    whose, *names = outline
    left = iter(amounts)
    columns = [next(left) for _ in range(4)]
    absorbed, lost = (dict(zip(some, left, strict=False)) for some in names)
    return _books(whose, columns, absorbed, lost)


register_pytree_node(Account, _amounts, _account)
#: Σ and Σ|·| of a tensor; nothing until they have been made.
_Sums = list[Tensor]


@dataclass(frozen=True)
class _Entry:
    """What is known of one step before the sums are: those of what arrived and of each share."""

    step: Step
    arrived: Sequence[_Sums]
    shares: Sequence[tuple[int, _Sums | Total]]
    lost: Named


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
                shares.append((i, self._of(share.part if isinstance(share, ZeroPadded) else share)))
        self._entries.append(_Entry(step, [*map(self._of, arrived)], shares, dict(split.lost)))

    def end(self, node: fx.Node, relevance: Tensor) -> None:
        """Relevance that goes no further."""
        self._ends[node] = self._of(relevance)

    def closed(self) -> tuple[list[Account], dict[fx.Node, Tensor]]:
        """Each step's account, and the sums where relevance ended."""
        for same in self._waiting.values():
            _sum_up(same)
        ended = {node: sums[0] for node, sums in self._ends.items()}
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
        sums += [total(x), total(x.abs())]
        return
    x = torch.stack([x for x, _ in same])
    made = zip(totals(x).unbind(), totals(x.abs()).unbind(), strict=True)
    for (_, sums), both in zip(same, made, strict=True):
        sums += both


def _account_of(entry: _Entry, nothing: dict[torch.device, Tensor]) -> Account:
    """One step's books. ``nothing``: zeros, by device."""
    step = entry.step
    came, magnitude = _added(entry.arrived)
    handed = [sums for _, sums in entry.shares if not isinstance(sums, Total)]
    flowed: dict[str, Tensor] = {}
    absorbed: dict[str, Tensor] = {}
    for i, sums in entry.shares:
        amount = sums.value if isinstance(sums, Total) else sums[0]
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


def _added(amounts: Sequence[_Sums]) -> _Sums:
    """Σ and Σ|·| of several tensors together."""
    return [sum(same[1:], same[0]) for same in zip(*amounts, strict=True)]


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
