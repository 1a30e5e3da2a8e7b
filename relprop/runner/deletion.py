"""The user's own model on texts from which positions were taken out: what stands behind them moves
up, and y_t is read where its position has gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn

from relprop.errors import OptionError, first_line, out_of_memory
from relprop.tracer.binding import Inputs
from relprop.tracer.facts import shape
from relprop.tracer.judge import model_outputs, rows_of
from relprop.tracer.program import Program

AT_ONCE, LARGEST = 32, 2**26  # rows in one pass, and numbers that they may give
COUNTED = "position_ids"  # behind what is gone it counts on without a gap

#: A sample, and which of its positions are gone, (positions,), bool.
Row = tuple[int, Tensor]
Values = dict[fx.Node, Tensor]


@dataclass(frozen=True)
class Deletion:
    """Positions taken out of the text ``name``, one of a program's ``inputs``. ``causal``: whether
    the model predicts next tokens, so that nothing sees what stands behind."""

    program: Program
    model: nn.Module
    inputs: Inputs
    name: str
    causal: bool

    def values(self, rows: Sequence[Row]) -> Iterator[tuple[int, Values]]:
        """For each row, in any order, its place and the values of the program's outputs, (1, *those
        of one sample), at the places of the whole text: of a position that is gone those of the
        last one before it. Raises ``OptionError`` where the model fails."""
        sizes = [0 if self.padded else int(gone.sum()) for _, gone in rows]
        for size in sorted(set(sizes)):
            same = [k for k, found in enumerate(sizes) if found == size]
            for first in range(0, len(same), self._at_once):
                some = same[first : first + self._at_once]
                yield from zip(some, self._passed([rows[k] for k in some], size), strict=True)

    @property
    def padded(self) -> bool:
        """Whether others can stand behind a text in place of what is gone, where nothing sees them,
        so that texts of all lengths are one batch."""
        masked = f"{self.name.removesuffix('input_ids')}attention_mask" in self.inputs.names
        return masked or (self.causal and not self._beside)

    @property
    def _at_once(self) -> int:
        numbers = sum(torch.Size(shape(n)).numel() for n in self.program.output_nodes)
        return max(1, min(AT_ONCE, LARGEST // max(1, numbers)))

    @property
    def _text(self) -> Tensor:
        return self.inputs.tensors[self.inputs.names.index(self.name)]

    def _passed(self, rows: Sequence[Row], size: int) -> list[Values]:
        """One pass of the model over some rows, each of which lacks ``size`` positions in the
        end."""
        samples = torch.tensor([sample for sample, _ in rows])
        gone = torch.stack([gone for _, gone in rows])
        order = gone.to(torch.uint8).sort(dim=1, stable=True).indices  # what is left comes first
        order = order[:, : order.shape[1] - size]
        both = zip(self.inputs.names, self.inputs.tensors, self.inputs.batched, strict=True)
        tensors = tuple(
            self._moved(name, tensor[samples.to(tensor.device)], gone, order) if batched else tensor
            for name, tensor, batched in both
        )
        try:
            eager = model_outputs(
                self.model, replace(self.inputs, tensors=tensors, batch=len(rows))
            )
        except Exception as error:
            if out_of_memory(error):
                raise
            raise OptionError(
                f"leave_one_out: the model fails without some positions of {self.name!r}: "
                f"{first_line(error)}",
                then=["leave out positions of text alone: groups="],
            ) from error
        made = {
            node: self._back(node, value, gone)
            for node, value in zip(self.program.output_nodes, eager, strict=False)
        }
        return [{n: v[k : k + 1] for n, v in made.items()} for k in range(len(rows))]

    def _moved(self, name: str, tensor: Tensor, gone: Tensor, order: Tensor) -> Tensor:
        """What an input has for the positions that are left, and behind them what is not seen."""
        if not self._is_alongside(name, tensor):
            return tensor
        at = order.to(tensor.device)
        found = tensor.gather(1, at)
        if name.endswith(COUNTED):
            found = found - (gone.cumsum(1) * ~gone).gather(1, order).to(found)
        hidden = gone.gather(1, order).to(tensor.device)
        return found.masked_fill(hidden, 0) if name.endswith("attention_mask") else found

    def _is_alongside(self, name: str, tensor: Tensor) -> bool:
        """Whether an input has a number for every position of the text."""
        same = tensor.dim() == 2 and tensor.shape[1] == self._text.shape[1]
        return same and name.startswith("decoder_") == self.name.startswith("decoder_")

    def _back(self, node: fx.Node, value: Tensor, gone: Tensor) -> Tensor:
        """An output of rows whose positions have moved, at the places of the whole text."""
        sample, count = list(shape(node)), gone.shape[1]
        axis = 1 if len(sample) > 1 and sample[0] == 1 else 0
        follows = len(sample) > axis and sample[axis] == count and not self._beside
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
