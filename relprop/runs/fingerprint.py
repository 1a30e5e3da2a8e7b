"""A model's fingerprint: a run must not go on with another model, nor a report be read as another's."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn


def fingerprint(model: Any) -> dict[str, str]:
    """The model's class, and the SHA-256 of its parameters and buffers with their names, types and shapes; of a function its name, and no hash."""
    if not isinstance(model, nn.Module):
        return {"class": f"{getattr(model, '__module__', '?')}.{getattr(model, '__qualname__', type(model).__qualname__)}"}
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return {"class": f"{type(model).__module__}.{type(model).__qualname__}", "weights": digest.hexdigest()}
