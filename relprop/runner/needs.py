"""What a question needs of the forward pass, worked out before it runs: which values are kept, at
which nodes gradients are taken, by which plan relevance will travel. A union of sets.

And how the graph is passed backward: what is read on the way, which parts of the graph run at once,
which large attention sites run some queries at a time, and why others do not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import fx

from relprop.errors import RelpropWarning
from relprop.interpreter.crossing import refusing_step
from relprop.interpreter.reading import Reading
from relprop.plan import Plan
from relprop.runner.positions import PositionScores
from relprop.runner.question import Question
from relprop.runner.session import Nodes, Session
from relprop.targets.outputs import has_batch_axis
from relprop.targets.resolve import places_read
from relprop.tracer.binding import Inputs
from relprop.tracer.chunked import large_and_whole, large_attentions
from relprop.tracer.facts import shape
from relprop.tracer.follow import depending
from relprop.tracer.forms import PLAIN, Forms
from relprop.tracer.program import Program, Site, place
from relprop.tracer.queries import Attention, KeptChunks
from relprop.tracer.readout import Index, Indices, Readout, readout_of
from relprop.tracer.segments import Segment

#: What ``facts["relevance"]`` says where no relevance is walked.
ONE_GRADIENT = "one gradient"


@dataclass(frozen=True)
class Heads:
    """By output: ``readings``, how relevance passes where few elements are explained; ``readouts``,
    how the gradient does, and how those outputs are made of which only the places of ``indices``
    are. ``only_targets``: nothing is read of any output but the elements where relevance starts."""

    readings: Mapping[fx.Node, Reading] = field(default_factory=dict)
    readouts: Mapping[fx.Node, Readout] = field(default_factory=dict)
    indices: Indices = field(default_factory=dict)
    only_targets: bool = False


def own_readout(output: fx.Node) -> Readout | None:
    """How an output is made of less than all that is before it; ``None`` where it cannot be."""
    found = readout_of(output)
    return found if found is not None and found.can_be_made else None


def indices_of(
    session: Session, inputs: Inputs, targets: Sequence[object], processor: object
) -> Indices:
    """Of each output that can be made in parts, and that targets read at some places alone, which
    places these are in any sample."""
    read = places_read(targets, session.context(inputs, {}, processor))
    own = [n for n in read if n in session.program.output_nodes]
    return {n: _index(n, read[n]) for n in own if own_readout(n) is not None}


def _index(output: fx.Node, places: Sequence[tuple[int, ...]]) -> Index:
    """What is made of an output: all of its last axis at some places of those before, one at
    least."""
    sizes, first = shape(output), int(has_batch_axis(output))
    axes = [{p[i] for p in places} or {0} for i in range(len(sizes) - 1 - first)]
    few = (
        None if len(a) == n else torch.tensor(sorted(a))
        for a, n in zip(axes, sizes[first:-1], strict=True)
    )
    return (*[None] * first, *few, None)


@dataclass(frozen=True)
class Backward:
    """How a graph is passed backward.

    ``plan``: the relevance pass (``None``: none is walked). ``rollup``: the plan of the roll-up, if
    there is one. ``forms``: what stands in place of the graph's calls where relevance is one
    gradient, or where a method's gradients are another model's. ``in_chunks``: the attention sites
    whose map is never whole, some queries at a time, by their contraction. ``heads``: how the end
    of the graph is passed. ``segments``: what runs one after another, if the graph is cut.
    ``abreast``: from how many places relevance may be walked side by side; ``spare``: how many
    bytes may be kept beside that from one target to the next."""

    program: Program
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
        return frozenset(self.program.ends) - self.heads.indices.keys()

    @property
    def entering(self) -> frozenset[fx.Node]:
        """What enters the parts of the graph that are passed otherwise than by single steps."""
        regions: list[Attention | Reading] = [*self.in_chunks.values()]
        regions += self.heads.readings.values()
        return frozenset[fx.Node]().union(*(region.entering for region in regions))

    @cached_property
    def read(self) -> frozenset[fx.Node]:
        """The nodes whose values relevance or the roll-up reads in passing; of a site in chunks,
        and with ``only_targets`` of the end of the graph, what enters
        it, and its result where relevances meet there."""
        regions: list[Attention | Reading] = [*self.in_chunks.values()]
        regions += self.heads.readings.values() if self.heads.only_targets else ()
        inside = {n for region in regions for n in region.nodes}
        read = frozenset[fx.Node]() if self.rollup is None else self.rollup.keep
        if self.plan is not None:
            joined = self.plan.joined & self.in_chunks.keys()
            read = read.union(self.plan.keep_outside(inside), joined)
        return read | self.entering

    def read_at(self, node: fx.Node) -> set[fx.Node]:
        """The values that are read to make a node's, or to pass it."""
        chunked = self.in_chunks.get(node)
        made = set(node.all_input_nodes if chunked is None else chunked.entering)
        if node.op == "output":
            made = (made - self.heads.indices.keys()).union(*map(self._below, self.heads.indices))
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


