"""Elements of an output: by index, by label, or the prediction; and the plain forms of a target,
which name elements of the class output."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from relprop.errors import TargetError, message, warn
from relprop.operations import Kind, is_call, kind, name_of
from relprop.targets.start import Choice, Context, Part, Target, has_batch_axis
from relprop.tracer.program import Program, is_floating, shape

aten = torch.ops.aten
MOVED = (Kind.RESHAPE, Kind.CAST, Kind.SELECT, Kind.SLICE)

CLASSES = "logits"


@dataclass(frozen=True)
class Output(Target):
    """One element of an output; what ``relprop.targets.output`` makes.

    ``name``: the output's name, its place among several, or ``None``: the class output. ``index``:
    one entry per axis of one sample's output (a label may stand for its class), or ``None``: the
    predicted one.
    """

    name: str | int | None = None
    index: tuple[int | str, ...] | None = None

    def __getitem__(self, index: Any) -> Output:
        """One element: ``output("pred_boxes")[0, 2]``. Raises ``TargetError`` for an index that is
        no element of this output."""
        if self.index is not None:
            raise TargetError(f"{self} is one element already; it has no element {index!r}")
        return Output(self.name, plain_index(index))

    def __str__(self) -> str:
        name = (
            "prediction"
            if self.name is None
            else f"output {self.name}"
            if isinstance(self.name, int)
            else self.name
        )
        return name if self.index is None else f"{name}[{', '.join(map(str, self.index))}]"

    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """The one output it names."""
        return (self._node(program)[1],)

    def choose(self, context: Context, samples: Sequence[int]) -> list[Choice]:
        """One element, with weight 1; its label is the index alone where the output is the class
        output."""
        name, node = self._node(context.program)
        if self.index is None:
            found = _predicted(self, name, node, context, samples)
        else:
            found = elements([self.index] * len(samples), self, name, node, context, samples)
        return [element_choice(index, name, node, named=self.name is not None) for index in found]

    def _node(self, program: Program) -> tuple[str, fx.Node]:
        return class_output(program) if self.name is None else named_output(program, self.name)


def element_choice(index: tuple[int, ...], name: str, node: fx.Node, *, named: bool) -> Choice:
    """One element with weight 1. Its label is a class or a tuple, or ``name[index]`` if the target
    named the output."""
    label: Any = (
        name
        if not index
        else f"{name}[{', '.join(map(str, index))}]"
        if named
        else index[0]
        if len(index) == 1
        else index
    )
    return Choice(label, (Part(node, index),))


def class_output(program: Program) -> tuple[str, fx.Node]:
    """The output named ``logits``, else the only floating one; otherwise an error that lists the
    outputs."""
    found = _class_output(program)
    if found is not None:
        return found
    floating = {
        n: node
        for n, node in zip(program.outputs.names, program.output_nodes, strict=True)
        if is_floating(node)
    }
    example = [
        (
            "choose one by name: "
            f"target=relprop.targets.output({n!r})[{', '.join('0' * len(shape(node)[1:]))}]"
        )
        for n, node in floating.items()
        if shape(node)[1:]
    ]
    raise TargetError(
        message(
            (
                f"the model returns {len(floating)} floating outputs and none is named "
                f"{CLASSES!r}: {listed(program)}"
            ),
            then=[
                *example[:1],
                (
                    "choose with a callable: target=lambda output: output[...]  # the output "
                    "of one sample, batch dimension 1 -> a scalar"
                ),
            ],
        )
    )


def _class_output(program: Program) -> tuple[str, fx.Node] | None:
    floating = {
        n: node
        for n, node in zip(program.outputs.names, program.output_nodes, strict=True)
        if is_floating(node)
    }
    name = CLASSES if CLASSES in floating else next(iter(floating)) if len(floating) == 1 else None
    return None if name is None else (name, floating[name])


def named_output(program: Program, name: str | int) -> tuple[str, fx.Node]:
    """The floating output of this name or place. Raises ``TargetError`` that lists the outputs."""
    names, nodes = program.outputs.names, program.output_nodes
    place = (
        (name if -len(names) <= name < len(names) else None)
        if isinstance(name, int)
        else names.index(name)
        if name in names
        else None
    )
    if place is None or not is_floating(nodes[place]):
        what = "is no floating tensor" if place is not None else "does not exist"
        raise TargetError(f"the model's output {name!r} {what}; it returns {listed(program)}")
    return names[place], nodes[place]


def listed(program: Program) -> str:
    """Every output's name and shape for one sample."""
    return ", ".join(
        f"{n} {list(shape(node))}"
        for n, node in zip(program.outputs.names, program.output_nodes, strict=True)
    )


