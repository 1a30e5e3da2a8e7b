"""The user's own model on texts from which positions were taken out: what stands behind them moves
up, and y_t is read where its position has gone."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor, fx, nn

from relprop.errors import OptionError, first_line, out_of_memory
from relprop.tracer.binding import Inputs
from relprop.tracer.facts import shape
from relprop.tracer.model_comparison import is_row, model_outputs, rows_of
from relprop.tracer.program import Program

AT_ONCE, LARGEST = 32, 2**26  # rows in one pass, and numbers that they may give
COUNTED = "position_ids"  # behind what is gone it counts on without a gap
ALONGSIDE = ("attention_mask", "token_type_ids", COUNTED)

#: A sample, and which of its positions are gone, (positions,), bool.
Row = tuple[int, Tensor]
Values = dict[fx.Node, Tensor]


@dataclass(frozen=True)
class Deletion:
    """Positions taken out of the text ``name``, one of a program's ``inputs``: the model reads
    texts that are really shorter. ``seen``: which of its positions are no padding, (batch,
    positions), where the inputs hold no mask."""

    program: Program
    model: nn.Module
    inputs: Inputs
    name: str
    seen: Tensor | None = None

    def values(self, rows: Sequence[Row]) -> Iterator[tuple[int, Values]]:
        """For each row, in any order, its place and the values of the program's outputs, (1, *those
        of one sample), at the places of the whole text: of a position that is gone those of the
        last one before it. Where padding alone is taken out nothing is. Raises ``OptionError``
        where the model fails, or spreads one position over as many as it is made for."""
        rows = [(k, gone & (gone & self._seen[k]).any()) for k, gone in rows]
        sizes = [int(gone.sum()) for _, gone in rows]
        count = self._text.shape[1]
        if count > 1 and count - 1 in sizes and self._spreads(count):
            raise OptionError(
                f"leave_one_out: the model is made for {count} positions of {self.name!r}, and "
                "would spread one that is left over all",
                then=["method='occlusion' hides positions instead"],
            )
        for size in sorted(set(sizes)):
            same = [k for k, found in enumerate(sizes) if found == size]
            for first in range(0, len(same), self._at_once):
                some = same[first : first + self._at_once]
                yield from zip(some, self._passed([rows[k] for k in some], size), strict=True)

    def _spreads(self, count: int) -> bool:
        """Whether the model is made for so many positions, and gives one that is left to all: of
        two it then says of the first alone what it says of the first twice."""
        if self._runs([0, 1] if count > 2 else [0, 1, 1]):
            return False
        if count > 2 or not self._runs([0]):
            return count > 2
        some = (
            self._cut(torch.tensor([0]), torch.tensor([k]), self._alongside) for k in ([0], [0, 0])
        )
        one, twice = (model_outputs(self.model, cut) for cut in some)
        return all(is_row(a, b, 0, 1) for a, b in zip(one, twice, strict=True))

    @property
    def _at_once(self) -> int:
        numbers = sum(torch.Size(shape(n)).numel() for n in self.program.output_nodes)
        return max(1, min(AT_ONCE, LARGEST // max(1, numbers)))

    @property
    def _text(self) -> Tensor:
        return self.inputs.tensors[self.inputs.names.index(self.name)]

    @property
    def _own(self) -> str:
        """What the names of its mask and its like begin with."""
        return re.sub(r"input_\w+$", "", self.name)

    @cached_property
    def _seen(self) -> Tensor:
        """Which positions of each sample are no padding, by the text's own mask."""
        name = self._own + ALONGSIDE[0]
        if name not in self._alongside:
            if self.seen is not None and self.seen.shape == self._text.shape:
                return self.seen.cpu()
            return torch.ones(self._text.shape, dtype=torch.bool)
        return self.inputs.tensors[self.inputs.names.index(name)].cpu() != 0

    def padded(self) -> int | None:
        """The first sample with padding beside its text, before it if any has; ``None`` if none
        has."""
        some = self._seen.any(1)
        before, beside = ~self._seen[:, 0] & some, ~self._seen.all(1) & some
        padded = (before if before.any() else beside).nonzero()
        return int(padded[0]) if len(padded) else None

    def alone(self, sample: int) -> Values:
        """The same as ``values`` has it, for a sample without its padding."""
        gone = ~self._seen[sample]
        return self._passed([(sample, gone)], int(gone.sum()))[0]

    def _passed(self, rows: Sequence[Row], size: int) -> list[Values]:
        """One pass of the model over some rows, each of which lacks ``size`` positions."""
        samples = torch.tensor([sample for sample, _ in rows])
        gone = torch.stack([gone for _, gone in rows])
        left = gone.to(torch.uint8).sort(dim=1, stable=True).indices[:, : gone.shape[1] - size]
        try:
            eager = model_outputs(self.model, self._cut(samples, left, self._alongside))
        except Exception as error:
            if out_of_memory(error):
                raise
            raise OptionError(
                f"leave_one_out: the model fails without some positions of {self.name!r}: "
                f"{first_line(error)}",
                then=["method='occlusion' hides positions instead"],
            ) from error
        made = {
            node: self._back(node, value, gone)
            for node, value in zip(self.program.output_nodes, eager, strict=False)
        }
        return [{n: v[k : k + 1] for n, v in made.items()} for k in range(len(rows))]

    def _cut(self, samples: Tensor, left: Tensor, alongside: Collection[str]) -> Inputs:
        """The inputs of some samples with the positions that are ``left`` of the text and of what
        is ``alongside``; given positions count on without a gap."""

        def cut(name: str, tensor: Tensor) -> Tensor:
            found = tensor[samples.to(tensor.device)]
            if name != self.name and name not in alongside:
                return found
            at = left.to(tensor.device)
            kept = found.gather(1, at)
            if not name.endswith(COUNTED):
                return kept
            numbers = torch.arange(int(found.max()) + 1, device=found.device)
            there, still = ((t[..., None] == numbers).any(1) for t in (found, kept))
            gone = (there & ~still).long().cumsum(1)  # numbers up to each that none has any more
            return kept - gone.gather(1, kept.long()).to(kept)

        both = zip(self.inputs.names, self.inputs.tensors, self.inputs.batched, strict=True)
        tensors = tuple(cut(n, t) if batched else t for n, t, batched in both)
        return replace(self.inputs, tensors=tensors, batch=len(samples))

    @cached_property
    def _alongside(self) -> frozenset[str]:
        """The inputs that have a number for every position of the text: of those of one length the
        ones that go by their names, and the fewest others with which the model reads a text of
        another length (the second text of a pair stays whole)."""
        both = zip(self.inputs.names, self.inputs.tensors, self.inputs.batched, strict=True)
        count, own = self._text.shape[1], self._own
        found = {
            name
            for name, tensor, batched in both
            if batched and name != self.name and tensor.dim() == 2 and tensor.shape[1] == count
            if name.startswith("decoder_") == self.name.startswith("decoder_")
        }
        named = found & {own + end for end in ALONGSIDE}
        order = [*range(count - 1)] if count > 2 else [0, 1, 1]
        others = sorted(found - named)
        for size in range(len(others)):
            for some in combinations(others, size):
                if self._runs(order, named | {*some}):
                    return frozenset(named | {*some})
        return frozenset(found)

    def _runs(self, left: list[int], alongside: Collection[str] | None = None) -> bool:
        """Whether the model takes the first sample's text with these positions."""
        names = self._alongside if alongside is None else alongside
        try:
            model_outputs(self.model, self._cut(torch.tensor([0]), torch.tensor([left]), names))
        except Exception as error:
            if out_of_memory(error):
                raise
            return False
        return True

    def _back(self, node: fx.Node, value: Tensor, gone: Tensor) -> Tensor:
        """An output of rows whose positions have moved, at the places of the whole text."""
        sample, count = list(shape(node)), gone.shape[1]
        axis = 1 if len(sample) > 1 and sample[0] == 1 else 0
        moved = value.dim() > 1 and value.shape[1] == int((~gone[0]).sum()) < count
        follows = moved and len(sample) > axis and sample[axis] == count and not self._beside
        if follows:
            place = ((~gone).cumsum(1) - 1).clamp(min=0).to(value.device)
            value = value[torch.arange(len(gone), device=value.device)[:, None], place]
        found = rows_of(value, torch.Size(sample), len(gone))
        if found is None:  # of another length, as what an encoder made of a text is: no target's
            return value.new_full((len(gone), *sample), torch.nan)
        return found

    @property
    def _beside(self) -> bool:
        """Whether the outputs follow another text: a decoder's."""
        decoded = any(name.startswith("decoder_input") for name in self.inputs.names)
        return decoded and not self.name.startswith("decoder_")
