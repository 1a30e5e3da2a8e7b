"""A flat program as a list of its calls: JSON in a safetensors file beside the tensors that it
holds. It is read as fast as its weights are. Nothing in it is code: it is run call by call, and may
name none but PyTorch's operators on tensors, and those that make tensors of numbers."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, fx
from torch._ops import OpOverload

from relprop.compiled.native import OPERATORS
from relprop.errors import InputError, OptionError, message
from relprop.operations import Operator

#: How a file of this kind ends.
ENDING = ".safetensors"
#: What a file may name beside operators: what sizes are worked out by, and parts of results.
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


class Calls:
    """A list of calls that runs: each an operation, what it names, arguments by place and name."""

    def __init__(self, calls: Sequence[Any], tensors: Mapping[str, Tensor]) -> None:
        if not {op for op, *_ in calls} <= {"placeholder", "get_attr", "call_function", "output"}:
            raise InputError("it holds something else than calls")
        self.calls = [(op, args, kwargs) for op, _, args, kwargs in calls]
        named = [(i, op, target) for i, (op, target, *_) in enumerate(calls)]
        self.held = {i: tensors[target] for i, op, target in named if op == "get_attr"}
        self.called = {i: _operator(name) for i, op, name in named if op == "call_function"}
        last: dict[int, int] = {}
        for i, (_, _, args, kwargs) in enumerate(calls):
            last |= dict.fromkeys(_nodes((args, kwargs)), i)
        self.ended: list[list[int]] = [[] for _ in calls]  # what each is the last to read
        for node, i in last.items():
            self.ended[i].append(node)

    def __call__(self, *given: Tensor) -> Mapping[str, Tensor]:
        made: dict[int, Any] = {}
        inputs = iter(given)
        for i, (op, args, kwargs) in enumerate(self.calls):
            if op == "output":
                break
            if op == "placeholder":
                made[i] = next(inputs)
            elif op == "get_attr":
                made[i] = self.held[i]
            else:
                made[i] = self.called[i](*_decoded(args, made), **_decoded(kwargs, made))
            for node in self.ended[i]:
                del made[node]
        found: Mapping[str, Tensor] = _decoded(args, made)[0]
        return found


def write(module: fx.GraphModule, text: str, path: Path) -> None:
    """Write a flat program, and a ``text`` about it. Raises ``OptionError`` for a call of an
    operator that no file may name."""
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


def read(path: Path) -> tuple[Calls, str]:
    """A flat program, and the text about it. Raises ``InputError`` for any other file."""
    with safe_open(path, "pt") as file:
        about = file.metadata() or {}
        if "calls" not in about:
            raise InputError("no calls stand in it")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return Calls(json.loads(about["calls"]), tensors), about["about"]


def _name(function: object) -> str:
    found = next((name for name, f in OF_PYTHON.items() if f is function), None)
    if found is None and isinstance(function, OpOverload) and _is_plain(function):
        found = str(function)
    if found is None:
        fact = f"the program calls {function}, which no .safetensors file may name"
        raise OptionError(message(fact, then=["save it as x.pt2, which may hold it"]))
    return found


def _operator(name: str) -> Operator:
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
    schema = found._schema
    first = str(schema.arguments[0].type) if schema.arguments else ""
    reads = "Tensor" in first or found._opname in MADE
    return found.namespace in LIBRARIES and reads


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


def _decoded(value: Any, made: Mapping[int, Any]) -> Any:
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


def _nodes(value: Any) -> list[int]:
    """The numbers of the calls whose results an argument reads."""
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in _nodes(v)]
    if not isinstance(value, dict):
        return []
    return [value["node"]] if "node" in value else _nodes(list(value.values()))
