"""A ledger as one tensor, and back: what a flat program computes, and what the rows of it are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from relprop.interpreter.accounts import Account
from relprop.interpreter.ledger import Ledger

#: What is in an account, as its node, path, operation and rule, and the names of what was absorbed
#: and lost.
Row = tuple[str, str, str, str, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class LedgerRows:
    """What is in each row of the tensor that a ledger is written as. ``started``: the type that the
    relevance at the target had."""

    rows: tuple[Row, ...]
    reached: tuple[str, ...]
    started: torch.dtype

    @classmethod
    def of(cls, ledger: Ledger) -> tuple[LedgerRows, Tensor]:
        """A ledger's, and its amounts, (amounts, batch)."""
        rows = tuple((*a.key, tuple(a.absorbed), tuple(a.lost)) for a in ledger.accounts)
        amounts = tree_leaves([*ledger.accounts, *ledger.reached.values(), ledger.started])
        written = torch.stack([t.to(amounts[0].dtype) for t in amounts])
        return cls(rows, tuple(ledger.reached), ledger.started.dtype), written

    def ledger(self, amounts: Tensor) -> Ledger:
        """The ledger of these amounts."""
        left = iter(amounts.unbind())
        accounts = tuple(_account(row, left) for row in self.rows)
        reached = {name: next(left) for name in self.reached}
        return Ledger(accounts, next(left).to(self.started), reached)


def _account(row: Row, amounts: Iterator[Tensor]) -> Account:
    node, path, op, rule, absorbed, lost = row
    arrived, absolute, to_inputs, unread = (next(amounts) for _ in range(4))
    named = ({name: next(amounts) for name in names} for names in (absorbed, lost))
    return Account(node, path, op, rule, arrived, absolute, to_inputs, unread, *named)
