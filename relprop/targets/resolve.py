"""Which kind of target it is, which outputs it may start at, and where it does start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

from torch import Tensor, fx
from torch._ops import OpOverload

from relprop.errors import ProbabilityWarning, TargetError, warn
from relprop.operations import name_of
from relprop.targets import SIMILARITY, similarity
from relprop.targets.index import Output
from relprop.targets.outputs import CLASSES, class_output, probability
from relprop.targets.plain import plain_index, without_tensors
from relprop.targets.regions import Region
from relprop.targets.spans import SPAN, Span
from relprop.targets.start import Context, Start, Target, start_of
from relprop.targets.tail import resolve_callable
from relprop.tracer.facts import is_floating, shape
from relprop.tracer.program import Program


def resolve(target: object, context: Context) -> Start:
    """The start of one target: a callable's is traced, any other is chosen sample by sample. Raises
    ``TargetError``."""
    if is_callable(target):
        return resolve_callable(target, context)
    by_target = _by_target(target, context)
    if any(map(_reads_classes, by_target)):
        _warn_if_probability(context.program)
    found = {
        i: choice
        for one, samples in by_target.items()
        for i, choice in zip(samples, one.choose(context, samples), strict=True)
    }
    return start_of([found[i] for i in range(len(found))], context)


def _listed(target: object, program: Program, batch: int | None = None) -> list[Target]:
    """``listed_targets``, and what ``None`` means."""
    return listed_targets(default(program) if target is None else target, batch)


def _by_target(target: object, context: Context) -> dict[Target, list[int]]:
    """The samples with the same target, which are looked at together."""
    samples: dict[Target, list[int]] = {}
    for i, one in enumerate(_listed(target, context.program, context.inputs.batch)):
        samples.setdefault(one, []).append(i)
    return samples


def places_read(
    targets: Sequence[object], context: Context
) -> dict[fx.Node, list[tuple[int, ...]]]:
    """Of each output that targets read at some places alone: these (see ``Target.places``)."""
    if any(map(is_callable, targets)):
        return {}
    found, anywhere = dict[fx.Node, list[tuple[int, ...]]](), set[fx.Node]()
    for target in targets:
        for one, samples in _by_target(target, context).items():
            places = one.places(context, samples)
            for node in one.outputs(context.program):
                found.setdefault(node, []).extend(places or ())
                anywhere |= {node} if places is None else set()
    return {n: places for n, places in found.items() if n not in anywhere}


def possible_starts(program: Program, targets: Sequence[object]) -> tuple[fx.Node, ...]:
    """The outputs that ``targets`` may read, before the model has run. A callable may read any
    floating one. Raises ``TargetError``."""
    found: dict[fx.Node, None] = {}
    for target in targets:
        if is_callable(target):
            found |= dict.fromkeys(n for n in program.output_nodes if is_floating(n))
        else:
            different = dict.fromkeys(_listed(target, program))
            found |= dict.fromkeys(node for t in different for node in t.outputs(program))
    return tuple(found)


def compared_outputs(program: Program, targets: Sequence[object]) -> tuple[fx.Node, ...]:
    """The model's outputs that tell whether a program is the model: those that targets may read, or
    all floating ones where targets are inside."""
    found = possible_starts(program, targets)
    outputs = tuple(n for n in found if n not in program.inside)
    return outputs or tuple(n for n in program.output_nodes if is_floating(n))


def reads_more(target: object, program: Program) -> bool:
    """Whether a target may read more of an output than the elements at which relevance starts."""
    if is_callable(target) or target is None:
        return target is not None
    return any(t.reads_more(program) for t in listed_targets(target, None))


def default(program: Program) -> Target:
    """What ``None`` means: the class output's prediction, else the predicted span, else the
    similarity of a pair."""
    names = program.outputs.names
    if CLASSES not in names:
        if all(name in names for name in SPAN):
            return Span()
        if SIMILARITY in names and shape(program.output_nodes[names.index(SIMILARITY)]) == (1, 1):
            return similarity()
    class_output(program)
    return Output()


def listed_targets(target: object, batch: int | None) -> list[Target]:
    """One target per sample from any accepted form but ``None`` and a callable; without a
    ``batch``, each that is named. Raises ``TargetError``."""
    if isinstance(target, Target):
        return [target] * (batch or 1)
    target = without_tensors(target)
    if not isinstance(target, list):
        return [Output(None, plain_index(target))] * (batch or 1)
    if batch is not None and len(target) != batch:
        raise TargetError(f"target has {len(target)} entries for a batch of {batch}")
    return [t if isinstance(t, Target) else Output(None, plain_index(t)) for t in target]


def _reads_classes(target: Target) -> bool:
    """Whether a target reads the class output without naming it."""
    named = target.name if isinstance(target, Output) else getattr(target, "output", "")
    return isinstance(target, (Output, Region)) and named is None


def _warn_if_probability(program: Program) -> None:
    """Say so if the class output ends in a softmax or a sigmoid."""
    name, node = class_output(program)
    if (source := probability(node)) is not None:
        own = isinstance(source.target, OpOverload)
        what = name_of(source).strip("_") if own else "function with values from 0 to 1"
        warn(
            ProbabilityWarning(
                f"output {name!r} ends in a {what}: the explained "
                "value is a probability, the method's paper code explains the logit before it"
            )
        )


def is_callable(target: object) -> TypeGuard[Callable[..., Tensor]]:
    """Whether a target is a function of the model's output."""
    return callable(target) and not isinstance(target, (Tensor, Target))
