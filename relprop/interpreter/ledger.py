"""The ledger: where every bit of relevance went, node by node.

For each node: *arrived* = to inputs + absorbed (by NAME) + lost (by cause) + unread + *residual*.
Lost is measured where it happens, never as the difference; the residual is the difference, and must
be at most 1e-5·Σ|R|.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Account:
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
    def residual(self) -> Tensor:
        """What none of the columns explains, (batch,)."""
        explained = self.to_inputs + self.unread
        for amount in (*self.absorbed.values(), *self.lost.values()):
            explained = explained + amount
        return self.arrived - explained


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
        tiny = (
            torch.finfo(torch.float64).tiny
            if self.started.dtype == torch.float64
            else torch.finfo(torch.float32).tiny
        )
        ratios = [(a.residual.abs() / a.absolute.clamp(min=tiny)).max() for a in self.accounts]
        return float(torch.stack(ratios).max()) if ratios else 0.0

    def balanced(self, tolerance: float = 1e-5) -> bool:
        """Whether every node's residual is within ``tolerance``·Σ|R|."""
        return self.worst() <= tolerance

    def __str__(self) -> str:
        lines = [f"  {name:<10}{float(value.mean()):+.6g}" for name, value in self.totals().items()]
        lines += [
            f"  lost       {cause}: {float(v.mean()):+.3g}"
            for cause, v in self.lost().items()
            if float(v.abs().max()) > 0
        ]
        return "\n".join(
            [
                (
                    f"ledger over {len(self.accounts)} operations (mean of "
                    f"{len(self.started)} samples)"
                ),
                *lines,
            ]
        )


def join_ledgers(parts: list[Ledger]) -> Ledger:
    """One ledger for a batch that was computed in parts; what a part has no account of (samples may
    take other branches) is 0 there."""
    if len(parts) == 1:
        return parts[0]
    keyed = [{(a.node, a.path, a.op, a.rule): a for a in part.accounts} for part in parts]
    zeros = [
        torch.zeros_like(
            part.started,
            dtype=torch.float64 if part.started.device.type != "mps" else torch.float32,
        )
        for part in parts
    ]

    def cat_maps(maps: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {
            key: torch.cat([m.get(key, zero) for m, zero in zip(maps, zeros, strict=True)])
            for key in dict.fromkeys(k for m in maps for k in m)
        }

    def join_accounts(key: tuple[str, str, str, str]) -> Account:
        same = [
            accounts.get(key, Account(*key, zero, zero, zero, zero))
            for accounts, zero in zip(keyed, zeros, strict=True)
        ]
        arrived, absolute, to_inputs, unread = (
            torch.cat([getattr(a, name) for a in same])
            for name in ("arrived", "absolute", "to_inputs", "unread")
        )
        return Account(
            *key,
            arrived,
            absolute,
            to_inputs,
            unread,
            cat_maps([a.absorbed for a in same]),
            cat_maps([a.lost for a in same]),
        )

    accounts = tuple(
        join_accounts(key) for key in dict.fromkeys(k for accounts in keyed for k in accounts)
    )
    return Ledger(
        accounts, torch.cat([p.started for p in parts]), cat_maps([p.reached for p in parts])
    )


def _sum_by_key(maps: object) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    for one in maps:  # type: ignore[attr-defined]
        for key, value in one.items():
            sums[key] = sums[key] + value if key in sums else value
    return sums
