"""What a question needs of the forward pass, worked out before it runs: which values are kept, at
which nodes gradients are taken, by which plan relevance will travel. A union of sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import fx

from relprop.errors import RelpropWarning
from relprop.runner.backward import Backward
from relprop.runner.positions import PositionScores
from relprop.runner.question import Question
from relprop.runner.session import Session
from relprop.tracer.program import Program, Site

Nodes = tuple[fx.Node, ...]
#: What ``facts["relevance"]`` says where no relevance is walked.
ONE_GRADIENT = "one gradient"


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
