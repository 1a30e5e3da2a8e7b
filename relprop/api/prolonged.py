"""The inputs of one pass over prompt and output: everything that has an entry per position of the
prompt, continued as the model does when it generates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from relprop.adapters.masks import positions_of
from relprop.errors import InputError
from relprop.opening import base_model

#: Inputs whose last entry holds on, and those that say 0 of what is text.
REPEATED, TEXT = ("token_type_ids", "decoder_token_type_ids"), ("mm_token_type_ids",)


def prolonged(
    named: Mapping[str, Any], stream: str, model: Any, ids: Tensor, pad: int = 0
) -> dict[str, Any]:
    """The inputs with ``ids`` after the prompt, which is ``named[stream]``. Raises ``InputError``
    for an input of which it is not known how it goes on."""
    prefix, prompt = stream.removesuffix("input_ids"), named[stream]
    found = dict(named)
    for name, value in named.items():
        if name == stream:
            found[name] = torch.cat([prompt, torch.where(ids < 0, pad, ids).to(prompt.dtype)], 1)
        elif _is_alongside(value, prompt) and name.startswith(prefix):
            found[name] = torch.cat([value, _more(name, prefix, value, ids)], 1)
    if not prefix and "position_ids" not in named:
        found |= positions_of(base_model(model), found)
    return found


def _is_alongside(value: Any, prompt: Tensor) -> bool:
    """Whether an input has an integer for every position of the prompt."""
    integers = isinstance(value, Tensor) and not value.is_floating_point() and value.dim() == 2
    return integers and value.shape[1] == prompt.shape[1]


def _more(name: str, prefix: str, value: Tensor, ids: Tensor) -> Tensor:
    """What an input says of the positions of ``ids``."""
    last, steps = value[:, -1:], ids.shape[1]
    if name == f"{prefix}attention_mask":
        return (ids >= 0).to(value.dtype)
    if name == f"{prefix}position_ids":
        return last + torch.arange(1, steps + 1, device=value.device)
    if name in REPEATED or name in TEXT:
        return (last if name in REPEATED else torch.zeros_like(last)).expand(-1, steps)
    raise InputError(
        f"input {name!r} has an entry for every position of the prompt, and how it goes on is not "
        "known",
        then=["explain each step alone: relprop.explain(model, {... first tokens ...}, token)"],
    )
