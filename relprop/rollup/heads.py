"""Heads and modules: maps whose results lie side by side are the heads of one, modules that are
added count whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import fx

from relprop.operations import Kind, argument, is_call, kind, operand
from relprop.operations.vocabulary import grouped_linear
from relprop.rollup.sources import Sources, all_of, weights_of
from relprop.tracer.atoms import Axes, is_token, token_count
from relprop.tracer.editing import val
from relprop.tracer.order import Flow


def lies_beside(node: fx.Node, axes: Mapping[fx.Node, Axes]) -> bool:
    """Whether a ``cat`` lays its operands side by side along features; along tokens each takes
    places of its own."""
    dims = val(node).dim() if kind(node) is Kind.JOIN else 0
    if dims < 2:
        return False
    dim = argument(node, "dim") % dims
    axis = axes[node][dim] if node in axes else ()
    return not is_token(axis) if dim == dims - 1 else token_count(axis) <= 1


class Heads:
    """How many heads lie side by side, and with which share of them each counts."""

    def __init__(self, flow: Flow, axes: Mapping[fx.Node, Axes], sources: Sources) -> None:
        self.flow, self.axes, self.sources = flow, axes, sources
        self._known: dict[fx.Node, int] = {}

    def share(self, terms: Sequence[tuple[fx.Node, fx.Node]], bit: int) -> float | None:
        """Maps whose results lie side by side before any layer are the heads of one: each counts
        with its number of heads over the sum of them. ``None`` for other sources. ``terms``: what
        lies side by side, and each before the part of one output weight that reads it."""
        mine = [o for t, o in terms if self.sources.of(t) & bit]
        pieces = self._pieces(terms)
        if len(mine) != 1 or mine[0] not in pieces or not self._comes_bare(mine[0], bit):
            return None
        return self._at(mine[0]) / sum(map(self._at, pieces))

    def modules(self, layer: fx.Node, bit: int) -> float:
        """Modules that were added or laid side by side, and are one module with one projection now,
        count whole: as many as it has output weights. For what comes from an attention map before
        any layer."""
        x, weight = operand(layer), operand(layer, 1)
        count = len(weights_of(layer))
        if count < 2 or not self._comes_bare(x, bit):
            return 1.0
        # output projections side by side read the map and nothing else; of a sum they are joined
        # along what they read
        own = is_call(layer, grouped_linear)
        if not (self.sources.of(x) == bit if own else argument(weight, "dim") in (1, -1)):
            return 1.0
        left = [self.sources.sites[self.sources.roots(bit)[0]].attention]
        while left:  # the layers that make the map: it has the heads of as many modules
            node = left.pop()
            if kind(node) is not Kind.LINEAR:
                left += self.flow.inputs.get(node, ())
            elif len(weights_of(node)) == count:
                return float(count)
        return 1.0

    def _comes_bare(self, node: fx.Node, bit: int) -> bool:
        """Whether a source is a map whose result comes to a tensor before any layer."""
        a_map = self.sources.roots(bit)[0] in self.sources.sites
        return a_map and bool(self.sources.bare.get(node, 0) & bit)

    def _pieces(self, terms: Sequence[tuple[fx.Node, fx.Node]]) -> list[fx.Node]:
        """The tensors, if in each of several are maps that are in no other; maps from before what
        all of them branch off from do not count."""
        sources, flow = self.sources, self.flow
        x = flow.common_dominator(o for _, o in terms) if terms else None
        maps = all_of(
            bit
            for node, bit in sources.bits.items()
            if node in sources.sites and (x is None or (x is not node and flow.reaches(x, node)))
        )
        found = []
        for i, (_, o) in enumerate(terms):
            others = all_of(sources.of(t) for k, (t, _) in enumerate(terms) if k != i)
            if sources.bare.get(o, 0) & maps & ~others:
                found.append(o)
        return found if len(found) > 1 else []

    def _at(self, node: fx.Node) -> int:
        """How many heads lie side by side in a tensor that no layer has read yet."""
        if node in self.sources.sites:
            made = self.axes.get(self.sources.sites[node].attention, ())[:-2]
            return math.prod(a.size for axis in made for a in axis if a.kind != "token")
        if node not in self._known:
            above = [i for i in self.flow.inputs[node] if self.sources.bare.get(i, 0)]
            beside = lies_beside(node, self.axes)
            pieces = self._pieces([(o, o) for o in above]) if beside else []
            heads = list(map(self._at, pieces or above))
            self._known[node] = sum(heads) if pieces else max(heads, default=0)
        return self._known[node]
