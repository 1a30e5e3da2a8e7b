"""The calls of a graph as JSON: operators by name, nodes by number. Nothing that is read is code: a
file may name PyTorch's operators on tensors and those that make tensors of numbers, no others."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from relprop.errors import InputError
from relprop.operations import Operator

#: What may be named beside operators: what sizes are worked out by, and parts of results.
OF_PYTHON: dict[str, Operator] = {
    f"operator.{f.__name__}": f
    for f in (operator.getitem, operator.add, operator.mul, operator.sub, operator.floordiv)
}
#: The libraries that come with PyTorch, and what makes tensors of numbers in them.
LIBRARIES = ("aten", "prims", "torchvision")
MADE = ("arange", "empty", "eye", "full", "linspace", "ones", "scalar_tensor", "zeros", "iota")
#: What stands in a call beside numbers, texts and tensors, by the name of its kind.
KINDS = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def name_of_operator(function: object) -> str:
    """The name of an operator. Raises ``InputError`` for one that may not be named."""
    found = next((name for name, f in OF_PYTHON.items() if f is function), None)
    if found is None and isinstance(function, OpOverload) and _is_plain(function):
        found = str(function)
    if found is None:
        raise InputError(f"it calls {function}, which no file may name")
    return found


def operator_named(name: str) -> Operator:
    """The operator of a name. Raises ``InputError`` for one that may not be named."""
    if name in OF_PYTHON:
        return OF_PYTHON[name]
    library, packet, overload = name.split(".")
    found = None
    if library in LIBRARIES:
        found = getattr(getattr(getattr(torch.ops, library), packet), overload)
    if not isinstance(found, OpOverload) or not _is_plain(found):
        raise InputError(f"it calls {name!r}, which no such file may name")
    return found


def _is_plain(found: OpOverload) -> bool:
    """Whether an operator works on tensors, or makes them of numbers, and does nothing else."""
    given = [str(a.type) for a in found._schema.arguments if not a.kwarg_only]
    reads = any("Tensor" in kind for kind in given) or found._opname in MADE
    return found.namespace in LIBRARIES and reads


def encoded(value: Any, number: dict[fx.Node, int]) -> Any:
    """An argument as JSON: nodes by their number, what JSON has no word for by its kind."""
    if isinstance(value, fx.Node):
        return {"node": number[value]}
    if isinstance(value, tuple):
        return {"tuple": [encoded(v, number) for v in value]}
    if isinstance(value, list):
        return [encoded(v, number) for v in value]
    if isinstance(value, dict):
        return {"dict": {k: encoded(v, number) for k, v in value.items()}}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, Tensor) and value.is_meta:  # its shape and type are all there is
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": [list(value.shape), list(value.stride()), dtype]}
    for name, kind in KINDS.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    return value


def decoded(value: Any, made: Mapping[int, Any]) -> Any:
    """An argument that was written."""
    if isinstance(value, list):
        return [decoded(v, made) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, given),) = value.items()
    if kind == "node":
        return made[given]
    if kind == "tuple":
        return tuple(decoded(v, made) for v in given)
    if kind == "dict":
        return {k: decoded(v, made) for k, v in given.items()}
    if kind == "device":
        return torch.device(given)
    if kind == "tensor":
        *form, dtype = given
        return torch.empty_strided(*form, dtype=getattr(torch, dtype), device="meta")
    found = getattr(torch, given)
    if not isinstance(found, KINDS[kind]):
        raise InputError(f"{given!r} is no {kind}")
    return found
