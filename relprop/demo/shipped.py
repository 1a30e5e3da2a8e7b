"""What the shipped models have in common: their weights and figures lie beside this file, and those
of Hugging Face need ``transformers``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

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


def trained(pretrained: bool, weights: Path, make: Callable[..., Any], *config: Any) -> Any:
    """What ``make`` makes of a configuration, in eval mode, with the shipped weights if it is to be
    ``pretrained``. What the file leaves out must be an output layer that is tied to the
    embedding."""
    with torch.random.fork_rng([], enabled=pretrained):  # the first weights are drawn
        model = make(*config)
    if pretrained:
        from safetensors.torch import load_file

        missing, unexpected = model.load_state_dict(load_file(weights), strict=False)
        assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    return model.eval()


def numbers(path: Path) -> dict[str, Any]:
    """What a training script wrote of the weights beside it."""
    return json.loads(path.read_text())
