"""A token of a vocabulary where a model predicts one: at a mask token, or next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from relprop.errors import TargetError
from relprop.targets.index import Output, element_choice, elements
from relprop.targets.outputs import class_output
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
        return [self._masked(ids, k) for k, ids in _ids(context, samples)]

    def _masked(self, ids: Sequence[int], sample: int) -> int:
        """Where the one mask token of a sample is."""
        places = [position for position, token in enumerate(ids) if token == self.mask_id]
        if len(places) == 1:
            return places[0]
        where = "no mask token"
        if places:
            where = f"{len(places)} mask tokens, at {', '.join(map(str, places))}"
        raise TargetError(
            f"target {self}: sample {sample} has {where}; say which position: "
            "relprop.targets.token(..., position=...)"
        )


def _ids(context: Context, samples: Sequence[int]) -> list[tuple[int, list[int]]]:
    """The token ids of each of these samples; none where the model reads none."""
    both = zip(context.inputs.tensors, context.inputs.batched, strict=True)
    found = [t for t, batched in both if batched and _are_ids(t)]
    rows = found[0][list(samples)].tolist() if found else [[] for _ in samples]
    return list(zip(samples, rows, strict=True))


def _are_ids(tensor: Tensor) -> bool:
    return tensor.dim() == 2 and not tensor.is_floating_point()
