"""A shadow of a model: new module objects around the user's own parameters.

A capture changes the modules that it runs: it puts tensors without values where parameters are,
switches implementations, and lets the model's code keep what it sees. On a shadow nobody else sees
that: other threads call the user's model meanwhile. Parameters and what no Python code can change
are shared; modules, their settings, containers, buffers, tensors that are attributes, and functions
that close over any of them (hooks, a patched ``forward``) are the shadow's own.
"""

from __future__ import annotations

import copy
import enum
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from relprop.tracer.side_effects import CONTAINERS, PLAIN, WIDTH
from relprop.tracer.surroundings import SHADOWED

T = TypeVar("T")
Row = TypeVar("Row", bound=tuple[object, ...])
Several = list[object] | deque[object] | set[object]

DEPTH = 6  # how far from a module; what lies deeper is shared


def shadow_of(model: nn.Module) -> nn.Module:
    """The same function in modules of its own, which share ``model``'s parameters. What its run
    leaves behind is not seen in ``model``."""
    shadow: nn.Module = _Shadow(model).of(model, DEPTH)
    return shadow


def thread_safe(model: nn.Module) -> nn.Module:
    """What may run while other threads call ``model``: its shadow if there are any, else, or where
    it has none, the model itself."""
    alone = threading.active_count() == 1 or SHADOWED.get(model) is False
    return model if alone else shadow_of(model)


