"""Weights that accelerate keeps elsewhere between calls, in memory or on disk: where they are, and
how each is read alone. Its hooks are known by what they hold; nothing of it is imported.

Such a hook stands on a module. Before the module runs it brings the weights to the device that the
module runs on, and afterwards it puts tensors without values in their places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from relprop.tracer.modules import modules_of, named_modules
from relprop.tracer.undoing import cleanup_steps, replaced

#: A hook that brings a module's weights to a device, and the attribute of the module that it is.
Hook = Any
HOOK = "_hf_hook"
#: Devices of which there is one.
HOSTS = ("cpu", "meta")


def tensor_of(model: nn.Module, name: str) -> Tensor:
    """A parameter, a buffer or a part of one, by its name; one that is kept elsewhere is read from
    there, and lies where its module runs. One that has no values anywhere is on the meta device."""
    held, around, parts = _held(model, name)
    if held.device.type == "meta":
        held = next((t for m, key in around[::-1] for t in _kept(m, key, held)), held)
    for part in parts:
        held = getattr(held, part)
    return held


def device_of(model: nn.Module, name: str) -> torch.device:
    """Where a parameter or a buffer is while its module runs."""
    held, around, _ = _held(model, name)
    if held.device.type != "meta":
        return held.device
    hooks = (hook for module, _ in around[::-1] for hook in _offloading(module))
    found = next((torch.device(hook.execution_device) for hook in hooks), held.device)
    return found if found.index is not None or found.type in HOSTS else torch.device(found.type, 0)


def home_of(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where a model takes its inputs, and in which floating type: as its first floating parameter
    is while it runs."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            return device_of(model, name), parameter.dtype
    return torch.device("cpu"), torch.get_default_dtype()


def devices_of(model: nn.Module) -> set[torch.device]:
    """Where its parameters and buffers are while it runs."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return {device_of(model, name) for name, _ in tensors}


def moves_inputs(model: nn.Module) -> bool:
    """Whether hooks bring what a module is given to the device on which it runs."""
    hooks = (hook for module in modules_of(model) for hook in _hooks(module))
    return any(getattr(hook, "execution_device", None) is not None for hook in hooks)


def runs_on(model: nn.Module, given: Tensor) -> torch.device:
    """Where it begins to run, if it is ``given`` this."""
    return home_of(model)[0] if moves_inputs(model) else given.device


def is_offloaded(model: nn.Module) -> bool:
    """Whether any weight is kept elsewhere between calls."""
    return any(True for module in modules_of(model) for _ in _offloading(module))


@contextmanager
def in_outline(model: nn.Module) -> Iterator[None]:
    """While it is captured: tensors that have a device, but no values, in place of the weights that
    are kept elsewhere, and hooks that load none."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def outline(name: str, held: Tensor) -> Tensor:
        where = device_of(model, name)
        if where.type == "meta" or type(held) not in (Tensor, nn.Parameter, nn.Buffer):
            return held
        with mode:
            return torch.empty_strided(held.shape, held.stride(), dtype=held.dtype, device=where)

    with _replaced(model, outline):
        yield


@contextmanager
def loaded(model: nn.Module) -> Iterator[None]:
    """While it is captured: all weights that are kept elsewhere, at once."""
    with _replaced(model, lambda name, _: tensor_of(model, name)):
        yield


@contextmanager
def _replaced(model: nn.Module, by: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """Other tensors in place of those without values, one for each that has several names, and
    hooks that leave them there."""
    made = dict[int, Tensor]()

    def other(name: str, held: Tensor) -> Tensor:
        if id(held) not in made:
            own = by(name, held)
            is_weight = isinstance(held, nn.Parameter) and own is not held
            made[id(held)] = nn.Parameter(own, held.requires_grad) if is_weight else own
        return made[id(held)]

    with cleanup_steps() as steps:
        hooks = [hook for module in modules_of(model) for hook in _offloading(module)]
        for path, module in named_modules(model) if hooks else ():
            tables: tuple[dict[str, Any], ...] = module._parameters, module._buffers
            for table in tables:
                for name, held in list(table.items()):
                    if held is not None and held.device.type == "meta":
                        steps.append(partial(table.__setitem__, name, held))
                        table[name] = other(f"{path}.{name}" if path else name, held)
        for hook in hooks:
            replaced(steps, hook, "offload", False)
        yield


def _held(model: nn.Module, name: str) -> tuple[Tensor, list[tuple[nn.Module, str]], list[str]]:
    """The tensor that a model holds under a name; the modules around it, the innermost last, each
    with its name as seen from there; and what of the name is behind the tensor."""
    parts, modules = name.split("."), [model]
    while (inner := modules[-1]._modules.get(parts[len(modules) - 1])) is not None:
        modules.append(inner)
    last = len(modules)
    around = [(module, ".".join(parts[i:last])) for i, module in enumerate(modules)]
    return getattr(modules[-1], parts[last - 1]), around, parts[last:]


def _kept(module: nn.Module, key: str, like: Tensor) -> Iterator[Tensor]:
    """What the hooks of a module keep under a name, where the module runs: a copy, since a part of
    a file that is mapped into memory would keep the address space of the whole file."""
    for hook in _offloading(module):
        try:
            value = hook.weights_map[key]
        except KeyError:
            continue
        yield value.to(hook.execution_device, like.dtype, copy=True)


def _offloading(module: nn.Module) -> Iterator[Hook]:
    """The hooks of a module that keep its weights elsewhere."""
    for hook in _hooks(module):
        if getattr(hook, "offload", False) is True and hasattr(hook, "weights_map"):
            yield hook


def _hooks(module: nn.Module) -> Iterator[Hook]:
    """The hooks of a module, those inside others, too."""
    left = [vars(module)[HOOK]] if HOOK in vars(module) else []
    while left:
        hook = left.pop()
        left += getattr(hook, "hooks", ())
        if hook is not None:
            yield hook
