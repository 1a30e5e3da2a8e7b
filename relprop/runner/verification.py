"""The verification of one call: the user's own model runs on the whole batch, and what a program
computed for the same samples must be what it returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, fx, nn

from relprop.errors import (
    CaptureError,
    ChanceWarning,
    InputError,
    MixedSamplesWarning,
    RelpropError,
    RelpropWarning,
    RoundingError,
    is_strict,
    warn,
)
from relprop.interpreter.model_gradients import Stops
from relprop.interpreter.points import Excerpt, Made
from relprop.interpreter.slopes import is_followed
from relprop.progress import doing
from relprop.runner import differences as says
from relprop.runner.constant_outputs import constant_output, is_noise
from relprop.runner.session import Session
from relprop.runner.slopes import known_slopes, slopes_of
from relprop.tracer.binding import Inputs, refuse_unlike
from relprop.tracer.calls import Values
from relprop.tracer.draws import numbers_of
from relprop.tracer.facts import is_batched
from relprop.tracer.lengths import by_length, is_unconfirmed, sizes_of, was_wrong
from relprop.tracer.model_comparison import (
    KEEP_STEADY,
    UNSTEADY,
    Expected,
    Gap,
    expected,
    gaps,
    is_row,
    model_outputs,
    model_run,
    other_draws,
    outputs_of_few,
    rounding_decides,
    unsteady,
)
from relprop.tracer.program import Program
from relprop.tracer.readout import Head, Indices, taken, whole_index
from relprop.tracer.run import execute
from relprop.tracer.trace import forget, forget_by_length
from relprop.tracer.verify import CLOSER

T = TypeVar("T")
#: What a call is said to be at, while it compares gradients.
COMPARING = "comparing its gradients with the model's (once)"


@dataclass(frozen=True)
class Reference:
    """What is compared: the samples of ``part``, which begins at ``first`` of the whole batch, at
    the places of ``indices`` of some outputs, of which the model has ``expected`` that."""

    part: Inputs
    first: int
    indices: Indices
    expected: Mapping[str, Expected]

    @property
    def partial(self) -> Indices:
        """The outputs of which not all is compared."""
        return {n: c for n, c in self.indices.items() if any(places is not None for places in c)}

    def parts(self, made: Mapping[fx.Node, Made]) -> Values:
        """The values of these outputs at these places."""
        both = ((n, made[n], index) for n, index in self.indices.items())
        return {n: v.made if isinstance(v, Excerpt) else taken(n, v, index) for n, v, index in both}


class _Stale(Exception):
    """The program isn't the model: it is captured anew, once, and then refused for this reason."""


class _OtherLength(Exception):
    """The program that other lengths give isn't the model at this one."""


class _Shared(Exception):
    """These inputs, which were taken for one entry per sample, belong to all samples."""


