"""Run a program's graph: once what depends on no input, and per sample, under ``vmap``, everything
else. Knows no rule.

Values that depend on an input have the batch first, then the sample's own shape (which starts with
1). Every operation is one call for the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor, fx, nn

from relprop.operations import Args, Value
from relprop.tracer.binding import Inputs
from relprop.tracer.calls import Values, call_node, cast, per_sample
from relprop.tracer.chunked import ByQueries, by_queries
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.facts import is_batched
from relprop.tracer.program import Program
from relprop.tracer.surroundings import normal

Visit = Callable[[fx.Node, Value], Value]


def execute(
    program: Program,
    model: nn.Module | None,
    inputs: Inputs,
    keep: Collection[fx.Node],
    watch: Collection[fx.Node] = (),
    visit: Visit | None = None,
    *,
    attached: bool = False,
    known: Values | None = None,
) -> Values:
    """The values of the nodes in ``keep``, for all samples. ``visit(node, value)`` may replace the
    value of a node in ``watch`` as it is made.

    Parameters are read from ``model`` now, detached, and so are inputs unless ``attached``. The
    graph runs in sections that end at watched nodes, each section in one ``vmap``; what no later
    section reads is freed unless kept. What is ``known`` is not worked out again, nor what it alone
    is made of. A large attention site of whose map nothing is kept or watched runs some queries at
    a time, a section of its own.
    """
    kept, values = set(keep), dict(known or {})
    sites = by_queries(program, {*keep, *watch})
    stacked = dict(zip(program.placeholders, inputs.stacked(), strict=True))

    def cut() -> list[_Section]:
        return _sections(
            _wanted(program.graph, kept | set(watch), sites, known), kept, watch, sites
        )

    found = None if known is None else frozenset(known)
    key = "sections", frozenset(kept), frozenset(watch), frozenset(sites), found
    for section in program.memo.once(key, cut):
        for node in section.nodes:
            if node.op == "placeholder":
                given = stacked[node]
                values[node] = cast(given if attached else normal(given), program.dtype)
            elif node.op == "get_attr":
                values[node] = cast(
                    normal(_parameter(program, model, str(node.target))), program.dtype
                )
            elif not is_batched(node):
                values[node] = call_node(node, values, program.dtype)
        if section.nodes[0] in sites:
            values[section.nodes[0]] = sites[section.nodes[0]].run(values, program.dtype)
        elif section.calls:
            section.run(values, program.dtype)
        last = section.nodes[-1]
        if visit is not None and last in watch:
            values[last] = visit(last, values[last])
        for node in [n for n in values if n not in kept and n not in section.still]:
            del values[node]
    return values


def _reads(node: fx.Node, sites: Mapping[fx.Node, ByQueries]) -> tuple[fx.Node, ...]:
    """What a call reads; of a site that runs by queries, what enters it."""
    return sites[node].entering if node in sites else tensor_inputs(node)


def _wanted(
    graph: fx.Graph,
    asked: set[fx.Node],
    sites: Mapping[fx.Node, ByQueries],
    known: Values | None,
) -> list[fx.Node]:
    """The nodes to run, in order: all but those inside ``sites``; beyond what is ``known``, those
    alone that what is ``asked`` depends on."""
    nodes = list(graph.nodes)
    if not sites and known is None:
        return nodes
    read = asked | {n for n in nodes if n.op in ("placeholder", "output") and known is None}
    found = known or {}
    for node in reversed(nodes):
        if node in read and node not in found:
            read.update(_reads(node, sites) if node.op != "output" else node.all_input_nodes)
    return [n for n in nodes if n in read and n not in found]


@dataclass(frozen=True)
class _Section:
    """Nodes that run at once, in order. ``still``: what sections after it read; ``calls``: those of
    its nodes that run for the whole batch, which read the values of ``entering`` and leave those of
    ``leaving``; after each of them what is ``gone`` is read no more."""

    nodes: list[fx.Node]
    still: set[fx.Node]
    calls: list[fx.Node]
    entering: list[fx.Node]
    leaving: list[fx.Node]
    gone: Mapping[fx.Node, list[fx.Node]]

    @classmethod
    def of(cls, nodes: list[fx.Node], kept: set[fx.Node], still: set[fx.Node]) -> _Section:
        """A section of ``nodes``, of which are ``kept`` what is read later and what is asked."""
        calls = [n for n in nodes if n.op == "call_function" and is_batched(n)]
        inside, leaving = set(calls), [n for n in calls if n in kept or n in still]
        read = {n: tensor_inputs(n) for n in calls}
        entering = dict.fromkeys(i for n in calls for i in read[n] if i not in inside)
        passing = inside.difference(leaving)
        last = {used: n for n in calls for used in (n, *read[n]) if used in passing}
        gone: dict[fx.Node, list[fx.Node]] = {}
        for used, user in last.items():
            gone.setdefault(user, []).append(used)
        return cls(nodes, still, calls, [n for n in entering if is_batched(n)], leaving, gone)

    def run(self, values: Values, dtype: torch.dtype | None) -> None:
        """Run the calls for the whole batch at once and put what leaves into ``values``."""

        def section(*given: object) -> Args:
            env = _Layered(dict(zip(self.entering, given, strict=True)), values)
            for node in self.calls:
                env.own[node] = call_node(node, env, dtype)
                for done in self.gone.get(node, ()):
                    del env.own[done]
            return tuple(env.own[n] for n in self.leaving)

        if not self.entering:
            results = section()
        else:
            results = per_sample(section, *(values[n] for n in self.entering))
        values.update(zip(self.leaving, results, strict=True))


def _sections(
    nodes: list[fx.Node],
    kept: set[fx.Node],
    watch: Collection[fx.Node],
    sites: Mapping[fx.Node, ByQueries],
) -> list[_Section]:
    """The nodes in order, cut after each watched one, and before and after each of ``sites``."""
    cut: list[list[fx.Node]] = [[]]
    for node in nodes:
        if node.op == "output":
            continue
        if node in sites:
            cut += [[node], []]
            continue
        cut[-1].append(node)
        if node in watch:
            cut.append([])
    sections, still = list[_Section](), set[fx.Node]()
    for part in filter(None, reversed(cut)):
        sections.append(_Section.of(part, kept.union(watch), still))
        still = still | {i for n in part for i in _reads(n, sites)}
    return sections[::-1]


class _Layered:
    """A section's own values before those from outside it."""

    def __init__(self, own: Values, outer: Values) -> None:
        self.own, self.outer = own, outer

    def __getitem__(self, node: fx.Node) -> Value:
        return self.own[node] if node in self.own else self.outer[node]


def _parameter(program: Program, model: nn.Module | None, target: str) -> Tensor:
    if target in program.constants:
        return program.constants[target]
    found: Tensor = attrgetter(target.removeprefix("model."))(model)
    return found
