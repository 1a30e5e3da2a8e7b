"""``activation_maximization``: an image that a unit of the model answers to most. Not an
attribution: it explains no input, it makes one."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError, RelpropError, TargetError
from relprop.numerics import at_least_float32
from relprop.opening import check_devices
from relprop.opening.opening import opened
from relprop.progress import counting, showing
from relprop.runner.conditions import Conditions
from relprop.runner.input_study import InputStudy
from relprop.runner.needing import needs_of
from relprop.runner.question import Question
from relprop.runner.run import Part, run
from relprop.runner.session import Session, open_session
from relprop.runner.sites import reached_inputs
from relprop.runner.verification import Verifier, verified
from relprop.targets.resolve import compared_outputs
from relprop.tracer.binding import Inputs, bind
from relprop.tracer.offloaded import home_of
from relprop.tracer.surroundings import same_chance, undisturbed

START = 0.1
LARGEST = 2**31  # numbers in an image


@dataclass(frozen=True)
class Maximization:
    """What the ascent arrived at. ``image``: the input tensor, batch first, each sample an ascent
    of its own. ``objective``: S(I) − λ‖I‖² of every sample at the start and after each step, (steps
    + 1, batch). ``score``: S(I) at the end, (batch,). ``target``: what ``unit`` names, one label
    per sample.
    """

    image: Tensor
    objective: Tensor
    score: Tensor
    target: tuple[Any, ...]


@guarded
def activation_maximization(
    model: nn.Module | str | Any,
    unit: Any,
    *,
    shape: Sequence[int] | None = None,
    start: Any = None,
    steps: int = 200,
    lr: float = 1.0,
    l2: float = 0.01,
    seed: int = 0,
    bounds: tuple[float, float] | None = None,
    precision: str | torch.dtype | None = None,
    progress: bool | None = None,
    strict: bool = False,
) -> Maximization:
    """An image that a unit of the model answers to most, by gradient ascent.

    It is argmax_I S(I) − λ‖I‖² (Simonyan et al. 2014, Eq. 1), by I ← I + ``lr``·(∂S/∂I − 2λI). The
    model is left exactly as it was.

    Args:
        model: as for ``explain``.
        unit: S, a target as in ``explain``, except ``None``: a class, one of ``relprop.targets``, a
            list with one per sample, or a callable from the output of one sample to a scalar. What
            a target chooses by the output it chooses at the start image.
        shape: of the image, batch first, where no ``start`` is given: it then starts at N(0, 0.1²),
            the same for each sample of the batch.
        start: the image to start from, or the model's inputs (as ``inputs`` of ``explain``) of
            which one is floating: that one moves, the others stay.
        steps: how many.
        lr: the length of a step, in units of I per unit of the gradient.
        l2: λ ≥ 0. Where S is linear, S = w·I, the optimum is w/2λ, and each step leaves 1 −
            2·``lr``·λ of the way to it.
        seed: of the start image.
        bounds: (low, high), to which every step clips the image.
        precision, progress, strict: as for ``explain``.

    Raises:
        OptionError, InputError, TargetError; RelpropError if the objective is no longer finite.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> found = relprop.activation_maximization(digit_scene_model(), 3, shape=(1, 1, 32, 32), steps=5)
    >>> found.image.shape, bool(found.objective[-1] > found.objective[0])
    (torch.Size([1, 1, 32, 32]), True)
    """  # noqa: E501
    _refuse_start(unit, shape, start, seed)
    _refuse_steps(steps, lr, l2, bounds)
    how = Conditions(precision=precision, progress=progress)
    model, prepared = opened(model, start if shape is None else torch.zeros(tuple(shape)))
    given = prepared.inputs if shape is None else _drawn(model, tuple(shape), seed)
    with undisturbed(model), torch.no_grad(), showing(progress):
        bound = bind(given)
        check_devices(model, bound)

        def call(bound: Inputs, verifier: Verifier) -> tuple[str, fx.Node, InputStudy]:
            verifier.run_model(bound)
            with same_chance(model):
                session = open_session(model, bound, "paper", how).reading([unit], bound)
                name, leaf = _moving_input(session)
                study = _study(session, Part(bound, prepared, 0, bound.batch), unit, leaf)
            starts = compared_outputs(session.program, [unit])
            ref = verifier.reference(session.program, bound, starts)
            verifier.compare(session, ref, study.run.forward.values)
            return name, leaf, study

        name, leaf, study = verified(model, bound, True, call)
        with counting("step", steps) as begin:
            ascent = Ascent(steps, lr, l2, bounds, begin)
            start_image = study.run.forward.values[leaf]
            image, objective, last = _ascend(
                lambda moved: study.output_at((leaf,), (moved,)), start_image, ascent
            )
    like = bound.tensors[bound.names.index(name)]
    return Maximization(image.reshape(like.shape), objective, last, study.start.label)


def _moving_input(session: Session) -> tuple[str, fx.Node]:
    """The image, which moves. Raises ``InputError`` where the graph holds for the start only."""
    program = session.program
    if program.input_specialised:
        raise InputError(
            f"the model branches on values of its input ({program.decisions[0]}): its graph holds "
            "for the start image, not on the way from it",
            then=["replace the branch by torch.where"],
        )
    floating = {n: leaf for n, leaf in program.leaves.items() if leaf.op == "placeholder"}
    if len(floating) != 1:
        named = ", ".join(map(repr, floating)) or "none: ids have no gradient"
        fact = "activation maximization moves one floating input; those of this model are"
        raise InputError(f"{fact} {named}", then=["start= with the others made part of the model"])
    return next(iter(floating.items()))


def _study(session: Session, part: Part, unit: Any, leaf: fx.Node) -> InputStudy:
    """The start image's run. Raises ``TargetError`` if the unit does not depend on what moves."""
    needs = needs_of(session, Question("input_gradient"), [unit])
    done = run([needs], part)
    start = done.start(session, unit, walks=False)
    reached = reached_inputs(session, tuple(start.field) or session.program.output_nodes)
    if leaf not in reached.values():
        raise TargetError("the target does not depend on the input that is to move")
    return InputStudy(needs, done, unit, start, {})


