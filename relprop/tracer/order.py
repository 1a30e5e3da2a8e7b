"""Which nodes lie on the way: ancestors, what lies between two nodes, nearest common dominators."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import fx

from relprop.tracer.editing import tensor_inputs
from relprop.tracer.follow import depending


class Flow:
    """The part of a graph along which relevance travels: ``nodes`` in topological order, and each
    one's flowing inputs."""

    def __init__(self, nodes: Iterable[fx.Node], roots: set[fx.Node]) -> None:
        self.nodes = tuple(nodes)
        self.members = set(self.nodes)
        self.index = {node: i for i, node in enumerate(self.nodes)}
        self.inputs = {
            n: ()
            if n in roots
            else tuple(dict.fromkeys(i for i in tensor_inputs(n) if i in self.members))
            for n in self.nodes
        }
        self._above: dict[fx.Node, int] = {}
        self._dominator: dict[fx.Node, fx.Node | None] = {}
        self._depth: dict[fx.Node | None, int] = {None: 0}
        for node in self.nodes:
            mask = 1 << self.index[node]
            for i in self.inputs[node]:
                mask |= self._above[i]
            self._above[node] = mask
            parents = self.inputs[node]
            nearest: fx.Node | None = parents[0] if parents else None
            for other in parents[1:]:
                nearest = self._meet(nearest, other)
            self._dominator[node] = nearest
            self._depth[node] = self._depth[nearest] + 1

    def _meet(self, a: fx.Node | None, b: fx.Node | None) -> fx.Node | None:
        while a is not b:
            if self._depth[a] >= self._depth[b]:
                a = self._dominator[a] if a is not None else None
            else:
                b = self._dominator[b] if b is not None else None
        return a

    def common_dominator(self, nodes: Iterable[fx.Node]) -> fx.Node | None:
        """The nearest node that every path from the leaves to any of ``nodes`` passes through (a
        node dominates itself); ``None``: only the leaves together."""
        nodes = list(nodes)
        nearest: fx.Node | None = nodes[0]
        for node in nodes[1:]:
            nearest = self._meet(nearest, node)
        return nearest

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
        found, left = {below}, [below]
        while left:
            for node in self.inputs[left.pop()]:
                on_way = above is None or self.reaches(above, node)
                if on_way and node is not above and node not in found:
                    found.add(node)
                    left.append(node)
        on_way = below is not above and (above is None or self.reaches(above, below))
        return sorted(found, key=self.index.__getitem__) if on_way else []

    def reached_by(self, above: fx.Node, below: fx.Node, passes: Callable[[fx.Node], bool]) -> bool:
        """Whether some way from ``above`` to ``below`` consists only of nodes that ``passes``
        accepts."""
        return below in depending(self.between(above, below), [above], passes)
