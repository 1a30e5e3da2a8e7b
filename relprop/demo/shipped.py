"""What the shipped models have in common: their weights and figures lie beside this file, and those
of Hugging Face need ``transformers``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from relprop.errors import OptionError


def transformers_for(model: str) -> Any:
    """The library ``transformers``, which this ``model`` needs. Raises ``OptionError`` without
    it."""
    try:
        import transformers
    except ImportError:
        fact = f'the {model} model needs transformers: pip install "transformers>=5.6"'
        raise OptionError(fact) from None
    return transformers


def fill(model: nn.Module, weights: Path) -> None:
    """Put shipped weights into a model. What the file leaves out must be an output layer that is
    tied to the embedding."""
    from safetensors.torch import load_file

    missing, unexpected = model.load_state_dict(load_file(weights), strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)


def numbers(path: Path) -> dict[str, Any]:
    """What a training script wrote of the weights beside it."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found
