"""Why a node got its relevance: the rules of the operations that read it, what each handed on, and
what became of the relevance that arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, fx

from relprop.interpreter.accounts import Account
from relprop.interpreter.batch import shares_at
from relprop.interpreter.ledger import Ledger
from relprop.plan import Plan
from relprop.tracer.calls import Values
from relprop.tracer.program import describe


@dataclass(frozen=True)
class OperandShare:
    """What one operand of a step was given: ``operand`` (its node), its role, and Σ of its share,
    (batch,); ``None``: nothing."""

    operand: str
    role: str
    amount: Tensor | None


@dataclass(frozen=True)
class Why:
    """One node of a relevance pass; print it.

    ``arrived`` (batch,) is Σ of its relevance, handed down by the operations in ``readers``, each
    with its rule. ``rule`` splits it among ``shares`` by the books in ``account``; an explained
    input has neither.
    """

    node: str
    place: str
    arrived: Tensor
    readers: tuple[tuple[str, str], ...]
    rule: str | None = None
    account: Account | None = None
    shares: tuple[OperandShare, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.node}  at {self.place}", f"  arrived      {_mean(self.arrived)}"]
        lines += [f"    from       {node}, by {rule}" for node, rule in self.readers]
        if self.account is None:
            return "\n".join([*lines, "  ends here: relevance is handed out, not on"])
        lines.append(f"  rule         {self.rule}  ({self.account.op})")
        lines += [
            f"    to         {s.operand} ({s.role})"
            + ("" if s.amount is None else f"  {_mean(s.amount)}")
            for s in self.shares
        ]
        return "\n".join([*lines, *_lines_of(self.account)])


def why(
    plan: Plan, ledger: Ledger, values: Values, found: Mapping[fx.Node, Tensor], node: fx.Node
) -> Why:
    """What the pass over ``plan`` did at ``node``. ``found``: the relevance it handed out."""
    readers = tuple(
        (step.node.name, step.rule.name)
        for step in plan.steps
        if any(edge is not None and edge[0] is node for edge in step.edges)
    )
    relevance = found.get(node)
    arrived = ledger.started * 0 if relevance is None else relevance.flatten(1).sum(1)
    step, place = plan.step_at.get(node), describe(node)
    account = next((a for a in ledger.accounts if a.node == node.name), None)
    if step is None or account is None or relevance is None:
        return Why(node.name, place, arrived, readers)
    sums = shares_at(plan, values, node, relevance)
    shares = tuple(
        OperandShare(operand.name, role, sums.get(i))
        for i, (operand, role) in enumerate(zip(step.operands, step.roles, strict=True))
    )
    return Why(node.name, place, account.arrived, readers, step.rule.name, account, shares)


def _lines_of(account: Account) -> list[str]:
    """The account's columns that hold anything, a line each."""
    amounts = {"to inputs": account.to_inputs, "unread": account.unread}
    amounts |= {f"absorbed by {name}": a for name, a in account.absorbed.items()}
    amounts |= {f"lost: {cause}": a for cause, a in account.lost.items()}
    amounts["residual"] = account.residual
    return [f"    {name:<22} {_mean(a)}" for name, a in amounts.items() if bool(a.any())]


def _mean(amount: Tensor) -> str:
    """The mean over samples, as the ledger prints it."""
    return f"{float(amount.mean()):+.6g}"
