"""A region of a map of classes, as models that segment pictures return them: the mean logit of one
class over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.errors import TargetError
from relprop.targets.index import label_index
from relprop.targets.outputs import ModelOutput, are_probabilities, chosen_output
from relprop.targets.start import ChosenTarget, Context, Elements, Target
from relprop.tracer.program import Program


@dataclass(frozen=True)
class Region(Target):
    """The mean logit of one class over a mask; what ``relprop.targets.region`` makes.

    ``label`` is ``None`` for an output without a class axis. ``mask``: its size and its 0s and 1s,
    in order.
    """

    label: int | str | None
    mask: tuple[tuple[int, ...], bytes] | None = None
    output: str | int | None = None

    def __str__(self) -> str:
        parts = ([] if self.label is None else [repr(self.label)]) + (
            [] if self.mask is None else [f"{sum(self.mask[1])} places"]
        )
        return f"region({', '.join(parts)})"

    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """The class maps."""
        return (chosen_output(program, self.output).node,)

    def choose(self, context: Context, samples: Sequence[int]) -> list[ChosenTarget]:
        """One part of many elements: they start together, with equal weights that sum to 1."""
        output = chosen_output(context.program, self.output)
        if len(output.size) < 2:
            raise TargetError(
                f"target {self} needs an output (classes, height, width) or (height, "
                f"width) per sample; {output.name!r} is {list(output.size)}"
            )
        label = self._label(output, context)
        if self.mask is not None:
            inside = [self._given(output.size[len(label) :])] * len(samples)
        else:
            found = context.values(output.node, samples)
            least = 0.5 if are_probabilities(output.node, found) else 0.0
            inside = list(_where_predicted(label, found, least).cpu())
        both = zip(samples, (mask.nonzero() for mask in inside), strict=True)
        return [self._choice(output, label, places, sample) for sample, places in both]

    def _choice(
        self, output: ModelOutput, label: tuple[int, ...], places: Tensor, sample: int
    ) -> ChosenTarget:
        shown = f"{output.name}[{label[0]}]" if label else output.name
        count = len(places)
        if not count:
            raise TargetError(
                f"target {self}: {shown} is predicted nowhere in sample {sample}",
                then=["give a mask: relprop.targets.region(class, mask)"],
            )
        first = torch.tensor([label], dtype=torch.long).expand(count, len(label))
        part = Elements(output.node, torch.cat([first, places], 1), 1 / count)
        return ChosenTarget(f"mean of {shown} over {count} places", (part,))

    def _label(self, output: ModelOutput, context: Context) -> tuple[int, ...]:
        """The class's index, as the beginning of an element's; nothing for an output without a
        class axis."""
        label, count = self.label, output.size[0]
        if label is None:
            return ()
        if isinstance(label, str):
            label = label_index(label, count, context)
        if not -count <= label < count:
            raise TargetError(
                f"target {self}: class {label} is out of range, output {output.name!r} has "
                f"{count} classes"
            )
        return (label % count,)

    def _given(self, size: tuple[int, ...]) -> Tensor:
        """The mask, if it fits the places that the output has."""
        assert self.mask is not None
        if self.mask[0] == size:
            return torch.frombuffer(bytearray(self.mask[1]), dtype=torch.bool).view(size)
        fact = (
            f"target {self}: the mask is {list(self.mask[0])}, the output has "
            f"{list(size)} places{'' if self.label is None else ' per class'}"
        )
        resize = (
            "resize it: torch.nn.functional.interpolate(mask[None, "
            f"None].float(), size={size})[0, 0] > 0.5"
        )
        each = "one per sample: [region(class, m) for m in masks]"
        raise TargetError(fact, then=[resize, each])


def _where_predicted(label: tuple[int, ...], value: Tensor, least: float) -> Tensor:
    """(samples, height, width), bool: where the class has the largest logit; where the only logit
    is positive, or its probability more than a half (``least``)."""
    if not label:
        return value > least
    return value.argmax(1) == label[0] if value.shape[1] > 1 else value[:, 0] > least
