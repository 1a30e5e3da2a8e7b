"""Which nodes lie on the way: ancestors, what lies between two nodes, nearest common dominators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

from torch import fx

from relprop.tracer.editing import tensor_inputs
from relprop.tracer.follow import depending, reached


class Flow:
    """The part of a graph along which relevance travels: ``nodes`` in topological order, and each
    one's flowing inputs."""

    def __init__(self, nodes: Iterable[fx.Node], roots: set[fx.Node]) -> None:
        self.nodes = tuple(nodes)
        self.members = set(self.nodes)
        self.index = {node: i for i, node in enumerate(self.nodes)}
        self.inputs: dict[fx.Node, tuple[fx.Node, ...]] = {}
        self._above: dict[fx.Node, int] = {}
        self._dominator: dict[fx.Node, fx.Node | None] = {}
        self._depth: dict[fx.Node | None, int] = {None: 0}
        for node in self.nodes:
            read = () if node in roots else tensor_inputs(node)
            parents = tuple(dict.fromkeys(i for i in read if i in self.members))
            mask = 1 << self.index[node]
            for i in parents:
                mask |= self._above[i]
            self.inputs[node], self._above[node] = parents, mask
            nearest = self.common_dominator(parents) if parents else None
            self._dominator[node] = nearest
            self._depth[node] = self._depth[nearest] + 1

    def _meet(self, a: fx.Node | None, b: fx.Node | None) -> fx.Node | None:
        while a is not b:
            if self._depth[a] >= self._depth[b]:
                a = self._dominator[a] if a is not None else None
            else:
                b = self._dominator[b] if b is not None else None
        return a

    def common_dominator(self, nodes: Iterable[fx.Node | None]) -> fx.Node | None:
        """The nearest node that every path from the leaves to any of ``nodes`` passes through (a
        node dominates itself); ``None``: only the leaves together."""
        return reduce(self._meet, nodes)

    def dominator(self, node: fx.Node) -> fx.Node | None:
        """The nearest other node that every path from the leaves to ``node`` passes through, or
        ``None``."""
        return self._dominator[node]

    def first(self, node: fx.Node) -> fx.Node:
        """The farthest node that every path from the leaves to ``node`` passes through: a leaf, or
        where ways from several leaves first meet."""
        while (above := self._dominator[node]) is not None:
            node = above
        return node

    def reaches(self, above: fx.Node, below: fx.Node) -> bool:
        """Whether ``below`` depends on ``above`` (or is it); what depends on no leaf does not."""
        return below in self._above and bool(self._above[below] >> self.index[above] & 1)

    def between(self, above: fx.Node | None, below: fx.Node) -> list[fx.Node]:
        """The nodes on a way from ``above`` (exclusive; ``None``: the leaves) to ``below``
        (inclusive)."""

        def is_between(node: fx.Node) -> bool:
            return node is not above and (above is None or self.reaches(above, node))

        found = reached([below], lambda node: filter(is_between, self.inputs[node]))
        return sorted(found, key=self.index.__getitem__) if is_between(below) else []

    def reached_by(self, above: fx.Node, below: fx.Node, passes: Callable[[fx.Node], bool]) -> bool:
        """Whether some way from ``above`` to ``below`` consists only of nodes that ``passes``
        accepts."""
        return below in depending(self.between(above, below), [above], passes)
