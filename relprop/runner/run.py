"""One forward pass over some samples of a call, for all questions and all targets at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from relprop.adapters import Prepared
from relprop.errors import InputError
from relprop.interpreter.forward import Forward, Kept, detached, forward
from relprop.interpreter.points import Excerpt, Made, Points, Seed
from relprop.interpreter.reading import made_at
from relprop.numerics import is_below_infinity
from relprop.runner.needs import Needs
from relprop.runner.question import Question
from relprop.runner.session import Nodes, Session
from relprop.targets.resolve import resolve
from relprop.targets.start import Start, Term
from relprop.tracer.binding import Inputs
from relprop.tracer.calls import Values
from relprop.tracer.facts import is_batched, is_floating, shape
from relprop.tracer.forms import PLAIN, Forms
from relprop.tracer.offloaded import tensor_of
from relprop.tracer.program import Program
from relprop.tracer.readout import Index, Readout
from relprop.tracer.run import execute
from relprop.tracer.weights import fetched

#: Of how many bytes values are let go as soon as they have been read.
MATTERS = 2**24


@dataclass(frozen=True)
class Part:
    """Some samples of a call: their inputs, what is known of where these came from, and which of
    the call's ``whole`` batch they are, from ``first`` on."""

    inputs: Inputs
    prepared: Prepared
    first: int
    whole: int

    @property
    def batch(self) -> int:
        """How many samples these are."""
        return self.inputs.batch

    def select(self, first: int, last: int) -> Part:
        """Those from ``first`` to ``last``, counted in the whole call."""
        prepared = self.prepared.part(first, last - first)
        return Part(self.inputs.select(first, last), prepared, first, self.whole)

    def samples_of(self, value: object) -> object:
        """An option for these samples alone: tensors in it that have one entry per sample of the
        call are shortened to these."""
        if isinstance(value, Mapping):
            return {name: self.samples_of(v) for name, v in value.items()}
        if not isinstance(value, Tensor) or value.shape[:1] != (self.whole,):
            return value
        if self.batch == self.whole:
            return value
        return value[self.first : self.first + self.batch]


#: What the tokens of each input are, as ``TokenScores`` has it.
Described = Mapping[str, Mapping[str, Any]]


