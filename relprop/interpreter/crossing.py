"""How relevance passes an attention site some queries at a time: the region above the contraction
is run again for these, and walked by the plan's own rules.

Whatever has the queries' axis is split part by part, so every rule in the region must split parts
(``Rule.splits_parts``); what keys, values and biases get is the sum over all parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

from relprop.interpreter.walk import Pending, Walk, walk
from relprop.operations import Args, Kwargs
from relprop.plan import Edge, Plan, Step
from relprop.tracer.chunked import Chunked, chunked
from relprop.tracer.follow import depending
from relprop.tracer.queries import Attention
from relprop.tracer.run import Values, per_sample


def may_cross(plan: Plan, attention: Attention) -> bool:
    """Whether every rule of the plan between a site's scores and its result splits parts."""
    inside = [plan.step_at[n] for n in attention.nodes if n in plan.step_at]
    return all(step.rule.splits_parts and not step.inner for step in inside)


@dataclass(frozen=True)
class Crossing:
    """How relevance passes one site. ``plan`` has the steps inside the site alone, ``nodes`` what
    the walk visits, the contraction first."""

    plan: Plan
    attention: Attention
    nodes: tuple[fx.Node, ...]

    @classmethod
    def through(cls, plan: Plan, attention: Attention) -> Crossing:
        """From the result to everything that enters."""
        steps = tuple(s for s in plan.steps if s.node in set(attention.nodes))
        own = replace(plan, steps=steps, wanted=frozenset())
        return cls(own, attention, attention.nodes[::-1])

    @classmethod
    def to_map(cls, plan: Plan, attention: Attention) -> Crossing:
        """From the result to the attention map, where relevance is handed out."""
        end = attention.site.attention
        below = depending(attention.nodes, {end}) - {end}
        steps = tuple(s for s in plan.steps if s.node in below)
        own = replace(plan, steps=steps, wanted=frozenset({end}))
        return cls(own, attention, tuple(n for n in attention.nodes[::-1] if n in below | {end}))

    def parts(
        self, values: Values, arrived: Tensor, account: bool
    ) -> Iterator[tuple[tuple[int, int], Walk, Pending]]:
        """For each chunk its first query and how many it has, the walk through it, and what that
        leaves for what is outside. ``arrived``: the relevance of the contraction, batch first."""
        by = chunked(self.attention, values, self.plan.program.dtype)
        for first, count in by.chunks():
            fixed, given = by.part(first, count)
            plan = self._sized(count)

            def one_sample(
                relevance: Tensor,
                *given: Tensor,
                plan: Plan = plan,
                fixed: Values = fixed,
                count: int = count,
            ) -> tuple[Walk, Pending]:
                left: Pending = {(self.attention.site.contraction, 0): [relevance]}
                inside = by.values(fixed, given, count)
                return walk(plan, self.nodes, inside, left, {}, account), left

            relevance = arrived.narrow(by.axis, first, count)
            yield (first, count), *per_sample(one_sample, relevance, *given)

    def whole(self, values: Values, arrived: Tensor, account: bool) -> tuple[Walk, Pending]:
        """All chunks: the walk as if it had been one, and what it leaves for what is outside."""
        walks = Walk()
        rows: dict[Edge, list[Tensor]] = {}
        sums: dict[Edge, Tensor] = {}
        for _, done, left in self.parts(values, arrived, account):
            walks += done
            for edge, parts in left.items():
                part = sum(parts[1:], parts[0])
                if edge[0] in self.attention.axes:
                    rows.setdefault(edge, []).append(part)
                else:
                    sums[edge] = sums[edge] + part if edge in sums else part
        axis = self.attention.from_last
        joined = {edge: torch.cat(parts, axis(edge[0])) for edge, parts in rows.items()}
        return walks, {edge: [part] for edge, part in (joined | sums).items()}

    def _sized(self, count: int) -> Plan:
        """The plan for ``count`` queries."""
        steps = tuple(self._step(step, count) for step in self.plan.steps)
        return replace(self.plan, steps=steps)

    def _step(self, step: Step, count: int) -> Step:
        sizes = self.attention.sizes(step.node, count)
        if sizes is None:
            return step
        place, given = sizes

        def rebuild(*tensors: Tensor) -> tuple[Args, Kwargs]:
            args, kwargs = step.rebuild(*tensors)
            return (*args[:place], given, *args[place + 1 :]), kwargs

        return replace(step, rebuild=rebuild)
