"""Sources: the token tensors and the uses of attention maps from which a tensor is reached by
*ways*, which meet no attention map and use no query, key, index or mask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import or_

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.operations.vocabulary import grouped_linear
from relprop.plan import Step
from relprop.rules.notes import ProductNote
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.order import Flow
from relprop.tracer.program import Site

#: What has weights of its own: a layer.
LAYERS = frozenset({Kind.LINEAR, Kind.CONVOLUTION, Kind.MATMUL})
#: The field goes on to the first operand alone: the others say how its tokens are brought together.
FIRST_ALONE = frozenset(
    {Kind.LINEAR, Kind.CONVOLUTION, Kind.EXPAND, Kind.SAMPLE, Kind.SCAN, Kind.AVERAGE_POOL}
    | {Kind.RESAMPLE, Kind.FOLD, Kind.INDEXED_SUM, Kind.TOTAL, Kind.STATISTIC}
)


class Sources:
    """Which sources reach each node. A set of sources is a number, one bit each.

    ``bits``: of each token tensor and of each site's contraction. Contractions with one attention
    map are one source if they lie side by side; one that depends on another (a map handed on to a
    later layer) is a source of its own.
    """

    def __init__(
        self, steps: Sequence[Step], flow: Flow, sites: Sequence[Site], ends: Iterable[fx.Node]
    ) -> None:
        self.flow = flow
        self.sites = {s.contraction: s for s in sites if s.contraction in flow.members}
        self.nodes: list[tuple[fx.Node, ...]] = [(end,) for end in ends]
        uses: dict[fx.Node, list[list[fx.Node]]] = {}
        for node in sorted(self.sites, key=flow.index.__getitem__):
            groups = uses.setdefault(self.sites[node].attention, [])
            beside = [g for g in groups if not any(flow.reaches(other, node) for other in g)]
            if not beside:
                groups.append([])
            (beside or groups[-1:])[0].append(node)
        self.nodes += [tuple(group) for groups in uses.values() for group in groups]
        self.bits = {node: 1 << k for k, group in enumerate(self.nodes) for node in group}
        self.taken = {s.node: self._takes(s) for s in steps}
        upwards = steps[::-1]
        self.reach = self._reached(upwards, frozenset())
        #: The same by ways without a layer: from an attention map, what comes before the output
        #: projection.
        self.bare = self._reached(upwards, LAYERS)

    def _takes(self, step: Step) -> tuple[bool, ...]:
        """Which operands a field goes on to."""
        values = self.sites[step.node].values if step.node in self.sites else None
        mixer = step.note.mixer if isinstance(step.note, ProductNote) else None
        flows = [i for i, role in enumerate(step.roles) if role == "activation"]
        if kind(step.node) in FIRST_ALONE:
            flows = flows[:1]
        return tuple(
            n and i in flows and i != mixer and (values is None or o is values)
            for i, (o, n) in enumerate(zip(step.operands, step.needed, strict=True))
        )

    def _reached(self, upwards: Sequence[Step], barred: frozenset[Kind]) -> dict[fx.Node, int]:
        found = dict(self.bits)
        for step in upwards:
            if step.node not in found:
                found[step.node] = 0
                # heads, each by itself; of modules it is the layer
                apart = is_call(step.node, grouped_linear) and len(weights_of(step.node)) == 1
                if kind(step.node) not in barred or apart:
                    for o, takes in zip(step.operands, self.taken[step.node], strict=True):
                        found[step.node] |= found.get(o, 0) if takes else 0
        return found

    def of(self, node: fx.Node) -> int:
        """The sources from which a way leads to a node."""
        return self.reach.get(node, 0)

    def roots(self, bit: int) -> tuple[fx.Node, ...]:
        """The nodes of one source."""
        return self.nodes[bit.bit_length() - 1]


def bits_of(sets: int) -> Iterator[int]:
    """The sources of a set, one by one."""
    while sets:
        yield sets & -sets
        sets &= sets - 1


def all_of(sets: Iterable[int]) -> int:
    """The sources of several sets."""
    return reduce(or_, sets, 0)


def weights_of(layer: fx.Node) -> frozenset[fx.Node]:
    """The parameter of which a layer's weight is a part, or those that it was joined of."""
    weight = _root(operand(layer, 1))
    joined = tensor_inputs(weight) if kind(weight) is Kind.JOIN else [weight]
    return frozenset(map(_root, joined))


def _root(weight: fx.Node) -> fx.Node:
    while weight.op == "call_function" and len(tensor_inputs(weight)) == 1:
        weight = tensor_inputs(weight)[0]
    return weight
