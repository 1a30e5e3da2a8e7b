"""What Python read of a call's inputs while a graph was recorded: for other inputs of which it
reads the same, the graph is the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from relprop.operations import Kind, is_call, is_inplace, kind
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.follow import reached
from relprop.tracer.reads import deciders

aten = torch.ops.aten


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
