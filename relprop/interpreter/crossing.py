"""How relevance passes an attention site some queries at a time: the region above the contraction
is run again for these, and walked by the plan's own rules.

Whatever has the queries' axis is split part by part, so every rule in the region must split parts
(``Rule.splits_parts``); what keys, values and biases get is the sum over all parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add

import torch
from torch import Tensor, fx
from torch.utils._pytree import register_dataclass, tree_map

from relprop.interpreter.walk import Pending, Walk, call_of, walk
from relprop.numerics import total
from relprop.operations import Args, Kwargs, Value, is_call
from relprop.operations.looking import is_recorded
from relprop.plan import Edge, Plan, Step
from relprop.rules.call import Call, Split
from relprop.tracer.calls import Values, call_node
from relprop.tracer.chunked import Chunk, Chunked, chunked
from relprop.tracer.follow import depending
from relprop.tracer.queries import Attention


def refusing_step(plan: Plan, attention: Attention) -> Step | None:
    """A step between a site's scores and its result whose rule does not split parts, Lemma 2's sums
    aside; ``None`` if relevance can pass the site in parts."""
    for step in (plan.step_at[n] for n in attention.nodes if n in plan.step_at):
        if step.inner or not (step.rule.splits_parts or step.rule.balancing is not None):
            return step
    return None


@dataclass(frozen=True)
class Lemma2:
    """The sums over all rows by which one step's shares are balanced, each (batch,)."""

    arrived: Tensor
    sums: tuple[Tensor, ...]


register_dataclass(Lemma2)
Balances = Mapping[fx.Node, Lemma2]


@dataclass(frozen=True)
class Crossing:
    """How relevance passes one site. ``plan`` has the steps inside the site alone, ``nodes`` what
    the walk visits, the contraction first."""

    plan: Plan
    attention: Attention
    nodes: tuple[fx.Node, ...]

    @classmethod
    def to(cls, end: fx.Node | None, plan: Plan, attention: Attention) -> Crossing:
        """From the result to everything that enters, or to the attention map, the ``end``, where
        relevance is then handed out."""
        below, wanted = {*attention.nodes}, frozenset[fx.Node]()
        if end is not None:
            below, wanted = depending(attention.nodes, {end}) - {end}, frozenset({end})
        own = replace(plan, steps=tuple(s for s in plan.steps if s.node in below), wanted=wanted)
        return cls(own, attention, tuple(n for n in attention.nodes[::-1] if n in below | wanted))

    def balances(self, by: Chunked, arrived: Tensor) -> Balances:
        """The sums that Lemma 2 takes over all rows, of one step after the other: what arrives at
        one depends on those above it."""
        known: dict[fx.Node, Lemma2] = {}
        for node in self.nodes:
            step = self.plan.step_at.get(node)
            if step is not None and step.rule.balancing is not None and not step.rule.splits_parts:
                known[node] = self._balance(by, arrived, step, known)
        return known

    def _balance(self, by: Chunked, arrived: Tensor, step: Step, known: Balances) -> Lemma2:
        """The sums of one step, from those of the steps above it."""
        nodes = self.nodes[: self.nodes.index(step.node) + 1]
        steps = tuple(s for s in self.plan.steps if s.node in nodes and s.node is not step.node)
        above = replace(self.plan, steps=steps, wanted=frozenset({step.node}))
        crossing, function = replace(self, plan=above, nodes=nodes), step.rule.balancing
        assert function is not None

        def sums(inside: Values, relevance: Tensor, known: Balances, chunk: Chunk) -> Lemma2:
            here = crossing.at(step.node, inside, relevance, chunk.size, known)
            call = call_of(self._step(step, chunk.size), here, inside, None)
            shares = function.shares(here, call)
            return Lemma2(total(here), tuple(total(share) for share in shares))

        reached = _reached(by, arrived).__contains__
        found: list[Lemma2] = [made for _, made in by.each(sums, arrived, known, reached)]
        return reduce(partial(tree_map, add), found)

    def at(
        self, node: fx.Node, inside: Values, arrived: Tensor, count: int, known: Balances
    ) -> Tensor:
        """The relevance of a node inside, of one sample and ``count`` queries, from ``arrived`` at
        the result."""
        left: Pending = {(self.attention.site.contraction, 0): [arrived]}
        done = walk(self._sized(count, known), self.nodes, inside, left, {}, False)
        found = done.found.get(node)
        return torch.zeros_like(inside[node]) if found is None else found

    def whole(self, values: Values, arrived: Tensor) -> tuple[Walk, Pending]:
        """All chunks that relevance reaches: the walk as if it had been one, and what it leaves for
        what is outside. ``arrived``: the relevance of the contraction, batch first."""
        by = chunked(self.attention, values, self.plan.program.dtype)
        reached, known, walks = _reached(by, arrived), self.balances(by, arrived), Walk()

        def through(
            inside: Values, relevance: Tensor, known: Balances, chunk: Chunk
        ) -> tuple[Walk, Pending]:
            left: Pending = {(self.attention.site.contraction, 0): [relevance]}
            plan = self._sized(chunk.size, known, account=chunk == reached[0])
            return walk(plan, self.nodes, inside, left, {}, True), left

        rows: dict[tuple[Edge, int], dict[Chunk, Tensor]] = {}
        sums: dict[tuple[Edge, int], Tensor] = {}
        for chunk, (done, left) in by.each(through, arrived, known, reached.__contains__):
            walks += done
            for edge, i, part in ((e, i, p) for e, ps in left.items() for i, p in enumerate(ps)):
                if edge[0] in self.attention.axes:
                    rows.setdefault((edge, i), {})[chunk] = part
                else:
                    sums[edge, i] = sums[edge, i] + part if (edge, i) in sums else part
        axis, leaving = self.attention.from_last, Pending()
        joined = {key: _joined(parts, axis(key[0][0]), by) for key, parts in rows.items()}
        for (edge, _), part in (joined | sums).items():
            leaving.setdefault(edge, []).append(part)
        return walks, leaving

    def _sized(self, count: int, known: Balances, *, account: bool = True) -> Plan:
        """The plan for ``count`` queries of one sample, balanced by what is ``known`` of all.
        ``account``: what Lemma 2 loses is booked here."""
        steps = (self._step(step, count) for step in self.plan.steps)
        balanced = (
            _balanced(step, known[step.node], account) if step.node in known else step
            for step in steps
        )
        return replace(self.plan, steps=tuple(balanced))

    def _step(self, step: Step, count: int) -> Step:
        sizes = self.attention.sizes(step.node, count)
        if sizes is None:
            return step
        place, given = sizes

        def rebuild(*tensors: Value) -> tuple[Args, Kwargs]:
            args, kwargs = step.rebuild(*tensors)
            return (*args[:place], given, *args[place + 1 :]), kwargs

        return replace(step, rebuild=rebuild)


