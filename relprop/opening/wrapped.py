"""What people put around a model, taken off: compilers, parallel wrappers, tools that look inside.
And whether a module can be explained as it stands: a float model with its weights somewhere, on the
device of its inputs or joined by hooks. What cannot is refused by name, with what to do.

A wrapper is taken off only if running it is running what it holds; one with hooks of its own stays,
because hooks are part of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from relprop.errors import InputError
from relprop.tracer.binding import Inputs
from relprop.tracer.modules import named_modules, named_tensors
from relprop.tracer.offloaded import device_of, moves_inputs


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
        parallel = isinstance(model, (DataParallel, DistributedDataParallel))
        return getattr(model, "module" if parallel else "_orig_mod", None)
    original = getattr(model, "_torchdynamo_orig_callable", None)
    if original is not None:
        return original
    owner = getattr(model, "__self__", None)
    is_call = getattr(model, "__name__", "") in ("forward", "__call__", "_wrapped_call_impl")
    return owner if is_call and isinstance(owner, nn.Module) else None


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


INSTEAD = {
    "str": "model, inputs = relprop.open_model(name, inputs)   # loads it and prepares its inputs",
    "function": (
        "explain the module it calls, or an nn.Module that holds that module and whose forward is "
        "this function"
    ),
}
"""What to give in place of what is no module, by the name of its type."""


def usable_model(model: object) -> nn.Module:
    """The module to explain: looked for inside what is wrapped around it; what no graph can hold,
    or no module at all, is refused."""
    inner = unwrapped(model)
    if not isinstance(inner, nn.Module):
        kind = type(model).__name__
        then = [INSTEAD[kind]] if kind in INSTEAD else []
        raise InputError(f"model is {kind}, not a torch.nn.Module", then=then)
    refuse_opaque(inner)
    return inner


def check_devices(model: nn.Module, inputs: Inputs) -> None:
    """Parameters must hold values, and be on the inputs' device, unless hooks bring to each module
    what it is given."""
    hooked = moves_inputs(model)
    first: tuple[str, torch.device] | None = None
    for name, parameter in named_tensors(model):
        away = parameter.device.type == "meta"  # it may be brought from where it is kept
        where = device_of(model, name) if away else parameter.device
        _refuse_without_values(name, parameter, where)
        first = first or (name, where)
        if where != first[1] and not hooked:
            one = str(first[1])
            raise InputError(
                f"the model is on several devices: {first[0]!r} on {one}, {name!r} on {where}",
                then=[
                    f"put it on one: model.to({one!r}), or load it with device_map={{'': {one!r}}}"
                ],
            )
    for given, tensor in zip(inputs.names, inputs.tensors, strict=True):
        if first is not None and tensor.device != first[1] and not hooked:
            raise InputError(
                f"input {given!r} is on {tensor.device}, the model's parameter "
                f"{first[0]!r} on {first[1]}: move one of them"
            )


def _refuse_without_values(name: str, parameter: torch.Tensor, where: torch.device) -> None:
    """A parameter that has no shape, only a part of its values, or none anywhere."""
    if is_lazy(parameter):
        raise InputError(
            f"parameter {name!r} has no shape yet",
            then=["call the model once on such inputs, which decides it"],
        )
    if hasattr(parameter, "device_mesh"):
        raise InputError(
            f"parameter {name!r} is sharded ({type(parameter).__name__})",
            then=["explain the whole model: load its full state dict into one on one device"],
        )
    if where.type == "meta":
        raise InputError(
            f"parameter {name!r} is on the meta device: the model has no weights yet",
            then=["load them: from_pretrained, or model.to_empty(device=...) and load_state_dict"],
        )
