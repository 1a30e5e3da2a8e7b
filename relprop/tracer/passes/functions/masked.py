"""Exponentials over their sum, of which masks leave some out: the softmax of what is left."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.operations import Kind, argument, is_call, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_float,
    is_live,
    is_number,
    is_tensor,
    rank,
    val,
)
from relprop.tracer.passes.trials.subgraphs import Subgraph

#: What of zeros and ones makes zeros and ones.
_OF_MASKS = frozenset({Kind.CAST, Kind.FILL, Kind.RESHAPE, Kind.EXPAND, Kind.PERMUTE})


_OF_MASKS |= {Kind.SLICE, Kind.SELECT}


def softmax_of(subgraph: Subgraph, axis: int, constants: Constants) -> fx.Node | None:
    """e/Σe of exponentials is the softmax of their exponents; where some are left out by a mask, of
    exponents that are −∞ there: a row of which nothing is left is none, or zeros."""
    at = subgraph.output
    scores = _exponents(at, subgraph.source, axis, constants)
    if scores is None or val(scores).dtype != val(at).dtype:
        return None
    for mask in subgraph.parameters:
        scores = _without(at, scores, emit(at, aten.eq.Scalar, mask, 0))
    if kind(scores) is not Kind.CHOICE:
        return emit(at, aten.softmax.int, scores, axis)
    nothing = _of_zeros(subgraph)
    if nothing.isnan().all():
        return emit(at, aten.softmax.int, scores, axis)
    return None if nothing.any() else emit(at, aten._safe_softmax.default, scores, axis)


def _of_zeros(subgraph: Subgraph) -> Tensor:
    """What a subgraph gives where no number is left."""
    types = [
        torch.bool if val(p).dtype == torch.bool else torch.float64 for p in subgraph.parameters
    ]
    shapes = subgraph.parameter_shapes()
    ones = [torch.ones(s, dtype=d) for s, d in zip(shapes, types, strict=True)]
    return subgraph(torch.zeros(subgraph.probe_shape(), dtype=torch.float64), *ones)


def _without(at: fx.Node, scores: fx.Node, hidden: fx.Node) -> fx.Node:
    return emit(at, aten.masked_fill.Scalar, scores, hidden, -torch.inf)


def _exponents(at: fx.Node, e: fx.Node, axis: int, constants: Constants) -> fx.Node | None:
    """The exponents of numbers, as far as their row tells them: of exponentials, of a softmax, of
    products and quotients of such, of some that are picked from their row; −∞ where a mask leaves
    numbers out."""
    if kind(e) is Kind.GATHER and argument(e, "dim") % rank(e) - rank(e) == axis - rank(at):
        scores = _exponents(at, operand(e), axis, constants)
        return scores and emit(at, aten.gather.default, scores, *arguments(e)[1:])
    own = kind(e) is Kind.SOFTMAX and arguments(e)[1] - rank(e) == axis - rank(at)
    if is_call(e, aten.exp) or own:
        return operand(e)
    if (part := kept(e, constants)) is not None:
        scores = _exponents(at, part.x, axis, constants)
        return None if scores is None else _without(at, scores, part.hidden(at))
    if not is_call(e, aten.mul, aten.div) or not all(is_tensor(x) for x in arguments(e)):
        return None
    x, counts = sorted(arguments(e), key=is_count)
    if is_call(e, aten.mul) and is_count(counts):
        scores = _exponents(at, x, axis, constants)
        if scores is None:
            return None
        more = emit(at, aten.log.default, emit(at, aten.to.dtype, counts, val(x).dtype))
        scores = emit(at, aten.add.Tensor, scores, more)
        return _without(at, scores, emit(at, aten.eq.Scalar, counts, 0))
    both = [_exponents(at, x, axis, constants) for x in arguments(e)]
    op = aten.add.Tensor if is_call(e, aten.mul) else aten.sub.Tensor
    return None if None in both else emit(at, op, *both)


@dataclass(frozen=True)
class Kept:
    """What a call keeps of ``x``, all else being 0: where a ``condition`` holds, or, ``negated``,
    where it does not. The condition is truth values, or a mask of zeros and ones."""

    x: fx.Node
    condition: fx.Node
    negated: bool = False

    def hidden(self, at: fx.Node) -> fx.Node:
        """Where nothing is kept, as truth values."""
        if self.negated and val(self.condition).dtype == torch.bool:
            return self.condition
        holds = aten.ne.Scalar if self.negated else aten.eq.Scalar
        return emit(at, holds, self.condition, 0)


def kept(node: fx.Node, constants: Constants) -> Kept | None:
    """What a choice between a tensor and 0, a fill by 0, or a product with a mask keeps."""
    args = arguments(node)
    if is_call(node, aten.masked_fill) and is_number(args[2], 0):
        return Kept(args[0], args[1], negated=True)
    if is_call(node, aten.where) and len(args) == 3:
        for x, other, negated in ((args[1], args[2], False), (args[2], args[1], True)):
            if is_tensor(x) and is_number(other, 0):
                return Kept(x, args[0], negated)
    for x, mask in (args, args[::-1]) if is_call(node, aten.mul) else ():
        if is_tensor(x) and is_mask(mask, constants):
            return Kept(x, mask)
    return None


def is_count(x: object) -> bool:
    """Whether a tensor is whole numbers of an input, cast and moved: a mask that is given as
    numbers, or how often something counts."""
    while is_tensor(x) and is_live(x) and kind(x) in _OF_MASKS - {Kind.FILL}:
        x = operand(x)
    return is_tensor(x) and is_live(x) and not is_float(x) and val(x).dtype != torch.bool


def is_mask(x: object, constants: Constants) -> bool:
    """Whether a tensor holds zeros and ones and nothing else: truth values, moved, multiplied, or
    taken from 1."""
    left = [x]
    while left:
        here = left.pop()
        if not is_tensor(here):
            return False
        if val(here).dtype == torch.bool:
            continue
        if kind(here) in _OF_MASKS or (is_call(here, aten.rsub) and arguments(here)[1:] == (1,)):
            left += arguments(here)[:1]
        elif kind(here) is Kind.PRODUCT:
            left += arguments(here)
        else:
            known = None if is_live(here) else constants.value(here)
            if not isinstance(known, Tensor) or not bool(((known == 0) | (known == 1)).all()):
                return False
    return True
