"""Functions of functions inside the user's model, captured as the operations they are made of:
``torch.vmap``, ``torch.func.grad`` and the like, functions with a backward of their own inside
them, and ``flex_attention``.

A front end records operations before such a transform has taken them apart, so that it meets
wrapped tensors it does not know. Here every operation called inside a transform is recorded once
the transform is through with it: of a batch, plain operations of whole tensors. Attention with
scores and masks that the user's own functions change is written out, so that they are operations,
too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch._dynamo import _trace_wrapped_higher_order_op as indexing
from torch._export import utils
from torch._functorch.autograd_function import custom_function_call
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.nn.attention import flex_attention as flexible

from relprop.operations import Args, Kwargs, Operator, Value
from relprop.tracer.undoing import cleanup_steps, replaced


@contextmanager
def seen_through() -> Iterator[None]:
    """While this is active, a trace of operations as the user calls them records those inside a
    transform as they are after it."""
    with cleanup_steps() as steps:
        replaced(steps, ProxyTorchDispatchMode, "__torch_dispatch__", _recorded)
        if hasattr(utils, "_maybe_find_pre_dispatch_tf_mode_for_export"):
            replaced(steps, utils, "_maybe_find_pre_dispatch_tf_mode_for_export", _none)
        replaced(steps, flexible, "flex_attention_hop", _attention)
        replaced(steps, indexing.TransformGetItemToIndex, "__torch_function__", _by_places)
        replaced(steps, custom_function_call, "python_key_table", {ProxyTorchDispatchMode: _called})
        yield


_record = ProxyTorchDispatchMode.__torch_dispatch__


def _recorded(
    mode: ProxyTorchDispatchMode,
    func: Operator,
    types: tuple[type[Tensor], ...],
    args: Args = (),
    kwargs: Kwargs | None = None,
) -> object:
    """``ProxyTorchDispatchMode.__torch_dispatch__``, but below the transforms that are active."""
    if not mode.pre_dispatch or peek_interpreter_stack() is None:
        return _record(mode, func, types, args, kwargs)
    with _below(mode):
        return func(*args, **(kwargs or {}))


def _called(mode: ProxyTorchDispatchMode, *args: Value) -> object:
    """A function with a backward of its own, called inside a transform: its operations."""
    with _below(mode):
        return custom_function_call(*args)


def _below(mode: ProxyTorchDispatchMode) -> ProxyTorchDispatchMode:
    """A mode that records for the same graph what is left when the transforms are through."""
    return ProxyTorchDispatchMode(
        mode.tracer,
        mode.tracing_mode,
        False,
        mode._allow_fake_constant,
        mode._error_on_data_dependent_ops,
    )


def _none() -> None:
    """The transforms themselves are no part of the graph."""


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: Args,
    scale: float,
    *_: object,
) -> tuple[Tensor, Tensor, Tensor]:
    """``flex_attention`` written out: its result (batch, heads, queries, features), and of every
    row of scores the logarithm of the sum and the largest, both over log 2."""
    groups = query.shape[1] // key.shape[1]
    key, value = (
        t[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2) if groups > 1 else t
        for t in (key, value)
    )
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * scale
    places = [torch.arange(n, device=scores.device) for n in scores.shape]
    with indexing.TransformGetItemToIndex():
        if score_mod is not flexible._identity:
            scores = _at_every_place(score_mod, 1)(scores, *places).to(wide)
        if (allowed := block_mask[-1]) is not flexible.noop_mask:
            seen = _at_every_place(allowed, 0)(*places)
            scores = scores.masked_fill(~seen, -math.inf)
    attention = torch._safe_softmax(scores, dim=-1)
    size = torch.logsumexp(scores, dim=-1) / math.log(2)
    result = attention.to(query.dtype) @ value.to(query.dtype)
    return result, size, scores.amax(dim=-1) / math.log(2)


def _by_places(
    mode: object, func: Operator, types: object, args: Args = (), kwargs: Kwargs | None = None
) -> object:
    """``TransformGetItemToIndex.__torch_function__``, in one operation: ``table[head, query]``
    picks by tensors that hold one number each, which PyTorch would read as Python's numbers."""
    if func is Tensor.__getitem__:
        table, places = args[0], args[1] if isinstance(args[1], tuple) else (args[1],)
        if places and all(isinstance(p, (int, Tensor)) for p in places):
            at = [
                torch.full((), p, device=table.device) if isinstance(p, int) else p for p in places
            ]
            return torch.ops.aten.index(table, at)
    return func(*args, **(kwargs or {}))


def _at_every_place(function: Callable[..., Tensor], tensors: int) -> Callable[..., Tensor]:
    """A function of numbers (``tensors`` of them, then sample, head, query and key) as one of whole
    tensors and of the places along each of their axes."""
    for axis in reversed(range(4)):
        along = [0 if i == axis else None for i in range(4)]
        function = torch.vmap(function, (*[0] * tensors, *along))
    return function
