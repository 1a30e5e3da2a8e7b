"""The walk for a whole batch: one ``vmap`` over it from hook to hook. A rule sees one sample, an
operation is called once, and no sample can leak into another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, fx

from relprop.interpreter.ledger import sum_of
from relprop.interpreter.walk import Pending, Walk, apply, join, walk
from relprop.plan import Plan
from relprop.tracer.calls import Values, per_sample
from relprop.tracer.facts import is_batched

Hook = Callable[[Tensor], Tensor | None]
#: What becomes of all that has arrived at a node, batch first, where these are the values: a walk,
#: and what it leaves for nodes further on.
Passage = Callable[[Tensor, Values], tuple[Walk, Pending]]

__all__ = ["Hook", "Passage", "Passing", "Walk", "pending_at", "propagate", "shares_at"]


@dataclass
class Passing:
    """Relevance on its way through a plan: what is ``pending``.

    ``extras`` are tensors a method attaches to nodes, batch first. ``hooks[node](relevance)`` sees
    the joined relevance of a node, batch first, and may return another. ``passages[node]`` is how
    relevance passes a node in place of its rule.
    """

    plan: Plan
    pending: Pending
    extras: Mapping[fx.Node, Tensor] = field(default_factory=dict)
    account: bool = True
    hooks: Mapping[fx.Node, Hook] = field(default_factory=dict)
    passages: Mapping[fx.Node, Passage] = field(default_factory=dict)

    def through(self, nodes: Iterable[fx.Node], values: Values) -> Walk:
        """Take it on through some nodes, the plan's next ones; gives what is handed out there."""
        whole = Walk()
        for first, *others in _sections(nodes, self.hooks, self.passages):
            whole += self._section(first, others, values)
        return whole

    def _section(self, first: fx.Node, others: list[fx.Node], values: Values) -> Walk:
        """The same through nodes between two hooks or passages."""
        plan, pending = self.plan, self.pending
        arrived = join(plan, first, values, pending.get((first, 0), []))
        if first in self.hooks and arrived is not None:
            replaced = self.hooks[first](arrived)
            arrived = arrived if replaced is None else replaced
            pending[first, 0] = [arrived]
        if first in self.passages and arrived is not None:
            done, left = self.passages[first](arrived, values)
            del pending[first, 0]
            for edge, parts in left.items():
                pending.setdefault(edge, []).extend(parts)
            return done
        nodes = [first, *others]
        done, self.pending = _walk_section(plan, nodes, values, pending, self.extras, self.account)
        return done


def propagate(
    plan: Plan,
    values: Values,
    starts: Mapping[fx.Node, Tensor],
    *,
    account: bool = True,
    hooks: Mapping[fx.Node, Hook] | None = None,
) -> Walk:
    """Relevance ``starts`` (at each start node: batch, *its shape) down through every step."""
    passing = Passing(plan, pending_at(starts), {}, account, hooks or {})
    return passing.through(plan.order, values)


def pending_at(starts: Mapping[fx.Node, Tensor]) -> Pending:
    """Relevance at its start."""
    return {(node, 0): [start] for node, start in starts.items()}


def _sections(
    nodes: Iterable[fx.Node], hooks: Mapping[fx.Node, Hook], passages: Mapping[fx.Node, Passage]
) -> list[list[fx.Node]]:
    """The nodes in order, cut before each hooked one, and before and after each passage."""
    sections: list[list[fx.Node]] = [[]]
    for node in nodes:
        if node in passages:
            sections += [[node], []]
            continue
        if node in hooks and sections[-1]:
            sections.append([])
        sections[-1].append(node)
    return [nodes for nodes in sections if nodes]


def _walk_section(
    plan: Plan,
    nodes: list[fx.Node],
    values: Values,
    pending: Pending,
    extras: Mapping[fx.Node, Tensor],
    account: bool,
) -> tuple[Walk, Pending]:
    """Some nodes of the walk for the whole batch; and what has arrived at nodes of later
    sections."""
    if not pending:
        return Walk(), {}
    read = plan.read_at(nodes)
    batched = {n: v for n, v in values.items() if n in read and is_batched(n)}
    fixed = {n: v for n, v in values.items() if n in read and n not in batched}
    attached = {n: e for n, e in extras.items() if n in plan.step_at and n in set(nodes)}

    def one_sample(
        arrived: Pending, given: Values, added: Mapping[fx.Node, Tensor]
    ) -> tuple[Walk, Pending]:
        left = {edge: list(parts) for edge, parts in arrived.items()}
        return walk(plan, nodes, fixed | given, left, added, account), left

    return per_sample(one_sample, pending, batched, attached)  # type: ignore[no-any-return]


def shares_at(plan: Plan, values: Values, node: fx.Node, relevance: Tensor) -> Mapping[int, Tensor]:
    """Σ of what each operand of ``node`` is given of ``relevance`` (batch first), by its position,
    (batch,)."""
    read = plan.read_at([node])
    batched = {n: v for n, v in values.items() if n in read and is_batched(n)}
    fixed = {n: v for n, v in values.items() if n in read and n not in batched}

    def one_sample(arrived: Tensor, given: Values) -> dict[int, Tensor]:
        shares = apply(plan.step_at[node], arrived, fixed | given, None).shares
        return {i: sum_of(share) for i, share in enumerate(shares) if share is not None}

    return per_sample(one_sample, relevance, batched)  # type: ignore[no-any-return]