@dataclass
class Run:
    """A forward pass with what every target needs from it. ``may_differentiate``: to be called
    before a gradient is taken; it refuses a program whose gradients are not the model's.
    ``readouts``: the ends of the graph that the gradient passes where the target is alone;
    ``excerpts``: the outputs of which only some places were made; ``forms``: what stood in place of
    the graph's calls; ``segmented``: the graph runs in segments; ``last``: nothing is asked after
    this answer; ``described``: what the tokens are, given where the run is recorded to be repeated
    with other values, at which nobody may look."""

    part: Part
    forward: Forward
    readouts: Mapping[fx.Node, Readout] = field(default_factory=dict)
    excerpts: dict[fx.Node, Excerpt] = field(default_factory=dict)
    forms: Forms = PLAIN
    may_differentiate: Callable[[], None] = field(default=lambda: None)
    segmented: bool = False
    last: bool = False
    described: Described | None = None

    @property
    def inputs(self) -> Inputs:
        """The inputs of these samples."""
        return self.part.inputs

    def start(self, session: Session, target: object, *, walks: bool = True) -> Start:
        """What a target is, and, if any ``walks``, where relevance starts. Raises ``NoStart``."""
        with torch.enable_grad():
            outputs = self.outputs(session.program)  # still attached to autograd
            context = session.context(self.inputs, outputs, self.part.prepared.processor)
            start = resolve(target, replace(context, walks=walks))
            return replace(start, scalars=self._attached(start, session))

    def started_as(self, session: Session, target: object, start: Start, *, walks: bool) -> Start:
        """The same target of these values: the very elements that ``start`` names; of a callable
        that is no sum of elements, what it makes of them."""
        if not start.at_elements or start.again is None:
            return self.start(session, target, walks=walks)
        with torch.enable_grad():
            moved = replace(start, scalars=start.again(self.outputs(session.program)))
            return replace(moved, scalars=self._attached(moved, session))

    def _attached(self, start: Start, session: Session) -> Tensor:
        """y_t with its gradient by way of the elements that it reads alone, where that is known."""
        parts = list(self._parts(start.terms))
        if (
            not parts
            or not start.is_sum
            or not all(isinstance(seed, Points) for _, _, seed in parts)
        ):
            return start.scalars
        amount = torch.zeros_like(start.scalars)
        for factor, node, seed in parts:
            amount = amount + factor * _summed(seed, self._elements(session, node, seed))
        return start.scalars.detach() + (amount - amount.detach())

    def _parts(self, terms: Sequence[Term]) -> Iterator[tuple[float, fx.Node, Seed]]:
        for term in terms:
            yield from ((term.coefficient, node, seed) for node, seed in term.seeds.items())

    def _elements(self, session: Session, node: fx.Node, seed: Seed) -> Tensor:
        """What an output has where a seed is, attached to autograd."""
        values = self.forward.values
        if not isinstance(seed, Points):
            whole: Tensor = values[node]
            return whole.to(seed.dtype)
        if node not in self.readouts:
            return seed.at(values[node])
        readout = self.readouts[node]
        read = self.values(session, (readout.below, *readout.extra))
        index, inside, _ = seed.gathered()
        made = made_at(readout, read, index, session.program.dtype, self.forms)
        return made[inside].to(seed.numbers.dtype)

    def explained(self, session: Session, question: Question, start: Start) -> Tensor:
        """A number of every sample, (batch,), to be differentiated: y_t; for relevance as one
        gradient one whose gradient at an output z is R/z, where R starts there."""
        by_value = question.by.starts_with == "output"
        plain, rules = self.forms is PLAIN or self.forms.of_gradient, question.balance
        if rules is not None and self.forms.of_gradient and not start.at_elements:
            return start.balanced(rules)
        if plain or (by_value and start.is_sum):
            return start.scalars
        own = by_value and start.at_elements
        with torch.enable_grad():
            amount = torch.zeros_like(start.scalars)
            for factor, node, seed in self._parts(start.terms if own else start.begun):
                z = self._elements(session, node, seed)
                numbers = seed.numbers if isinstance(seed, Points) else seed
                slope = numbers if own else torch.where(numbers == 0, 0.0, numbers / z.detach())
                amount = amount + factor * _summed(seed, z, slope)
            return amount * (start.scalars.detach() if by_value and not own else 1.0)

    def excerpt(self, session: Session, node: fx.Node, index: Index) -> Excerpt:
        """A part of an output that was not made."""
        readout = self.readouts[node]
        read = self.values(session, (readout.below, *readout.extra))
        with torch.no_grad():
            made = made_at(readout, read, index, session.program.dtype)
        return Excerpt(made, index, (self.inputs.batch, *shape(node)))

    def values(self, session: Session, nodes: Collection[fx.Node]) -> Values:
        """The values of some nodes that are kept; weights that were let go are read again."""
        kept = self.forward.values
        found = {n: kept[n] for n in nodes if n in kept}
        if left := set(nodes) - kept.keys():
            found |= execute(session.program, session.model, self.inputs, left, known=kept)
        return {n: found[n] for n in nodes}

    def let_go(self, nodes: frozenset[fx.Node]) -> frozenset[fx.Node]:
        """Keep some values no longer, if they are large enough to matter: gives which."""
        held = self.forward.values
        found = {n: v for n in nodes if isinstance(v := held.get(n), Tensor) and is_batched(n)}
        if sum(v.nbytes for v in found.values()) < MATTERS:
            return frozenset()
        for node in found:
            del held[node]
        return frozenset(found)

    def detached(self) -> Values:
        """The kept and the watched values, without their history."""
        held = self.forward.values | self.forward.watched
        return {n: detached(v) for n, v in held.items()}

    def outputs(self, program: Program) -> dict[fx.Node, Made]:
        """What was made of the model's outputs."""
        held = self.forward.values
        return {n: self.excerpts.get(n) or held[n] for n in program.ends}


