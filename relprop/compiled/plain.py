"""A flat program as a list of its calls: JSON in a safetensors file beside the tensors that it
holds. It is read as fast as its weights are; nothing in it is code."""

from __future__ import annotations

import json
import operator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, fx, nn
from torch._ops import OpOverload

from relprop.compiled.native import OPERATORS
from relprop.errors import InputError, OptionError, message
from relprop.operations import Operator

#: How a file of this kind ends.
ENDING = ".safetensors"
#: What a file may name beside PyTorch's own operators: what sizes are worked out by.
OF_PYTHON: dict[str, Operator] = {
    f"operator.{f.__name__}": f
    for f in (operator.getitem, operator.add, operator.mul, operator.sub, operator.floordiv)
}
#: The libraries whose operators a file may name: those that come with PyTorch.
LIBRARIES = ("aten", "prims", "torchvision")
#: What stands in a call beside numbers, texts and tensors, by the name of its kind.
KINDS = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def write(module: fx.GraphModule, text: str, path: Path) -> None:
    """Write a flat program, and a ``text`` about it. Raises ``OptionError`` for a call of an
    operator that does not come with PyTorch."""
    number = {node: i for i, node in enumerate(module.graph.nodes)}
    tensors, calls = dict[str, Tensor](), list[Any]()
    operators = OPERATORS.get(module, {})
    for node in module.graph.nodes:
        target = str(node.target)
        if node.op == "get_attr":
            tensors[target] = operator.attrgetter(target)(module).detach().clone().contiguous()
        elif node.op == "call_function":
            target = _name(operators.get(node, node.target))
        calls.append([node.op, target, _encoded(node.args, number), _encoded(node.kwargs, number)])
    save_file(tensors, path, {"about": text, "calls": json.dumps(calls)})


def read(path: Path) -> tuple[fx.GraphModule, str]:
    """A flat program, and the text about it. Raises ``InputError`` for any other file."""
    with safe_open(path, "pt") as file:
        about = file.metadata() or {}
        if "calls" not in about:
            raise InputError("no calls stand in it")
        root, graph = nn.Module(), fx.Graph()
        made = list[fx.Node]()
        for op, target, args, kwargs in json.loads(about["calls"]):
            given = _decoded(args, made), _decoded(kwargs, made)
            if op == "get_attr":
                name = f"held_{len(made)}"
                root.register_buffer(name, file.get_tensor(target))
                made.append(graph.get_attr(name))
            elif op == "call_function":
                made.append(graph.call_function(_operator(target), *given))
            else:
                made.append(graph.create_node(op, target, *given))
    return fx.GraphModule(root, graph), about["about"]


def _name(function: object) -> str:
    if isinstance(function, OpOverload) and function.namespace in LIBRARIES:
        return str(function)
    found = next((name for name, f in OF_PYTHON.items() if f is function), None)
    if found is None:
        fact = f"the program calls {function}, which does not come with PyTorch"
        raise OptionError(message(fact, then=["save it as x.pt2, which may hold it"]))
    return found


def _operator(name: str) -> Operator:
    if name in OF_PYTHON:
        return OF_PYTHON[name]
    library, packet, overload = name.split(".")
    if library not in LIBRARIES:
        raise InputError(f"it calls {name!r}, which does not come with PyTorch")
    found: Operator = getattr(getattr(getattr(torch.ops, library), packet), overload)
    return found


def _encoded(value: Any, number: dict[fx.Node, int]) -> Any:
    """An argument as JSON: nodes by their number, what JSON has no word for by its kind."""
    if isinstance(value, fx.Node):
        return {"node": number[value]}
    if isinstance(value, tuple):
        return {"tuple": [_encoded(v, number) for v in value]}
    if isinstance(value, list):
        return [_encoded(v, number) for v in value]
    if isinstance(value, dict):
        return {"dict": {k: _encoded(v, number) for k, v in value.items()}}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for name, kind in KINDS.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    return value


def _decoded(value: Any, made: list[fx.Node]) -> Any:
    """An argument that was written."""
    if isinstance(value, list):
        return [_decoded(v, made) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, given),) = value.items()
    if kind == "node":
        return made[given]
    if kind == "tuple":
        return tuple(_decoded(v, made) for v in given)
    if kind == "dict":
        return {k: _decoded(v, made) for k, v in given.items()}
    if kind == "device":
        return torch.device(given)
    found = getattr(torch, given)
    if not isinstance(found, KINDS[kind]):
        raise InputError(f"{given!r} is no {kind}")
    return found
