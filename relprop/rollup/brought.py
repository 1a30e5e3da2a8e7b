"""Which tokens of a stream each term of a merge brings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from operator import or_

import torch
from torch import Tensor, fx

from relprop.operations import FILLS, MOVES, Kind, kind
from relprop.tracer.atoms import Axes
from relprop.tracer.editing import is_tensor, tensor_inputs, val
from relprop.tracer.follow import follow
from relprop.tracer.labels import Labels
from relprop.tracer.order import Flow

PRODUCTS = frozenset({Kind.PRODUCT, Kind.QUOTIENT})
ONE_TO_ONE = (
    MOVES
    | FILLS
    | {Kind.IDENTITY, Kind.DETACH, Kind.CAST, Kind.AFFINE, Kind.FUNCTION, Kind.SUM}
    | {Kind.SOFTMAX, Kind.LOG_SOFTMAX, Kind.NORM, Kind.BATCH_NORM}
)


class Brought:
    """Which token of x stands at each place of a few terms, where it is one alone."""

    def __init__(
        self, x: fx.Node, terms: list[fx.Node], flow: Flow, axes: Mapping[fx.Node, Axes]
    ) -> None:
        shape = tuple(val(x).shape)
        sizes = [
            size if any(atom.kind == "token" for atom in axis) else 1
            for size, axis in zip(shape, axes.get(x, ((),) * len(shape)), strict=True)
        ]
        self.count = math.prod(sizes)
        start = torch.arange(1, self.count + 1, dtype=torch.float64).reshape(sizes).expand(shape)
        self._flow, self._terms, self._moves = flow, terms, Labels()
        self.tokens = follow(flow.nodes, {x: start.contiguous()}, self._after)
        self._reached = follow(flow.nodes, {x: _held(start)}, self._all_after)

    def _after(self, node: fx.Node, tokens: Mapping[fx.Node, Tensor]) -> Tensor | None:
        """One token at each place as well, after ``node``: a move, a linear map of features or an
        operation on each token."""
        inputs = self._flow.inputs[node]
        if not is_tensor(node) or any(i not in tokens for i in inputs):
            return None
        if not any(self._flow.reaches(node, term) for term in self._terms):
            return None
        shape = tuple(val(node).shape)
        if kind(node) in MOVES and len(inputs) == 1:
            return self._moves.push(node, {inputs[0]: tokens[inputs[0]]})
        if kind(node) is Kind.LINEAR and tuple(inputs) == tensor_inputs(node)[:1]:
            first = tokens[inputs[0]][..., :1]
            one = bool((tokens[inputs[0]] == first).all())
            return first.expand(shape).contiguous() if one else None
        if kind(node) not in ONE_TO_ONE | PRODUCTS:
            return None
        try:
            met = torch.broadcast_tensors(*(tokens[i] for i in inputs))
        except RuntimeError:
            return None
        one = met[0].shape == shape and all(bool((m == met[0]).all()) for m in met)
        return met[0].contiguous() if one else None

    def _all_after(self, node: fx.Node, reached: Mapping[fx.Node, int]) -> int | None:
        """All tokens on which ``node`` depends, one bit each."""
        if not any(self._flow.reaches(node, term) for term in self._terms):
            return None
        if node in self.tokens:
            return _held(self.tokens[node])
        return reduce(or_, (reached[i] for i in self._flow.inputs[node] if i in reached), 0)

    def are_apart(self) -> bool:
        """Whether no two of the terms depend on one token, each on one at least."""
        found = [self._reached.get(term, 0) for term in self._terms]
        return self.count > 1 and all(found) and sum(found) == reduce(or_, found)

    def all_in(self, term: fx.Node, clear: list[fx.Node]) -> bool:
        """Whether ``clear`` terms bring all that ``term`` brings: every token of x, or at each
        place the same one."""
        found = self._found(clear)
        if not found or self.count < 2 or self._all(found):
            return True
        here = self.tokens.get(term)
        return here is not None and any(_same(f, here) for f in found)

    def differ(self, terms: list[fx.Node]) -> bool:
        """Whether ``terms`` hold different tokens of x at the same place: one each and each token
        as often, or (positions that a head picks) not all of x."""
        found = self._found(terms)
        if len(terms) < 2 or self.count < 2 or not found:
            return False
        picked = not self._all(found)
        if len(found) < len(terms):
            return picked
        pairs = [(f, g) for k, f in enumerate(found) for g in found[:k]]
        if picked:
            return not all(_same(f, g) for f, g in pairs)
        once = {int(n) for f in found for n in f.unique(return_counts=True)[1]}  # type: ignore[no-untyped-call]
        apart = all(f.shape == g.shape and bool((f != g).all()) for f, g in pairs)
        return len(once) == 1 and apart and all(bool((f > 0).all()) for f in found)

    def _found(self, terms: list[fx.Node]) -> list[Tensor]:
        return [t for o in terms if (t := self.tokens.get(o)) is not None and t.numel()]

    def _all(self, found: list[Tensor]) -> bool:
        tokens = torch.cat([f.flatten() for f in found]).unique()
        return int((tokens > 0).sum()) == self.count


def _held(labels: Tensor) -> int:
    return sum(1 << int(token) for token in labels.unique().tolist() if token)


def _same(f: Tensor, g: Tensor) -> bool:
    return f.shape == g.shape and bool((f == g).all())
