"""Elements of an output: by index, by label, or the prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import torch
from torch import Tensor, fx

from relprop.adapters.processing import tokenizer_of
from relprop.errors import AmbiguityWarning, TargetError, nearest, warn
from relprop.targets.outputs import (
    ModelOutput,
    chosen_output,
    class_output,
    class_output_or_none,
    has_batch_axis,
    listed,
    probability,
)
from relprop.targets.plain import Index, id_of, masked_positions, plain_index
from relprop.targets.start import ChosenTarget, Context, Elements, Target
from relprop.tracer.facts import shape
from relprop.tracer.program import Program

INDEX_FORMS = (
    "a tuple indexes one element: (position, class); a list or a tensor gives one target per sample"
)
WAYS = {
    2: (
        "one position: (position, class)",
        "the likeliest token at the mask: relprop.targets.token(tokenizer=tokenizer)",
        "a detector's most confident query: relprop.targets.query(), or the one of a "
        "class: relprop.targets.query(class)",
    ),
    3: (
        "one pixel: (class, y, x)",
        "where a class is predicted: relprop.targets.region(class), or over a mask: "
        "relprop.targets.region(class, mask)",
    ),
}
"""What a person may name in an output of so many axes per sample."""


@dataclass(frozen=True)
class Output(Target):
    """One element of an output; what ``relprop.targets.output`` makes.

    ``name``: the output's name, its place among several, or ``None``: the class output. ``index``:
    one entry per axis of one sample's output (a label may stand for its class), or ``None``: the
    predicted one.
    """

    name: str | int | None = None
    index: tuple[int | str, ...] | None = None

    def __getitem__(self, index: SupportsIndex | str | tuple[SupportsIndex | str, ...]) -> Output:
        """One element: ``output("pred_boxes")[0, 2]``. Raises ``TargetError`` for an index that is
        no element of this output."""
        if self.index is not None:
            raise TargetError(
                f"{self} is one element already; give all indices in one bracket: [0, 2]"
            )
        return Output(self.name, plain_index(index))

    def __str__(self) -> str:
        name = "prediction" if self.name is None else self.name
        name = f"output {name}" if isinstance(name, int) else name
        return name if self.index is None else f"{name}[{', '.join(map(str, self.index))}]"

    def written(self) -> str:
        """The index alone where it is of the class output."""
        return repr(self.index) if self.name is None and self.index is not None else str(self)

    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """The one output it names."""
        return (chosen_output(program, self.name).node,)

    def places(self, context: Context, samples: Sequence[int]) -> list[tuple[int, ...]] | None:
        """Those before the class of the element, or where a language model predicts the next
        token."""
        output = chosen_output(context.program, self.name)
        if self.index is None:
            positions = _next_positions(output, context, samples)
            return None if positions is None else [(p,) for p in positions]
        found = elements([self.index] * len(samples), self, output, context, samples)
        return [index[:-1] for index in found]

    def choose(self, context: Context, samples: Sequence[int]) -> list[ChosenTarget]:
        """One element, with weight 1; its label is the index alone where the output is the class
        output."""
        output = chosen_output(context.program, self.name)
        if self.index is None:
            found = _predicted(self, output, context, samples)
        else:
            found = elements([self.index] * len(samples), self, output, context, samples)
        return [element_choice(index, output, named=self.name is not None) for index in found]


@dataclass(frozen=True)
class Nothing(Target):
    """No element of the class output, for a sample of a batch in which there is nothing left to
    explain: it scores 0."""

    def places(self, context: Context, samples: Sequence[int]) -> list[tuple[int, ...]]:
        """None at all."""
        return []

    def choose(self, context: Context, samples: Sequence[int]) -> list[ChosenTarget]:
        """One part without elements."""
        output = class_output(context.program)
        none = torch.empty(0, len(output.size), dtype=torch.long)
        return [ChosenTarget(None, (Elements(output.node, none),)) for _ in samples]


def element_choice(index: tuple[int, ...], output: ModelOutput, *, named: bool) -> ChosenTarget:
    """One element with weight 1. Its label is a class or a tuple, or ``name[index]`` if the target
    named the output."""
    label = element_label(index, output.name, named=named)
    return ChosenTarget(label, (Elements(output.node, index),))


def element_label(
    index: tuple[int, ...], output: str, *, named: bool
) -> str | int | tuple[int, ...]:
    """What is said of one element of an ``output``."""
    if not index:
        return output
    if named:
        return f"{output}[{', '.join(map(str, index))}]"
    return index[0] if len(index) == 1 else index


def elements(
    given: Sequence[Index],
    target: Target,
    output: ModelOutput,
    context: Context,
    samples: Sequence[int],
) -> list[tuple[int, ...]]:
    """Each sample's index, labels looked up and negative entries counted from the end; a lone token
    of a language model is at its last position."""
    lone = any(len(index) == 1 for index in given)
    last = _next_positions(output, context, samples) if lone else None
    words = _tokenizer(context, output.size[-1]) if len(output.size) == 2 else None
    mask = getattr(words, "mask_token_id", None)
    pieces = all(len(index) == 1 and isinstance(index[0], str) for index in given)
    if last is None and mask is not None and pieces:
        last = masked_positions(mask, target.written(), context, samples)
    full = [
        index if last is None or len(index) != 1 else (last[i], *index)
        for i, index in enumerate(given)
    ]
    return [_checked(index, target, output, context) for index in full]


def _tokenizer(context: Context, count: int) -> Any:
    """The call's tokenizer, if so many classes may be the pieces of its vocabulary."""
    found: Any = tokenizer_of(context.processor)
    return found if count >= getattr(found, "vocab_size", math.inf) else None


