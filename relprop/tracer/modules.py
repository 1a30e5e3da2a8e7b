"""A model's modules, gone through fast: a call of relprop goes through them a dozen times, and
PyTorch's own way is a generator inside a generator for each level of modules."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch import Tensor, nn


def named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """What ``model.named_modules()`` gives: every module once, under its first name."""
    found: dict[int, tuple[str, nn.Module]] = {}
    left = [("", model)]
    while left:
        path, module = left.pop()
        if id(module) in found:
            continue
        found[id(module)] = path, module
        if inside := module._modules:
            start = f"{path}." if path else ""
            parts = [(start + k, m) for k, m in inside.items() if m is not None]
            left += parts[::-1]
    return list(found.values())


def modules_of(model: nn.Module) -> list[nn.Module]:
    """What ``model.modules()`` gives: every module once."""
    return [module for _, module in named_modules(model)]


def named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """The parameters and, after them, the buffers, each once, under its first name."""
    modules = named_modules(model)
    found: dict[int, tuple[str, Tensor]] = {}
    for kind in ("_parameters", "_buffers"):
        for path, module in modules:
            for name, tensor in getattr(module, kind).items():
                if tensor is not None:
                    found.setdefault(id(tensor), (f"{path}.{name}" if path else name, tensor))
    return list(found.values())


def setting(module: nn.Module, name: str) -> Any:
    """An attribute that is neither a tensor nor a module; ``None`` where there is none. PyTorch
    looks for what is missing among these, which takes longer than all the rest."""
    known = name in vars(module) or hasattr(type(module), name)
    return getattr(module, name, None) if known else None


def safe_getattr(config: object, name: str) -> Any:
    """What a model's config says under a name; ``None`` where it says nothing. One of the user's
    own may raise anything."""
    with suppress(Exception):
        return getattr(config, name, None)
    return None
