"""What people put around a model, taken off: compilers, parallel wrappers, tools that look inside.
And what cannot be explained as it stands, refused by name.

A wrapper is taken off only if running it is running what it holds; one with hooks of its own stays,
because hooks are part of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from relprop.errors import InputError
from relprop.tracer.modules import named_modules


def unwrapped(model: object) -> object:
    """The module that ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel`` were
    given, the one whose ``forward`` a function is, and the one that nnsight's models and
    TransformerLens' bridges look into."""
    while (inner := _held(model)) is not None:
        model = inner
    return model


LOOKS_INTO = {"nnsight": "_module", "transformer_lens": "original_model"}
"""By the package that a wrapper's class comes from, the attribute with the model it looks into."""


def _held(model: object) -> object:
    """What ``model`` passes every call on to, or ``None``."""
    for kind in type(model).__mro__:
        name = LOOKS_INTO.get(kind.__module__.partition(".")[0])
        inside = None if name is None else getattr(model, name, None)
        if isinstance(inside, nn.Module):
            return inside
    if isinstance(model, nn.Module):
        if model._forward_hooks or model._forward_pre_hooks:
            return None
        return (
            model.module
            if isinstance(model, (DataParallel, DistributedDataParallel))
            else getattr(model, "_orig_mod", None)
        )
    original = getattr(model, "_torchdynamo_orig_callable", None)
    if original is not None:
        return original
    owner = getattr(model, "__self__", None)
    return (
        owner
        if isinstance(owner, nn.Module)
        and getattr(model, "__name__", "") in ("forward", "__call__", "_wrapped_call_impl")
        else None
    )


def base_model(model: nn.Module) -> nn.Module:
    """The module that knows what the inputs are: what a wrapper with parameters of its own (an
    adapter's, virtual tokens) was put around."""
    base: Callable[[], object] | None = getattr(model, "get_base_model", None)
    inner = base() if callable(base) else None
    return inner if isinstance(inner, nn.Module) else model


def refuse_opaque(model: nn.Module) -> None:
    """Refuse modules whose weights or code no graph can hold, each by its name."""
    for path, module in named_modules(model):
        for fact, then in _opaque(module):
            kind = type(module).__name__
            named = f"module {path!r} ({kind})" if path else f"the model ({kind})"
            raise InputError(f"{named} {fact}", then=then)


def _opaque(module: nn.Module) -> Iterator[tuple[str, list[str]]]:
    """Why a module cannot be explained as it stands, and what to do."""
    if isinstance(module, torch.jit.ScriptModule):
        yield (
            "is a TorchScript module, which cannot be traced to a graph",
            ["explain the Python model it was made from"],
        )
    if torch.ScriptObject in map(type, vars(module).values()):
        yield (
            "keeps quantised weights packed, not as tensors: relevance cannot be split by them",
            [
                "explain the model before quantisation",
                "or quantise weights only, so that they are tensors (torchao: "
                "quantize_(model, Int8WeightOnlyConfig()))",
            ],
        )
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
        yield (
            f"rewrites its weights whenever it is called (max_norm={module.max_norm}), and an "
            "explanation changes no weight",
            [
                "apply the norm once and switch it off: module.weight.data.renorm_(2, 0, "
                "module.max_norm); module.max_norm = None"
            ],
        )
