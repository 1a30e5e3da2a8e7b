"""Run a program's graph: once what depends on no input, and per sample, under ``vmap``, everything
else. Knows no rule.

Values that depend on an input have the batch first, then the sample's own shape (which starts with
1). Every operation is one call for the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import fx, nn

from relprop.operations import Args, Value
from relprop.tracer.binding import Inputs
from relprop.tracer.calls import Values, call_node, cast, per_sample
from relprop.tracer.chunked import ByQueries, by_queries
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.facts import is_batched
from relprop.tracer.forms import PLAIN, Forms
from relprop.tracer.pieces import Pieces, at_once, pieces
from relprop.tracer.program import Program
from relprop.tracer.surroundings import normal
from relprop.tracer.weights import AT_ONCE, Sizes, fetched, made_of, weight

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
        wanted = _wanted(program.graph, kept | set(watch), sites, known or {})
        return _sections(wanted, kept, set(watch), sites, sizes)

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


def _reads(node: fx.Node, sites: Mapping[fx.Node, ByQueries]) -> tuple[fx.Node, ...]:
    """What a call reads; of a site that runs by queries, what enters it."""
    return sites[node].entering if node in sites else tensor_inputs(node)


def _wanted(
    graph: fx.Graph, targets: set[fx.Node], sites: Mapping[fx.Node, ByQueries], known: Values
) -> list[fx.Node]:
    """The nodes to run, in order: those alone that ``targets`` depend on, beyond what is
    ``known``."""
    read = set(targets)
    for node in reversed(graph.nodes):
        if node in read and node not in known:
            read.update(_reads(node, sites))
    return [n for n in graph.nodes if n in read and n not in known]


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

    @classmethod
    def of(
        cls,
        nodes: list[fx.Node],
        weights: list[fx.Node],
        order: Mapping[fx.Node, int],
        kept: set[fx.Node],
        still: set[fx.Node],
    ) -> _Section:
        """A section of ``nodes``, for which ``weights`` are made, of which are ``kept`` what is
        asked for and ``still`` what is read later."""
        calls = [n for n in nodes if n.op == "call_function" and is_batched(n)]
        first = sorted({*nodes, *weights}.difference(calls), key=order.__getitem__)
        inside, leaving = set(calls), [n for n in calls if n in kept or n in still]
        read = {n: tensor_inputs(n) for n in calls}
        entering = dict.fromkeys(i for n in calls for i in read[n] if i not in inside)
        passing = inside.difference(leaving)
        last = {used: n for n in calls for used in (n, *read[n]) if used in passing}
        gone: dict[fx.Node, list[fx.Node]] = {}
        for used, user in last.items():
            gone.setdefault(user, []).append(used)
        batched = [n for n in entering if is_batched(n)]
        end = nodes[-1] if nodes else None
        return cls(first, end, still, calls, batched, leaving, gone, pieces(calls))

    def run(self, values: Values, dtype: torch.dtype | None, forms: Forms) -> None:
        """Run the calls for the whole batch at once and put what leaves into ``values``."""

        def section(*given: object) -> Args:
            env = _Layered(dict(zip(self.entering, given, strict=True)), values)
            for node in self.calls:
                if node in self.pieces and node not in forms.made:
                    if node not in env.own:
                        env.own.update(at_once(self.pieces[node], env))
                else:
                    env.own[node] = forms.call(node, env, dtype)
                for done in self.gone.get(node, ()):
                    del env.own[done]
            return tuple(env.own[n] for n in self.leaving)

        if not self.entering:
            results = section()
        else:
            results = per_sample(section, *(values[n] for n in self.entering))
        values.update(zip(self.leaving, results, strict=True))


def _sections(
    wanted: list[fx.Node],
    kept: set[fx.Node],
    watch: set[fx.Node],
    sites: Mapping[fx.Node, ByQueries],
    sizes: Sizes,
) -> list[_Section]:
    """The sections of the ``wanted`` nodes, and one for weights that are kept and that nobody
    reads."""
    order = {n: i for i, n in enumerate(wanted)}
    parts = [*_cut(wanted, watch, sites, sizes), []]
    own = [made_of({i for n in nodes for i in _reads(n, sites)}, sizes) for nodes in parts]
    own[-1] = made_of(kept.intersection(wanted).difference(*own), sizes)
    held, later = kept | watch, _read_later(parts, own, sites)
    return [
        _Section.of(nodes, [w for w in weights if w in order], order, held, still)
        for nodes, weights, still in zip(parts, own, later, strict=True)
    ]


def _cut(
    nodes: list[fx.Node], watch: set[fx.Node], sites: Mapping[fx.Node, ByQueries], sizes: Sizes
) -> list[list[fx.Node]]:
    """The nodes in order without those of ``sizes``, cut after each watched one, before and after
    each of ``sites``, and where enough weights are read."""
    sections: list[list[fx.Node]] = [[]]
    here = set[fx.Node]()
    for node in nodes:
        if node.op == "output" or node in sizes:
            continue
        weights = {i for i in _reads(node, sites) if i in sizes}
        if weights - here and sum(map(sizes.__getitem__, here | weights)) > AT_ONCE:
            sections.append([])
            here = set()
        here |= weights
        if node in sites:
            sections += [[node], []]
            continue
        sections[-1].append(node)
        if node in watch:
            sections.append([])
    return [s for s in sections if s]


def _read_later(
    sections: list[list[fx.Node]], own: list[list[fx.Node]], sites: Mapping[fx.Node, ByQueries]
) -> list[set[fx.Node]]:
    """For each section, the nodes that sections after it read, or the weights that are made for
    these."""
    after: list[set[fx.Node]] = [set()]
    for nodes, weights in zip(sections[:0:-1], own[:0:-1], strict=True):
        read = {i for n in nodes for i in _reads(n, sites)} - set(weights)
        after.append(
            after[-1] | read | {i for n in weights for i in tensor_inputs(n)} - set(weights)
        )
    return after[::-1][: len(sections)]


class _Layered:
    """A section's own values before those from outside it."""

    def __init__(self, own: Values, outer: Values) -> None:
        self.own, self.outer = own, outer

    def __getitem__(self, node: fx.Node) -> Value:
        return self.own[node] if node in self.own else self.outer[node]
