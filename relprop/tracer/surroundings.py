"""The user's model and process, left exactly as they were: eval mode, gradient mode, random state, each put back, also after an error."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

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
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Eval mode, normal (not inference) tensors, no autocast, and the random state of CPU and GPU put back."""
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.autocast("cpu", enabled=False))
        if devices:
            stack.enter_context(torch.autocast("cuda", enabled=False))
        stack.enter_context(evaluating(model))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="There is a performance drop")  # vmap runs an op without a batching rule sample by sample
        yield


def normal(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor autograd accepts: one made under ``inference_mode`` is copied, any other detached."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()
