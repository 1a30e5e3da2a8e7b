"""An adapter says what the tokens *are*. It never says how the model works, and never sees a rule.

Write one by subclassing ``Adapter``; ``relprop.adapters.adapter_for`` picks the first that ``fits``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relprop.tracer.binding import Inputs


class Adapter:
    """A plain PyTorch model: floating inputs are explained themselves, the first integer input through its embedding."""

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """Whether this adapter knows what ``model``'s tokens are."""
        return True

    def token_inputs(self, model: nn.Module, inputs: Inputs) -> tuple[str, ...] | None:
        """The names of the inputs to explain; ``None`` leaves it to the graph."""
        return None

    def label_index(self, model: nn.Module, label: str) -> int | None:
        """The class index of a label, or ``None`` if the model knows no such label."""
        return None

    def labels(self, model: nn.Module) -> tuple[str, ...]:
        """The labels the model knows, in order of class index."""
        return ()

    def is_causal(self, model: nn.Module) -> bool:
        """Whether the model predicts the next token, so that ``target=None`` means the last real position."""
        return False

    def last_position(self, inputs: Inputs, length: int) -> Tensor:
        """The last real position of every sample, (batch,)."""
        return torch.full((inputs.batch,), length - 1)

    def tokens(self, model: nn.Module, raw: Any, inputs: Inputs, stream: str) -> list[list[str]] | None:
        """A label for every input position of every sample, or ``None``."""
        return None

    def content(self, model: nn.Module, raw: Any, inputs: Inputs, stream: str) -> Tensor | None:
        """Which input positions are content, (batch, positions), bool; ``None``: all of them."""
        return None
