"""Which element of an output is explained in each sample, as the numbers that a flat program is
given; and where relevance starts then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx

from relprop.errors import TargetError
from relprop.interpreter.points import Made
from relprop.targets.index import INDEX_FORMS, Output, element_label
from relprop.targets.plain import Index, plain_index, without_tensors
from relprop.targets.start import Start, Target, Term, all_of, field_of
from relprop.tracer.binding import Inputs

if TYPE_CHECKING:
    from relprop.compiled.live import Live
    from relprop.compiled.loaded import Loaded

#: What stands in place of the last index where the model's own prediction is explained.
PREDICTED = -1


@dataclass(frozen=True)
class Head:
    """The output of which one element per sample is explained.

    ``place``: which of the model's outputs it is. ``size``: the axes of one sample's part of it.
    ``is_class_output``: whether a target without a name means it.
    """

    name: str
    place: int
    size: tuple[int, ...]
    is_class_output: bool = True

    @property
    def axes(self) -> tuple[int, ...]:
        """The lengths that an index has an entry for: at least one."""
        return self.size or (1,)

    def indices(self, target: object, knows: Live | Loaded, inputs: Inputs) -> Tensor:
        """What ``target`` names, (batch,), or (batch, axes) of an output with several, the last
        entry ``PREDICTED`` for the model's prediction.

        Raises:
            TargetError: for what is no element of this output, and for what is known only when the
                model has run.
        """
        entries = _entries(target, inputs.batch)
        if len(entries) != inputs.batch:
            raise TargetError(f"target has {len(entries)} entries for a batch of {inputs.batch}")
        positions: list[int | None] = [None] * inputs.batch  # of a language model's next tokens
        if len(self.size) == 2 and self.is_class_output and knows.adapter.is_causal(knows.model):
            positions = knows.adapter.last_position(inputs, self.size[0]).tolist()
        rows = []
        for sample, (entry, position) in enumerate(zip(entries, positions, strict=True)):
            if isinstance(entry, Target) and not isinstance(entry, Output):
                rows.append(knows.element(entry, sample, inputs))
            else:
                rows.append(self._index(entry, position, knows))
        found = torch.tensor([row or (0,) for row in rows], dtype=torch.long)
        found = found[:, 0] if len(self.axes) == 1 else found
        return found.to(inputs.tensors[0].device)

    def labels(
        self, target: object, chosen: Sequence[Sequence[int]]
    ) -> tuple[str | int | tuple[int, ...], ...]:
        """What an explanation says of each sample's target, of which the index was ``chosen``: its
        class or its index, with the output's name if the target says it, or must."""
        return tuple(
            element_label(tuple(index[: len(self.size)]), self.name, named=self._is_named(entry))
            for entry, index in zip(_entries(target, len(chosen)), chosen, strict=True)
        )

    def _is_named(self, entry: object) -> bool:
        return (isinstance(entry, Output) and entry.name is not None) or not self.is_class_output

    def _index(self, entry: object, position: int | None, knows: Live | Loaded) -> tuple[int, ...]:
        if callable(entry):
            raise TargetError("target is a callable", then=[ONE_ELEMENT])
        if isinstance(entry, Output):
            self._refuse_other(entry)
            index = entry.index
        else:
            index = None if entry is None else plain_index(entry)
        if index is None:
            return self._predicted(position)
        if len(index) == 1 and position is not None:
            index = (position, *index)
        return self._checked(index, knows)

    def _refuse_other(self, output: Output) -> None:
        own = (self.name, self.place)
        same = self.is_class_output if output.name is None else output.name in own
        if not same:
            fact = f"target {output} is of another output than {self.name!r}, which was compiled"
            raise TargetError(fact, then=[f"relprop.compile(..., target={output.name!r})"])

    def _predicted(self, position: int | None) -> tuple[int, ...]:
        """The only element, the largest of a row of classes, or a language model's next token."""
        if math.prod(self.size) == 1:
            return (0,) * len(self.size)
        if len(self.size) == 1:
            return (PREDICTED,)
        if position is not None:
            return (position, PREDICTED)
        fact = (
            f"target=None needs a class head; output {self.name!r} has the axes "
            f"{list(self.size)} per sample"
        )
        raise TargetError(fact, then=["a tuple with one index per axis"])

    def _checked(self, index: Index, knows: Live | Loaded) -> tuple[int, ...]:
        if len(index) != len(self.size):
            fact = (
                f"target {index} has {len(index)} indices, output {self.name!r} has "
                f"{len(self.size)} axes per sample: {list(self.size)}"
            )
            raise TargetError(fact, then=[INDEX_FORMS])
        found = [_labelled(k, knows) if isinstance(k, str) else k for k in index]
        for axis, (k, n) in enumerate(zip(found, self.size, strict=True)):
            if not -n <= k < n:
                raise TargetError(
                    f"target {k} is out of range: axis {axis} of output {self.name!r} has "
                    f"{n} elements"
                )
        return tuple(k % n for k, n in zip(found, self.size, strict=True))


def _labelled(label: str, knows: Live | Loaded) -> int:
    index = knows.adapter.label_index(knows.model, label)
    if index is None:
        raise TargetError(f"target {label!r} is no label of the model: give an index")
    return index


def _entries(target: object, batch: int) -> list[object]:
    """What a target says of each sample."""
    target = without_tensors(target)
    return target if isinstance(target, list) else [target] * batch


ONE_ELEMENT = (
    "a flat program explains one element of an output per sample, which is named by its index"
)


def start_at(node: fx.Node, value: Tensor, index: Tensor, *, leading: bool) -> tuple[Start, Tensor]:
    """The start at one element per sample of an output's ``value``, batch first (``leading``: then
    a 1), that ``index`` (batch, axes) names; and the index with the predictions in it."""
    whole, index = value[:, 0] if leading else value, index.to(value.device)
    size = whole.shape[1:] or (1,)
    last = size[-1]
    before = torch.zeros_like(index[:, 0])
    for axis, n in enumerate(size[:-1]):
        before = before * n + index[:, axis]
    rows = whole.detach().reshape(len(whole), -1, last)
    row = rows.gather(1, before[:, None, None].expand(-1, 1, last))[:, 0]
    chosen = torch.where(index[:, -1] < 0, row.argmax(1), index[:, -1])
    place = before * last + chosen
    flat = whole.reshape(len(whole), -1)
    dtype = torch.promote_types(value.dtype, torch.float32)
    scalars = flat.gather(1, place[:, None])[:, 0].to(dtype)
    positions = torch.arange(flat.shape[1], device=flat.device)
    seed = (positions == place[:, None]).to(dtype).reshape(value.shape)

    def again(values: Mapping[fx.Node, Made]) -> Tensor:
        return (all_of(values[node]) * seed).flatten(1).sum(1)

    start = Start((), scalars, (Term(1.0, {node: seed}),), {node: field_of(seed)}, again=again)
    return start, torch.cat([index[:, :-1], chosen[:, None]], 1)
