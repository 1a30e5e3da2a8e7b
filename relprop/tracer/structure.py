"""What a model is made of, as a key that compares: a program holds until it changes."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Hashable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _modules

from relprop.tracer.modules import safe_getattr, setting
from relprop.tracer.offloaded import HOOK


def is_places(buffer: Tensor) -> bool:
    """Whether a buffer holds whole numbers of an axis, such as positions: read as constants."""
    return not (buffer.is_floating_point() or buffer.is_complex()) and buffer.dim() > 0


def structure(model: nn.Module) -> tuple[Hashable, ...]:
    """What changes when the model's structure does: modules, their settings (those of a config
    object too), hooks, the shapes of their tensors, and buffers that hold places."""
    seen: dict[int, Hashable] = {}
    modules = model.named_modules(remove_duplicate=False)
    parts = [(name, *_own_parts(module, seen)) for name, module in modules]
    everywhere = [getattr(_modules, f"_global_{kind}") for kind in _HOOKS]
    return (*parts, *((k, Same(f)) for hooks in everywhere for k, f in hooks.items()))


def _own_parts(module: nn.Module, seen: dict[int, Hashable]) -> tuple[Hashable, ...]:
    """What changes when one module does, without the modules inside it."""
    settings = tuple(
        [
            (k, v if type(v) in _PLAIN else Same(v) if k == HOOK else _setting(v, seen))
            for k, v in vars(module).items()
            if k not in _OF_EVERY_MODULE
        ]
    )
    named = (module._parameters, module._buffers)
    tensors = tuple([(k, *_kind(t, seen)) for g in named for k, t in g.items() if t is not None])
    hooks = [getattr(module, f"_{kind}") for kind in _HOOKS]
    called = tuple([(k, Same(f)) for group in hooks if group for k, f in group.items()])
    attention = safe_getattr(setting(module, "config"), "_attn_implementation")
    return Same(module), _code(type(module), seen), settings, tensors, called, attention


def _code(kind: type, seen: dict[int, Hashable]) -> Hashable:
    """A class with the functions that are its own, and those that they call by name: others may
    give the same values, by which a graph is verified at every call, and other gradients."""
    if id(kind) not in seen:
        own = (c for c in kind.__mro__ if c not in (nn.Module, object))
        written = [f for c in own for f in vars(c).values() if isinstance(f, types.FunctionType)]
        called = [f.__globals__.get(n) for f in written for n in f.__code__.co_names]
        functions = [*written, *(f for f in called if isinstance(f, types.FunctionType))]
        seen[id(kind)] = Same(kind), tuple((Same(f), Same(f.__code__)) for f in functions)
    return seen[id(kind)]


def _kind(t: Tensor, seen: dict[int, Hashable]) -> tuple[Hashable, ...]:
    """What a graph depends on of a tensor that it reads at every run."""
    return t.shape, t.dtype, t.device, _setting(t, seen) if is_places(t) else None


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


class Same:
    """An object as a part of a key: equal to itself alone, never to another that was given its
    address when it was gone."""

    __slots__ = ("number", "reference")

    def __init__(self, thing: object) -> None:
        self.number = id(thing)
        try:
            self.reference: Callable[[], object] = weakref.ref(thing)
        except TypeError:  # what cannot be referred to weakly is of a built-in kind
            self.reference = lambda: None

    @property
    def thing(self) -> object:
        """The object; ``None`` where it is gone, or of a built-in kind."""
        return self.reference()

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same) or self.number != other.number:
            return False
        return self.reference() is other.reference()


_FUNCTIONS = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_VALUES = (bool, int, float, str, torch.dtype, torch.device)
_PLAIN = frozenset((*_VALUES, type(None)))


def _setting(value: object, seen: dict[int, Hashable], depth: int = 3) -> Hashable:
    """A setting as something that compares: numbers and text, containers of them, and objects that
    hold them; functions and tensors as themselves."""
    if value is None or isinstance(value, _VALUES):
        return value
    if isinstance(value, Tensor):  # an attribute that is no buffer is a constant of the graph
        return Same(value), 0 if value.is_inference() else value._version
    if isinstance(value, nn.Module) or depth == 0:
        return type(value).__name__
    if isinstance(value, _FUNCTIONS):
        return Same(value)
    if id(value) not in seen:
        seen[id(value)] = "..."
        seen[id(value)] = _inside(value, seen, depth - 1)
    return seen[id(value)]


def _inside(value: object, seen: dict[int, Hashable], depth: int) -> Hashable:
    """A container, or an object with attributes, as something that compares."""
    if isinstance(value, (list, tuple)):
        return tuple(_setting(v, seen, depth) for v in value)
    if isinstance(value, (dict, types.MappingProxyType)):  # others may make what they give
        items: Mapping[object, object] = value
    else:
        items = getattr(value, "__dict__", {})
    kind = Same(value) if callable(value) else type(value).__name__
    return kind, tuple((str(k), _setting(v, seen, depth)) for k, v in items.items())
