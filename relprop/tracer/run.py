"""Run a program's graph: once what depends on no input, and per sample, under ``vmap``, everything
else. Knows no rule.

Values that depend on an input have the batch first, then the sample's own shape (which starts with
1). Every operation is one call for the whole batch.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import fx, nn

from relprop.operations import Args, Kind, Value, argument, kind, operand
from relprop.tracer.binding import Inputs
from relprop.tracer.calls import Reads, Values, call_node, cast, per_sample
from relprop.tracer.chunked import ByQueries, by_queries
from relprop.tracer.editing import rank, shape_of, tensor_inputs
from relprop.tracer.facts import is_batched
from relprop.tracer.follow import reached
from relprop.tracer.forms import PLAIN, Forms
from relprop.tracer.program import Program
from relprop.tracer.surroundings import normal
from relprop.tracer.weights import AT_ONCE, Sizes, fetched, made_of, weight

#: Pieces of one tensor, in their order along the axis that they are of.
Pieces = tuple[fx.Node, ...]
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
    forms: Forms = PLAIN,
) -> Values:
    """The values of the nodes in ``keep``, for all samples. ``visit(node, value)`` may replace the
    value of a node in ``watch`` as it is made.

    Parameters are read from ``model`` now, detached, and so are inputs unless ``attached``. The
    graph runs in sections that end at watched nodes, each section in one ``vmap``; what no later
    section reads is freed unless kept. Weights that take memory when they are read are read for one
    section, few at a time. What is ``known`` is not worked out again, nor what it alone is made of.
    A large attention site of whose map nothing is kept or watched runs some queries at a time, a
    section of its own. ``forms``: what stands in place of some calls.
    """
    known = {**inputs.moved, **(known or {})} if inputs.moved else known
    kept, values = set(keep), dict(known or {})
    sites = by_queries(program, {*keep, *watch}, forms)
    sizes = {n: size for n, size in fetched(program, model).items() if n not in watch}
    stacked = dict(zip(program.placeholders, inputs.stacked(), strict=True))

    def cut() -> list[_Section]:
        cutting = _Cutting(kept, set(watch), sites, sizes)
        return cutting.sections(cutting.wanted(program.graph, known or {}))

    found = None if known is None else frozenset(known)
    key = "sections", frozenset(kept), frozenset(watch), frozenset(sites), frozenset(sizes), found
    for section in program.memo.cache(key, cut):
        for node in section.first:
            if node in values:
                continue
            if node.op == "placeholder":
                given = stacked[node]
                values[node] = cast(given if attached else normal(given), program.dtype)
            elif node.op == "get_attr":
                values[node] = weight(program, model, node)
            else:
                values[node] = call_node(node, values, program.dtype)
        if section.calls and (site := section.calls[0]) in sites:
            values[site] = sites[site].run(values, program.dtype)
        elif section.calls:
            section.run(values, program.dtype, forms)
        if visit is not None and (last := section.last) is not None and last in watch:
            values[last] = visit(last, values[last])
        for node in [n for n in values if n not in kept and n not in section.still]:
            del values[node]
    return values


@dataclass(frozen=True)
class _Section:
    """What runs at once: the calls for no sample and the tensors that come ``first``, in order, and
    then the ``calls`` for the whole batch (a site alone), which read the values of ``entering`` and
    leave those of ``leaving``; after each of them what is ``gone`` is read no more. ``pieces`` of
    one tensor are cut together. ``last``: its last node; ``still``: what sections after it read."""

    first: list[fx.Node]
    last: fx.Node | None
    still: set[fx.Node]
    calls: list[fx.Node]
    entering: list[fx.Node]
    leaving: list[fx.Node]
    gone: Mapping[fx.Node, list[fx.Node]]
    pieces: Mapping[fx.Node, Pieces]

    def run(self, values: Values, dtype: torch.dtype | None, forms: Forms) -> None:
        """Run the calls for the whole batch at once and put what leaves into ``values``."""

        def section(*given: object) -> Args:
            env = ChainMap(dict(zip(self.entering, given, strict=True)), values)
            for node in self.calls:
                if node in self.pieces and node not in forms.made:
                    if node not in env.maps[0]:
                        env.update(_cut_at_once(self.pieces[node], env))
                else:
                    env[node] = forms.call(node, env, dtype)
                for done in self.gone.get(node, ()):
                    del env[done]
            return tuple(env[n] for n in self.leaving)

        if not self.entering:
            results = section()
        else:
            results = per_sample(section, *(values[n] for n in self.entering))
        values.update(zip(self.leaving, results, strict=True))


@dataclass(frozen=True)
class _Cutting:
    """How a graph is cut into sections: by the nodes that are ``kept`` and those to ``watch``, by
    ``sites`` that run by queries, and by weights of some ``sizes`` that are read for a section."""

    kept: set[fx.Node]
    watch: set[fx.Node]
    sites: Mapping[fx.Node, ByQueries]
    sizes: Sizes

    def reads(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """What a call reads; of a site that runs by queries, what enters it."""
        return self.sites[node].entering if node in self.sites else tensor_inputs(node)

    def wanted(self, graph: fx.Graph, known: Values) -> list[fx.Node]:
        """The nodes to run, in order: those alone that what is asked for depends on, beyond what is
        ``known``."""
        targets = self.kept | self.watch
        read = set(reached(targets, lambda node: () if node in known else self.reads(node)))
        return [n for n in graph.nodes if n in read and n not in known]

    def sections(self, wanted: list[fx.Node]) -> list[_Section]:
        """The sections of the ``wanted`` nodes, and one for weights that are kept and that nobody
        reads."""
        parts, there = [*self._cut(wanted), []], set(wanted)
        own = [made_of({i for n in nodes for i in self.reads(n)}, self.sizes) for nodes in parts]
        own[-1] = made_of((self.kept & there).difference(*own), self.sizes)
        later = self._read_later(parts, own)
        return [
            self._section(nodes, there.intersection(weights), still)
            for nodes, weights, still in zip(parts, own, later, strict=True)
        ]

    def _section(
        self, nodes: list[fx.Node], weights: set[fx.Node], still: set[fx.Node]
    ) -> _Section:
        """A section of ``nodes``, for which ``weights`` are made; ``still``: what is read later."""
        calls = [n for n in nodes if n.op == "call_function" and is_batched(n)]
        first = sorted(weights.union(nodes).difference(calls))
        held = self.kept | self.watch | still
        inside, leaving = set(calls), [n for n in calls if n in held]
        read = {n: tensor_inputs(n) for n in calls}
        entering = dict.fromkeys(i for n in calls for i in read[n] if i not in inside)
        passing = inside.difference(leaving)
        last = {used: n for n in calls for used in (n, *read[n]) if used in passing}
        gone: dict[fx.Node, list[fx.Node]] = {}
        for used, user in last.items():
            gone.setdefault(user, []).append(used)
        batched = [n for n in entering if is_batched(n)]
        end = nodes[-1] if nodes else None
        return _Section(first, end, still, calls, batched, leaving, gone, pieces(calls))

    def _cut(self, nodes: list[fx.Node]) -> list[list[fx.Node]]:
        """The nodes in order without those of ``sizes``, cut after each watched one, before and
        after each of ``sites``, and where enough weights are read."""
        sections: list[list[fx.Node]] = [[]]
        here = set[fx.Node]()
        for node in nodes:
            if node.op == "output" or node in self.sizes:
                continue
            weights = {i for i in self.reads(node) if i in self.sizes}
            if weights - here and sum(map(self.sizes.__getitem__, here | weights)) > AT_ONCE:
                sections.append([])
                here = set()
            here |= weights
            if node in self.sites:
                sections += [[node], []]
                continue
            sections[-1].append(node)
            if node in self.watch:
                sections.append([])
        return [s for s in sections if s]

    def _read_later(
        self, sections: list[list[fx.Node]], own: list[list[fx.Node]]
    ) -> list[set[fx.Node]]:
        """For each section, the nodes that sections after it read, or the weights that are made for
        these."""
        after: list[set[fx.Node]] = [set()]
        for nodes, weights in zip(sections[:0:-1], own[:0:-1], strict=True):
            read = {i for n in nodes for i in self.reads(n)}
            read |= {i for n in weights for i in tensor_inputs(n)}
            after.append(after[-1] | (read - set(weights)))
        return after[::-1]


def pieces(calls: Sequence[fx.Node]) -> Mapping[fx.Node, Pieces]:
    """The pieces that are, side by side, all of one tensor, by each of them: cut in one call, the
    gradient at that tensor is put together in one, too, where each piece by itself would have one
    of its own, zeros for the most part."""
    found: dict[tuple[fx.Node, int, Kind], list[fx.Node]] = {}
    for node in calls:
        what = kind(node)
        if what in (Kind.SELECT, Kind.SLICE) and len(node.all_input_nodes) == 1:
            source = operand(node)
            axis = argument(node, "dim") % rank(source)
            found.setdefault((source, axis, what), []).append(node)
    whole = dict[fx.Node, Pieces]()
    for (source, axis, _), nodes in found.items():
        nodes.sort(key=_reach)
        ends = [(0, 0), *map(_reach, nodes), (shape_of(source)[axis],) * 2]
        if len(nodes) > 1 and all(a[1] == b[0] for a, b in pairwise(ends)):
            whole.update(dict.fromkeys(nodes, tuple(nodes)))
    return whole


def _cut_at_once(nodes: Pieces, values: Reads) -> Values:
    """The values of all pieces of one tensor, from that of the tensor."""
    value = values[operand(nodes[0])]
    axis = argument(nodes[0], "dim") % rank(operand(nodes[0]))
    if kind(nodes[0]) is Kind.SELECT:
        made = torch.unbind(value, axis)
    else:
        made = torch.split(value, [end - start for start, end in map(_reach, nodes)], axis)
    return dict(zip(nodes, made, strict=True))


def _reach(node: fx.Node) -> tuple[int, int]:
    """Where a piece begins and ends; a slice with steps is none."""
    source = operand(node)
    size = shape_of(source)[argument(node, "dim") % rank(source)]
    if kind(node) is Kind.SELECT:
        place = argument(node, "index") % size
        return place, place + 1
    start, end, step = slice(*(argument(node, a) for a in ("start", "end", "step"))).indices(size)
    return (start, end) if step == 1 else (-1, -1)
