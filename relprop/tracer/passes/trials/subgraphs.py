"""Subgraphs: the nodes between one tensor and another that depends on it alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, fx

from relprop.operations import ELEMENTWISE, Kind, is_call, kind, operand
from relprop.tracer.editing import (
    aten,
    dims_of,
    is_float,
    is_live,
    rank,
    shape_of,
    tensor_inputs,
    val,
)
from relprop.tracer.order import Flow
from relprop.tracer.passes.trials.recipes import REDUCTIONS, Recipe, recipe_of

MOST = 40  # nodes in a subgraph


INSIDE = ELEMENTWISE | REDUCTIONS | {Kind.SOFTMAX, Kind.RESHAPE, Kind.EXPAND}


@dataclass(frozen=True)
class Subgraph:
    """``output`` is a function of ``source`` and of ``parameters``, which depend on no input,
    through ``nodes`` (in order, ``output`` last); ``axes`` are those of ``source`` that something
    inside is summed over, or compared along."""

    source: fx.Node
    output: fx.Node
    nodes: tuple[fx.Node, ...]
    parameters: tuple[fx.Node, ...]
    axes: tuple[int, ...]
    recipe: Recipe

    def __call__(self, x: Tensor, *parameters: Tensor) -> Tensor:
        """The subgraph's value for other tensors."""
        return self.recipe(x, *parameters)

    @property
    def signature(self) -> str:
        """What the answer to a trial depends on."""
        return repr((self.recipe, self.probe_shape(), self.parameter_shapes(), self.axes))

    def probe_shape(self) -> list[int]:
        """A shape to try the subgraph with: two places along every axis that nothing is summed
        over."""
        sizes = shape_of(self.source)
        return [s if i in self.axes else min(s, 2) for i, s in enumerate(sizes)]

    def parameter_shapes(self) -> list[list[int]]:
        """The shapes of the parameters for it."""
        probe, whole = self.probe_shape(), shape_of(self.source)
        found = []
        for p in self.parameters:
            at = range(len(whole) - rank(p), len(whole))
            pairs = zip(at, shape_of(p), strict=True)
            found.append([probe[i] if s > 1 and i >= 0 else s for i, s in pairs])
        return found


def only_ones(node: fx.Node) -> bool:
    """Whether a reshape puts in or leaves out axes of length 1 and nothing else."""
    before, after = ([s for s in shape_of(n) if s != 1] for n in (operand(node), node))
    return before == after


def flow_of(graph: fx.Graph) -> Flow:
    """Everything that depends on an input, whatever its type."""
    live = [n for n in graph.nodes if n.op != "output" and is_live(n)]
    return Flow(live, {n for n in live if n.op == "placeholder"})


def candidates(graph: fx.Graph) -> Iterator[Subgraph]:
    """The largest subgraphs first, from the last node to the first: where ways from one tensor meet
    again."""
    flow = flow_of(graph)
    for node in reversed(flow.nodes):
        subgraph = subgraph_of(flow, node)
        if subgraph is not None:
            yield subgraph


def subgraph_of(flow: Flow, output: fx.Node, source: fx.Node | None = None) -> Subgraph | None:
    """The subgraph that ends in ``output``, an elementwise call of several tensors; it begins where
    these meet, or in ``source``."""
    inputs = flow.inputs[output]
    if kind(output) not in ELEMENTWISE or len(inputs) < 2 or not is_float(output):
        return None
    source = flow.common_dominator(inputs) if source is None else source
    if source is None or not is_float(source) or shape_of(source) != shape_of(output):
        return None
    nodes = _between(flow, source, output)
    if nodes is None:
        return None
    members = set(nodes)
    if any(u not in members for n in nodes if n is not output for u in n.users):
        return None
    return _subgraph(source, output, nodes)


def _between(flow: Flow, source: fx.Node, output: fx.Node) -> list[fx.Node] | None:
    """The nodes from ``source`` (exclusive) to ``output``, in order, if all of them fit."""
    found, left = {output}, [output]
    while left:
        node = left.pop()
        if len(found) > MOST or not fits(node, source):
            return None
        for above in flow.inputs[node]:
            if above is not source and above not in found:
                found.add(above)
                left.append(above)
    return sorted(found, key=flow.index.__getitem__)


def _subgraph(source: fx.Node, output: fx.Node, nodes: list[fx.Node]) -> Subgraph | None:
    members = {source, *nodes}
    entering = dict.fromkeys(i for n in nodes for i in tensor_inputs(n) if i not in members)
    if any(is_live(p) or not isinstance(val(p), Tensor) for p in entering):
        return None
    axes: set[int] = set()
    for node in nodes:
        if kind(node) in REDUCTIONS | {Kind.SOFTMAX}:
            axes |= set(dims_of(node))
    recipe = recipe_of(nodes, [source, *entering])
    return Subgraph(source, output, tuple(nodes), tuple(entering), tuple(sorted(axes)), recipe)


def fits(node: fx.Node, source: fx.Node) -> bool:
    """Whether a node may be inside a subgraph of ``source``."""
    what = kind(node)
    if what not in INSIDE or not isinstance(val(node), Tensor) or not node.args:
        return False
    if what in REDUCTIONS:
        return rank(operand(node)) == rank(source) and not is_call(node, aten.norm)
    return what is not Kind.RESHAPE or only_ones(node)
