"""Which calls compute the same: same operator, same arguments, from the same tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

from torch import fx

from relprop.operations import Kind, is_call, is_inplace, kind
from relprop.operations.vocabulary import sum_of
from relprop.tracer.editing import aten, swap
from relprop.tracer.program import place


class Numbers:
    """A number for every node, the same for two that compute the same."""

    def __init__(self) -> None:
        self._of: dict[fx.Node, int] = {}
        self._by_key: dict[Hashable, int] = {}

    def __call__(self, node: fx.Node) -> int:
        """The number of a node."""
        waiting = [node]
        while waiting:
            top = waiting[-1]
            missing = [i for i in top.all_input_nodes if i not in self._of]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if top not in self._of:
                self._of[top] = self._by_key.setdefault(self._key(top), len(self._by_key))
        return self._of[node]

    def _key(self, node: fx.Node) -> Hashable:
        if node.op == "get_attr":
            return node.op, node.target
        if node.op != "call_function" or kind(node) is Kind.RANDOM:
            return node.op, node.name
        args: Hashable = self._plain(node.args)
        if is_call(node, sum_of, aten.add, aten.mul) and not node.kwargs:  # in whatever order
            args = frozenset(Counter(map(self._plain, node.args)).items())
        return node.target, args, self._plain(node.kwargs)

    def _plain(self, part: object) -> Hashable:
        if isinstance(part, fx.Node):
            return "node", self._of[part]
        if isinstance(part, (list, tuple)):
            return tuple(self._plain(p) for p in part)
        if isinstance(part, dict):
            return tuple((k, self._plain(v)) for k, v in sorted(part.items()))
        return type(part).__name__, str(part)

    def same(self, nodes: Iterable[fx.Node]) -> bool:
        """Whether all of some nodes compute the same."""
        return len({self(n) for n in nodes}) == 1


def join_same(graph: fx.Graph) -> None:
    """What one module call computes several times from the same tensors is computed once; a tensor
    of the model's is one, however often it is read."""
    numbers, found = Numbers(), dict[Hashable, fx.Node]()
    for node in list(graph.nodes):
        computed = node.op == "call_function" and kind(node) is not Kind.RANDOM
        if not (computed or node.op == "get_attr") or is_inplace(node):
            continue
        key = numbers(node), place(node).modules if computed else None
        first = found.setdefault(key, node)
        if first is not node:
            swap(node, first)