def own_rows(name: str, node: fx.Node) -> tuple[int, ...]:
    """The axes of one sample's part of an output: all of them where the model folds others into the
    batch axis. Refused if that leaves none for samples."""
    size = shape(node)
    if not has_batch_axis(node) and len(size) < 2:
        raise TargetError(
            f"output {name!r} has no batch axis (shape {list(size)} for one sample): "
            "choose with a callable target"
        )
    return size[1:] if has_batch_axis(node) else size


Index = tuple[int | str, ...]


def elements(
    given: Sequence[Index],
    target: Any,
    name: str,
    node: fx.Node,
    context: Context,
    samples: Sequence[int],
) -> list[tuple[int, ...]]:
    """Each sample's index, labels looked up and negative entries counted from the end; a lone token
    of a language model is at its last position."""
    size = own_rows(name, node)
    lone = {i for i, index in enumerate(given) if len(index) == 1}
    last = _next_positions(name, node, context, samples) if lone else None
    full = [
        (last[i], *index) if last is not None and i in lone else index
        for i, index in enumerate(given)
    ]
    return [_checked(index, target, name, size, context) for index in full]


def _checked(
    index: Index, target: Any, name: str, size: tuple[int, ...], context: Context
) -> tuple[int, ...]:
    if len(index) != len(size):
        raise TargetError(
            message(
                (
                    f"target {_shown(target)} has {len(index)} indices, output {name!r} has "
                    f"{len(size)} axes per sample: {list(size)}"
                ),
                then=[
                    (
                        "a tuple indexes one element: (position, class); a list or a tensor "
                        "gives one target per sample"
                    )
                ],
            )
        )
    found = tuple(
        label_index(k, n, context) if isinstance(k, str) else k
        for k, n in zip(index, size, strict=True)
    )
    for axis, (k, n) in enumerate(zip(found, size, strict=True)):
        if not -n <= k < n:
            raise TargetError(
                f"target {k} is out of range: axis {axis} of output {name!r} has {n} elements"
            )
    return tuple(k % n for k, n in zip(found, size, strict=True))


def label_index(label: str, count: int, context: Context) -> int:
    """The class index of a label of the model, for an axis of ``count`` classes: as many as labels,
    or one more that means "nothing"."""
    known = context.adapter.labels(context.model)
    index = context.adapter.label_index(context.model, label)
    then = (
        [f"a token of a vocabulary: relprop.targets.token({label!r}, tokenizer)"]
        if known and count > len(known) + 1
        else []
    )
    if index is None:
        fact = f"it has {', '.join(known[:20])}" if known else "it has no labels: give an index"
        raise TargetError(message(f"target {label!r} is no label of the model; {fact}", then=then))
    if known and count not in (len(known), len(known) + 1):
        raise TargetError(
            message(
                (
                    f"target {label!r} names one of the model's {len(known)} labels, but the "
                    f"output has {count} classes there: give an index"
                ),
                then=then,
            )
        )
    return index


def _shown(target: Any) -> str:
    if isinstance(target, Output) and target.name is None and target.index is not None:
        return repr(target.index)
    return str(target) if isinstance(target, Target) else repr(target)


def _next_positions(
    name: str, node: fx.Node, context: Context, samples: Sequence[int]
) -> list[int] | None:
    """Where a language model predicts the next token of each sample, if the output is its rows of
    token scores."""
    size, rows = own_rows(name, node), _class_output(context.program)
    if (
        not has_batch_axis(node)
        or len(size) != 2
        or rows is None
        or rows[1] is not node
        or not context.adapter.is_causal(context.model)
    ):
        return None
    positions = context.adapter.last_position(context.inputs, size[0]).tolist()
    return [int(positions[i]) for i in samples]


