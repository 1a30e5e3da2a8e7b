"""Targets in a text: a token of the vocabulary where a model predicts one, at a mask token or next,
and a span. Of a model that answers questions by pointing into a text, a span's target is the sum of
the start's and the end's logit; of a model that generates, the mean log-probability of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.errors import TargetError
from relprop.targets.answers import of_tokens, texts_of
from relprop.targets.index import Output, element_choice, elements
from relprop.targets.outputs import ModelOutput, class_output, listed, named_output
from relprop.targets.plain import masked_positions
from relprop.targets.start import ChosenTarget, Context, Elements, Target
from relprop.tracer.program import Program

SPAN = ("start_logits", "end_logits")


@dataclass(frozen=True)
class Span(Target):
    """Start and end of a span, or the predicted one; what ``relprop.targets.span`` makes."""

    start: int | None = None
    end: int | None = None
    together: bool = False

    def __str__(self) -> str:
        return "span()" if self.start is None else f"span({self.start}, {self.end})"

    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """The start's and the end's logits, or the class output of a model that has none."""
        if not self._is_pointed_at(program):
            return super().outputs(program)
        return tuple(named_output(program, name).node for name in SPAN)

    def reads_more(self, program: Program) -> bool:
        """The normalisers of log-probabilities."""
        return not self._is_pointed_at(program)

    def choose(self, context: Context, samples: Sequence[int]) -> list[ChosenTarget]:
        """Two parts, the start's logit and the end's; or one for each token."""
        if not self._is_pointed_at(context.program):
            return self._tokens(context, samples)
        outputs = [named_output(context.program, name) for name in SPAN]
        if self.start is None or self.end is None:
            starts, ends = (context.values(output.node, samples) for output in outputs)
            found = _best_spans(starts, ends, real=_real(context, samples))
        else:
            both = zip((self.start, self.end), outputs, strict=True)
            alone = samples[:1]
            start, end = (elements([(k,)], self, o, context, alone)[0][0] for k, o in both)
            found = [(start, end)] * len(samples)
        return [self._choice(start, end, outputs) for start, end in found]

    def _is_pointed_at(self, program: Program) -> bool:
        return self.start is None or any(name in program.outputs.names for name in SPAN)

    def _tokens(self, context: Context, samples: Sequence[int]) -> list[ChosenTarget]:
        """Of a model that generates: a part per token, where the position before predicts it."""
        assert self.start is not None and self.end is not None
        output, texts = class_output(context.program), self._texts(context, samples)
        count = output.size[0]
        first, last = (k + count if k < 0 else k for k in (self.start, self.end))
        if not 0 < first <= last < count:
            raise TargetError(
                f"target {self}: the text has {count} positions, and its tokens from 1 to "
                f"{count - 1} are predicted"
            )
        label = str(Span(first, last))
        place, together = (first, last), self.together
        return [of_tokens(label, output, place, ids, together=together) for ids in texts]

    def _texts(self, context: Context, samples: Sequence[int]) -> list[list[int]]:
        try:
            return texts_of(context, self, samples)
        except TargetError as error:
            raise TargetError(
                f"target {self}: this model predicts no next token, and output {SPAN[0]!r} does "
                f"not exist; it returns {listed(context.program)}"
            ) from error

    def _choice(self, start: int, end: int, outputs: Sequence[ModelOutput]) -> ChosenTarget:
        if end < start:
            raise TargetError(f"target {self}: the span ends at {end}, before its start at {start}")
        first, last = (output.node for output in outputs)
        return ChosenTarget(
            str(Span(start, end)), (Elements(first, (start,)), Elements(last, (end,)))
        )


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
    inputs = context.inputs
    mask = dict(zip(inputs.names, inputs.tensors, strict=True)).get("attention_mask")
    if mask is None or mask.dim() != 2 or len(mask) != inputs.batch:
        return None
    return mask[list(samples)] != 0


@dataclass(frozen=True)
class Token(Target):
    """A token's score where the model predicts one; what ``relprop.targets.token`` makes."""

    id: int | None = None
    position: int | None = None
    mask_id: int | None = None
    text: str = ""

    def __str__(self) -> str:
        where = "" if self.position is None else f", position={self.position}"
        return f"token({self.text or self.id!r}{where})"

    def places(self, context: Context, samples: Sequence[int]) -> list[tuple[int, ...]] | None:
        """The position given, the sample's one mask token, or a language model's last."""
        found = self._indices(context, samples)
        if found is None:
            return Output().places(context, samples)
        return [index[:-1] for index in found]

    def choose(self, context: Context, samples: Sequence[int]) -> list[ChosenTarget]:
        """One element: the token given, or the likeliest, at its place."""
        output, found = class_output(context.program), self._indices(context, samples)
        if found is None:
            return Output().choose(context, samples)
        if self.id is None:
            places = [index[0] for index in found]
            scores = context.rows(output.node, samples, places)
            found = list(zip(places, scores.argmax(1).tolist(), strict=True))
        return [element_choice(index, output, named=False) for index in found]

    def _indices(self, context: Context, samples: Sequence[int]) -> list[tuple[int, ...]] | None:
        """Each sample's position and the token given, or any; ``None`` where the model is to say
        both."""
        positions = self._positions(context, samples)
        if positions is None and self.id is None:
            return None
        token = self.id or 0
        given = [(token,)] * len(samples) if positions is None else [(p, token) for p in positions]
        return elements(given, self, class_output(context.program), context, samples)

    def _positions(self, context: Context, samples: Sequence[int]) -> list[int] | None:
        """The position given, or where each sample's mask token is; ``None`` for a language model,
        or if no mask token is known."""
        if self.position is not None:
            return [self.position] * len(samples)
        if self.mask_id is None or context.adapter.is_causal(context.model):
            return None
        return masked_positions(self.mask_id, self, context, samples)