def sites_in_chunks(
    session: Session,
    question: Question,
    plan: Plan | None,
    read: Collection[fx.Node],
    streams: int = 1,
    least: int | None = None,
) -> tuple[dict[fx.Node, Attention], list[str]]:
    """The large sites (maps of more than ``least`` bytes, or those of a chunk) whose map is never
    whole, by their contraction; and the others, each with the reason. ``read``: what else is read
    of the graph; ``streams``: how many inputs have scores over attention."""
    found = large_attentions(session.program, least)
    whole = dict(large_and_whole(session.program, least))
    by_question = next(_whole_for(question, streams), "")
    for end, attention in found.items():
        if why := by_question or _whole_here(attention, question, plan, read):
            whole[end] = why
    reasons = [f"{place(end).call or 'top level'}: {why}" for end, why in whole.items()]
    return {end: a for end, a in found.items() if end not in whole}, reasons


def _whole_for(question: Question, streams: int) -> Iterator[str]:
    """Why a question needs every map whole."""
    settings = question.settings
    if question.by.level != "attention":
        return
    if streams > getattr(question.by.function, "row_wise", 0):
        yield f"method {question.method!r} reads whole maps"
    if kept := question.keep & {"blocks", "matrix"}:
        yield f"keep={sorted(kept)[0]!r}"
    if settings.get("head_fusion", "mean") != "mean":
        yield f"head_fusion={settings['head_fusion']!r}"
    yield from (name for name in ("discard_ratio", "normalize_rows") if settings.get(name))


def _whole_here(
    attention: Attention, question: Question, plan: Plan | None, read: Collection[fx.Node]
) -> str:
    """Why one site's map must be whole, or ""."""
    if not attention.inside.isdisjoint(question.hooks):
        return "there is a hook inside"
    if not attention.inside.isdisjoint(read):
        return "the method reads a tensor inside"
    step = None if plan is None else refusing_step(plan, attention)
    return "" if step is None else f"rule {step.rule.name!r} is not said to be row-wise"


@dataclass(frozen=True)
class Needs:
    """``held``: nodes whose values are kept from the forward pass to the answer. ``watch``: nodes
    that stay attached to autograd. ``backward``: how the graph is passed backward. ``sites``: the
    attention sites between input and target, ``chosen`` those of them that ``layers=`` names.
    ``positions``: where position terms enter, if they have scores, too.
    ``layers``: the outputs of the chosen sites' layers, ``features`` the tensors that
    ``target_layers=`` names. ``facts``: how the answer is made. ``notices``: what the user is to be
    warned of."""

    session: Session
    question: Question
    held: frozenset[fx.Node]
    watch: Nodes
    backward: Backward
    sites: tuple[Site, ...] = ()
    chosen: tuple[Site, ...] = ()
    layers: Mapping[Site, fx.Node] = field(default_factory=dict)
    features: Nodes = ()
    positions: PositionScores | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    notices: tuple[RelpropWarning, ...] = ()

    @property
    def program(self) -> Program:
        """The captured model."""
        return self.session.program

    @property
    def whole(self) -> list[Site]:
        """The chosen sites whose map is whole."""
        return [s for s in self.chosen if s.contraction not in self.backward.in_chunks]

    @property
    def starts(self) -> bool:
        """Whether relevance starts at the target."""
        return self.walks or "start" in self.question.needs

    @property
    def walks(self) -> bool:
        """Whether there is relevance."""
        return self.backward.plan is not None or self.backward.by_gradient

    @property
    def differentiates(self) -> bool:
        """Whether a gradient is taken."""
        return self.backward.by_gradient or "gradient" in self.question.needs

    @property
    def keep(self) -> frozenset[fx.Node]:
        """What the forward pass keeps: of a graph that is cut, what crosses a cut."""
        segments = self.backward.segments
        read = frozenset[fx.Node]() if segments else self.backward.read
        return self.held.union(read, *(s.entering for s in segments))

    @property
    def fleeting(self) -> frozenset[fx.Node]:
        """The values that nothing but the relevance pass reads, each as it comes by."""
        b = self.backward
        ends = ({r.below, *r.extra} for r in b.heads.readouts.values())
        read = self.held.union(self.watch, self.program.ends, b.entering, *ends)
        read |= b.rollup.keep if b.rollup is not None else frozenset()
        return frozenset() if b.plan is None else b.plan.keep - read
