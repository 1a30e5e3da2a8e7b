"""What each term of a merge carries of the field on its way to a source: the mean over the terms to
which a way leads from that source (docs/residual_connections.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import fx

from relprop.operations import FILLS, MOVES, Kind, kind, operand
from relprop.plan import Step
from relprop.rollup.heads import Heads, lies_beside
from relprop.rollup.present import Present
from relprop.rollup.sources import Sources, weights_of
from relprop.rules.shares import Places, Weight
from relprop.tracer.atoms import Axes, token_count
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.order import Flow

MERGES = frozenset({Kind.SUM, Kind.PRODUCT, Kind.QUOTIENT, Kind.JOIN, Kind.EXTREMUM, Kind.CHOICE})
PRODUCTS = frozenset({Kind.PRODUCT, Kind.QUOTIENT})
#: At each place one operand stands, which the rule finds: nothing is shared.
PLACED = frozenset(MOVES | FILLS) - {Kind.JOIN}
#: Merges in which some operand can be what the others were made from: a skip connection.
SKIPPED = frozenset({Kind.JOIN, Kind.EXTREMUM})
#: One token each: neither a layer, nor pooling, nor a product of two activations.
ONE_TO_ONE = (
    MOVES
    | FILLS
    | {Kind.IDENTITY, Kind.DETACH, Kind.CAST, Kind.AFFINE, Kind.FUNCTION, Kind.SUM}
    | {Kind.SOFTMAX, Kind.LOG_SOFTMAX, Kind.NORM, Kind.BATCH_NORM}
)
Weights = dict[int, Weight]


def is_merge(node: fx.Node, flow: Flow) -> bool:
    """Whether two or more activations meet in ``node``."""
    return kind(node) in MERGES and len(flow.inputs[node]) > 1


def keeps_tokens(node: fx.Node, flow: Flow) -> bool:
    """Whether an operation leaves what a tensor is, token by token: moves, sums, norms,
    activations, products with constants."""
    lone = kind(node) in PRODUCTS and len(flow.inputs[node]) == 1
    return kind(node) in ONE_TO_ONE or lone


def is_still(x: fx.Node, term: fx.Node, flow: Flow) -> bool:
    """Whether a way from x to a term leaves x what it is."""
    return flow.reached_by(x, term, lambda node: keeps_tokens(node, flow))


class Merges:
    """The weights of the terms of each merge, by source."""

    def __init__(self, flow: Flow, axes: Mapping[fx.Node, Axes], sources: Sources) -> None:
        self.flow, self.axes, self.sources = flow, axes, sources
        self.present = Present(flow, axes, sources)
        self._uses = {n: [u for u in n.users if u in flow.members] for n in flow.nodes}
        self.sums: dict[fx.Node, fx.Node] = {}  # the last sum of the sums that each is part of
        added = [n for n in flow.nodes if kind(n) is Kind.SUM and is_merge(n, flow)]
        after = {node: self._next_sum(node) for node in added}
        for node in reversed(added):
            self.sums[node] = self.sums.get(after[node][0], node)
        inside = set(after.values())
        self.terms: dict[fx.Node, list[fx.Node]] = {}
        for node in added:
            terms = [o for o in tensor_inputs(node) if o in flow.members]
            own = [o for o in terms if (node, o) not in inside]
            self.terms.setdefault(self.sums[node], []).extend(own)
        self._skips: dict[tuple[fx.Node, ...], list[fx.Node]] = {}
        self._roots: dict[tuple[int, tuple[fx.Node, ...]], fx.Node | None] = {}
        self._heads = Heads(flow, axes, sources)

    # -- sums of sums are one sum

    def _next_sum(self, node: fx.Node) -> tuple[fx.Node, fx.Node]:
        """The sum that ``node`` is a term of and nothing else, if there is one, and as which term;
        else ``node`` itself."""
        term = node
        while len(self._uses[term]) == 1 and tensor_inputs(self._uses[term][0]).count(term) == 1:
            (above,) = self._uses[term]
            if kind(above) is Kind.SUM and is_merge(above, self.flow):
                return above, term
            if len(self.flow.inputs[above]) > 1 or not keeps_tokens(above, self.flow):
                break
            term = above
        return node, node

    # -- the rules

    def weights(self, step: Step, bit: int) -> Weights:
        """How much of the field that is on its way to one source each operand carries, by its
        position; one from which no way leads there is not among them."""
        node, taken = step.node, self.sources.taken[step.node]
        reached = [i for i, o in enumerate(step.operands) if taken[i] and self.sources.of(o) & bit]
        if node in self.sums:
            terms = self.terms[self.sums[node]]
            counted = self._after_skips([t for t in terms if self.sources.of(t) & bit], bit)
            return {i: self._of_sum(step.operands[i], terms, counted, bit) for i in reached}
        if kind(node) is Kind.LINEAR:
            return dict.fromkeys(reached, self._heads.modules(node, bit))
        beside = lies_beside(node, self.axes)
        if kind(node) in PLACED or (kind(node) is Kind.JOIN and not beside):
            return dict.fromkeys(reached, 1.0)
        if beside:
            pieces = [(o, o) for o, takes in zip(step.operands, taken, strict=True) if takes]
            if (share := self._heads.share(pieces, bit)) is not None:
                return dict.fromkeys(reached, share)
        terms = [step.operands[i] for i in reached]
        if len(terms) > 1:
            if kind(node) in SKIPPED:
                terms = self._after_skips(terms, bit)
            else:  # of a product, what is one number for all tokens is a factor
                terms = [t for t in terms if not self._is_one_for_all(t)] or terms
        return {i: self._part(step.operands[i], terms, bit) for i in reached}

    def _of_sum(
        self, term: fx.Node, terms: list[fx.Node], counted: list[fx.Node], bit: int
    ) -> Weight:
        """What a term of a sum carries; a sum that is part of this one has terms of its own."""
        if term not in terms:
            return 1.0
        share = self._heads.share(self._of_one_weight(term, terms), bit)
        return self._part(term, counted, bit) if share is None else share

    def _of_one_weight(self, term: fx.Node, terms: list[fx.Node]) -> list[tuple[fx.Node, fx.Node]]:
        """The terms of a sum that are layers with parts of one output weight, ``term``'s among
        them, and what each reads."""
        layers = {t: layer for t in terms if (layer := self._layer(t)) is not None}
        weights = {t: weights_of(layer) for t, layer in layers.items()}
        same = [t for t in layers if weights[t] == weights.get(term)]
        return [(t, operand(layers[t])) for t in same] if len(same) > 1 else []

    def _layer(self, term: fx.Node) -> fx.Node | None:
        """The linear layer whose result a term is, if it is one."""
        while kind(term) is not Kind.LINEAR:
            if len(self.flow.inputs[term]) != 1 or not keeps_tokens(term, self.flow):
                return None
            term = self.flow.inputs[term][0]
        return term

    def _part(self, term: fx.Node, terms: list[fx.Node], bit: int) -> Weight:
        """1/k of the k terms that are there, place by place where some are not everywhere."""
        if term not in terms:
            return 0.0
        shape = self._token_shape(term)
        alike = [t for t in terms if self._token_shape(t) == shape]
        if len(terms) < 2 or len(alike) < 2:
            return 1 / len(terms)
        there = [self.present.at(t, bit) for t in alike]
        if all(t is None for t in there):
            return 1 / len(terms)
        one = torch.ones((), dtype=torch.float64, device="cpu")
        wide = torch.broadcast_tensors(*(one if t is None else t for t in there))
        if all(torch.equal(t, wide[0]) for t in wide):
            return 1 / len(terms)
        count = torch.stack(wide).sum(0) + len(terms) - len(alike)
        share = wide[alike.index(term)] / count.clamp(min=1)
        return Places(share)

    def _after_skips(self, terms: list[fx.Node], bit: int) -> list[fx.Node]:
        """Skip connections: of some terms those that are still x, if together they hold every token
        of x; x is the nearest tensor through which every path from the source to them passes."""
        if len(terms) < 2:
            return terms
        key = tuple(terms)
        x = self._nearest(bit, key)
        if x is None:
            return terms
        if (x, *key) not in self._skips:
            still = [t for t in terms if is_still(x, t, self.flow)]
            whole = sum(map(self._tokens, still)) >= self._tokens(x)
            self._skips[x, *key] = still if still and whole else terms
        return self._skips[x, *key]

    def _nearest(self, bit: int, terms: tuple[fx.Node, ...]) -> fx.Node | None:
        """The nearest tensor through which every path from a source to some terms passes."""
        roots = self.sources.roots(bit)
        x = self.flow.common_dominator(terms)
        if x is not None and all(self.flow.reaches(root, x) for root in roots):
            return x
        if (bit, terms) not in self._roots:
            reaches = self.flow.reaches
            between = (
                n
                for n in self.flow.nodes
                if any(reaches(r, n) for r in roots) and any(reaches(n, t) for t in terms)
            )
            self._roots[bit, terms] = Flow(between, set(roots)).common_dominator(terms)
        return self._roots[bit, terms]

    def _is_one_for_all(self, term: fx.Node) -> bool:
        """Whether a tensor has one token, or the same at every token."""
        while self._tokens(term) > 1:
            spreads = kind(term) in ONE_TO_ONE or kind(term) is Kind.RESAMPLE
            if not spreads or len(self.flow.inputs[term]) != 1:
                return False
            term = self.flow.inputs[term][0]
        return True

    def _token_shape(self, node: fx.Node) -> list[int]:
        """A tensor's shape, with 1 for what holds no tokens."""
        axes = self.axes.get(node, ())
        return [n if token_count(a) > 1 else 1 for n, a in zip(val(node).shape, axes, strict=False)]

    def _tokens(self, node: fx.Node) -> int:
        return math.prod(map(token_count, self.axes.get(node, ())))
