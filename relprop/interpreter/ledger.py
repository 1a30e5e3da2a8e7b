"""The ledger: where every bit of relevance went, node by node.

For each node: *arrived* = to inputs + absorbed (by NAME) + lost (by cause) + unread + *residual*.
Lost is measured where it happens, never as the difference; the residual is the difference, and must
be at most 1e-5·Σ|R|.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from relprop.errors import counted
from relprop.interpreter.accounts import Account, Whose, added, added_accounts, joined


@dataclass(frozen=True)
class Ledger:
    """All accounts of one relevance pass. ``started`` is ΣR at the target, ``reached`` what the
    explained inputs received, both (batch,)."""

    accounts: tuple[Account, ...]
    started: Tensor
    reached: Mapping[str, Tensor] = field(default_factory=dict)

    def absorbed(self) -> dict[str, Tensor]:
        """What each parameter or constant absorbed, by name, (batch,)."""
        return _sum_by_key(account.absorbed for account in self.accounts)

    def lost(self) -> dict[str, Tensor]:
        """What was lost, by cause, (batch,)."""
        return _sum_by_key(account.lost for account in self.accounts)

    def totals(self) -> dict[str, Tensor]:
        """The end-to-end books, each (batch,): started = reached + absorbed + lost + unread +
        residual."""
        zero = torch.zeros_like(self.started)
        return {
            "started": self.started,
            "reached": sum(self.reached.values(), zero),
            "absorbed": sum(self.absorbed().values(), zero),
            "lost": sum(self.lost().values(), zero),
            "unread": sum((a.unread for a in self.accounts), zero),
            "residual": sum((a.residual for a in self.accounts), zero),
        }

    def worst(self) -> float:
        """The largest |residual|/Σ|R| of any node and sample: the books balance if it is below
        1e-5."""
        wide = self.started.dtype == torch.float64
        tiny = torch.finfo(torch.float64 if wide else torch.float32).tiny
        ratios = [(a.residual.abs() / a.absolute.clamp(min=tiny)).max() for a in self.accounts]
        return float(torch.stack(ratios).max()) if ratios else 0.0

    def balanced(self, tolerance: float = 1e-5) -> bool:
        """Whether every node's residual is within ``tolerance``·Σ|R|."""
        return self.worst() <= tolerance

    def first_nonfinite(self) -> Account | None:
        """The first books, from the target down, of which finite relevance arrived and what was
        handed on is not finite."""
        made = (a for a in self.accounts if not bool(a.to_inputs.isfinite().all()))
        return next((a for a in made if bool(a.arrived.isfinite().all())), None)

    def __add__(self, other: Ledger) -> Ledger:
        """The books of two passes over one plan and one batch, together."""
        accounts = tuple(added_accounts(self.accounts, other.accounts))
        return Ledger(accounts, self.started + other.started, added(self.reached, other.reached))

    def __str__(self) -> str:
        notes = {"unread": "   (not lost: it flowed past what the method reads)"}
        lines = [
            f"  {name:<10}{float(value.mean()):+.6g}{notes.get(name, '')}"
            for name, value in self.totals().items()
        ]
        eps = torch.finfo(self.started.dtype).eps
        rounding = eps * len(self.accounts) * float(self.started.abs().max())
        lines += [
            f"  lost       {cause}: {float(v.mean()):+.3g}"
            for cause, v in self.lost().items()
            if float(v.abs().max()) > rounding
        ]
        samples = f"mean of {counted(len(self.started), 'sample')}"
        return "\n".join([f"ledger over {len(self.accounts)} operations ({samples})", *lines])

    __repr__ = __str__  # a wall of tensors tells nobody anything


def join_ledgers(parts: list[Ledger]) -> Ledger:
    """One ledger for a batch that was computed in parts; what a part has no account of (samples may
    take other branches) is 0 there."""
    if len(parts) == 1:
        return parts[0]
    keyed = [{a.key: a for a in part.accounts} for part in parts]
    zeros = [_zero_like(part.started) for part in parts]

    def of_node(key: Whose) -> Account:
        empty = (Account(*key, zero, zero, zero, zero) for zero in zeros)
        return Account.join([own.get(key, e) for own, e in zip(keyed, empty, strict=True)])

    accounts = tuple(of_node(key) for key in dict.fromkeys(k for own in keyed for k in own))
    started = torch.cat([p.started for p in parts])
    return Ledger(accounts, started, joined([p.reached for p in parts], zeros))


def _zero_like(started: Tensor) -> Tensor:
    """Zeros of the batch, in the precision that books are kept in."""
    dtype = torch.float64 if started.device.type != "mps" else torch.float32
    return torch.zeros_like(started, dtype=dtype)


def _sum_by_key(maps: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    for one in maps:
        sums = added(sums, one)
    return sums
