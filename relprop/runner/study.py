"""A Study: what any method may ask of one run for one target. What only methods over attention, or
at the input, may ask is in files of their own.

And the passes of that target, backward through the graph's segments: the last one is run again, its
gradient is taken and relevance walks through it, then it is let go and the one before it follows. A
graph that is not cut is one segment, which the forward pass has kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, fx

from relprop.interpreter.forms import Undefined, refuse_undefined
from relprop.interpreter.forward import Kept, detached, filled, forward, pulled
from relprop.interpreter.ledger import Ledger
from relprop.interpreter.walk import Walk
from relprop.numerics import is_finite
from relprop.runner.method import Options
from relprop.runner.needs import Needs
from relprop.runner.relevance import Relevance, walked
from relprop.runner.run import Run
from relprop.runner.values import asked, wide, with_leading_one
from relprop.targets.start import Start
from relprop.tracer.calls import Values
from relprop.tracer.facts import is_batched
from relprop.tracer.program import is_floating
from relprop.tracer.run import execute
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
        inside = node in self.needs.backward.in_chunks
        found = (self.holding(node).gradients if inside else self._outcome.kept).get(node)
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
        self._ended = _Under({}, relevance, walk, {**self.gradients})
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
        under.walk += replace(walk, found={n: r for n, r in walk.found.items() if n not in inside})
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


class Study:
    """A question, the run that answers it, and where the target's relevance starts. ``gradients``:
    ∂y_t/∂ at the run's watched nodes, if they were asked for and the graph is not cut."""

    def __init__(
        self, needs: Needs, run: Run, target: object, start: Start, gradients: Gradients
    ) -> None:
        self.needs, self.run, self.target, self.start = needs, run, target, start
        self.session, self.program = needs.session, needs.program
        self.settings: Options = {
            name: run.part.samples_of(value) for name, value in needs.question.settings.items()
        }
        self.sweep = Sweep(needs, run, start, gradients)

    def require(self, read: str, *needs: str) -> None:
        """Raises ``OptionError`` where the method reads what it said none of the ``needs`` of."""
        asked(self.needs.question.needs.intersection(needs) or None, needs[0], read)

    @property
    def home(self) -> torch.device:
        """The device of y_t: methods find all tensors there, wherever the model computed them."""
        return self.start.scalars.device

    def relevance(self, node: fx.Node) -> Tensor | None:
        """Relevance at a node, batch first; zeros where none arrived (the target does not depend on
        it), ``None`` if it was not asked for. Where it is value ⊙ gradient, raises ``Undefined`` if
        that is not finite, but where the run is recorded: then whoever reads the outputs must look.
        """
        if self.needs.backward.by_gradient:
            gradient = self.gradient(node)
            assert gradient is not None
            product = wide(self.value(node)) * gradient
            if self.run.described is None and not is_finite(product):
                raise Undefined
            return product
        if self.needs.backward.plan is None:
            return None
        found = self.sweep.found(node)
        if found is None:
            held = self.run.forward.watched.get(node)
            found = torch.zeros_like(wide(self.run.forward.values[node]) if held is None else held)
        return found.to(self.home)

    def gradient(self, node: fx.Node) -> Tensor | None:
        """∂y_t/∂ at a watched node, batch first; ``None`` if it was not asked for."""
        found = self.sweep.gradient(node)
        return None if found is None else wide(found).to(self.home)

    def value(self, node: fx.Node) -> Tensor:
        """A kept value, batch first where it depends on an input."""
        value: Tensor = detached(self.run.values(self.session, [node])[node])
        return value.to(self.home)

    def of_each(self, node: fx.Node) -> Tensor:
        """A kept value of every sample, batch first, also where it is the same for all."""
        value = self.value(node)
        return value if is_batched(node) else value.expand(self.run.inputs.batch, *value.shape)

    def output_at(self, leaves: Sequence[fx.Node], values: Iterable[Tensor]) -> Tensor:
        """y_t of every sample, (batch,), if ``values`` stood at ``leaves``; attached to autograd
        where they are."""
        tensors = tuple(values)
        if any(t.requires_grad for t in tensors):
            self.run.may_differentiate()
        given = {n: with_leading_one(t, n) for n, t in zip(leaves, tensors, strict=True)}
        outputs = set(self.program.ends)
        model, inputs, forms = self.session.model, self.run.inputs, self.run.forms
        found = execute(self.program, model, inputs, outputs, known=given, forms=forms)
        # 0, with a derivative (0) at every input, also where y_t does not depend on it
        untouched = [t.flatten(1)[:, :0].sum(1) for t in tensors]
        return torch.stack([self.scalar(found), *untouched]).sum(0)

    def scalar(self, values: Mapping[fx.Node, Tensor]) -> Tensor:
        """y_t of every sample from the outputs' values, for the very index that the start names,
        also where the prediction is another."""
        assert self.start.again is not None
        return self.start.again(values)
