"""A value inside the model as the target: a unit or a direction, at one position or over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.errors import TargetError, nearest
from relprop.targets.outputs import ModelOutput
from relprop.targets.start import ChosenTarget, Context, Elements, Target
from relprop.tracer.names import axis_of, token_axes
from relprop.tracer.program import Program


@dataclass(frozen=True)
class Inside(Target):
    """A number inside the model: the mean over positions of what is read of a node's features.

    ``name``: of the node, as ``probe.names()`` has it. ``position`` and ``head`` count its axes of
    these; ``position=None``: the mean over all.
    """

    name: str
    position: int | None = None
    head: int | None = None
    inside = True

    def _at(self) -> str:
        at = {"position": self.position, "head": self.head}
        return self.name + "".join(f", {part} {i}" for part, i in at.items() if i is not None)

    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """The node."""
        return (self._node(program).node,)

    def _node(self, program: Program) -> ModelOutput:
        labels = program.labels
        if self.name not in labels:
            fact = f"target {self}: no node is called {self.name!r}"
            then = ["relprop.instrument(model, inputs).names() lists all of them"]
            raise TargetError(fact, then=[*nearest(self.name, labels), *then])
        return ModelOutput(self.name, labels[self.name])

    def _read(self, program: Program, feature: int | None) -> Tensor:
        """The places that are read, (positions, features, axes), without the batch."""
        name, size = self.name, self._node(program).size
        given = {"features": feature, "positions": self.position, "heads": self.head}
        last = axis_of(program, name, "features") - 1
        index: list[int | None] = [None] * len(size)
        for part, at in given.items():
            if at is not None:
                axis = axis_of(program, name, part) - 1
                if not -size[axis] <= at < size[axis]:
                    raise TargetError(f"target {self}: there are {size[axis]} {part}")
                index[axis] = at
        free = {i + 1 for i, at in enumerate(index) if at is None and i != last}
        tokens = token_axes(program, name)
        if tokens and free - set(tokens):
            shape = " × ".join(map(str, size))
            raise TargetError(f"target {self}: {name!r} is {shape} for one sample, head= is needed")
        pairs = zip(index, size, strict=True)
        axes = [torch.arange(n) if i is None else torch.tensor([i % n]) for i, n in pairs]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).movedim(last, -2)
        return grid.reshape(-1, len(axes[last]), len(size))


@dataclass(frozen=True)
class Unit(Inside):
    """One feature; what ``relprop.targets.unit`` makes."""

    feature: int = 0

    def __str__(self) -> str:
        return f"unit {self.feature} of {self._at()}"

    def choose(self, context: Context, samples: Sequence[int]) -> list[ChosenTarget]:
        """One part of all its elements, with equal weights that sum to 1."""
        where = self._read(context.program, self.feature)[:, 0]
        alone = tuple(where[0].tolist()) if len(where) == 1 else where
        elements = Elements(self._node(context.program).node, alone, 1 / len(where))
        return [ChosenTarget(str(self), (elements,)) for _ in samples]


@dataclass(frozen=True)
class Direction(Inside):
    """The scalar product of all features with a ``vector``; what ``relprop.targets.direction``
    makes."""

    vector: tuple[float, ...] = ()

    def __str__(self) -> str:
        return f"a direction in {self._at()}"

    def choose(self, context: Context, samples: Sequence[int]) -> list[ChosenTarget]:
        """A part for the features with positive weights, and one for those with negative."""
        where = self._read(context.program, None)
        weights = torch.tensor(self.vector, dtype=torch.float64)
        positions, features, axes = where.shape
        if len(weights) != features:
            fact = f"target {self}: the vector has {len(weights)} entries, and {self.name!r} "
            raise TargetError(f"{fact}{features} features")
        node, parts = self._node(context.program).node, list[Elements]()
        for of_sign in (weights > 0, weights < 0):
            if bool(of_sign.any()):
                numbers = weights[of_sign].repeat(positions) / positions
                parts.append(Elements(node, where[:, of_sign].reshape(-1, axes), numbers))
        return [ChosenTarget(str(self), tuple(parts)) for _ in samples]


def _inside(targets: Sequence[object]) -> list[Target]:
    listed = (t for target in targets for t in (target if isinstance(target, list) else [target]))
    return [t for t in listed if isinstance(t, Target) and t.inside]


def reads_inside(targets: Sequence[object]) -> bool:
    """Whether any of ``targets`` reads a value before the model's end."""
    return bool(_inside(targets))


def nodes_inside(targets: Sequence[object], program: Program) -> tuple[fx.Node, ...]:
    """The nodes at which any of ``targets`` starts that are no outputs of the model. Raises
    ``TargetError``."""
    found = (node for t in _inside(targets) for node in t.outputs(program))
    return tuple(dict.fromkeys(n for n in found if n not in program.output_nodes))
