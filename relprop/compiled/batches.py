"""One graph for batches of any size, from two that were recorded for two sizes.

The two are the same but for whole numbers that grow with the batch: shapes, ends of ranges. Each of
these lies on a line through both, and is worked out anew, from the size of the first input's batch,
whenever the graph runs.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx
from torch.fx.node import Argument
from torch.utils._pytree import tree_flatten, tree_unflatten

from relprop.errors import CaptureError

#: The two sizes that are recorded: no other axis of a model is likely to be as long by chance, and
#: where one is, the line through both says that it does not grow.
SIZES = (3, 5)


def of_any_batch(small: fx.GraphModule, large: fx.GraphModule, batched: fx.Node) -> fx.GraphModule:
    """The graph of both, recorded at ``SIZES``; ``batched`` is the input of ``small`` whose first
    axis is the batch. Raises ``CaptureError`` where they differ in anything else."""
    first, second = list(small.graph.nodes), list(large.graph.nodes)
    if len(first) != len(second):
        raise _differs(f"{len(first)} operations for {SIZES[0]} samples, {len(second)} for more")
    line = _Line(small.graph, batched)
    pairs = dict(zip(first, second, strict=True))
    for a, b in pairs.items():
        if a.op != b.op or (a.op != "get_attr" and a.target != b.target):
            raise _differs(f"{a.target} for {SIZES[0]} samples, {b.target} for more")
        if a.op == "get_attr":
            mine, its = _held(small, a), _held(large, b)
            alike = mine.shape == its.shape and mine.dtype == its.dtype
            if mine is not its and not (alike and torch.equal(mine, its)):
                raise _differs(f"the tensor {a.target} that was made outside the graph")
            continue
        (some, tree), (others, other) = (tree_flatten((n.args, n.kwargs)) for n in (a, b))
        if tree != other:
            raise _differs(f"{a.target} is called otherwise")
        made = [line.at(x, y, pairs, a) for x, y in zip(some, others, strict=True)]
        a.args, a.kwargs = tree_unflatten(made, tree)
    small.graph.lint()
    small.recompile()
    return small


@dataclass
class _Line:
    """The whole numbers of ``graph`` as functions of the size of a batch."""

    graph: fx.Graph
    batched: fx.Node
    known: dict[tuple[int, int], fx.Node] = field(default_factory=dict)

    def at(
        self, x: Argument, y: Argument, pairs: dict[fx.Node, fx.Node], node: fx.Node
    ) -> Argument:
        """An argument for any batch, from those of two."""
        if isinstance(x, fx.Node):
            if pairs[x] is not y:
                raise _differs(f"{node.target} reads another tensor")
            return x
        if type(x) is type(y) and (x is y or x == y):
            return x
        if type(x) is not int or type(y) is not int:
            raise _differs(f"{node.target} is given {x!r} for {SIZES[0]} samples, {y!r} for more")
        slope, rest = divmod(y - x, SIZES[1] - SIZES[0])
        if rest:
            raise _differs(f"{node.target} is given {x} for {SIZES[0]} samples, {y} for {SIZES[1]}")
        return self._number(slope, x - slope * SIZES[0])

    def _number(self, slope: int, offset: int) -> fx.Node:
        """slope · batch + offset."""
        if (slope, offset) in self.known:
            return self.known[slope, offset]
        if (slope, offset) == (1, 0):
            size, own = torch.ops.aten.sym_size.int, (self.batched, 0)
            with self.graph.inserting_after(self.graph.find_nodes(op="placeholder")[-1]):
                made = self.graph.call_function(size, own)
        else:
            one = self._number(1, 0) if offset == 0 or slope == 1 else self._number(slope, 0)
            function, other = (operator.mul, slope) if offset == 0 else (operator.add, offset)
            with self.graph.inserting_after(one):
                made = self.graph.call_function(function, (one, other))
        self.known[slope, offset] = made
        return made


def _held(module: fx.GraphModule, node: fx.Node) -> Tensor:
    found: Tensor = operator.attrgetter(str(node.target))(module)
    return found


def _differs(fact: str) -> CaptureError:
    return CaptureError(
        f"a flat program of any batch size could not be made: {fact}",
        then=["relprop.explain, which records nothing, explains this model"],
    )
