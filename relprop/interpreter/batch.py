"""The walk for a whole batch: one ``vmap`` over it from hook to hook. A rule sees one sample, an
operation is called once, and no sample can leak into another. Walks that begin elsewhere in one
plan go side by side, in a second ``vmap`` inside: what a rule makes of the forward pass's values
alone is then made once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map, tree_map_only

from relprop.interpreter.forward import detached
from relprop.interpreter.walk import Pending, Walk, apply, join, read_by, walk
from relprop.operations import Value
from relprop.plan import Plan
from relprop.rules.call import ZeroPadded, sum_of, whole
from relprop.tracer.calls import Values, per_sample
from relprop.tracer.editing import val
from relprop.tracer.facts import is_batched

#: In how many pieces a walk goes that lets go of the values it has read.
PIECES = 16
Hook = Callable[[Tensor], Tensor | None]
#: What becomes of all that has arrived at a node, batch first, where these are the values: a walk,
#: and what it leaves for nodes further on.
Passage = Callable[[Tensor, Values], tuple[Walk, Pending]]


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
        return abreast([self], nodes, values)[0]

    def _section(self, first: fx.Node, others: list[fx.Node], values: Values) -> Walk:
        """The same through nodes between two hooks or passages."""
        plan, pending = self.plan, self.pending
        arrived = None
        if first in self.hooks or first in self.passages:
            arrived = _joined(plan, first, values, pending.get((first, 0), []))
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


def _joined(plan: Plan, node: fx.Node, values: Values, parts: list[Tensor]) -> Tensor | None:
    """All that has arrived at a node, batch first."""
    if len(parts) < 2 or plan.rules.fan_out is None:
        return join(plan, node, values, parts)
    own = {node: values[node]} if node in values else {}
    return per_sample(partial(join, plan, node), own, parts)  # type: ignore[no-any-return]


def abreast(
    passings: Sequence[Passing],
    nodes: Iterable[fx.Node],
    values: Values,
    fleeting: Collection[fx.Node] = (),
) -> list[Walk]:
    """Take several passings of one plan, or one with hooks, on through some nodes side by side,
    where none of them has a passage; gives the walk of each. What is ``fleeting`` of the values is
    taken out of them once it has been read for the last time."""
    whole, nodes = [Walk() for _ in passings], list(nodes)
    pieces = nodes[:: max(1, len(nodes) // PIECES)] if fleeting else ()
    passages = {node for passing in passings for node in passing.passages}
    sections = _sections(nodes, {*pieces, *passings[0].hooks}, passages)
    gone = _read_last(passings[0].plan, sections, fleeting)
    for (first, *others), over in zip(sections, gone, strict=True):
        if first in passages:
            for i, passing in enumerate(passings):
                whole[i] += passing._section(first, others, values)
        else:
            for i, done in _alike_together(passings, [first, *others], values):
                whole[i] += done
        for node in over:
            values.pop(node, None)
    return whole


def _alike_together(
    passings: Sequence[Passing], nodes: list[fx.Node], values: Values
) -> Iterator[tuple[int, Walk]]:
    """One section of all of them, those side by side whose relevance is at the same places."""
    alike: dict[object, list[int]] = {}
    for i, passing in enumerate(passings):
        where = ((edge, *(p.shape for p in parts)) for edge, parts in passing.pending.items())
        alike.setdefault(tuple(where), []).append(i)
    for same in alike.values():
        yield from zip(same, _together([passings[i] for i in same], nodes, values), strict=True)


def _read_last(
    plan: Plan, sections: Sequence[Collection[fx.Node]], fleeting: Collection[fx.Node]
) -> list[set[fx.Node]]:
    """Which of the ``fleeting`` values each section is the last to read."""
    found, later = list[set[fx.Node]](), set[fx.Node]()
    for nodes in reversed(sections) if fleeting else ():
        here = plan.read_at(nodes).intersection(fleeting) - later
        found.append(here)
        later |= here
    return found[::-1] if fleeting else [set() for _ in sections]


def _together(passings: Sequence[Passing], nodes: list[fx.Node], values: Values) -> list[Walk]:
    """One section of passings whose relevance is at the same places."""
    one = passings[0]
    if len(passings) == 1:
        return [one._section(nodes[0], nodes[1:], values)]
    stacked = tree_map(lambda *same: torch.stack(same, 1), *(p.pending for p in passings))
    made = _walk_section(one.plan, nodes, values, stacked, one.extras, one.account, several=True)
    walks = list[Walk]()
    for i, passing in enumerate(passings):
        done, passing.pending = tree_map_only(Tensor, partial(torch.select, dim=1, index=i), made)
        walks.append(done)
    return walks


def propagate(
    plan: Plan, values: Values, starts: Mapping[fx.Node, Tensor], *, account: bool = True
) -> Walk:
    """Relevance ``starts`` (at each start node: batch, *its shape) down through every step."""
    return Passing(plan, pending_at(starts), account=account).through(plan.order, values)


def pending_at(starts: Mapping[fx.Node, Tensor]) -> Pending:
    """Relevance at its start."""
    return {(node, 0): [start] for node, start in starts.items()}


def _sections(
    nodes: Iterable[fx.Node], begins: Collection[fx.Node], passages: Collection[fx.Node]
) -> list[list[fx.Node]]:
    """The nodes in order, cut where one begins, and before and after each passage."""
    sections: list[list[fx.Node]] = [[]]
    for node in nodes:
        if node in passages:
            sections += [[node], []]
            continue
        if node in begins and sections[-1]:
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
    *,
    several: bool = False,
) -> tuple[Walk, Pending]:
    """Some nodes of the walk for the whole batch; and what has arrived at nodes of later sections.
    ``several``: what is pending has an axis of walks behind that of the batch."""
    if not pending:
        return Walk(), {}
    read = plan.read_at(nodes)
    known = {n: v for n, v in values.items() if n in read}
    attached = {n: e for n, e in extras.items() if n in plan.step_at and n in set(nodes)}

    def one_sample(
        given: Values, arrived: Pending, added: Mapping[fx.Node, Tensor]
    ) -> tuple[Walk, Pending]:
        def one_walk(arrived: Pending) -> tuple[Walk, Pending]:
            left = {edge: list(parts) for edge, parts in arrived.items()}
            return walk(plan, nodes, given, left, added, account), left

        return torch.func.vmap(one_walk)(arrived) if several else one_walk(arrived)  # type: ignore[no-any-return]

    return of_each_sample(one_sample, known, pending, attached)  # type: ignore[no-any-return]


def of_each_sample(function: Callable[..., Value], values: Values, *batches: Value) -> Value:
    """``function(values, *batches)`` of every sample: its own part of the batches and of the values
    that have one, and whole what is the same for all."""
    batched = {n: v for n, v in values.items() if is_batched(n)}
    fixed = {n: v for n, v in values.items() if n not in batched}

    def one_sample(own: Values, *rest: Value) -> Value:
        return function(fixed | own, *rest)

    return per_sample(one_sample, batched, *batches)


def shares_at(plan: Plan, values: Values, node: fx.Node, relevance: Tensor) -> Mapping[int, Tensor]:
    """Σ of what each operand of ``node`` is given of ``relevance`` (batch first), by its position,
    (batch,)."""
    step, read = plan.step_at[node], plan.read_at([node])

    def one_sample(given: Values, arrived: Tensor) -> dict[int, Tensor]:
        shares = apply(step, arrived, read_by(plan, step, given, {}), None).shares
        return {i: sum_of(share) for i, share in enumerate(shares) if share is not None}

    known = {n: v for n, v in values.items() if n in read}
    return of_each_sample(one_sample, known, relevance)  # type: ignore[no-any-return]


def shares_of(
    plan: Plan, values: Values, node: fx.Node, relevance: Tensor, operands: Collection[fx.Node]
) -> Tensor:
    """What some operands of ``node`` are given together of ``relevance`` (batch first), element by
    element of the node's own value, whatever was broadcast to it."""
    step, shape = plan.step_at[node], val(node).shape

    def one_sample(given: Values, arrived: Tensor) -> Tensor:
        wide = {o: given[o].expand(shape) for o in operands}
        shares = apply(step, arrived, given | wide, None).shares
        found = [s for s, o in zip(shares, step.operands, strict=True) if o in operands]
        parts = [whole(part) for part in found if isinstance(part, (Tensor, ZeroPadded))]
        return sum(parts[1:], parts[0])

    known = {n: detached(v) for n, v in values.items()}
    return of_each_sample(one_sample, known, relevance)  # type: ignore[no-any-return]