def _checked(
    index: Index, target: Target, output: ModelOutput, context: Context
) -> tuple[int, ...]:
    size = output.size
    if len(index) != len(size):
        fact = (
            f"target {target.written()} has {len(index)} indices, output {output.name!r} has "
            f"{len(size)} axes per sample: {list(size)}"
        )
        then = [INDEX_FORMS] if size else ["target=None explains it: it is one number per sample"]
        raise TargetError(fact, then=then)
    found = tuple(
        label_index(k, n, context) if isinstance(k, str) else k
        for k, n in zip(index, size, strict=True)
    )
    for axis, (k, n) in enumerate(zip(found, size, strict=True)):
        if not -n <= k < n:
            raise TargetError(
                f"target {k} is out of range: axis {axis} of output {output.name!r} has "
                f"{n} elements"
            )
    return tuple(k % n for k, n in zip(found, size, strict=True))


def label_index(label: str, count: int, context: Context) -> int:
    """The class index of a label of the model, for an axis of ``count`` classes: as many as labels,
    or one more that means "nothing"."""
    known = context.adapter.labels(context.model)
    index = context.adapter.label_index(context.model, label)
    token = f"processor=tokenizer, or relprop.targets.token({label!r}, tokenizer)"
    then = [f"for a token of a vocabulary {token}"] if known and count > len(known) + 1 else []
    if index is None and (tokenizer := _tokenizer(context, count)) is not None:
        return id_of(label, tokenizer)
    if index is None:
        fact = f"it has {', '.join(known[:20])}" if known else "it has no labels: give an index"
        then = [*nearest(label, known), *then]
        raise TargetError(f"target {label!r} is no label of the model; {fact}", then=then)
    if known and count not in (len(known), len(known) + 1):
        fact = (
            f"target {label!r} names one of the model's {len(known)} labels, but the "
            f"output has {count} classes there: give an index"
        )
        raise TargetError(fact, then=then)
    return index


def _next_positions(
    output: ModelOutput, context: Context, samples: Sequence[int]
) -> list[int] | None:
    """Where a language model predicts the next token of each sample, if the output is its rows of
    token scores."""
    rows = class_output_or_none(context.program)
    of_tokens = has_batch_axis(output.node) and len(output.size) == 2
    if not of_tokens or rows is None or rows.node is not output.node:
        return None
    if not context.adapter.is_causal(context.model):
        return None
    positions = context.adapter.last_position(context.inputs, output.size[0]).tolist()
    return [int(positions[i]) for i in samples]


def _predicted(
    target: Output, output: ModelOutput, context: Context, samples: Sequence[int]
) -> list[tuple[int, ...]]:
    """The only element, the largest of a row of classes, or a language model's next token."""
    size = output.size
    if math.prod(size) == 1:
        return [(0,) * len(size)] * len(samples)
    if len(size) == 1:
        values = context.values(output.node, samples)
        if target.name is None and context.adapter.is_multi_label(context.model):
            _say_which_label(values, probability(output.node) is not None)
        return [(k,) for k in values.argmax(1).tolist()]
    positions = _next_positions(output, context, samples)
    if positions is None:
        raise _no_prediction(target, output, context.program)
    tokens = context.rows(output.node, samples, positions).argmax(1).tolist()
    return list(zip(positions, tokens, strict=True))


def _say_which_label(values: Tensor, probabilities: bool) -> None:
    """Several labels can be true of a sample at once: the largest is explained."""
    true = int((values > (0.5 if probabilities else 0)).sum(1).max())
    if true > 1:
        fact = f"up to {true} labels are true of a sample, by the model: the largest is explained"
        then = ["target=LABEL for another one, explain_many for several"]
        warn(AmbiguityWarning(fact, then=then))


def _no_prediction(target: Output, output: ModelOutput, program: Program) -> TargetError:
    """The error for an output in which nobody can say which element is the prediction."""
    ways = WAYS.get(len(output.size), ("a tuple with one index per axis",))
    fact = (
        f"target={'None' if target.name is None else target} needs a class head; "
        f"output {output.name!r} is {list(shape(output.node))} for one sample "
        f"(outputs: {listed(program)})"
    )
    call = "a callable: target=lambda output: ...  # one sample's output -> a scalar"
    return TargetError(fact, then=[*ways, call])
