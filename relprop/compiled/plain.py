"""A flat program as a list of its calls: JSON in a safetensors file beside the tensors that it
holds. It is read as fast as its weights are. Nothing in it is code: it is run call by call, and may
name none but PyTorch's operators on tensors, and those that make tensors of numbers."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, fx

from relprop.compiled.native import OPERATORS
from relprop.errors import InputError, OptionError
from relprop.operations.as_json import decoded, encoded, name_of_operator, operator_named

#: How a file of this kind ends.
ENDING = ".safetensors"


class Calls:
    """A list of calls that runs: each an operation, what it names, arguments by place and name."""

    def __init__(self, calls: Sequence[Any], tensors: Mapping[str, Tensor]) -> None:
        self.inputs, self.held = list[int](), dict[int, Tensor]()
        self.calls, self.output = list[Any](), list[Any]()
        last: dict[int, int] = {}
        for i, (op, target, args, kwargs) in enumerate(calls):
            if op == "placeholder":
                self.inputs.append(i)
            elif op == "get_attr":
                self.held[i] = tensors[target]
            elif op == "call_function":
                self.calls.append((i, operator_named(target), args, kwargs))
            elif op == "output":
                self.output = args
            else:
                raise InputError("it holds something else than calls")
            last |= dict.fromkeys(_nodes((args, kwargs)), i)
        self.ended: list[list[int]] = [[] for _ in calls]  # what each is the last to read
        for node, i in last.items():
            self.ended[i].append(node)

    def __call__(self, *given: Tensor) -> Mapping[str, Tensor]:
        made: dict[int, Any] = self.held | dict(zip(self.inputs, given, strict=True))
        for i, function, args, kwargs in self.calls:
            made[i] = function(*decoded(args, made), **decoded(kwargs, made))
            for node in self.ended[i]:
                del made[node]
        found: Mapping[str, Tensor] = decoded(self.output, made)[0]
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
            function = operators.get(node, node.target)
            try:
                target = name_of_operator(function)
            except InputError:
                fact = f"the program calls {function}, which no .safetensors file may name"
                raise OptionError(fact, then=["save it as x.pt2, which may hold it"]) from None
        calls.append([node.op, target, encoded(node.args, number), encoded(node.kwargs, number)])
    save_file(tensors, path, {"about": text, "calls": json.dumps(calls)})


def read(path: Path) -> tuple[Calls, str]:
    """A flat program, and the text about it. Raises ``InputError`` for any other file."""
    with safe_open(path, "pt") as file:
        about = file.metadata() or {}
        if "calls" not in about:
            raise InputError("no calls stand in it")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return Calls(json.loads(about["calls"]), tensors), about["about"]


def _nodes(value: Any) -> list[int]:
    """The numbers of the calls whose results an argument reads."""
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in _nodes(v)]
    if not isinstance(value, dict):
        return []
    return [value["node"]] if "node" in value else _nodes(list(value.values()))
