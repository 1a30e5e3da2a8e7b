"""A number that cannot change: nothing but rounding of what the input does arrives at it.

The norm of what is normalised, the sum of a softmax, the cosine of a text with itself change in
their last digits alone, which are others in another type. So a number is taken for one where steps
away from the input do no more to it in float64 than rounding does, and its gradient there is not
the one in float32; that of a saturated probability is small, and the same in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn

from relprop.errors import RelpropError, TargetError
from relprop.interpreter.forward import pulled
from relprop.operations import Value
from relprop.runner.run import MATTERS, Run
from relprop.runner.session import Session
from relprop.targets.resolve import is_callable
from relprop.targets.start import Start, all_of
from relprop.tracer.binding import Inputs
from relprop.tracer.calls import Values
from relprop.tracer.facts import is_floating
from relprop.tracer.program import Program
from relprop.tracer.readout import readout_of
from relprop.tracer.run import execute

#: A number is looked at closely which a step moves by no more than this, in units of its type's ε
#: and at the most, relative to the number, or to 1 if that is more.
NOISE, MOST = 1e3, 1e-2
#: Rounding is so much less in float64 than in float32, at least, or so many units of ε.
FINER, DIGITS = 1e-3, 64
#: So much less than a slope that was found to be none is looked at again for being rounding.
FAR = 1e-2
#: How many steps are tried.
STEPS = 8
OTHERS = (
    "explain what the input can change: a logit before the softmax or the norm, or a similarity to "
    "something else"
)


@dataclass(frozen=True)
class Moving:
    """What ``number`` makes of the outputs, (numbers,), where others than the values of ``given``
    stand at these nodes: one for each sample, or several of one sample."""

    program: Program
    model: nn.Module
    inputs: Inputs
    given: Mapping[fx.Node, Tensor]
    number: Callable[[Values], Tensor]

    def still(self) -> Tensor:
        """Which of the numbers do not depend on what is given, (numbers,)."""
        _, coarse, single = self._moved(torch.float32)
        here, fine, double = self._moved(torch.float64)
        rounding = DIGITS * torch.finfo(torch.float64).eps * here.abs()
        same = (double - single).abs() < double / 2
        return (fine <= torch.maximum(FINER * coarse, rounding)) & ~same

    def outputs(self, step: int) -> Values:
        """The program's outputs at a step away from what is given."""
        known: Values = {n: _stepped(v, step) for n, v in self.given.items()}
        ends = {*self.program.ends}
        return execute(self.program, self.model, self.inputs, ends, known=known)

    def flat(self) -> Tensor:
        """Which of the numbers have a gradient that is nothing but rounding, (numbers,)."""
        single, double = (self._sloped(dtype)[2] for dtype in (torch.float32, torch.float64))
        return double < FINER * single

    def _moved(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """In a type the numbers, how far steps move them, and Σ |value · gradient|, all double."""
        moving, here, slope = self._sloped(dtype)
        others = [moving.number(moving.outputs(k + 1)) for k in range(STEPS)]
        far = (torch.stack(others) - here).abs().amax(0)
        return here.double(), far.detach().double(), slope.double()

    def _sloped(self, dtype: torch.dtype) -> tuple[Moving, Tensor, Tensor]:
        """In a type the same, the numbers and Σ |value · gradient|, each (numbers,)."""
        given = {n: v.to(dtype) if is_floating(n) else v for n, v in self.given.items()}
        floating = [v.requires_grad_() for n, v in given.items() if is_floating(n)]
        moving = replace(self, given=given, program=replace(self.program, dtype=dtype))
        with torch.enable_grad():
            here = self.number(moving.outputs(0))
            found = pulled([here.sum()], floating, [here.new_ones(())], again=False)
        slope = torch.zeros_like(here[:1])
        for value, gradient in zip(floating, found, strict=True):
            if gradient is not None:
                slope = slope + (value * gradient).flatten(1).abs().sum(1)
        return moving, here.detach(), slope.detach()


def refuse_unmoved(session: Session, run: Run, target: object, start: Start) -> None:
    """Raises ``TargetError`` where y_t of a sample does not depend on the input."""
    still = start.memo.cache("still", lambda: _still(session, run, target, start))
    if still is None or not bool(still.any()):
        return
    first = int(still.nonzero()[0])
    fact = (
        f"the target does not depend on the input: y_t of sample {run.part.first + first} is "
        f"{float(start.scalars[first]):.6g} whatever the input is, but for rounding"
    )
    raise TargetError(fact, then=[OTHERS])


def refuse_flat(
    session: Session, run: Run, start: Start, gradients: Mapping[fx.Node, Tensor]
) -> None:
    """Raises ``TargetError`` where nothing but rounding is left of y_t's gradient: y_t of a sample
    is at its largest or least, as the cosine of two texts that are equal is. ``gradients``: ∂y_t/∂
    at the run's watched nodes."""
    here, again, watched = start.scalars.detach(), start.again, run.forward.watched
    held = [(watched[n].detach(), g) for n, g in gradients.items() if n in watched]
    if again is None or not held:
        return
    totals = [(v * g).abs().flatten(1).sum(1).to(here.device) for v, g in held]
    total = torch.stack(totals).amax(0)
    key = "least slope that is no rounding", frozenset(gradients)
    known: dict[str, float] = session.program.memo.cache(key, dict)
    near = (total > 0) & _is_noise(here + total, here) & (total < FAR * known.get("", torch.inf))
    if not bool(near.any()):
        return
    values = run.values(session, set(session.program.leaves.values()))
    given = {n: v.detach() for n, v in values.items()}
    try:
        flat = Moving(session.program, session.model, run.inputs, given, again).flat()
        least = min(total[near & ~flat].tolist(), default=torch.inf)
        known[""] = min(least, known.get("", torch.inf))
        near &= flat
    except (RelpropError, RuntimeError, TypeError):  # the model does not run in another type
        return
    if bool(near.any()):
        first = int(near.nonzero()[0])
        fact = (
            f"y_t of sample {run.part.first + first} is {float(here[first]):.6g}, a largest or "
            "least value: its gradient is 0 but for rounding"
        )
        others = "or ask method='attnlrp' or 'leave_one_out', which read no gradient of y there"
        raise TargetError(fact, then=[OTHERS, others])


def _still(session: Session, run: Run, target: object, start: Start) -> Tensor | None:
    """In which samples y_t does not depend on the input, (batch,); ``None``: in none. What a linear
    map reads off features does."""
    program, here, again = session.program, start.scalars.detach(), start.again
    nodes = [n for n in start.field or program.output_nodes if is_floating(n)]
    read_off = all((r := readout_of(n)) is not None and r.can_be_made for n in nodes)
    if again is None or (read_off and not is_callable(target)):
        return None
    if read_off:
        given = {n: all_of(v).detach() for n, v in run.outputs(program).items()}
    else:
        held = run.values(session, set(program.leaves.values()))
        given = {n: v.detach() for n, v in held.items()}
    moving = Moving(program, session.model, run.inputs, given, again)
    try:
        there = again(moving.outputs(1) if read_off else _elsewhere(moving)).to(here)
        if not bool(_is_noise(there, here).any()):
            return None
        key = "still", start.label, len(here)
        return moving.still() if is_callable(target) else program.memo.cache(key, moving.still)
    except (RelpropError, RuntimeError):  # what fails at other inputs depends on them
        return None


def _is_noise(there: Tensor, here: Tensor) -> Tensor:
    noise = min(NOISE * torch.finfo(here.dtype).eps, MOST)
    return (there - here).abs() <= noise * here.abs().clamp(min=1)


def is_noise(mine: Value, theirs: Tensor | None) -> bool:
    """Whether two values of an output differ by no more than rounding may make of a number."""
    if theirs is None or not theirs.is_floating_point() or mine.shape != theirs.shape:
        return False
    return bool(_is_noise(mine.detach(), theirs).all())


def constant_output(program: Program, model: nn.Module, inputs: Inputs, output: fx.Node) -> bool:
    """Whether no element of an output of the first sample depends on the input."""

    def made() -> bool:
        one = inputs.select(0, 1)
        leaves = execute(program, model, one, set(program.leaves.values()))
        found = Moving(program, model, one, leaves, lambda values: values[output].flatten())
        try:
            return bool(found.still().all())
        except (RelpropError, RuntimeError):
            return False

    return program.memo.cache(("still", output), made)


def _elsewhere(moving: Moving) -> Values:
    """The outputs at a step away from the first sample, for every sample; kept with the program if
    they are small."""
    one = {n: v[:1] for n, v in moving.given.items()}
    first, memo = replace(moving, given=one, inputs=moving.inputs.select(0, 1)), moving.program.memo
    found = memo.cache("elsewhere", lambda: first.outputs(1))
    if sum(v.nbytes for v in found.values()) > MATTERS:
        memo.forget("elsewhere")
    return {n: v.expand(moving.inputs.batch, *v.shape[1:]) for n, v in found.items()}


def _stepped(value: Tensor, step: int) -> Tensor:
    """Numbers drawn as widely as those of a value; the value itself at step 0."""
    if not step or not value.is_floating_point():
        return value
    chance = torch.Generator().manual_seed(step)
    drawn = torch.randn(value.shape, generator=chance).to(value.device, value.dtype)
    deviation, mean = torch.std_mean(value.detach(), correction=0)
    return mean + deviation * drawn
