"""The passes of one target, backward through the graph's segments: the last one is run again, its
gradient is taken and relevance walks through it, then it is let go and the one before it follows. A
graph that is not cut is one segment, which the forward pass has kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, fx

from relprop.interpreter.forms import refuse_undefined
from relprop.interpreter.forward import Kept, detached, filled, forward, pulled
from relprop.interpreter.ledger import Ledger
from relprop.interpreter.walk import Walk
from relprop.runner.needs import Needs
from relprop.runner.relevance import Relevance, walked
from relprop.runner.run import Run
from relprop.targets.start import Start
from relprop.tracer.calls import Values
from relprop.tracer.program import is_floating
from relprop.tracer.segments import Segment

Gradients = Mapping[fx.Node, Tensor]


@dataclass(frozen=True)
class Stretch:
    """A segment that is loaded: the ``values`` that rules and the roll-up read, and, if they were
    asked for, ∂y_t/∂ at the watched nodes and the relevance ``found`` at the wanted ones, all batch
    first."""

    nodes: frozenset[fx.Node]
    values: Values
    gradients: Gradients = field(default_factory=dict)
    found: Gradients = field(default_factory=dict)


@dataclass
class _Under:
    """What is under way between two segments: gradients at what enters the last one, relevance, and
    what was found that outlives its segment."""

    gradients: dict[fx.Node, Tensor]
    relevance: Relevance | None
    walk: Walk = field(default_factory=Walk)
    kept: dict[fx.Node, Tensor] = field(default_factory=dict)
    moves: Tensor | None = None


class Sweep:
    """What a target's passes find, segment by segment. ``gradients``: ∂y_t/∂ at the run's watched
    nodes, if they were asked for and the graph is not cut."""

    def __init__(self, needs: Needs, run: Run, start: Start, gradients: Gradients) -> None:
        self.needs, self.run, self.start = needs, run, start
        self.gradients = gradients if self.needs.differentiates else {}
        self._here: Stretch | None = None
        self._ended: _Under | None = None

    def backward(self) -> Iterator[Stretch]:
        """All segments, the last one first, each loaded while it is looked at."""
        if not self.needs.backward.segments:
            yield self._whole
            return
        walks = self.needs.backward.plan is not None
        passes = Relevance.of(self.needs, self.run, self.start) if walks else None
        under = _Under(self._at_outputs(), passes)
        for segment in reversed(self.needs.backward.segments):
            self._here = None
            self._here = self._loaded(segment, under)
            yield self._here
        self._ended = under

    def holding(self, node: fx.Node) -> Stretch:
        """The segment that holds a node, loaded."""
        if self._here is None or node not in self._here.nodes:
            next(s for s in self.backward() if node in s.nodes)
        assert self._here is not None
        return self._here

    @property
    def _outcome(self) -> _Under:
        """What outlives its segment, once all have been passed."""
        if self._ended is None:
            deque(self.backward(), maxlen=0)  # holds none of them
        assert self._ended is not None
        return self._ended

    def found(self, node: fx.Node) -> Tensor | None:
        """The relevance that arrived at a node; ``None`` where none did."""
        inside = node in self.needs.backward.in_chunks
        return (self.holding(node) if inside else self._outcome.walk).found.get(node)

    def gradient(self, node: fx.Node) -> Tensor | None:
        """∂y_t/∂ at a watched node; ``None`` if it was not asked for. Raises ``OptionError`` where
        the gradient of a balanced model is no finite number."""
        if node in self.needs.backward.in_chunks or not self.needs.backward.segments:
            found = self.holding(node).gradients.get(node)
        else:
            found = self._outcome.kept.get(node)
        if self.needs.backward.forms.of_gradient and self.run.described is None:
            refuse_undefined(found)
        return found

    @property
    def ledger(self) -> Ledger | None:
        """The books of the relevance pass; ``None`` without one, or if none are kept."""
        done = self._outcome
        if done.relevance is None or self.needs.question.ledger is False:
            return None
        return done.relevance.ledger(done.walk)

    @property
    def moves(self) -> Tensor | None:
        """For which samples y_t changes with any attention map, (batch,); ``None`` without
        gradients."""
        if self.needs.backward.segments:
            return self._outcome.moves
        nodes = {n for s in self.needs.chosen for n in (s.attention, s.contraction)}
        return _moving(g for n, g in self.gradients.items() if n in nodes)

    # -- a graph in one piece

    @cached_property
    def _whole(self) -> Stretch:
        """All of a graph that is not cut, as the forward pass has left it."""
        relevance, walk = None, Walk()
        if self.needs.backward.plan is not None:
            relevance, walk = walked(self.needs, self.run, self.start)
        # what is left of the values after that
        values, nodes = self.run.detached(), frozenset(self.needs.program.graph.nodes)
        self._here = Stretch(nodes, values, self.gradients, walk.found)
        self._ended = _Under({}, relevance, walk)
        return self._here

    # -- a graph in segments

    def _at_outputs(self) -> dict[fx.Node, Tensor]:
        """∂y_t/∂ at the model's outputs."""
        if not self.needs.differentiates:
            return {}
        held = self.run.forward.values
        nodes = [n for n, v in held.items() if isinstance(v, Tensor) and v.requires_grad]
        scalars = self.run.explained(self.needs.session, self.needs.question, self.start)
        ends = [held[n] for n in nodes]
        found = pulled([scalars], ends, [torch.ones_like(scalars)], again=True)
        return {n: g for n, g in zip(nodes, found, strict=True) if g is not None}

    def _loaded(self, segment: Segment, under: _Under) -> Stretch:
        """A segment run again, with what becomes of gradient and relevance in it."""
        values, gradients = self._values_and_gradients(segment, under)
        walk = Walk()
        if under.relevance is not None:
            walk = under.relevance.through(segment.nodes, values)
        inside = self.needs.backward.in_chunks
        under.walk += Walk(
            {n: r for n, r in walk.found.items() if n not in inside}, walk.accounts, walk.ended
        )
        under.kept |= {n: g for n, g in gradients.items() if n not in inside}
        moving = _moving(g for n, g in gradients.items() if n in inside)
        if moving is not None:
            before = moving if under.moves is None else under.moves
            under.moves = before | moving.to(before.device)
        return Stretch(segment.nodes, values, gradients, walk.found)

    def _values_and_gradients(
        self, segment: Segment, under: _Under
    ) -> tuple[Values, dict[fx.Node, Tensor]]:
        needs, run, held = self.needs, self.run, self.run.forward.values
        known = {n: detached(held[n]) for n in segment.entering}
        leaves = [n for n in segment.entering if is_floating(n) and self.needs.differentiates]
        known |= {n: known[n].requires_grad_() for n in leaves}
        ends = [n for n in under.gradients if n in segment.nodes]
        watched = [n for n in needs.watch if n in segment.nodes and self.needs.differentiates]
        keep = needs.backward.read_in(segment) - known.keys()
        model = needs.session.model
        kept = Kept(keep, {*ends, *watched})
        done = forward(
            needs.program, model, run.inputs, kept, known=known, forms=needs.backward.forms
        )
        tensors = [*(done.watched[n] for n in watched), *(known[n] for n in leaves)]
        arrived = [under.gradients.pop(n) for n in ends]
        found = pulled([done.watched[n] for n in ends], tensors, arrived, again=False)
        for node, gradient in zip(leaves, found[len(watched) :], strict=True):
            before = under.gradients.get(node)
            if gradient is not None:
                under.gradients[node] = gradient if before is None else before + gradient
        own = filled(found[: len(watched)], tensors[: len(watched)])
        values = {n: detached(v) for n, v in (known | done.values | done.watched).items()}
        return values, dict(zip(watched, own, strict=True))


def _moving(gradients: Iterable[Tensor]) -> Tensor | None:
    """In which samples any of these is not 0, (batch,); ``None`` of none."""
    found = [g.flatten(1).any(1) for g in gradients]
    return torch.stack([f.to(found[0].device) for f in found]).any(0) if found else None