@dataclass(frozen=True)
class Ascent:
    """How the ascent goes: ``steps`` of length ``lr``, λ = ``l2``, clipped to ``bounds``;
    ``begin`` is called when each step begins."""

    steps: int
    lr: float
    l2: float
    bounds: tuple[float, float] | None
    begin: Callable[[str], None]

    def moved(self, image: Tensor, gradient: Tensor) -> Tensor:
        """One step on: I + lr·(∂S/∂I − 2λI)."""
        image = image + self.lr * (gradient - 2 * self.l2 * image)
        return image if self.bounds is None else image.clamp(*self.bounds)


def _ascend(
    score: Callable[[Tensor], Tensor], first: Tensor, ascent: Ascent
) -> tuple[Tensor, Tensor, Tensor]:
    """The last image, the objective at all of them, and S at the last."""
    image, rows = first.detach().to(at_least_float32(first.dtype)).clone(), []
    for step in range(ascent.steps + 1):
        point = image.detach().to(first.dtype).requires_grad_()
        with torch.enable_grad():
            s = score(point)
            gradient = torch.autograd.grad(s.sum(), point)[0].to(image.dtype)
        rows.append(s.detach().to(image.dtype) - ascent.l2 * image.flatten(1).square().sum(1))
        if not torch.isfinite(rows[-1]).all():
            raise RelpropError(
                f"the objective is not finite after {step} steps",
                then=[f"a smaller lr than {ascent.lr}", f"a larger l2 than {ascent.l2}"],
            )
        if step < ascent.steps:
            ascent.begin("")
            image = ascent.moved(image, gradient)
    return image, torch.stack(rows), s.detach()


def _drawn(model: nn.Module, shape: tuple[int, ...], seed: int) -> Tensor:
    """The start image where none is given."""
    draw = torch.Generator().manual_seed(seed)
    one = START * torch.randn(shape[1:], generator=draw, dtype=torch.float64)
    return one.to(*home_of(model)).expand(shape).clone()


def _refuse_start(unit: Any, shape: Any, start: Any, seed: Any) -> None:
    """Raises ``OptionError`` for what names no unit, or no image to start from."""
    if unit is None:
        raise OptionError(
            "unit=None: name what to maximise, a class or any other target of explain "
            "(docs/targets.md)"
        )
    if (shape is None) == (start is None):
        raise OptionError(
            "give either shape= (batch first) or start=, an image or the model's inputs"
        )
    listed = isinstance(shape, (tuple, list, torch.Size)) and bool(shape)
    counts = shape is None or (listed and all(map(_is_count, shape)))
    _demand(counts, "shape", shape, "positive integers, batch first")
    if shape is not None and math.prod(shape) > LARGEST:
        size = f"an image of {math.prod(shape):.3g} numbers; {LARGEST:.3g} is the most"
        raise OptionError(f"shape={shape!r}: {size}")
    _demand(isinstance(seed, int) and not isinstance(seed, bool), "seed", seed, "an integer")


def _refuse_steps(steps: Any, lr: Any, l2: Any, bounds: Any) -> None:
    """Raises ``OptionError`` for an ascent that goes nowhere, or without end."""
    _demand(_is_count(steps), "steps", steps, "a positive integer")
    _demand(_is_number(lr) and lr > 0, "lr", lr, "a positive number")
    _demand(_is_number(l2) and l2 >= 0, "l2", l2, "a number that is not negative")
    if lr * l2 >= 1:
        fact = f"lr·l2 = {lr * l2:.4g}: from 1 on the steps grow without end"
        raise OptionError(fact, then=[f"lr={0.5 / l2:.4g}"])
    pair = isinstance(bounds, (tuple, list)) and len(bounds) == 2
    ordered = pair and all(map(_is_number, bounds)) and bounds[0] < bounds[1]
    _demand(bounds is None or ordered, "bounds", bounds, "(low, high), or None")


def _demand(right: bool, name: str, value: Any, wanted: str) -> None:
    """Raises ``OptionError`` for an argument that is not right."""
    if not right:
        raise OptionError(f"{name}={value!r}: {wanted}")


def _is_count(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n > 0


def _is_number(x: Any) -> bool:
    return isinstance(x, numbers.Real) and not isinstance(x, bool) and math.isfinite(x)
