"""The relevance pass of a target that has several terms: each is walked by itself, and walks and
books are combined linearly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, fx

from relprop.interpreter.backward import Hook, Walk, propagate
from relprop.interpreter.ledger import Account, Ledger
from relprop.plan import Plan
from relprop.targets import Term
from relprop.tracer.program import Program, place
from relprop.tracer.run import Values


def walk_terms(
    program: Program,
    plan: Plan,
    values: Values,
    terms: Iterable[Term],
    hooks: Mapping[fx.Node, Hook],
) -> tuple[Walk, Ledger]:
    """Σ coefficient · walk over the ``terms`` of a target, as one walk, and its ledger."""
    whole: Walk | None = None
    started: Any = None
    for term in terms:
        seeds = {n: s for n, s in term.seeds.items() if n in plan.starts}
        walk = _scaled(propagate(plan, values, seeds, hooks=hooks), term.coefficient)
        began = term.coefficient * sum(s.flatten(1).sum(1) for s in seeds.values())
        whole = walk if whole is None else _added(whole, walk)
        started = began if started is None else started + began
    assert whole is not None and isinstance(started, Tensor)
    reached = {_end_name(program, n): amount for n, amount in whole.ended.items()}
    like = next(iter(reached.values()), started)
    return whole, Ledger(tuple(whole.accounts), started.to(like.dtype), reached)


def _end_name(program: Program, node: fx.Node) -> str:
    leaf = next((name for name, n in program.leaves.items() if n is node), None)
    return f"input {leaf}" if leaf is not None else f"attention {place(node).call}"


def _scaled(walk: Walk, c: float) -> Walk:
    if c == 1:
        return walk

    def times(m: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        return {k: c * v for k, v in m.items()}

    accounts = [
        Account(
            a.node,
            a.path,
            a.op,
            a.rule,
            c * a.arrived,
            abs(c) * a.absolute,
            c * a.to_inputs,
            c * a.unread,
            times(a.absorbed),
            times(a.lost),
        )
        for a in walk.accounts
    ]
    return Walk(times(walk.found), accounts, times(walk.ended))


def _added(a: Walk, b: Walk) -> Walk:
    def plus(m: Mapping[Any, Tensor], n: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        return {
            k: m[k] + n[k] if k in m and k in n else m[k] if k in m else n[k]
            for k in (*m, *(k for k in n if k not in m))
        }

    by_node = {account.node: account for account in b.accounts}
    joined = [
        Account(
            x.node,
            x.path,
            x.op,
            x.rule,
            x.arrived + y.arrived,
            x.absolute + y.absolute,
            x.to_inputs + y.to_inputs,
            x.unread + y.unread,
            plus(x.absorbed, y.absorbed),
            plus(x.lost, y.lost),
        )
        if (y := by_node.pop(x.node, None)) is not None
        else x
        for x in a.accounts
    ]
    return Walk(plus(a.found, b.found), joined + list(by_node.values()), plus(a.ended, b.ended))
