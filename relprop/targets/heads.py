"""The targets of real heads, as values: a span, a token, a detector's query, a region. What each is
in a sample is worked out here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.errors import TargetError, message
from relprop.targets.index import (
    Output,
    class_output,
    element_choice,
    elements,
    label_index,
    named_output,
    own_rows,
)
from relprop.targets.start import Choice, Context, Part, Target
from relprop.tracer.program import Program

SPAN = ("start_logits", "end_logits")


@dataclass(frozen=True)
class Span(Target):
    """Start and end of a span, or the predicted one; what ``relprop.targets.span`` makes."""

    start: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        return "span()" if self.start is None else f"span({self.start}, {self.end})"

    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """The start's and the end's logits."""
        return tuple(named_output(program, name)[1] for name in SPAN)

    def choose(self, context: Context, samples: Sequence[int]) -> list[Choice]:
        """Two parts, the start's logit and the end's."""
        nodes = self.outputs(context.program)
        if self.start is None or self.end is None:
            found = _best_spans(
                *(context.values(node, samples) for node in nodes), real=_real(context, samples)
            )
        else:
            both = [
                elements([(k,)], self, name, node, context, samples[:1])[0]
                for k, name, node in zip((self.start, self.end), SPAN, nodes, strict=True)
            ]
            found = [(both[0][0], both[1][0])] * len(samples)
        for start, end in found:
            if end < start:
                raise TargetError(
                    f"target {self}: the span ends at {end}, before its start at {start}"
                )
        return [
            Choice(str(Span(start, end)), (Part(nodes[0], (start,)), Part(nodes[1], (end,))))
            for start, end in found
        ]


def _best_spans(starts: Tensor, ends: Tensor, *, real: Tensor | None) -> list[tuple[int, int]]:
    """For each sample the pair start ≤ end of real positions with the largest sum."""
    total = starts[:, :, None] + ends[:, None]
    allowed = torch.ones_like(total, dtype=torch.bool).triu()
    if real is not None and real.shape == starts.shape:
        allowed = allowed & real[:, :, None] & real[:, None]
    best = torch.where(allowed, total, float("-inf")).flatten(1).argmax(1)
    return [divmod(k, ends.shape[1]) for k in best.tolist()]


def _real(context: Context, samples: Sequence[int]) -> Tensor | None:
    """The positions that are no padding, (samples, positions), as the mask says."""
    mask = dict(zip(context.inputs.names, context.inputs.tensors, strict=True)).get(
        "attention_mask"
    )
    return (
        mask[list(samples)] != 0
        if mask is not None and mask.dim() == 2 and len(mask) == context.inputs.batch
        else None
    )


@dataclass(frozen=True)
class Token(Target):
    """A token's score where the model predicts one; what ``relprop.targets.token`` makes."""

    id: int | None = None
    position: int | None = None
    mask_id: int | None = None
    text: str = ""

    def __str__(self) -> str:
        return f"token({self.text or self.id!r}{'' if self.position is None else f', position={self.position}'})"  # noqa: E501

    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """The class output."""
        return (class_output(program)[1],)

    def choose(self, context: Context, samples: Sequence[int]) -> list[Choice]:
        """One element: the position given, the sample's one mask token, or a language model's last;
        the token given, or the likeliest."""
        name, node = class_output(context.program)
        positions = (
            [self.position] * len(samples)
            if self.position is not None
            else self._masked_positions(context, samples)
        )
        if positions is None and self.id is None:
            return Output().choose(context, samples)
        given = (
            [(self.id or 0,)] * len(samples)
            if positions is None
            else [(p, self.id or 0) for p in positions]
        )
        found = elements(given, self, name, node, context, samples)
        if self.id is None:
            best = (
                context.values(node, samples)[range(len(samples)), [p for p, _ in found]]
                .argmax(1)
                .tolist()
            )
            found = [(p, k) for (p, _), k in zip(found, best, strict=True)]
        return [element_choice(index, name, node, named=False) for index in found]

    def _masked_positions(self, context: Context, samples: Sequence[int]) -> list[int] | None:
        """Where each sample's mask token is; ``None`` for a language model, or if no mask token is
        known."""
        if self.mask_id is None or context.adapter.is_causal(context.model):
            return None
        ids = next(
            (
                t
                for t, b in zip(context.inputs.tensors, context.inputs.batched, strict=True)
                if b and t.dim() == 2 and not t.is_floating_point()
            ),
            None,
        )
        masked = (
            (ids[list(samples)] == self.mask_id).tolist()
            if ids is not None
            else [[] for _ in samples]
        )
        found = [[p for p, is_mask in enumerate(row) if is_mask] for row in masked]
        for sample, places in zip(samples, found, strict=True):
            if len(places) != 1:
                where = (
                    f"{len(places)} mask tokens, at {', '.join(map(str, places))}"
                    if places
                    else "no mask token"
                )
                raise TargetError(
                    f"target {self}: sample {sample} has {where}; say which position: "
                    "relprop.targets.token(..., position=...)"
                )
        return [places[0] for places in found]