def run(needs: Sequence[Needs], part: Part, watch: Nodes = ()) -> Run:
    """One forward pass for all of them, whose graphs are all cut or all in one piece and have the
    same forms, keeping what the passes for their targets read and nothing else; ``watch``: where
    gradients are taken, too. Raises ``InputError`` for outputs that are not finite."""
    done = forward_pass(needs, part, watch=watch)
    refuse_infinite_outputs(needs[0].session, done.outputs(needs[0].program))
    return done


def forward_pass(
    needs: Sequence[Needs],
    part: Part,
    described: Described | None = None,
    watch: Nodes = (),
) -> Run:
    """The same without a look at any value; ``described`` as a ``Run`` has it."""
    session = needs[0].session
    keep = set[fx.Node]().union(*(n.keep for n in needs))
    segmented = any(n.backward.segments for n in needs)
    inside = (*watch, *(node for n in needs for node in n.watch))
    watched = dict.fromkeys(() if segmented else inside)
    found = (item for n in needs for item in n.backward.heads.readouts.items())
    readouts = {n: r for n, r in found if watched.keys().isdisjoint(r.nodes)}
    parts = {n: c for n, c in needs[0].backward.heads.indices.items() if n in readouts}
    parts = {n: c for n, c in parts.items() if keep.isdisjoint(readouts[n].nodes)}
    keep.update(set(session.program.ends) - parts.keys())
    weights = fetched(session.program, session.model)  # read again where they are asked for
    keep.update(*({r.below, *r.extra} - weights.keys() for r in readouts.values()))
    ends = {*session.program.ends, *(r.below for r in readouts.values())}
    if all(
        n.backward.heads.only_targets for n in needs
    ):  # what is left of the graph above these is freed
        ends -= readouts.keys()
    forms = PLAIN if segmented else needs[0].backward.forms
    kept = Kept(keep, watched, ends)
    done = forward(session.program, session.model, part.inputs, kept, forms=forms)
    if segmented:  # autograd begins anew at the ends; segments are differentiated one by one
        leaves = [n for n in ends if is_floating(n) and is_batched(n)]
        done.values |= {n: done.values[n].detach().requires_grad_() for n in leaves}
    made = Run(
        part,
        done,
        readouts,
        forms=needs[0].backward.forms,
        segmented=segmented,
        described=described,
    )
    for node, places in parts.items():
        made.excerpts[node] = made.excerpt(session, node, places)
    return made


def _summed(seed: Seed, elements: Tensor, numbers: Tensor | None = None) -> Tensor:
    """The sum of every sample's ``elements`` where a seed is, each times its ``numbers`` (``None``:
    the seed's own), (batch,)."""
    if isinstance(seed, Points):
        return seed.summed(elements * (seed.numbers if numbers is None else numbers))
    return (elements * (seed if numbers is None else numbers)).flatten(1).sum(1)


def refuse_infinite_outputs(session: Session, outputs: Mapping[fx.Node, Made]) -> None:
    """Raises ``InputError`` where an explainable output is NaN or ∞, and says whether a parameter
    is; −∞ is how a model rules out a class (a policy's actions, a pointer's places)."""
    for name, node in zip(session.program.outputs.names, session.program.output_nodes, strict=True):
        if node not in session.flow.members or not is_floating(node):
            continue
        made = outputs[node]
        value = made.made if isinstance(made, Excerpt) else made
        if not is_below_infinity(value):
            model = session.model
            names = [n for n, _ in model.named_parameters()]
            bad = [n for n in names if not torch.isfinite(tensor_of(model, n)).all()]
            cause = (
                f"parameter {bad[0]!r} holds NaN or infinite values"
                if bad
                else "no parameter does: the values overflow inside the model"
            )
            raise InputError(f"the model's output {name!r} holds NaN or infinite values; {cause}")
