"""Under which conditions a call is answered: everything that is asked of all methods alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from relprop.errors import OptionError

#: How many bytes an answer may take beside the model, "auto", or no limit.
Memory = int | str | None


@dataclass(frozen=True)
class Conditions:
    """Under which conditions a call is answered: what ``explain`` takes beside the question. Each
    is explained there."""

    batch_size: int | None = None
    explain_inputs: Sequence[str | int] | str | None = None
    precision: str | torch.dtype | None = None
    on_unknown: str = "generic"
    progress: bool | None = None
    processor: object = None
    trust_remote_code: bool = False
    verify: bool = True
    memory: Memory = "auto"
    keep_pictures: bool = True

    def __post_init__(self) -> None:
        for name in ("progress", "trust_remote_code", "verify", "keep_pictures"):
            value, automatic = getattr(self, name), name == "progress"
            if not isinstance(value, bool) and not (automatic and value is None):
                raise OptionError(f"{name}={value!r}: True or False{', or None' * automatic}")
