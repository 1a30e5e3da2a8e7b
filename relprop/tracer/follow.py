"""One driver for whatever is pushed forward through a graph: axes, labels, rows of attention,
positions of the input, or just the fact that something is reached; and one for walks from node to
node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from torch import fx

T = TypeVar("T")


def follow(
    nodes: Iterable[fx.Node],
    start: Mapping[fx.Node, T],
    transfer: Callable[[fx.Node, Mapping[fx.Node, T]], T | None],
) -> dict[fx.Node, T]:
    """What is known of each node, given what is known at the ``start``.

    ``nodes`` are in the graph's order. ``transfer(node, known)`` is asked of every node that reads
    one of which something is known, and says what is then known of the node itself; ``None``:
    nothing, and what reads it is not asked on its account.
    """
    known = dict(start)
    asked = {user for node in known for user in node.users}
    for node in nodes:
        if node in asked and node not in known:
            made = transfer(node, known)
            if made is not None:
                known[node] = made
                asked.update(node.users)
    return known


def depending(
    nodes: Iterable[fx.Node],
    start: Iterable[fx.Node],
    passes: Callable[[fx.Node], bool] = lambda _: True,
) -> set[fx.Node]:
    """Those of ``start``, and those of ``nodes`` that depend on one of them through nothing but
    nodes that ``passes`` accepts, themselves among these."""
    members, start = set(nodes), set(start)

    def readers(node: fx.Node) -> Iterator[fx.Node]:
        return (u for u in node.users if u in members and (u in start or passes(u)))

    return set(reached(start, readers))


def _operands(node: fx.Node) -> Iterable[fx.Node]:
    return node.all_input_nodes


def reached(
    start: Iterable[fx.Node], step: Callable[[fx.Node], Iterable[fx.Node]] = _operands
) -> Iterator[fx.Node]:
    """The nodes that one comes to from those of ``start``, these included, each once; from one node
    to all that ``step`` names: as a rule the ones that it is made of."""
    seen = dict.fromkeys(start)
    left = list(seen)
    while left:
        yield (node := left.pop())
        new = [n for n in dict.fromkeys(step(node)) if n not in seen]
        seen.update(dict.fromkeys(new))
        left += new