class Verifier:
    """The model's own outputs for some samples, to compare with."""

    def __init__(self, model: nn.Module, verify: bool) -> None:
        self.model, self.verify = model, verify
        self._inputs: Inputs | None = None
        self._outputs = list[Tensor]()
        self.heads: Sequence[Head] = ()
        self.stops: dict[str, None] = {}
        self._kept: Indices = {}
        self._outcomes: dict[str, str] = {}
        self.notices: list[RelpropWarning] = []
        #: What the model returned already within this call, and of which sample each; ``None``
        #: where programs are to be compared with the model before they are used.
        self.returned: list[tuple[Inputs, list[Tensor]]] | None = [] if verify else None

    @property
    def outcome(self) -> str:
        """What came of all comparisons."""
        return "; ".join(self._outcomes.values())

    def _add_outcome(self, text: str) -> None:
        """The same of several samples is said once, of the first."""
        self._outcomes.setdefault(text.split(":")[0], text)

    @property
    def ran(self) -> bool:
        """Whether the model ran."""
        return self._inputs is not None

    def run_model(
        self, inputs: Inputs, heads: Sequence[Head] = (), *, watched: bool = False
    ) -> None:
        """Run the model on these samples, its ``heads`` where they are read alone if it can be run
        so; ``watched``: and note where gradients would stop. Raises ``InputError`` if it fails on
        them."""
        if not self.verify:
            return
        self.heads = heads
        watch = Stops(self.stops) if watched else None
        with doing("running the model"):
            self._outputs, self._kept = self._run(inputs, watch)
        self._inputs = inputs

    def _run(self, inputs: Inputs, watch: Stops | None) -> tuple[list[Tensor], Indices]:
        """What the model returns, and the outputs of which not all is there."""
        while self.returned:
            sample, outputs = self.returned.pop()
            if inputs.is_same(sample):
                self.returned.clear()
                return outputs, {}
        if self.heads:
            with contextlib.suppress(InputError):
                return outputs_of_few(self.model, inputs, self.heads, watch)
        try:
            return model_run(self.model, inputs, watch=watch)[0], {}
        except InputError:
            refuse_unlike(inputs)
            raise

    def reference(
        self,
        program: Program,
        part: Inputs,
        nodes: Sequence[fx.Node],
        first: int = 0,
        indices: Indices | None = None,
    ) -> Reference:
        """What is to be compared of some samples, which are those from ``first`` on of what the
        model ran on, at some outputs: all of these, or the places of ``indices``. With the last of
        the samples the model's outputs are let go but for that."""
        places = {n: whole_index(n) for n in nodes} | dict(indices or {})
        if self._inputs is None:
            return Reference(part, first, places, {})
        last, whole = first + part.batch, self._inputs.batch
        if not self._outputs:  # let go, and run once more: there was no memory
            self.run_model(self._inputs, self.heads)
        some = slice(first, last)
        found = expected(program, self._outputs, places, some, whole, self._kept)
        if last == whole:
            self._outputs = []
        return Reference(part, first, places, found)

    def compare(
        self, session: Session, ref: Reference, made: Mapping[fx.Node, Made]
    ) -> Callable[[], None]:
        """Compare what was ``made`` of the model's outputs with the reference. Gives a function
        that compares their gradients, once per program."""
        self._add_outcome(outcome := self._found(session, ref, ref.parts(made)))
        if outcome == says.ROUNDED:
            return lambda: None
        return lambda: self._differentiate(session, ref)

    def skip_gradients(self, why: str) -> None:
        """Say that they are not compared."""
        if self.verify:
            self._add_outcome(f"gradients not compared: {why}")

    def _differentiate(self, session: Session, ref: Reference) -> None:
        """Refuse a program whose gradients are not those of autograd through the model."""
        if not self.verify:
            return
        with doing(COMPARING):
            found = slopes_of(session, ref.part, tuple(ref.indices))
        if found.skipped:
            self._add_outcome(f"gradients not compared: {found.skipped}")
        elif not found.error:
            followed = [c for c in found.stops if is_followed(c)]
            more = f", {'; '.join(followed)} differentiated, too" if followed else ""
            other = "" if found.sizes == sizes_of(session.program) else " for other lengths"
            self._add_outcome(f"gradients equal to autograd's{other}{more}")
        else:
            refusal = CaptureError(says.other_gradients(found))
            raise _Stale(refusal) if session.program.stored else refusal

    def _found(self, session: Session, ref: Reference, values: Values) -> str:
        """What came of comparing values: a sentence, or a refusal."""
        if self._inputs is None:
            return "not compared with the model: verify=False"
        program = session.program
        made = is_unconfirmed(program)
        closer = CLOSER if made else 1.0  # for nothing else says that it is the model's
        found = self._gaps(program, ref, values, closer)
        if found and self._kept:  # or the head is not what it looks like
            self.run_model(self._inputs)
            ref = self.reference(program, ref.part, (), ref.first, ref.indices)
            found = self._gaps(program, ref, values, closer)
        if found and program.dtype is not None:  # another precision may round, or pick, otherwise
            program = replace(program, dtype=None)
            values = ref.parts(execute(program, self.model, ref.part, ref.indices))
            found = self._gaps(program, ref, values, closer)
        if made:
            if found or self._other_stops(session, ref) or len(ref.expected) < len(ref.indices):
                was_wrong(program)
                raise _OtherLength
            program.kin.forget(by_length(program))
        ends = dict(zip(program.outputs.names, program.output_nodes, strict=True))
        found = [
            g
            for g in found
            if not is_noise(values[ends[g.output]], ref.expected[g.output].rows)
            or not constant_output(program, self.model, ref.part, ends[g.output])
        ]
        if not found:
            return "equal to the model's own output for the batch" + says.about_shared(ref.part)
        for i in sorted({i for gap in found for i in gap.samples}):
            try:
                self._compare_alone(program, ref, i, values)
            except RoundingError:
                if session.program.dtype is not torch.float64:
                    raise
                return says.ROUNDED
        if program.draws:
            self._note_draws(session, ref, values)
            return "equal to the model's own output for each sample alone, for the same draws"
        return self._of_a_batch(session, ref, max(found, key=lambda gap: gap.error))

    def _other_stops(self, session: Session, ref: Reference) -> bool:
        """Whether gradients stop elsewhere in the model than where they were compared, of another
        length."""
        known = known_slopes(session, ref.part, (*ref.indices,))
        return known is not None and set(known.stops) != set(self.stops)

    def _note_draws(self, session: Session, ref: Reference, values: Values) -> None:
        """Say of a model that draws that its output is another for other draws, if it is."""
        program, one = session.program, ref.part.select(0, 1)
        mine = {n: values[n][:1] if is_batched(n) else values[n] for n in ref.indices}
        key = ("draws", frozenset(ref.indices))
        found = session.kept(key, lambda: other_draws(program, self.model, one, mine, ref.indices))
        if found and (is_strict() or program.memo.first_time(key)):
            fact = (
                f"the model draws by chance in eval mode, and another draw changes its "
                f"{found.output!r} of sample {ref.first} by {found.error:.1e} of its largest "
                "value: one draw is explained"
            )
            self.notices.append(ChanceWarning(fact, at=program.draws[0], then=says.DRAW_ALIKE))

    def _gaps(
        self, program: Program, ref: Reference, values: Values, closer: float = 1.0
    ) -> list[Gap]:
        """Where values differ from the reference: of a model that draws, everywhere."""
        if program.draws:
            return [Gap(program.outputs.names[0], tuple(range(ref.part.batch)), float("inf"))]
        return gaps(program, values, ref.expected, ref.part.batch, closer)

    def _of_a_batch(self, session: Session, ref: Reference, worst: Gap) -> str:
        """What a model that equals its program for each sample alone does with a batch."""
        sample = ref.first + worst.samples[0]
        if other := self.other_reading(sample):
            raise _Shared(other)
        if worst.error == float("inf"):
            return (
                "equal to the model's own output for each sample alone: for a batch, "
                f"{worst.output!r} has no row per sample"
            )
        fact = (
            f"the model mixes the samples of a batch: its {worst.output!r} of sample "
            f"{sample} is off by {worst.error:.1e} of the largest value from "
            "what it returns for that sample alone, which is what is explained"
        )
        if is_strict() or session.program.memo.first_time("the model mixes samples"):
            self.notices.append(MixedSamplesWarning(fact))
        return fact

    def _compare_alone(self, program: Program, ref: Reference, i: int, values: Values) -> None:
        """Compare one sample with the model's output for it alone."""
        one = ref.part.select(i, i + 1)
        draws = numbers_of(program.constants)
        theirs = model_outputs(self.model, one, draws)
        mine = {n: values[n][i : i + 1] if is_batched(n) else values[n] for n in ref.indices}
        found = gaps(program, mine, expected(program, theirs, ref.indices), 1)
        if not found:
            return
        fact = (
            f"the captured graph differs from the model: {found[0].output!r} of sample {i} by "
            f"{found[0].error:.1e} of its largest value"
        )
        if unsteady(self.model, one, theirs, draws):
            raise _Stale(CaptureError(f"{fact}; {UNSTEADY}", then=KEEP_STEADY))
        if rounding_decides(program, self.model, one, mine, ref.indices):
            raise RoundingError(f"{fact}; {says.PICKED_BY_ROUNDING}", then=[says.EXACT_NUMBERS])
        why, then = (says.UNSEEN, says.INSTEAD) if i else (says.CHANGED, says.REPORT)
        raise _Stale(CaptureError(f"{fact}; {why}", then=then))

    def other_reading(self, sample: int = 0) -> tuple[str, ...]:
        """The inputs that belong to all samples though as many entries as samples are in them: with
        them whole, the model returns for this sample alone what it returns for it in the batch."""
        if self._inputs is None or self._inputs.batch == 1:
            return ()
        given = self._inputs
        names = [n for n, b in zip(given.names[1:], given.batched[1:], strict=True) if b]
        outputs = model_outputs(self.model, given)
        if any(bool(o.isnan().any()) for o in outputs):  # rows of NaN tell nothing
            return ()
        for some in [(n,) for n in names] + ([tuple(names)] if len(names) > 1 else []):
            try:
                alone = model_outputs(self.model, given.sharing(some).select(sample, sample + 1))
            except RelpropError:  # the model fails on such inputs
                continue
            if len(alone) == len(outputs) and all(
                is_row(a, whole, sample, given.batch)
                for a, whole in zip(alone, outputs, strict=True)
            ):
                return some
        return ()


