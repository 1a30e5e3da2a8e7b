"""What a folder's settings may ask for, before anything is made: a model of a billion layers is
refused by its settings, and one that is larger than the machine while it is being made."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from relprop.errors import InputError

#: More layers or labels than this is no model. Sizes are bounded by memory instead.
MOST_PARTS = 10**6
#: More parameters and buffers, each a tensor of its own, than any model has.
MOST_TENSORS = 100_000
_COUNTS = re.compile("layer|block|stage|expert|head|label|depth|group|codebook")
_THEN = "if this is meant, load the model yourself and give it"


def refuse_counts(settings: object, name: str, key: str = "") -> None:
    """Raise ``InputError`` where settings, or settings within them, count more than a million of
    something: libraries make a list of them before the first is built."""
    if isinstance(settings, dict):
        for k, value in settings.items():
            refuse_counts(value, name, str(k))
    elif isinstance(settings, list):
        for value in settings:
            refuse_counts(value, name, key)
    elif isinstance(settings, int) and settings > MOST_PARTS and _COUNTS.search(key):
        number = str(settings) if settings < 10**18 else f"10^{len(str(settings)) - 1}"
        fact = f"the settings of {name!r} ask for {key}={number}, more than {MOST_PARTS}"
        raise InputError(fact, then=[_THEN])


@contextmanager
def bounded(name: str) -> Iterator[None]:
    """Raise ``InputError`` as soon as modules that this thread makes have more tensors than any
    model, or more bytes than memory is free. Of a model made without values nothing has been
    allocated then; of any other, no tensor beyond the limit has been filled."""
    memory = psutil.virtual_memory().available + psutil.swap_memory().free
    thread, made, taken = threading.get_ident(), 0, 0

    def count(module: nn.Module, own: str, tensor: Tensor | None) -> None:
        nonlocal made, taken
        if (
            tensor is None
            or threading.get_ident() != thread
            or getattr(module, own, None) is not None
        ):
            return  # another's, or values for a tensor that has been counted
        made, taken = made + 1, taken + tensor.numel() * tensor.element_size()
        if made > MOST_TENSORS:
            raise InputError(f"{name!r} asks for more than {MOST_TENSORS} parameters", then=[_THEN])
        if taken > memory:
            fact = (
                f"{name!r} takes at least {taken / 1e9:.3g} GB of memory, of which "
                f"{memory / 1e9:.3g} GB are free"
            )
            raise InputError(fact, then=["free memory", _THEN])

    hooks = [
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
