"""Values of an input that decide what a graph is: those that Python takes out of a tensor, and
those that a result's shape depends on. A graph with one holds for its own input only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedOperatorException
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map, tree_map_only

from relprop.operations import Args, Kind, Kwargs, Operator, kind
from relprop.tracer.calls import template
from relprop.tracer.editing import is_float, tensor_inputs, val
from relprop.tracer.facts import place
from relprop.tracer.recorded import without_values

#: How Python takes values out of a tensor without an operator.
TAKES = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)


class Noticed(TorchFunctionMode):
    """While a graph is recorded: whatever Python takes out of a tensor leaves an operator that
    reads it there, too."""

    def __torch_function__(
        self, func: Operator, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        """Run the function, after a read that is recorded where it takes values."""
        if func in TAKES:
            args[0].detach().any().item()
        return func(*args, **(kwargs or {}))


def deciding_nodes(graph: fx.Graph, constants: Collection[str]) -> tuple[fx.Node, ...]:
    """Where the graph's form depends on values of its inputs or of the model's tensors: reads, and
    operations that can't be worked out from shapes alone. ``constants``: other tensors."""
    return _deciding(graph, _below(graph, lambda n: _is_input(n) or _is_own(n, constants)))


def choices(graph: fx.Graph, constants: Collection[str]) -> tuple[str, ...]:
    """The places of those whose values the model works out of an input with tensors of its own:
    which expert a token goes to, not how long the input is."""
    inputs = _below(graph, _is_input)
    live = inputs & _below(graph, lambda n: _is_own(n, constants))
    return tuple(str(place(n)) for n in _deciding(graph, live))


def _deciding(graph: fx.Graph, live: set[fx.Node]) -> tuple[fx.Node, ...]:
    with FakeTensorMode():
        found = (n for n in graph.nodes if not live.isdisjoint(deciders(n)) and _decides(n))
        return tuple(found)


def deciders(node: fx.Node) -> tuple[fx.Node, ...]:
    """The operands whose values could decide a call's shape: what it picks by, if it has any."""
    operands = tensor_inputs(node)
    return tuple(i for i in operands if not is_float(i)) or operands


def _is_input(node: fx.Node) -> bool:
    return node.op == "placeholder"


def _is_own(node: fx.Node, constants: Collection[str]) -> bool:
    """Whether a node is a parameter or a buffer of the model."""
    return node.op == "get_attr" and node.target not in constants


def _below(graph: fx.Graph, is_root: Callable[[fx.Node], bool]) -> set[fx.Node]:
    """The nodes whose values depend on a root, writes in place and views included."""
    live: set[fx.Node] = set()
    memory: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        inputs = tensor_inputs(node)
        if is_root(node):
            live.add(node)
        elif any(memory.get(i, i) in live or i in live for i in inputs):
            live.add(node)
            if any(shared.is_write for shared in _shared(node)):
                live.add(memory.get(inputs[0], inputs[0]))
        if inputs and _shared(node):
            memory[node] = memory.get(inputs[0], inputs[0])
    return live


def _shared(node: fx.Node) -> list[Any]:
    """In which ways what a call returns is memory that it was given."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    ways = [given.alias_info for given in node.target._schema.returns]
    return [way for way in ways if way is not None]


def _decides(node: fx.Node) -> bool:
    """Whether a call hands a value to Python, or gives a result whose shape depends on values."""
    if kind(node) is Kind.READ:
        return True
    if (
        not isinstance(node.target, torch._ops.OpOverload)
        or torch.Tag.pointwise in node.target.tags
    ):
        return False
    operands, rebuild = template(node)
    on_cpu = partial(without_values, device="cpu")
    args, kwargs = rebuild(*(tree_map(on_cpu, val(n)) for n in operands))
    cpu = torch.device("cpu")
    args, kwargs = tree_map_only(torch.device, lambda _: cpu, (args, kwargs))
    try:
        with contextlib.suppress(UnsupportedOperatorException, NotImplementedError):
            node.target(*args, **kwargs)
    except Exception:  # fake tensors raise many types where a value would be read
        return True
    return False