class _Shadow:
    """Originals and their shadows, each made once, so that what is one object stays one."""

    def __init__(self, model: nn.Module) -> None:
        self.made: dict[int, tuple[object, Any]] = {}  # the original is kept: its id stays its own
        self.modules = {id(m) for m in model.modules()}
        self.storages: dict[int, torch.UntypedStorage | None] = {
            p.untyped_storage().data_ptr(): None for p in model.parameters() if _is_ordinary(p)
        }
        for module in model.modules():
            for value in (*module._buffers.values(), *vars(module).values()):
                if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                    self.tensor(value)

    def of(self, value: T, depth: int) -> T:
        """The shadow of ``value``; what needs none is itself."""
        if id(value) in self.made:
            made: T = self.made[id(value)][1]
            return made
        if isinstance(value, nn.Module):
            return self.instance(value, DEPTH)
        if isinstance(value, (*PLAIN, enum.Enum)) or depth <= 0:
            return value
        if isinstance(value, tuple):
            return self.row(value, depth - 1)
        if type(value) in self.makers:
            shadow: T = self.makers[type(value)](self, value, depth - 1)
            return shadow
        return self.instance(value, depth - 1)

    def keep(self, value: object, shadow: T) -> T:
        """Note ``shadow`` as that of ``value``."""
        self.made[id(value)] = value, shadow
        return shadow

    def tensor(self, value: Tensor) -> None:
        """Note a tensor of its own for a buffer or an attribute. Tensors that share memory do so in
        the shadow, too; one that shares a parameter's, or that is of a kind of its own, is
        shared."""
        if not _is_ordinary(value):
            return
        key = value.untyped_storage().data_ptr()
        if key not in self.storages:
            self.storages[key] = value.untyped_storage().clone()
        own = self.storages[key]
        if own is not None:
            new = torch.empty(0, dtype=value.dtype, device=value.device)
            with torch.no_grad():
                new.set_(own, value.storage_offset(), value.size(), value.stride())  # type: ignore[arg-type]
            self.keep(value, new)

    def instance(self, value: T, depth: int) -> T:
        """A module, or an object of a class written in Python, with attributes of its own."""
        kind = type(value)
        plain = kind.__basicsize__ == _Plain.__basicsize__ or kind is types.SimpleNamespace
        if not plain or hasattr(kind, "__del__"):
            return value
        try:
            held = object.__getattribute__(value, "__dict__")
            shadow = kind() if kind is types.SimpleNamespace else object.__new__(kind)
        except (AttributeError, TypeError):  # nothing that Python could change
            return value
        self.keep(value, shadow)
        for name, one in list(held.items()):
            compiled = isinstance(value, nn.Module) and name == "_compiled_call_impl"
            own = None if compiled else self.of(one, depth)  # what is compiled runs the original
            object.__getattribute__(shadow, "__dict__")[name] = own
        return shadow

    def mapping(self, value: dict[object, object], depth: int) -> dict[object, object]:
        """A dictionary of any kind, with keys and values of its own."""
        shadow = self.keep(value, copy.copy(value))
        if len(value) <= WIDTH:
            items = list(value.items())
            shadow.clear()
            shadow.update({self.of(k, depth): self.of(v, depth) for k, v in items})
        return shadow

    def several(self, value: Several, depth: int) -> Several:
        """A list, a deque or a set."""
        shadow = self.keep(value, copy.copy(value))
        if len(value) <= WIDTH:
            parts = list(value)
            shadow.clear()
            add = shadow.update if isinstance(shadow, set) else shadow.extend
            add([self.of(v, depth) for v in parts])
        return shadow

    def row(self, value: Row, depth: int) -> Row:
        """A tuple, a named one too; itself where nothing in it changes."""
        parts = [self.of(v, depth) for v in value]
        if all(a is b for a, b in zip(parts, value, strict=True)):
            return value
        make: Any = getattr(value, "_make", tuple if type(value) is tuple else None)
        if make is None:
            return value
        shadow: Row = make(parts)
        return self.keep(value, shadow)

    def method(self, value: types.MethodType, depth: int) -> types.MethodType:
        """A bound method, bound to the shadow of its object."""
        owner, function = self.of(value.__self__, depth), self.of(value.__func__, depth)
        return self.keep(value, types.MethodType(function, owner))

    def applied(self, value: partial[T], depth: int) -> partial[T]:
        """A ``partial``, with what it was given."""
        shadow = partial(
            self.of(value.func, depth),
            *(self.of(v, depth) for v in value.args),
            **{k: self.of(v, depth) for k, v in value.keywords.items()},
        )
        vars(shadow).update(vars(value))
        return self.keep(value, shadow)

    def referred(self, value: weakref.ref[T], depth: int) -> weakref.ref[T]:
        """A weak reference to one of the modules."""
        owner = value()
        if owner is None or id(owner) not in self.modules:
            return value
        return weakref.ref(self.of(owner, depth))

    def function(self, value: types.FunctionType, depth: int) -> object:
        """A function with variables of its own, where it closes over any, or reads a global that is
        one of the modules or holds some. A compiled one as it was written."""
        if (written := vars(value).get("_torchdynamo_orig_callable")) is not None:
            return self.of(written, depth)
        read = {
            n: g for n in value.__code__.co_names if (g := value.__globals__.get(n)) is not None
        }
        found = {n: self.of(g, depth) for n, g in read.items() if self.has_modules(g)}
        if not (found or value.__closure__ or value.__defaults__ or value.__kwdefaults__):
            return value
        variables = value.__globals__
        if found:
            variables = _Globals(value.__globals__, read | found)
        cells = tuple(self.of(c, depth) for c in value.__closure__ or ()) or None
        if id(value) in self.made:  # it closes over itself
            return self.made[id(value)][1]
        shadow = types.FunctionType(value.__code__, variables, value.__name__, None, cells)
        self.keep(value, shadow)
        shadow.__defaults__ = self.of(value.__defaults__, depth)
        shadow.__kwdefaults__ = self.of(value.__kwdefaults__, depth)
        shadow.__qualname__, shadow.__module__ = value.__qualname__, value.__module__
        vars(shadow).update(vars(value))
        return shadow

    def cell(self, value: types.CellType, depth: int) -> types.CellType:
        """A variable that functions close over."""
        shadow = self.keep(value, types.CellType())
        try:
            held = value.cell_contents
        except ValueError:  # a name that is not assigned yet
            return shadow
        shadow.cell_contents = self.of(held, depth)
        return shadow

    def has_modules(self, value: object) -> bool:
        """Whether a global is one of the modules, or a container of some."""
        if isinstance(value, (dict, list, tuple, set)) and len(value) <= WIDTH:
            held = [*value, *value.values()] if isinstance(value, dict) else list(value)
            return any(id(v) in self.modules for v in held)
        return id(value) in self.modules

    makers: ClassVar[dict[type, Callable[[_Shadow, Any, int], Any]]] = {
        **dict.fromkeys((k for k in CONTAINERS if issubclass(k, dict)), mapping),
        **dict.fromkeys((list, deque, set), several),
        types.MethodType: method,
        types.FunctionType: function,
        types.CellType: cell,
        partial: applied,
        weakref.ref: referred,
    }


class _Plain:
    """What an object of a class written in Python takes: attributes and nothing else."""


class _Globals(dict[str, object]):
    """The globals of a module, some of which are replaced."""

    def __init__(self, under: dict[str, object], replaced: dict[str, object]) -> None:
        super().__init__(replaced, __builtins__=under["__builtins__"])
        self.under = under

    def __missing__(self, name: str) -> object:
        return self.under[name]


def _is_ordinary(tensor: Tensor) -> bool:
    """Whether a tensor's values are in memory that can be copied as it is."""
    return (
        type(tensor) in (Tensor, nn.Parameter, nn.Buffer)
        and not (tensor.is_conj() or tensor.is_neg())
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_inference()
        and not tensor.is_quantized
    )