@dataclass(frozen=True)
class Query(Target):
    """The query of a detector that is most confident; what ``relprop.targets.query`` makes."""

    label: int | str | None = None
    output: str | int | None = None
    nothing: int | bool | None = None

    def __str__(self) -> str:
        return f"query({'' if self.label is None else repr(self.label)})"

    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """The queries' class logits."""
        return (_output(self.output, program)[1],)

    def choose(self, context: Context, samples: Sequence[int]) -> list[Choice]:
        """One element: (query, class)."""
        name, node = _output(self.output, context.program)
        size = own_rows(name, node)
        if len(size) != 2:
            raise TargetError(
                f"target {self} needs an output (queries, classes) per sample; {name!r} "
                f"is {list(size)}"
            )
        scores, nothing = context.values(node, samples), self._nothing(size[1], context)
        if nothing is not None:
            scores = scores.softmax(-1)
            scores[..., nothing] = float("-inf")
        if self.label is None:
            found = [divmod(k, size[1]) for k in scores.flatten(1).argmax(1).tolist()]
        else:
            label = elements([(0, self.label)], self, name, node, context, samples[:1])[0][1]
            found = [(query, label) for query in scores[:, :, label].argmax(1).tolist()]
        return [element_choice(index, name, node, named=self.output is not None) for index in found]

    def _nothing(self, classes: int, context: Context) -> int | None:
        """The class that means "no object": it makes classes compete, so that confidence is a
        softmax."""
        if self.nothing is None:
            return (
                classes - 1 if classes == len(context.adapter.labels(context.model)) + 1 else None
            )
        if isinstance(self.nothing, bool) or not -classes <= self.nothing < classes:
            if self.nothing is not False:
                raise TargetError(
                    f"target {self}: nothing={self.nothing!r} is none of {classes} "
                    "classes; give an index, False for none, or leave it out"
                )
            return None
        return self.nothing % classes


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
        return (_output(self.output, program)[1],)

    def choose(self, context: Context, samples: Sequence[int]) -> list[Choice]:
        """One part of many elements: they start together, with equal weights that sum to 1."""
        name, node = _output(self.output, context.program)
        size = own_rows(name, node)
        if len(size) < 2:
            raise TargetError(
                f"target {self} needs an output (classes, height, width) or (height, "
                f"width) per sample; {name!r} is {list(size)}"
            )
        label = self._label(name, size, context)
        if self.mask is not None:
            inside = [self._given(size[len(label) :])] * len(samples)
        else:
            inside = list(_where_predicted(label, context.values(node, samples)).cpu())
        shown = f"{name}[{label[0]}]" if label else name
        choices = []
        for sample, places in zip(samples, (mask.nonzero() for mask in inside), strict=True):
            if not len(places):
                raise TargetError(
                    message(
                        f"target {self}: {shown} is predicted nowhere in sample {sample}",
                        then=["give a mask: relprop.targets.region(class, mask)"],
                    )
                )
            where = torch.cat(
                [torch.tensor([label], dtype=torch.long).expand(len(places), len(label)), places], 1
            )
            choices.append(
                Choice(
                    f"mean of {shown} over {len(places)} places",
                    (Part(node, where, 1 / len(places)),),
                )
            )
        return choices

    def _label(self, name: str, size: tuple[int, ...], context: Context) -> tuple[int, ...]:
        """The class's index, as the beginning of an element's; nothing for an output without a
        class axis."""
        if self.label is None:
            return ()
        label = (
            label_index(self.label, size[0], context) if isinstance(self.label, str) else self.label
        )
        if not -size[0] <= label < size[0]:
            raise TargetError(
                f"target {self}: class {label} is out of range, output {name!r} has "
                f"{size[0]} classes"
            )
        return (label % size[0],)

    def _given(self, size: tuple[int, ...]) -> Tensor:
        assert self.mask is not None
        if self.mask[0] != size:
            raise TargetError(
                message(
                    (
                        f"target {self}: the mask is {list(self.mask[0])}, the output has "
                        f"{list(size)} places{'' if self.label is None else ' per class'}"
                    ),
                    then=[
                        (
                            "resize it: torch.nn.functional.interpolate(mask[None, "
                            f"None].float(), size={size})[0, 0] > 0.5"
                        ),
                        "one per sample: [region(class, m) for m in masks]",
                    ],
                )
            )
        return torch.frombuffer(bytearray(self.mask[1]), dtype=torch.bool).view(size)


def _where_predicted(label: tuple[int, ...], value: Tensor) -> Tensor:
    """(samples, height, width), bool: where the class has the largest logit; where the only logit
    is positive."""
    if not label:
        return value > 0
    return value.argmax(1) == label[0] if value.shape[1] > 1 else value[:, 0] > 0


@dataclass(frozen=True)
class Nothing(Target):
    """No element of the class output, for a sample of a batch in which there is nothing left to
    explain: it scores 0."""

    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """The class output."""
        return (class_output(program)[1],)

    def choose(self, context: Context, samples: Sequence[int]) -> list[Choice]:
        """One part without elements."""
        name, node = class_output(context.program)
        none = torch.empty(0, len(own_rows(name, node)), dtype=torch.long)
        return [Choice(None, (Part(node, none),)) for _ in samples]


def _output(name: str | int | None, program: Program) -> tuple[str, fx.Node]:
    return class_output(program) if name is None else named_output(program, name)
