"""Values of an input that decide what a graph is: those that Python takes out of a tensor, and
those that a result's shape depends on. A graph with one holds for its own input, and for others of
which Python reads the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedOperatorException
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map, tree_map_only

from relprop.operations import Args, Kind, Kwargs, Operator, is_call, is_inplace, kind
from relprop.tracer.calls import template
from relprop.tracer.editing import aten, is_float, tensor_inputs, val
from relprop.tracer.facts import place
from relprop.tracer.follow import reached
from relprop.tracer.recorded import without_values

#: How Python takes values out of a tensor without an operator.
TAKES = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)


@dataclass(frozen=True, eq=False)
class Guards:
    """``graph`` makes of the call's tensors those that were read, ``seen`` as they were;
    ``constants``: what it holds by name."""

    graph: fx.Graph
    constants: Mapping[str, Tensor]
    seen: tuple[Tensor, ...] = ()

    @classmethod
    def of(
        cls,
        graph: fx.Graph,
        constants: Mapping[str, Tensor],
        deciding: Iterable[fx.Node],
        inputs: Sequence[Tensor],
    ) -> Guards | None:
        """Of a recorded graph and the nodes at which values of ``inputs`` decided it; ``None``
        where they are worked out with tensors of the model's own, or by chance."""
        looked = list(dict.fromkeys(x for node in deciding for x in _looked_at(node)))
        above = set(reached(looked))
        if not looked or not all(_repeats(n, constants) for n in above):
            return None
        own, made = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in graph.nodes:
            if node in above or node.op == "placeholder":
                made[node] = own.node_copy(node, made.__getitem__)
        own.output(tuple(made[n] for n in looked))
        held = {n.target: constants[n.target] for n in own.find_nodes(op="get_attr")}
        found = cls(own, held)
        return cls(own, held, found.read(inputs))

    def hold(self, inputs: Sequence[Tensor]) -> bool:
        """Whether Python reads the same of these."""
        return all(map(torch.equal, self.read(inputs), self.seen))

    @torch.no_grad()
    def read(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What is read of a call's tensors."""
        values, given = dict[fx.Node, Any](), iter(inputs)
        for node in self.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = self.constants[node.target]
            elif node.op == "output":
                return tuple(values[n] for n in node.args[0])
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)
        raise AssertionError("a graph has an output")


def _looked_at(node: fx.Node) -> tuple[fx.Node, ...]:
    """The tensors whose values decide: what is read (of all that Python takes at once, ``any`` is
    recorded), or what a shape depends on."""
    if kind(node) is not Kind.READ:
        return deciders(node)
    read = tensor_inputs(node)
    return tuple(x for n in read for x in (tensor_inputs(n) if is_call(n, aten.any) else (n,)))


def _repeats(node: fx.Node, constants: Mapping[str, Tensor]) -> bool:
    """Whether a node gives for the same inputs the same again."""
    if node.op == "get_attr":
        return node.target in constants
    written = node.op == "call_function" and is_inplace(node)
    return not written and kind(node) not in (Kind.RANDOM, Kind.READ)


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
