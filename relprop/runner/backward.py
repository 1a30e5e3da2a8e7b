"""How a graph is passed backward: by which plan relevance travels, what is read on the way, which
parts of the graph run at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from torch import fx

from relprop.interpreter.reading import Reading
from relprop.plan import Plan
from relprop.runner.heads import Heads
from relprop.tracer.follow import depending
from relprop.tracer.forms import PLAIN, Forms
from relprop.tracer.program import Program
from relprop.tracer.queries import Attention, KeptChunks
from relprop.tracer.segments import Segment


@dataclass(frozen=True)
class Backward:
    """``read``: the nodes whose values relevance or the roll-up reads in passing. ``plan``: the
    relevance pass (``None``: none is walked). ``rollup``: the plan of the roll-up, if there is one.
    ``forms``: what stands in place of the graph's calls where relevance is one gradient, or where
    a method's gradients are another model's.
    ``in_chunks``: the attention sites whose map is never whole, some queries at a time, by their
    contraction. ``heads``: how the end of the graph is passed. ``segments``: what runs one after
    another, if the graph is cut. ``abreast``: from how many places relevance may be walked side by
    side; ``spare``: how many bytes may be kept beside that from one target to the next."""

    program: Program
    read: frozenset[fx.Node]
    plan: Plan | None
    rollup: Plan | None
    forms: Forms
    in_chunks: Mapping[fx.Node, Attention]
    heads: Heads
    segments: tuple[Segment, ...] = ()
    abreast: int = 1
    spare: int = 0

    def keeping_chunks(self) -> Backward:
        """The same, in which chunks of attention sites are kept from one target to the next, as far
        as there is room."""
        read = frozenset[fx.Node]() if self.plan is None else self.plan.keep
        kept = KeptChunks(read.union(*map(_looked_at, self.in_chunks.values())), self.spare)
        found = {end: replace(a, kept=kept) for end, a in self.in_chunks.items()}
        return replace(self, in_chunks=found)

    @property
    def by_gradient(self) -> bool:
        """Whether relevance is one gradient."""
        return self.forms is not PLAIN and not self.forms.of_gradient

    @property
    def outputs(self) -> frozenset[fx.Node]:
        """The outputs of which all is made."""
        return frozenset(self.program.ends) - self.heads.cuts.keys()

    @property
    def entering(self) -> frozenset[fx.Node]:
        """What enters the parts of the graph that are passed otherwise than by single steps."""
        regions: tuple[Attention | Reading, ...] = (
            *self.in_chunks.values(),
            *self.heads.readings.values(),
        )
        return frozenset[fx.Node]().union(*(region.entering for region in regions))

    def read_at(self, node: fx.Node) -> set[fx.Node]:
        """The values that are read to make a node's, or to pass it."""
        chunked = self.in_chunks.get(node)
        made = set(node.all_input_nodes if chunked is None else chunked.entering)
        if node.op == "output":
            made = (made - self.heads.cuts.keys()).union(*map(self._below, self.heads.cuts))
        return made | self._read_in_passing((node,))

    def _below(self, output: fx.Node) -> set[fx.Node]:
        """What an output is made of of which only a part is."""
        readout = self.heads.readouts[output]
        return {readout.below, *readout.extra}

    def read_in(self, segment: Segment) -> set[fx.Node]:
        """The values that are read in passing a segment."""
        entering = (a.entering for n, a in self.in_chunks.items() if n in segment.nodes)
        return self._read_in_passing(segment.nodes).union(*entering)

    def _read_in_passing(self, nodes: Collection[fx.Node]) -> set[fx.Node]:
        plans = (p for p in (self.plan, self.rollup) if p is not None)
        found = {n for plan in plans for n in plan.read_at(nodes)} & self.read
        return found.union(*(r.entering for n, r in self.heads.readings.items() if n in nodes))


def _looked_at(attention: Attention) -> set[fx.Node]:
    """What is read of a site beside what rules read: the map, and what is made of it."""
    below = depending(attention.nodes, {attention.site.attention})
    return below.union(*(n.all_input_nodes for n in below))


def read_by(
    plan: Plan | None, in_chunks: Mapping[fx.Node, Attention], heads: Heads
) -> frozenset[fx.Node]:
    """What the relevance pass reads; of a site in chunks, and where ``few`` elements of an output
    are explained of the end of the graph, what enters it, and its result where relevances meet
    there."""
    regions: tuple[Attention | Reading, ...] = (*in_chunks.values(), *heads.readings.values())
    parts = regions if heads.few else tuple(in_chunks.values())
    inside = {n for region in parts for n in region.nodes}
    outside = frozenset[fx.Node]()
    if plan is not None:
        outside = plan.keep_outside(inside) | (plan.joined & in_chunks.keys())
    return outside.union(*(region.entering for region in regions))