def verified(
    model: nn.Module, inputs: Inputs, verify: bool, call: Callable[[Inputs, Verifier], T]
) -> T:
    """What ``call`` gives for the inputs and a verifier, which may refuse it: then once more with
    the model captured anew, or with inputs that belong to all samples."""
    if not verify:
        refuse_unlike(inputs)
    verifier, anew = Verifier(model, verify), False
    while True:
        try:
            done = call(inputs, verifier)
            for notice in verifier.notices:
                warn(notice)
            return done
        except _Shared as other:
            inputs = inputs.sharing(other.args[0])
        except _Stale as stale:
            if anew:
                raise stale.args[0] from None
            forget(model)
            verifier.returned, anew = None, True
        except _OtherLength:
            forget_by_length(model)
        except InputError:
            if verifier.ran and forget_by_length(model):
                continue  # not the model failed, but a graph that was made of another length's
            if not (names := verifier.other_reading()):
                raise
            inputs = inputs.sharing(names)


def retried_with_shared(model: nn.Module, inputs: Inputs, call: Callable[[Inputs], T]) -> T:
    """What ``call`` gives for the inputs; where it fails on them, with those whole that belong to
    all samples, as the model's own outputs show."""
    try:
        return call(inputs)
    except (CaptureError, InputError):
        verifier = Verifier(model, verify=True)
        if inputs.could_be_shared:
            verifier.run_model(inputs)
        if not (names := verifier.other_reading()):
            raise
        return call(inputs.sharing(names))
