"""What a language model says in several tokens: the mean log-probability of a span of its text, or
of an answer found in it. And one target against another: their difference."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from relprop.errors import TargetError
from relprop.targets.index import Output
from relprop.targets.outputs import ModelOutput, class_output
from relprop.targets.start import ChosenTarget, Context, Elements, Target
from relprop.tracer.program import Program


def of_tokens(
    label: str, output: ModelOutput, place: tuple[int, int], ids: Sequence[int], *, together: bool
) -> ChosenTarget:
    """The mean log-probability of the tokens ``ids`` of one text from the first to the last
    ``place``, each where the position before it predicts it; ``together``: as one part."""
    where = [(p - 1, int(ids[p])) for p in range(place[0], place[1] + 1)]
    parts: Sequence[tuple[int, ...] | Tensor] = [torch.tensor(where)] if together else where
    found = (Elements(output.node, part, 1 / len(where), log=True) for part in parts)
    return ChosenTarget(label, tuple(found))


def texts_of(context: Context, target: Target, samples: Sequence[int]) -> list[list[int]]:
    """The token ids of these samples whose next ones the class output predicts. Raises
    ``TargetError`` for a model that predicts none."""
    output, inputs = class_output(context.program), context.inputs
    size, found = output.size, list[Tensor]()
    both = zip(inputs.names, inputs.tensors, inputs.batched, strict=True)
    for name, tensor, batched in both:
        fits = batched and not tensor.is_floating_point() and tensor.shape[1:] == size[:1]
        found += [tensor] if fits and (name.endswith("input_ids") or not found) else []
    predicts = context.adapter.is_causal(context.model) or not hasattr(context.model, "config")
    if len(size) != 2 or not found or not predicts:
        fact = (
            f"target {target} is tokens of a text, each predicted by the position before it: this "
            f"model predicts no next token (output {output.name!r}, {list(size)} per sample)"
        )
        raise TargetError(fact, then=["a model that generates, or relprop.targets.token"])
    rows: list[list[int]] = found[-1][list(samples)].tolist()
    return rows


@dataclass(frozen=True)
class Answer(Target):
    """The mean log-probability of a piece of text; what ``relprop.targets.answer`` makes."""

    text: str
    tokenizer: Any = field(default=None, compare=False, repr=False)
    together: bool = False

    def __str__(self) -> str:
        return f"answer({self.text!r})"

    def reads_more(self, program: Program) -> bool:
        """It does: the normalisers."""
        return True

    def choose(self, context: Context, samples: Sequence[int]) -> list[ChosenTarget]:
        """A part per token of the answer, where it stands last in each sample's text."""
        decode = self._decoder(context)
        output, texts = class_output(context.program), texts_of(context, self, samples)
        places = [self._place(ids, decode, k) for k, ids in zip(samples, texts, strict=True)]
        return [
            of_tokens(str(self), output, place, ids, together=self.together)
            for place, ids in zip(places, texts, strict=True)
        ]

    def _decoder(self, context: Context) -> Callable[[list[int]], str]:
        given: Any = context.processor if self.tokenizer is None else self.tokenizer
        decode = getattr(getattr(given, "tokenizer", None) or given, "decode", None)
        if decode is None:
            then = [f"processor=tokenizer, or relprop.targets.answer({self.text!r}, tokenizer)"]
            raise TargetError(f"target {self} needs the tokenizer", then=then)
        return lambda ids: str(decode(ids))

    def _place(
        self, ids: list[int], decode: Callable[[list[int]], str], sample: int
    ) -> tuple[int, int]:
        """The first and the last token of the answer. Tokens need not begin and end with it: they
        are the fewest whose text holds it."""
        count = decode(ids).count(self.text)
        if not count:
            fact = f"target {self}: the text of sample {sample} does not have it"
            then = [f"give the answer behind the prompt; the input ends in {decode(ids)[-200:]!r}"]
            raise TargetError(fact, then=then)
        ends = range(len(ids) - 1)
        last = bisect_left(ends, True, key=lambda k: decode(ids[: k + 1]).count(self.text) >= count)
        said, others = ids[: last + 1], range(last)
        first = last - bisect_left(others, True, key=lambda k: self.text in decode(said[-k - 1 :]))
        if first == 0:
            raise TargetError(f"target {self}: nothing stands before it that could predict it")
        return first, last


@dataclass(frozen=True)
class Contrast(Target):
    """One target less another; what ``relprop.targets.contrast`` makes."""

    speaks_for: Target
    against: Target

    def __str__(self) -> str:
        return f"{_brief(self.speaks_for)} rather than {_brief(self.against)}"

    def turned(self) -> Contrast:
        """The other way round."""
        return Contrast(self.against, self.speaks_for)

    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """Those of both."""
        both = (self.speaks_for, self.against)
        return tuple(dict.fromkeys(node for t in both for node in t.outputs(program)))

    def places(self, context: Context, samples: Sequence[int]) -> list[tuple[int, ...]] | None:
        """Those of both."""
        found = [t.places(context, samples) for t in (self.speaks_for, self.against)]
        known = [places for places in found if places is not None]
        return None if len(known) < len(found) else [p for places in known for p in places]

    @property
    def inside(self) -> bool:
        """Whether either does."""
        return self.speaks_for.inside or self.against.inside

    def reads_more(self, program: Program) -> bool:
        """Whether either does."""
        return any(t.reads_more(program) for t in (self.speaks_for, self.against))

    def choose(self, context: Context, samples: Sequence[int]) -> list[ChosenTarget]:
        """The parts of the one, and those of the other with their weights turned."""
        chosen = (t.choose(context, samples) for t in (self.speaks_for, self.against))
        return [self._of(*both) for both in zip(*chosen, strict=True)]

    def _of(self, for_it: ChosenTarget, against: ChosenTarget) -> ChosenTarget:
        if any(isinstance(p.where, Tensor) and p.log for p in (*for_it.parts, *against.parts)):
            raise TargetError(
                f"target {self}: together=True starts relevance at once, where weights are >= 0; "
                "a contrast has weights of both signs"
            )
        turned = tuple(replace(p, weight=-p.weight) for p in against.parts)
        if for_it.label == against.label:
            raise TargetError(f"target {self}: both are {for_it.label}, and their difference is 0")
        return ChosenTarget(Rather(for_it.label, against.label), (*for_it.parts, *turned))


class Rather(str):
    """The label of a contrast: text, which knows the labels of both its ``sides``."""

    sides: tuple[object, object]

    def __new__(cls, *sides: object) -> Rather:
        """The one rather than the other."""
        found = super().__new__(cls, " rather than ".join(map(str, sides)))
        found.sides = (sides[0], sides[1])
        return found

    def __getnewargs__(self) -> tuple[object, ...]:  # type: ignore[override]
        return self.sides


def _brief(target: Target) -> str:
    """A target's name; of an element of the class output its index alone."""
    plain = isinstance(target, Output) and target.name is None and target.index is not None
    return ", ".join(map(str, target.index)) if plain else str(target)  # type: ignore[attr-defined]