def _predicted(
    target: Output, name: str, node: fx.Node, context: Context, samples: Sequence[int]
) -> list[tuple[int, ...]]:
    """The only element, the largest of a row of classes, or a language model's next token."""
    size, values = own_rows(name, node), context.values(node, samples)
    if math.prod(size) == 1:
        return [(0,) * len(size)] * len(samples)
    if len(size) == 1:
        return [(k,) for k in values.argmax(1).tolist()]
    positions = _next_positions(name, node, context, samples)
    if positions is not None:
        return list(
            zip(positions, values[range(len(samples)), positions].argmax(1).tolist(), strict=True)
        )
    ways = {
        2: [
            "one position: (position, class)",
            "the likeliest token at the mask: relprop.targets.token(tokenizer=tokenizer)",
            (
                "a detector's most confident query: relprop.targets.query(), or the one of a "
                "class: relprop.targets.query(class)"
            ),
        ],
        3: [
            "one pixel: (class, y, x)",
            (
                "where a class is predicted: relprop.targets.region(class), or over a mask: "
                "relprop.targets.region(class, mask)"
            ),
        ],
    }
    raise TargetError(
        message(
            f"target={'None' if target.name is None else target} needs a class head; "
            f"output {name!r} is {list(shape(node))} for one sample "
            f"(outputs: {listed(context.program)})",
            then=[
                *ways.get(len(size), ["a tuple with one index per axis"]),
                "a callable: target=lambda output: ...  # one sample's output -> a scalar",
            ],
        )
    )


def warn_if_probability(program: Program) -> None:
    """Say so if the class output ends in a softmax or a sigmoid."""
    name, node = class_output(program)
    source = node
    while kind(source) in MOVED:
        source = source.args[0]  # type: ignore[assignment]
    if kind(source) in (Kind.SOFTMAX, Kind.LOG_SOFTMAX) or is_call(source, aten.sigmoid):
        warn(
            (
                f"output {name!r} ends in a {name_of(source).strip('_')}: the explained "
                "value is a probability, the method's paper code explains the logit before it"
            ),
        )


def plain_index(index: Any) -> tuple[int | str, ...]:
    """A tuple of ints and labels from one of them or a tuple. Raises ``TargetError`` for anything
    else."""
    items = index if isinstance(index, tuple) else (index,)
    try:
        if not items or any(isinstance(k, bool) for k in items):
            raise TypeError
        return tuple(k if isinstance(k, str) else operator.index(k) for k in items)
    except TypeError:
        raise TargetError(
            message(
                f"target {index!r} is {type(index).__name__}",
                then=[
                    (
                        "give None, an int, a list or tensor with one int per sample, a "
                        "tuple of ints, a label, a callable, or one of relprop.targets"
                    )
                ],
            )
        ) from None


def listed_targets(target: Any, batch: int | None) -> list[Target]:
    """One target per sample from any accepted form but ``None`` and a callable; without a
    ``batch``, each that is named. Raises ``TargetError``."""
    if isinstance(target, Target):
        return [target] * (batch or 1)
    if hasattr(target, "__array__") and not isinstance(target, (Tensor, int, float)):
        target = torch.as_tensor(target)
    if isinstance(target, Tensor):
        if target.is_floating_point() or target.dtype == torch.bool or target.dim() > 2:
            raise TargetError(
                f"target is a {str(target.dtype).removeprefix('torch.')} tensor of shape "
                f"{list(target.shape)}; indices are integers, shape [], [batch] or "
                "[batch, axes]"
            )
        target = target.tolist() if target.dim() else int(target)
        if isinstance(target, list):
            target = [tuple(t) if isinstance(t, list) else t for t in target]
    if isinstance(target, list):
        if batch is not None and len(target) != batch:
            raise TargetError(f"target has {len(target)} entries for a batch of {batch}")
        return [t if isinstance(t, Target) else Output(None, plain_index(t)) for t in target]
    return [Output(None, plain_index(target))] * (batch or 1)
