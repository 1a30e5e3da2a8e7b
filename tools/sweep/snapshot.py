"""A digest of everything about a model and the process that explaining it must not change."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn


def snapshot(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """By name: bits and identity of every parameter and buffer, gradients, flags, hooks,
    attributes' names; the inputs; random state and global flags."""
    seen: dict[str, Any] = {
        "random state": _bits(torch.get_rng_state()),
        "grad mode": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
    }
    for path, module in model.named_modules(remove_duplicate=False):
        hooks = tuple(
            map(
                id,
                (
                    *module._forward_hooks.values(),
                    *module._forward_pre_hooks.values(),
                    *module._backward_hooks.values(),
                ),
            )
        )
        seen[f"{path}: module"] = (
            id(type(module)),
            module.training,
            hooks,
            tuple(sorted(vars(module))),
        )
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                seen[f"{path}.{name}"] = (
                    id(tensor),
                    id(tensor.grad),
                    tensor.requires_grad,
                    tensor._version,
                    _bits(tensor),
                )
    for name, tensor in inputs.items() if isinstance(inputs, dict) else [("input", inputs)]:
        seen[f"input {name}"] = (id(tensor), tensor._version, tensor.requires_grad, _bits(tensor))
    return seen


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what changed."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def _bits(tensor: Tensor) -> str:
    if tensor.numel() == 0 or tensor.is_meta:
        return ""
    return hashlib.blake2b(
        tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        if tensor.dim()
        else str(tensor.item()).encode(),
        digest_size=16,
    ).hexdigest()
