"""A subject of the sweep: one model, named by what its library calls it; and what building it
gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Subject:
    """One model of the sweep. ``entry`` is timm's model name or transformers' class name,
    ``settings`` are keyword arguments beyond it.

    ``named`` says that the project promises this one by name.
    """

    source: str
    family: str
    entry: str
    tasks: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    variant: str = ""
    named: bool = False

    @property
    def name(self) -> str:
        """What reports and ``--filter`` call it: ``timm/swin_transformer/swin_tiny…``,
        ``hf/bert/BertForMaskedLM``."""
        return "/".join((self.source, self.family, self.entry)) + (
            f" ({self.variant})" if self.variant else ""
        )


@dataclass
class Built:
    """A built subject: the model, two calls of the same shapes, which positions are padding (by
    input name), and the target to explain."""

    model: nn.Module
    inputs: dict[str, Tensor] | Tensor
    another: dict[str, Tensor] | Tensor
    pads: Mapping[str, Tensor] = field(default_factory=dict)
    target: Any = None
    shrunk: str = ""


class CannotBuild(Exception):
    """A subject that cannot be built or does not run; the message is the reason."""
