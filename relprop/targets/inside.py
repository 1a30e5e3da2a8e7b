"""A value inside the model as the target: a unit, at one position or over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from relprop.errors import TargetError, message, nearest
from relprop.targets.outputs import ModelOutput
from relprop.targets.start import ChosenTarget, Context, Elements, Target
from relprop.tracer.names import node_labels
from relprop.tracer.parts import axis_of, token_axes
from relprop.tracer.program import Program


@dataclass(frozen=True)
class Unit(Target):
    """One number inside the model; what ``relprop.targets.unit`` makes.

    ``name``: of the node, as ``probe.names()`` has it. ``feature``, ``position`` and ``head`` count
    its axes of these; ``position=None``: the mean over all.
    """

    name: str
    feature: int
    position: int | None = None
    head: int | None = None

    def __str__(self) -> str:
        at = {"position": self.position, "head": self.head}
        named = "".join(f", {part} {place}" for part, place in at.items() if place is not None)
        return f"unit {self.feature} of {self.name}{named}"

    @property
    def inside(self) -> bool:
        """It does."""
        return True

    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """The node."""
        return (self._node(program).node,)

    def choose(self, context: Context, samples: Sequence[int]) -> list[ChosenTarget]:
        """One part of all its elements, with equal weights that sum to 1."""
        name, node = self._node(context.program)
        size = ModelOutput(name, node).size
        given = {"features": self.feature, "positions": self.position, "heads": self.head}
        index: list[int | None] = [None] * len(size)
        for part, at in given.items():
            if at is not None:
                axis = axis_of(context.program, node, name, part) - 1
                if not -size[axis] <= at < size[axis]:
                    raise TargetError(f"target {self}: there are {size[axis]} {part}")
                index[axis] = at
        free = {i + 1 for i, at in enumerate(index) if at is None}
        if free - set(token_axes(context.program, node)):
            shape = " × ".join(map(str, size))
            raise TargetError(f"target {self}: {name!r} is {shape} for one sample, head= is needed")
        pairs = zip(index, size, strict=True)
        axes = [torch.arange(n) if i is None else torch.tensor([i % n]) for i, n in pairs]
        where = torch.cartesian_prod(*axes).reshape(-1, len(size))
        alone = tuple(where[0].tolist()) if len(where) == 1 else where
        return [ChosenTarget(str(self), (Elements(node, alone, 1 / len(where)),)) for _ in samples]

    def _node(self, program: Program) -> ModelOutput:
        labels = node_labels(program)
        if self.name not in labels:
            fact = f"target {self}: no node is called {self.name!r}"
            then = ["relprop.instrument(model, inputs).names() lists all of them"]
            raise TargetError(message(fact, then=[*nearest(self.name, labels), *then]))
        return ModelOutput(self.name, labels[self.name])


def nodes_inside(targets: Sequence[object], program: Program) -> tuple[fx.Node, ...]:
    """The nodes at which any of ``targets`` starts that are no outputs of the model. Raises
    ``TargetError``."""
    listed = (t for target in targets for t in (target if isinstance(target, list) else [target]))
    inside = (t for t in listed if isinstance(t, Target) and t.inside)
    found = (node for t in inside for node in t.outputs(program))
    return tuple(dict.fromkeys(n for n in found if n not in program.output_nodes))