def _balanced(step: Step, known: Lemma2, account: bool) -> Step:
    """A step whose shares are balanced by sums over all rows."""
    function = step.rule.balancing
    assert function is not None

    def split(relevance: Tensor, call: Call) -> Split:
        made = function.balanced(function.shares(relevance, call), known.arrived, known.sums)
        lost = {k: v if account else torch.zeros_like(v) for k, v in made.lost.items()}
        return Split(made.shares, lost)

    return replace(step, rule=replace(step.rule, function=split, lone=None))


def _reached(by: Chunked, arrived: Tensor) -> list[Chunk]:
    """The chunks at which relevance has arrived, at least one: of none every rule makes none, being
    homogeneous. A run that is recorded looks at no values."""
    chunks = list(by.chunks())
    if is_recorded():
        return chunks
    return [c for c in chunks if bool(arrived.narrow(by.axis, *c).any())] or chunks[:1]


def _joined(parts: Mapping[Chunk, Tensor], axis: int, by: Chunked) -> Tensor:
    """What chunks were left with side by side, zeros for those that relevance does not reach."""
    one = next(iter(parts.values()))

    def none(chunk: Chunk) -> Tensor:
        sizes = list(one.shape)
        sizes[axis] = chunk.size
        return one.new_zeros(()).expand(sizes)

    return torch.cat([parts[c] if c in parts else none(c) for c in by.chunks()], axis)


def map_rows(
    by: Chunked,
    wanted: Callable[[Chunk], bool],
    gradient: Tensor | None = None,
    relevance: tuple[Plan, Tensor] | None = None,
) -> Iterator[tuple[Chunk, dict[str, Tensor]]]:
    """A site's map, chunk by chunk; of those chunks alone that are ``wanted``: what is found at its
    rows, batch first, by name. ``gradient``: ∂y_t/∂ of the site's result, batch first;
    ``relevance``: what arrived there, and by which plan; if these are asked for."""
    end = by.attention.site.attention
    crossing = None if relevance is None else Crossing.to(end, relevance[0], by.attention)
    arrived = {"gradient": gradient, "relevance": None if relevance is None else relevance[1]}
    along = {k: t for k, t in arrived.items() if t is not None}

    def rows(
        inside: Values, here: Mapping[str, Tensor], _: Value, chunk: Chunk
    ) -> dict[str, Tensor]:
        found = {"attention": inside[end]}
        if "gradient" in here:
            found["gradient"] = _gradient_at_map(by, inside, here["gradient"], chunk.size)
        if crossing is not None:
            found["relevance"] = crossing.at(end, inside, here["relevance"], chunk.size, {})
        return found

    return by.each(rows, along, wanted=wanted)


def _gradient_at_map(by: Chunked, inside: Values, gradient: Tensor, count: int) -> Tensor:
    """∂y_t/∂A of one sample, from that of the site's result."""
    site = by.attention.site
    values = inside[site.values]
    gradient = gradient.to(inside[site.contraction].dtype)
    product = is_call(site.contraction, torch.ops.aten.matmul)
    if product and site.contraction.args == (site.attention, site.values) and values.dim() > 1:
        made: Tensor = gradient @ values.mT
        return made.sum_to_size(inside[site.attention].shape)
    below = depending(by.attention.nodes, {site.attention}) - {site.attention}
    nodes = [n for n in by.attention.nodes if n in below]

    def result(attention: Tensor) -> Tensor:
        known = {**inside, site.attention: attention}
        for node in nodes:
            known[node] = call_node(node, known, by.dtype, by.attention.sizes(node, count))
        made: Tensor = known[site.contraction]
        return made

    _, pull = torch.func.vjp(result, inside[site.attention])  # type: ignore[misc]
    found: Tensor = pull(gradient)[0]
    return found
