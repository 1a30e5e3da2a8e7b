"""The tensors that a model returns, by name: which of them holds the classes, and how its axes are
counted for one sample."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, fx

from relprop.errors import TargetError
from relprop.operations import FILLS, MOVES, Kind, is_call, kind
from relprop.tracer.calls import call_node
from relprop.tracer.editing import aten, tensor_inputs
from relprop.tracer.facts import is_floating, role, shape
from relprop.tracer.program import Program

CLASSES = "logits"
WIDE = 1e3  # logits are smaller
#: What leaves numbers from 0 to 1 there: they change place, or become means or one of several.
KEPT = MOVES | FILLS | {Kind.IDENTITY, Kind.DETACH, Kind.CAST, Kind.EXTREMUM, Kind.OUTPUT}
KEPT |= {Kind.LARGEST, Kind.PICK, Kind.MAX_POOL, Kind.AVERAGE_POOL, Kind.RESAMPLE, Kind.SAMPLE}
#: What may leave them there: their values say whether it does.
COUNTED = frozenset({Kind.SUM, Kind.AFFINE, Kind.PRODUCT, Kind.QUOTIENT, Kind.TOTAL})
CALLABLE = (
    "choose with a callable: target=lambda output: output[...]  # the output "
    "of one sample, batch dimension 1 -> a scalar"
)


def has_batch_axis(node: fx.Node) -> bool:
    """Whether an output of one sample begins with a 1. Not so where the model folds other axes into
    the batch: (samples · channels, ...)."""
    return shape(node)[:1] == (1,)


class ModelOutput(NamedTuple):
    """One tensor that the model returns: its name, and the node that computes it."""

    name: str
    node: fx.Node

    @property
    def size(self) -> tuple[int, ...]:
        """The axes of one sample's part of it: all of them where the model folds others into the
        batch axis. Raises ``TargetError`` if that leaves none for samples."""
        whole = shape(self.node)
        if has_batch_axis(self.node):
            return whole[1:]
        if len(whole) < 2:
            raise TargetError(
                f"output {self.name!r} has no batch axis (shape {list(whole)} for one sample): "
                "choose with a callable target"
            )
        return whole


def class_output(program: Program) -> ModelOutput:
    """The output named ``logits``, else the only floating one; otherwise an error that lists the
    outputs."""
    found = class_output_or_none(program)
    if found is not None:
        return found
    floating = _floating(program)
    sizes = {name: shape(node)[1:] for name, node in floating.items()}
    example = [
        f"choose one by name: target=relprop.targets.output({name!r})[{', '.join('0' * len(size))}]"
        for name, size in sizes.items()
        if size
    ]
    fact = (
        f"the model returns {len(floating)} floating outputs and none is named "
        f"{CLASSES!r}: {listed(program)}"
    )
    raise TargetError(fact, then=[*example[:1], CALLABLE])


def class_output_or_none(program: Program) -> ModelOutput | None:
    """The output that holds the classes, if there is one."""
    floating = _floating(program)
    if CLASSES in floating:
        return ModelOutput(CLASSES, floating[CLASSES])
    return ModelOutput(*next(iter(floating.items()))) if len(floating) == 1 else None


def named_output(program: Program, name: str | int) -> ModelOutput:
    """The floating output of this name or place. Raises ``TargetError`` that lists the outputs."""
    place = _place(program.outputs.names, name)
    if place is None or not is_floating(program.output_nodes[place]):
        what = "is no floating tensor" if place is not None else "does not exist"
        raise TargetError(f"the model's output {name!r} {what}; it returns {listed(program)}")
    return ModelOutput(program.outputs.names[place], program.output_nodes[place])


def chosen_output(program: Program, name: str | int | None) -> ModelOutput:
    """The output of this name or place; the class output where none is named."""
    return class_output(program) if name is None else named_output(program, name)


def probability(node: fx.Node, also: frozenset[Kind] = frozenset()) -> fx.Node | None:
    """The softmax or sigmoid that an output ends in, if it does; through ``also`` as well."""
    found, waiting = None, [node]
    while waiting:
        node = waiting.pop()
        if kind(node) in (Kind.SOFTMAX, Kind.LOG_SOFTMAX) or _stays_inside(node, -WIDE, WIDE):
            found = node
        elif kind(node) in KEPT | also or is_call(node, aten.mean) or _stays_inside(node, 0, 1):
            read = [n for n in tensor_inputs(node) if role(n) == "activation" and is_floating(n)]
            waiting += read
        else:
            return None
    return found


def _stays_inside(node: fx.Node, low: float, high: float) -> bool:
    """Whether a function of each value is between 0 and 1 from ``low`` to ``high``."""
    read = tensor_inputs(node)
    if kind(node) is not Kind.FUNCTION or len(read) != 1:
        return False
    found = call_node(node, {read[0]: torch.linspace(low, high, 1001, dtype=torch.float64)}, None)
    return bool(((found >= 0) & (found <= 1)).all())


def are_probabilities(node: fx.Node, values: Tensor) -> bool:
    """Whether an output of these values is one of probabilities."""
    if probability(node) is not None:
        return True
    inside = bool(((values >= 0) & (values <= 1)).all())
    return inside and probability(node, COUNTED) is not None


def listed(program: Program) -> str:
    """Every output's name and shape for one sample."""
    both = zip(program.outputs.names, program.output_nodes, strict=True)
    return ", ".join(f"{name} {list(shape(node))}" for name, node in both)


def _floating(program: Program) -> dict[str, fx.Node]:
    both = zip(program.outputs.names, program.output_nodes, strict=True)
    return {name: node for name, node in both if is_floating(node)}


def _place(names: tuple[str, ...], name: str | int) -> int | None:
    if isinstance(name, int):
        return name if -len(names) <= name < len(names) else None
    return names.index(name) if name in names else None
