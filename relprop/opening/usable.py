"""Whether a module can be explained as it stands: a float model with its weights somewhere, on the
device of its inputs or joined by hooks. What cannot is refused by name, with what to do."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from relprop.errors import InputError
from relprop.opening.wrapped import refuse_opaque, unwrapped
from relprop.tracer.binding import Inputs
from relprop.tracer.modules import named_tensors
from relprop.tracer.offloaded import device_of, moves_inputs


def usable_model(model: object) -> nn.Module:
    """The module to explain: looked for inside what is wrapped around it; what no graph can hold,
    or no module at all, is refused."""
    inner = unwrapped(model)
    if not isinstance(inner, nn.Module):
        kind = type(model).__name__
        then = {
            "str": [
                "model, inputs = relprop.open_model(name, inputs)   # loads it and prepares its "
                "inputs"
            ],
            "function": [
                (
                    "explain the module it calls, or an nn.Module that holds that module and "
                    "whose forward is this function"
                )
            ],
        }
        raise InputError(f"model is {kind}, not a torch.nn.Module", then=then.get(kind, []))
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
