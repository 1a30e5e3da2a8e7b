"""A token of a vocabulary where a model predicts one: at a mask token, or next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from relprop.targets.index import Output, element_choice, elements
from relprop.targets.outputs import class_output
from relprop.targets.pieces import masked_positions
from relprop.targets.start import ChosenTarget, Context, Target
from relprop.tracer.program import Program


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

    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """The class output."""
        return (class_output(program).node,)

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
