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
        if not {op for op, *_ in calls} <= {"placeholder", "get_attr", "call_function", "output"}:
            raise InputError("it holds something else than calls")
        self.calls = [(op, args, kwargs) for op, _, args, kwargs in calls]
        named = [(i, op, target) for i, (op, target, *_) in enumerate(calls)]
        self.held = {i: tensors[target] for i, op, target in named if op == "get_attr"}
        self.called = {i: operator_named(name) for i, op, name in named if op == "call_function"}
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
                made[i] = self.called[i](*decoded(args, made), **decoded(kwargs, made))
            for node in self.ended[i]:
                del made[node]
        found: Mapping[str, Tensor] = decoded(args, made)[0]
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


def _name(function: object) -> str:
    try:
        return name_of_operator(function)
    except InputError:
        fact = f"the program calls {function}, which no .safetensors file may name"
        then = ["save it as x.pt2, which may hold it"]
        raise OptionError(fact, then=then) from None


def _nodes(value: Any) -> list[int]:
    """The numbers of the calls whose results an argument reads."""
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in _nodes(v)]
    if not isinstance(value, dict):
        return []
    return [value["node"]] if "node" in value else _nodes(list(value.values()))
