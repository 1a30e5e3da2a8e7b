"""Several questions about several targets on one batch: one capture, one forward pass, and one
gradient per target, shared by all that can."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from relprop.adapters import Prepared
from relprop.errors import (
    MemoryWarning,
    OptionError,
    RelpropError,
    TargetError,
    first_line,
    out_of_memory,
    warn,
)
from relprop.explanation import Explanation, join
from relprop.interpreter.forms import Undefined
from relprop.opening import check_devices, opened
from relprop.progress import showing, with_progress
from relprop.runner.answers import Refused, answers, refusal
from relprop.runner.comparison import Comparison
from relprop.runner.conditions import Conditions, Memory
from relprop.runner.memory import fitted
from relprop.runner.method import RECOMMENDED
from relprop.runner.needing import needs_of
from relprop.runner.needs import Needs, indices_of
from relprop.runner.opposites import Kind, contrast_kind, label_signs
from relprop.runner.question import Question, move_processor_options
from relprop.runner.recommended import chosen
from relprop.runner.relevance import united
from relprop.runner.run import Part
from relprop.runner.session import Session, chosen_inputs, open_session
from relprop.runner.verification import Verifier, verified
from relprop.targets.inside import reads_inside
from relprop.targets.plain import without_tensors
from relprop.targets.resolve import compared_outputs
from relprop.tracer.binding import Inputs, bind
from relprop.tracer.lengths import is_unconfirmed
from relprop.tracer.offloaded import runs_on
from relprop.tracer.readout import Head, heads_of
from relprop.tracer.surroundings import same_chance, undisturbed
from relprop.tracer.trace import RETURNED

#: An explanation per question (``None``: refused), for each target.
Rows = list[list[Explanation | None]]
AT_ZERO = "a function that is not 0 at 0 is given a 0"


def ask(
    model: object,
    inputs: object,
    targets: Sequence[object],
    questions: Sequence[Question],
    how: Conditions,
    refused: Refused | None = None,
) -> Rows:
    """For each target, an explanation by each question. Arguments as ``explain`` has them.

    ``refused``: collects, by the question's place, why a method is not defined here, instead of
    raising it; its explanations are ``None``.
    """
    if not isinstance(targets, (list, tuple)) or not targets:
        raise OptionError("targets is a non-empty list, one entry per explanation")
    inputs, questions = move_processor_options(inputs, questions)
    for question in questions:
        if question.method != RECOMMENDED:
            question.settings  # noqa: B018  -- refuses what it does not know, before all else
    model, prepared = opened(model, inputs, how.processor, trust_remote_code=how.trust_remote_code)
    questions = chosen(questions, model, prepared.inputs, targets)
    if not how.keep_pictures:
        prepared = prepared.without_pictures()
    with undisturbed(model), torch.no_grad(), showing(how.progress):
        bound = bind(prepared.inputs)
        check_devices(model, bound)
        chosen_inputs(bound, how.explain_inputs)
        size = _part_size(how.batch_size, bound)
        entries = [_entries_of(target, bound.batch) for target in targets]

        def call(bound: Inputs, verifier: Verifier) -> tuple[list[Rows], str]:
            whole = Part(bound, prepared, 0, bound.batch)
            in_parts = CallInParts(model, whole, questions, entries, how, verifier, refused)
            return list(in_parts.parts(size)), verifier.outcome

        parts, compared = verified(model, bound, how.verify, call)
    return [
        [_joined(list(same), compared) for same in zip(*rows, strict=True)]
        for rows in zip(*parts, strict=True)
    ]


@dataclass(frozen=True)
class CallInParts:
    """One call, part by part: the sessions are opened once, unless the graph holds for one sample
    only. ``targets`` give a target's entries of some samples; ``refused`` collects why a
    question cannot be answered, if it is given."""

    model: nn.Module
    whole: Part
    questions: Sequence[Question]
    targets: Sequence[Callable[[int, int], object]]
    how: Conditions
    verifier: Verifier
    refused: Refused | None

    def parts(self, size: int) -> Iterator[Rows]:
        """The answers for ``size`` samples at a time."""
        inputs = self.whole.inputs
        at_once = inputs.batch if inputs.could_be_shared else size
        sessions: list[Session] = []
        parts = range(0, inputs.batch, size)
        for first in with_progress(parts, "part", len(parts)):
            end = min(first + at_once, inputs.batch)
            try:
                sessions = sessions or self._sessions(inputs)
            except RelpropError:
                self.verifier.run_model(inputs.select(first, end))  # may say more: of all samples
                raise
            if first % at_once == 0:
                self._run_model(sessions[0], first, end)
            last = min(first + size, inputs.batch)
            alone = sessions[0].program.input_specialised
            for i in range(first, last, 1 if alone else size):
                part = self.whole.select(i, i + 1 if alone else last)
                if alone and i:
                    sessions = self._sessions(part.inputs)
                yield from self._answers(sessions, part, i % at_once, self.how.memory)

    def _run_model(self, session: Session, first: int, last: int) -> None:
        """The model's own outputs for some samples: of a head, what the targets read."""
        some, program = self.whole.inputs.select(first, last), session.program
        heads: tuple[Head, ...] = ()
        if self.verifier.verify and not (program.input_specialised or program.draws):
            targets = [entries(first, last) for entries in self.targets]
            heads = heads_of(indices_of(session, some, targets, self.whole.prepared.processor))
        self.verifier.run_model(some, heads, watched=is_unconfirmed(program))

    def _sessions(self, inputs: Inputs) -> list[Session]:
        """The captured model under the rules of each question."""
        rules = [q.rule_set for q in self.questions]
        targets = [entries(0, self.whole.batch) for entries in self.targets]
        kept = {name for q in self.questions for name in q.keep}
        # who looks at more than outputs has a graph that more than these says to be the model's
        inside = reads_inside(targets) or not kept.isdisjoint({"blocks", "matrix"})
        wanted = RETURNED.set(None if inside else self.verifier.returned)
        try:
            with same_chance(self.model):
                first = open_session(self.model, inputs, rules[0], self.how)
        finally:
            RETURNED.reset(wanted)
        first = first.reading(targets, inputs)
        return [first.under(r) for r in rules]

    def _answers(
        self, sessions: Sequence[Session], part: Part, offset: int, memory: Memory
    ) -> Iterator[Rows]:
        """One part of the batch: one forward pass, which is compared with the model's own. Where
        there is no memory for it, cut into segments, then its halves."""
        for allowed in dict.fromkeys((memory, 0)):
            try:
                # a model that draws random numbers draws the same for every part
                with same_chance(self.model):
                    found = self._answered(sessions, part, offset, allowed)
            except (RelpropError, RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                if allowed == 0 and part.batch == 1:
                    fact = f"there is no memory left: {first_line(error)}"
                    then = ["a shorter input, or nothing in keep="]
                    raise RelpropError(fact, then=then) from error
                how = "the two halves of the batch apart" if allowed == 0 else "cut into segments"
                then = ["memory= says how much an answer may take (docs/scale.md)"]
                fact = f"there is no memory left; once more, {how}"
                warn(MemoryWarning(fact, then=then))
            else:
                yield found
                return
            gc.collect()  # what the failed try held, frames of its error among it
        middle, last = part.first + part.batch // 2, part.first + part.batch
        for first, end in ((part.first, middle), (middle, last)):
            half = self.whole.select(first, end)
            yield from self._answers(sessions, half, offset + first - part.first, 0)

    def _answered(
        self, sessions: Sequence[Session], part: Part, offset: int, memory: Memory
    ) -> Rows:
        targets = [entries(part.first, part.first + part.batch) for entries in self.targets]
        indices = indices_of(sessions[0], part.inputs, targets, part.prepared.processor)
        compared = compared_outputs(sessions[0].program, targets)
        ref = self.verifier.reference(sessions[0].program, part.inputs, compared, offset, indices)
        needs, device = dict[int, Needs](), runs_on(self.model, part.inputs.tensors[0])
        signs = dict[int, list[Kind]]()

        def needed(session: Session, question: Question) -> Needs:
            make = partial(needs_of, session, question, targets, indices=ref.partial)
            passes = 1 if question.average is None else 2  # held together: at one point more
            return fitted(make, passes * part.batch, memory, device)

        for i, (session, question) in enumerate(zip(sessions, self.questions, strict=True)):
            with refusal(i, self.refused):
                signs[i] = [
                    contrast_kind(session, self.whole, part.first, t, question) for t in targets
                ]
                needs[i] = needed(session, question)
        needs = united(needs)
        for one in needs.values():
            one.session.warn_once(one.notices)

        comparison = Comparison(self.verifier, sessions[0], ref)
        try:
            found = answers(needs, part, targets, comparison, self.refused)
        except Undefined:
            for i, n in needs.items():
                walk = AT_ZERO if n.backward.by_gradient else n.question.walk
                needs[i] = needed(n.session, replace(n.question, walk=walk))
            found = answers(united(needs), part, targets, comparison, self.refused)
        return [
            [
                label_signs(signs[i][k] if i in signs else "", row.get(i), target)
                for i in range(len(self.questions))
            ]
            for k, (row, target) in enumerate(zip(found, targets, strict=True))
        ]


def ask_once(session: Session, inputs: Inputs, target: object, question: Question) -> Explanation:
    """One question about one target of a program that was compared already."""
    needs = needs_of(session, question, [target])
    session.warn_once(needs.notices)
    part = Part(inputs, Prepared(None), 0, inputs.batch)
    kind = contrast_kind(session, part, 0, target, question)
    found = answers({0: needs}, part, [target])[0][0]
    return label_signs(kind, found, target) or found


def _joined(parts: list[Explanation | None], compared: str) -> Explanation | None:
    there = [p for p in parts if p is not None]
    if len(there) < len(parts):
        return None
    whole = join(there)
    return replace(whole, facts={**whole.facts, "compared": compared})


def _part_size(batch_size: int | None, inputs: Inputs) -> int:
    if batch_size is None:
        return inputs.batch
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise OptionError(f"batch_size={batch_size!r}: a positive integer or None")
    return batch_size


def _entries_of(target: object, batch: int) -> Callable[[int, int], object]:
    """A function that gives the entries of some samples; a wrong length is refused before
    anything runs."""
    target = without_tensors(target)
    if not isinstance(target, list):
        return lambda first, last: target
    entries: list[object] = target
    if len(entries) != batch:
        raise TargetError(f"target has {len(entries)} entries for a batch of {batch}")
    return lambda first, last: entries[first:last]
