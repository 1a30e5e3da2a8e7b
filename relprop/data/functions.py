"""What tells one function of the user's from another: of a run's identity, which must notice that a
transform or a metric was edited between two runs."""

from __future__ import annotations

import hashlib
import inspect
import re
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relprop.error_boundary import LIBRARIES
from relprop.errors import OptionError

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
UNKNOWN = "so that a run cannot tell whether it is the same when it goes on"
PLAIN = (bool, int, float, complex, str, bytes, type(None))
#: What a function may be made around: what can be told, and what is told by its name.
KNOWN = (
    *(*PLAIN, Mapping, list, tuple, set, Tensor, np.ndarray),
    *(types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type),
)


def of_callable(thing: Any) -> str | None:
    """A transform by what it prints; a plain function by its name, its source, and the values of
    the variables that it reads. Raises ``OptionError`` for an object that prints only its address,
    and for a function that holds one."""
    if thing is None:
        return None
    if isinstance(thing, partial):
        given = "\n".join(_value((thing.args, thing.keywords), "", {}))
        return f"{of_callable(thing.func)} of {_sha(given)}"
    if inspect.ismethod(thing) or (inspect.isfunction(thing) and _holds_objects(thing)):
        fact = f"{_name(thing)} holds values that do not show in its source, {UNKNOWN}"
        then = "or an object whose __repr__ tells all of its settings, as torchvision's transforms"
        raise OptionError(fact, then=["give a plain function", f"{then} have it"])
    if inspect.isfunction(thing):
        return f"{_name(thing)} {_sha(chr(10).join(_texts_of(thing, {})))}"
    if ADDRESS.search(text := repr(thing)) and type(thing).__repr__ is object.__repr__:
        fact = f"an object of {_name(type(thing))} prints only its address, {UNKNOWN}"
        then = "give its class a __repr__ that tells all of its settings"
        raise OptionError(fact, then=[then])
    return ADDRESS.sub("", text)


def _holds_objects(function: types.FunctionType) -> bool:
    """Whether a function was made around anything else than plain values and functions."""
    return not all(isinstance(value, KNOWN) for value in _cells(function).values())


def _cells(function: types.FunctionType) -> dict[str, Any]:
    """The variables that a function was made around."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # one that is not assigned yet
            found[name] = cell.cell_contents
    return found


def _texts_of(function: types.FunctionType, seen: dict[int, Any]) -> Iterator[str]:
    """A function's source, its defaults, and the variables outside it that it reads. What is
    ``seen`` is held: an object that is gone leaves its id to the next."""
    seen[id(function)] = function
    try:
        yield inspect.getsource(function)
    except (OSError, TypeError):
        yield function.__code__.co_code.hex() + repr(function.__code__.co_names)
    package = "" if function.__code__.co_filename.startswith(LIBRARIES) else _package(function)
    yield from _value((function.__defaults__, function.__kwdefaults__), package, seen)
    names, around = sorted(_names(function.__code__)), {**function.__globals__, **_cells(function)}
    for name in (n for n in names if n in around):
        read = around[name]
        if isinstance(read, types.ModuleType):  # of which the function reads some settings
            read = {n: v for n in names if isinstance(v := vars(read).get(n), (int, float, str))}
        yield name
        yield from _value(read, package, seen)


def _names(code: types.CodeType) -> set[str]:
    """The names that code reads, and functions written inside it."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return {*code.co_names, *code.co_freevars}.union(*map(_names, inner))


def _value(value: Any, package: str, seen: dict[int, Any]) -> Iterator[str]:
    """A value as text: plain ones, containers, tensors and functions of ``package``; of others only
    of which kind they are."""
    if isinstance(value, PLAIN):
        yield repr(value)
    elif id(value) in seen:
        yield "..."
    elif isinstance(value, (Mapping, list, tuple, set)):
        seen[id(value)] = value
        parts = value.items() if isinstance(value, Mapping) else value
        ordered = sorted(parts, key=repr) if isinstance(value, set) else parts
        yield from (text for part in ordered for text in _value(part, package, seen))
    elif isinstance(value, types.FunctionType) and package and _package(value) == package:
        yield from _texts_of(value, seen)
    else:
        yield _name(value if hasattr(value, "__qualname__") else type(value))
        with suppress(RuntimeError, TypeError, ValueError):  # a kind of tensor without bytes
            yield _sha(_bytes(value))


def _bytes(value: Any) -> bytes:
    """The memory of a tensor or an array; of anything else nothing."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return value.tobytes() if isinstance(value, (np.ndarray, np.generic)) else b""


def _package(function: types.FunctionType) -> str:
    return (function.__module__ or "").split(".")[0]


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _sha(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()
