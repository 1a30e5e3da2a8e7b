"""The bottlenecks above a node: tensors that alone decide what it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, fx

from relprop.operations import Kind, kind
from relprop.tracer.constants import Constants
from relprop.tracer.editing import is_live, tensor_inputs, val
from relprop.tracer.order import Flow
from relprop.tracer.passes.trials.parts import MOST_NODES


class Link(NamedTuple):
    """The nearest bottleneck above a node, and what lies on the way from it to that node, which is
    the last: in all so many numbers."""

    source: fx.Node
    nodes: tuple[fx.Node, ...]
    numbers: int


class Links:
    """Nodes with the bottlenecks above them: every way through several of these goes from one to
    the next."""

    def __init__(self, flow: Flow, constants: Constants) -> None:
        self.flow, self.constants = flow, constants
        self._known: dict[fx.Node, Link | None] = {}

    def of(self, node: fx.Node) -> Link | None:
        """A node's; ``None`` where there is no such, or values are read there that nobody knows."""
        if node not in self._known:
            self._known[node] = self._made(node) if node in self.flow.index else None
        return self._known[node]

    def _made(self, node: fx.Node) -> Link | None:
        source = self.flow.dominator(node)
        if source is None or not isinstance(val(source), Tensor):
            return None
        nodes = self.flow.between(source, node)
        if len(nodes) > MOST_NODES or not _closed(nodes, self.constants):
            return None
        numbers = sum(v.numel() for n in nodes if isinstance(v := val(n), Tensor))
        return Link(source, tuple(nodes), numbers)


def _closed(nodes: Sequence[fx.Node], constants: Constants) -> bool:
    """Whether the values of everything else that is read are known."""
    return all(
        is_live(i) or constants.value(i) is not None for n in nodes for i in tensor_inputs(n)
    ) and not any(kind(n) in (Kind.RANDOM, Kind.DETACH, Kind.READ) for n in nodes)
