"""Which kind of target it is, which outputs it may start at, and where it does start."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from relprop.targets.heads import SPAN, Span
from relprop.targets.index import CLASSES, Output, class_output, listed_targets, warn_if_probability
from relprop.targets.start import Choice, Context, Start, Target, start_of
from relprop.targets.tail import resolve_callable
from relprop.targets.vocabulary import SIMILARITY, similarity
from relprop.tracer.program import Program, is_floating, shape


def resolve(target: Any, context: Context) -> Start:
    """The start of one target: a callable's is traced, any other is chosen sample by sample. Raises
    ``TargetError``."""
    if _is_callable(target):
        return resolve_callable(target, context)
    chosen = (
        [default(context.program)] * context.inputs.batch
        if target is None
        else listed_targets(target, context.inputs.batch)
    )
    if any(isinstance(t, Output) and t.name is None for t in chosen):
        warn_if_probability(context.program)
    return start_of(_choices(chosen, context), context)


def _choices(targets: list[Target], context: Context) -> list[Choice]:
    """Each sample's choice; samples with the same target are looked at together."""
    samples: dict[Target, list[int]] = {}
    for i, target in enumerate(targets):
        samples.setdefault(target, []).append(i)
    found = {
        i: choice
        for target, some in samples.items()
        for i, choice in zip(some, target.choose(context, some), strict=True)
    }
    return [found[i] for i in range(len(targets))]


def possible_starts(program: Program, targets: list[Any]) -> tuple[fx.Node, ...]:
    """The outputs that ``targets`` may read, before the model has run. A callable may read any
    floating one. Raises ``TargetError``."""
    found: dict[fx.Node, None] = {}
    for target in targets:
        if _is_callable(target):
            found |= dict.fromkeys(n for n in program.output_nodes if is_floating(n))
        else:
            chosen = [default(program)] if target is None else listed_targets(target, None)
            found |= dict.fromkeys(_nodes(chosen, program))
    return tuple(found)


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


def _nodes(targets: list[Target], program: Program) -> list[fx.Node]:
    return list(
        dict.fromkeys(node for target in dict.fromkeys(targets) for node in target.outputs(program))
    )


def _is_callable(target: Any) -> bool:
    return callable(target) and not isinstance(target, (Tensor, Target))
