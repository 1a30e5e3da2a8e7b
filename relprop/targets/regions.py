"""Targets in what models of pictures give: a region of a map of classes, the mean logit of one
class over it, and a query of a detector, one of the objects that it may find, with the class it
takes it for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relprop.errors import TargetError
from relprop.targets.index import element_choice, elements, label_index
from relprop.targets.outputs import ModelOutput, are_probabilities, chosen_output
from relprop.targets.start import ChosenTarget, Context, Elements, Target


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


@dataclass(frozen=True)
class Query(Target):
    """The query of a detector that is most confident; what ``relprop.targets.query`` makes."""

    label: int | str | None = None
    output: str | int | None = None
    nothing: int | bool | None = None

    def __str__(self) -> str:
        return f"query({'' if self.label is None else repr(self.label)})"

    def choose(self, context: Context, samples: Sequence[int]) -> list[ChosenTarget]:
        """One element: (query, class)."""
        output = chosen_output(context.program, self.output)
        size = output.size
        if len(size) != 2:
            raise TargetError(
                f"target {self} needs an output (queries, classes) per sample; {output.name!r} "
                f"is {list(size)}"
            )
        scores = self._confidence(context.values(output.node, samples), context)
        if self.label is None:
            found = [divmod(k, size[1]) for k in scores.flatten(1).argmax(1).tolist()]
        else:
            label = elements([(0, self.label)], self, output, context, samples[:1])[0][1]
            found = [(query, label) for query in scores[:, :, label].argmax(1).tolist()]
        return [element_choice(index, output, named=self.output is not None) for index in found]

    def _confidence(self, scores: Tensor, context: Context) -> Tensor:
        """How sure the detector is of each query's class: the logits, or, where classes compete
        with "no object", a softmax."""
        nothing = self._nothing(scores.shape[-1], context)
        if nothing is None:
            return scores
        scores = scores.softmax(-1)
        scores[..., nothing] = float("-inf")
        return scores

    def _nothing(self, classes: int, context: Context) -> int | None:
        """The class that means "no object": it makes classes compete, so that confidence is a
        softmax."""
        if self.nothing is None:
            labels = len(context.adapter.labels(context.model))
            return classes - 1 if classes == labels + 1 else None
        if self.nothing is False:
            return None
        if isinstance(self.nothing, bool) or not -classes <= self.nothing < classes:
            raise TargetError(
                f"target {self}: nothing={self.nothing!r} is none of {classes} "
                "classes; give an index, False for none, or leave it out"
            )
        return self.nothing % classes
