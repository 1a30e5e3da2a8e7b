"""How relevance passes the end of a graph that reads an output off single positions by single rows
of a weight: only where it is not 0, by the plan's own rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, fx

from relprop.interpreter.batch import Passage, of_each_sample
from relprop.interpreter.points import Points, Seed, whole
from relprop.interpreter.walk import Pending, Walk, walk
from relprop.numerics import at_least_float32
from relprop.operations import Args, Kwargs, Value
from relprop.plan import Plan, Step
from relprop.rules.notes import FieldNote
from relprop.tracer.calls import Values
from relprop.tracer.editing import val
from relprop.tracer.facts import is_floating
from relprop.tracer.forms import PLAIN, Forms
from relprop.tracer.readout import (
    Index,
    Readout,
    own_arguments,
    put_back,
    readout_of,
    sizes,
    taken,
)


@dataclass(frozen=True)
class Reading:
    """How relevance passes a readout. ``plan`` has its steps alone."""

    plan: Plan
    readout: Readout

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """The calls that it passes, the output first."""
        return self.readout.nodes

    @cached_property
    def made(self) -> frozenset[fx.Node]:
        """The calls whose values the rules read, and those that are made on the way to them."""
        nodes, steps = self.readout.nodes, self.plan.steps
        first = len(nodes)
        for i, step in enumerate(steps):
            if "output" in step.rule.reads:
                first = min(first, i)
            elif "inputs" in step.rule.reads:
                first = min(first, i + 1)
        return frozenset(nodes[first:])

    @property
    def entering(self) -> frozenset[fx.Node]:
        """What must be kept of what is outside."""
        steps = (s for s in self.plan.steps if s.node in self.made or "inputs" in s.rule.reads)
        read = {o for s in steps for o in s.operands}
        masks = {o for o in self.readout.extra if not is_floating(o)}
        return frozenset(read | masks).difference(self.readout.nodes)

    def begun(self, seed: Points, *, account: bool) -> tuple[Tensor, Passage]:
        """What starts at the output in place of a ``seed``, and how that passes."""
        index, _, part = seed.gathered()
        indices = self.readout.indices(index)
        steps = tuple(_of_part(step, indices[step.node]) for step in self.plan.steps)
        plan, below = replace(self.plan, steps=steps), self.readout.below

        def passage(arrived: Tensor, values: Values) -> tuple[Walk, Pending]:
            own = {n: taken(n, values[n], indices[n]) for n in self.entering}

            def one_sample(given: Values, relevance: Tensor) -> tuple[Walk, Pending]:
                inside = self._inside(given, indices, relevance)
                left: Pending = {(self.readout.nodes[0], 0): [relevance]}
                return walk(plan, self.readout.nodes, inside, left, {}, account), left

            done, left = of_each_sample(one_sample, own, arrived)
            back = (
                put_back(below, part, indices[below]) for parts in left.values() for part in parts
            )
            return done, {(below, 0): list(back)}

        return part, passage

    def _inside(self, known: Values, indices: Mapping[fx.Node, Index], like: Tensor) -> Values:
        """The parts of all values that the steps name: made anew, or zeros that take no memory
        where nobody reads them."""
        dtype = at_least_float32(like.dtype)
        inside: Values = {}
        for node in (self.readout.below, *self.readout.extra, *self.readout.nodes[::-1]):
            if node in known:
                inside[node] = known[node]
            elif node in self.made:
                inside[node] = self.readout.made(node, inside, indices, self.plan.program.dtype)
            else:
                nothing = torch.zeros((), dtype=dtype, device=like.device)
                inside[node] = nothing.expand(sizes(node, indices[node]))
        return inside


def _of_part(step: Step, index: Index) -> Step:
    """A step for a part of its result."""
    if isinstance(step.note, FieldNote):
        step = replace(step, note=replace(step.note, shape=tuple(sizes(step.node, index))))
    rest = own_arguments(step.node, index)
    if rest is None:
        return step

    def rebuild(*tensors: Value) -> tuple[Args, Kwargs]:
        return (tensors[0], *rest), {}

    return replace(step, rebuild=rebuild)


def reading_of(plan: Plan, output: fx.Node, hooks: Collection[fx.Node] = ()) -> Reading | None:
    """How relevance passes the end of the graph before an output; ``None`` if it must pass whole:
    a rule does not split parts, something is handed out there, or relevance comes from elsewhere,
    too. Worked out once per plan."""
    return plan.memo.cache(
        ("reading", output, frozenset(hooks)), lambda: _reading_of(plan, output, hooks)
    )


def _reading_of(plan: Plan, output: fx.Node, hooks: Collection[fx.Node]) -> Reading | None:
    readout = readout_of(output)
    if readout is None:
        return None
    arrives = Counter(plan.starts)
    arrives.update(edge[0] for step in plan.steps for edge in step.edges if edge is not None)
    steps = []
    for node, source in zip(readout.nodes, (*readout.nodes[1:], readout.below), strict=True):
        step = plan.step_at.get(node)
        alone = arrives[node] == 1 and node not in plan.wanted and node not in hooks
        if step is None or not alone or not _passes(step, source):
            return None
        steps.append(step)
    found = Reading(replace(plan, steps=tuple(steps), wanted=frozenset()), readout)
    between = tuple(n for n in readout.nodes if n in found.made)
    made_whole = not between or replace(readout, nodes=between).can_be_made
    return found if made_whole else None


def _passes(step: Step, source: fx.Node) -> bool:
    """Whether a step hands on to ``source`` alone what arrives, in parts."""
    edges = [edge for edge in step.edges if edge is not None]
    lone = edges == [(source, 0)] and step.roles.count("activation") == 1
    return lone and not step.inner and step.rule.splits_parts and isinstance(val(step.node), Tensor)


def begun(
    seeds: Mapping[fx.Node, Seed],
    readings: Mapping[fx.Node, Reading],
    *,
    account: bool = True,
) -> tuple[dict[fx.Node, Tensor], dict[fx.Node, Passage]]:
    """What starts at each output, and how it passes where that is not as anywhere else."""
    starts, passages = dict[fx.Node, Tensor](), dict[fx.Node, Passage]()
    for node, seed in seeds.items():
        if isinstance(seed, Points) and node in readings:
            starts[node], passages[node] = readings[node].begun(seed, account=account)
        else:
            starts[node] = whole(seed)
    return starts, passages


def made_at(
    readout: Readout, values: Values, index: Index, dtype: torch.dtype | None, forms: Forms = PLAIN
) -> Tensor:
    """A part of an output, batch first, made anew of what is read for it alone, by ``forms``:
    attached to autograd where that is."""
    indices = readout.indices(index)
    own = {n: taken(n, values[n], indices[n]) for n in (readout.below, *readout.extra)}

    def one_sample(known: Values) -> Tensor:
        for node in readout.nodes[::-1]:
            if node in forms.made:
                known[node] = forms.call(node, known, dtype)
            else:
                known[node] = readout.made(node, known, indices, dtype)
        made: Tensor = known[readout.nodes[0]]
        return made

    return of_each_sample(one_sample, own)  # type: ignore[no-any-return]
