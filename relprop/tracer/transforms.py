"""``torch.vmap``, ``torch.func.grad`` and the like inside the user's model, captured as the
operations they are made of.

A front end records operations before such a transform has taken them apart, so that it meets
wrapped tensors it does not know. Here every operation called inside a transform is recorded once
the transform is through with it: of a batch, plain operations of whole tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack
from torch._export import utils
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode


@contextmanager
def seen_through() -> Iterator[None]:
    """While this is active, a trace of operations as the user calls them records those inside a
    transform as they are after it."""
    with ExitStack() as stack:
        _replaced(stack, ProxyTorchDispatchMode, "__torch_dispatch__", _recorded)
        if hasattr(utils, "_maybe_find_pre_dispatch_tf_mode_for_export"):
            _replaced(stack, utils, "_maybe_find_pre_dispatch_tf_mode_for_export", _none)
        yield


def _replaced(stack: ExitStack, owner: Any, name: str, new: Any) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, new)


_record = ProxyTorchDispatchMode.__torch_dispatch__


def _recorded(
    mode: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
) -> Any:
    """``ProxyTorchDispatchMode.__torch_dispatch__``, but below the transforms that are active."""
    if not mode.pre_dispatch or peek_interpreter_stack() is None:
        return _record(mode, func, types, args, kwargs)
    with ProxyTorchDispatchMode(
        mode.tracer,
        mode.tracing_mode,
        False,
        mode._allow_fake_constant,
        mode._error_on_data_dependent_ops,
    ):
        return func(*args, **(kwargs or {}))


def _none() -> None:
    """The transforms themselves are no part of the graph."""
