"""One driver for whatever is pushed forward through a graph: axes, labels, rows of attention,
positions of the input, or just the fact that something is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    for node in nodes:
        if node not in known and any(i in known for i in node.all_input_nodes):
            made = transfer(node, known)
            if made is not None:
                known[node] = made
    return known


def depending(
    nodes: Iterable[fx.Node],
    start: Iterable[fx.Node],
    passes: Callable[[fx.Node], bool] = lambda _: True,
) -> set[fx.Node]:
    """Those of ``start``, and those of ``nodes`` that depend on one of them through nothing but
    nodes that ``passes`` accepts, themselves among these."""

    def depends(node: fx.Node, _: Mapping[fx.Node, bool]) -> bool | None:
        return True if passes(node) else None

    return set(follow(nodes, dict.fromkeys(start, True), depends))
