"""The tensors that a model returns, by name: which of them holds the classes, and how its axes are
counted for one sample."""

from __future__ import annotations

from typing import NamedTuple

from torch import fx

from relprop.errors import TargetError, message
from relprop.operations import Kind, is_call, kind
from relprop.targets.start import has_batch_axis
from relprop.tracer.editing import aten, tensor_inputs
from relprop.tracer.facts import is_floating, shape
from relprop.tracer.program import Program

CLASSES = "logits"
MOVED = (Kind.RESHAPE, Kind.CAST, Kind.SELECT, Kind.SLICE)
CALLABLE = (
    "choose with a callable: target=lambda output: output[...]  # the output "
    "of one sample, batch dimension 1 -> a scalar"
)


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
    raise TargetError(message(fact, then=[*example[:1], CALLABLE]))


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


def probability(node: fx.Node) -> fx.Node | None:
    """The softmax or sigmoid that an output ends in, if it does."""
    while kind(node) in MOVED:
        (node, *_) = tensor_inputs(node)
    ends = kind(node) in (Kind.SOFTMAX, Kind.LOG_SOFTMAX) or is_call(node, aten.sigmoid)
    return node if ends else None


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
