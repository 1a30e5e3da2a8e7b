"""The user's model and process, left exactly as they were: eval mode, gradient mode, random state,
each put back, also after an error."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model as in ``eval()``, each module's own flag put back afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, training in flags:
            if training:
                module.training = False
        yield
    finally:
        for module, training in flags:
            if module.training != training:
                module.training = training


@contextmanager
def same_chance(model: nn.Module) -> Iterator[None]:
    """The random state of CPU and GPU put back afterwards: what runs next starts from the same."""
    with torch.random.fork_rng(
        sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    ):
        yield


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Eval mode, normal (not inference) tensors, no autocast, and the random state of CPU and GPU
    put back."""
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.autocast("cpu", enabled=False))
        if devices:
            stack.enter_context(torch.autocast("cuda", enabled=False))
        stack.enter_context(evaluating(model))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings(
            "ignore", message="There is a performance drop"
        )  # vmap runs an op without a batching rule sample by sample
        yield


@contextmanager
def as_python(model: nn.Module) -> Iterator[None]:
    """The model's own Python in place of what hides it from a tracer: compiled parts run as
    written, and nothing takes a fused path.

    Models that offer several implementations of their attention or of their experts use those that
    are made of ordinary products.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.callback(
            torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()
        )
        torch.backends.mha.set_fastpath_enabled(False)
        for config in _configs(model):
            stack.callback(vars(config).update, vars(config).copy())
        for module in model.modules():
            if getattr(module, "_can_set_experts_implementation", bool)():
                module.set_experts_implementation("batched_mm")
            if (
                getattr(getattr(module, "config", None), "_attn_implementation", None) not in PLAIN
                and getattr(module, "_can_set_attn_implementation", bool)()
            ):
                try:
                    module.set_attn_implementation("sdpa")
                except ValueError:  # a model without it
                    module.set_attn_implementation("eager")
        yield


PLAIN = (None, "eager", "sdpa")  # attention that a tracer sees through


def _configs(model: nn.Module) -> list[Any]:
    """The config objects of the model's modules, those inside others included."""
    found: dict[int, Any] = {}
    level = [
        module.config
        for module in model.modules()
        if hasattr(module, "config") and hasattr(module.config, "__dict__")
    ]
    while level:
        found.update((id(c), c) for c in level)
        level = [
            part
            for c in level
            for name in getattr(c, "sub_configs", ())
            if hasattr(part := getattr(c, name, None), "__dict__") and id(part) not in found
        ]
    return list(found.values())


def normal(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor autograd accepts: one made under ``inference_mode`` is copied, any other
    detached."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()
