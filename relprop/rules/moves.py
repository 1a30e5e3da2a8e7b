"""Closed inverses of the commonest moves; each equals ``families.move`` (a test holds both
together), without its overhead."""

from __future__ import annotations

import torch
from torch import Tensor

from relprop.numerics import total
from relprop.rules.call import Call, Deferred, Split, ZeroPadded
from relprop.rules.coarse import cut_of
from relprop.rules.families import FILLED, fill
from relprop.rules.gradient_form import own
from relprop.rules.rule import rule

Shares = tuple[Tensor | ZeroPadded | None, ...]
aten = torch.ops.aten


@rule(family="move", reads="", gradient=own)
def reshape(relevance: Tensor, call: Call) -> Shares:
    """reshape, flatten, squeeze, unsqueeze: back to the input's shape."""
    return _single(relevance.reshape(call.inputs[0].shape), call)


@rule(family="move", reads="", gradient=own)
def permute(relevance: Tensor, call: Call) -> Shares:
    """permute: the inverse permutation."""
    dims = [d % relevance.dim() for d in call.argument(1, "dims")]
    return _single(relevance.permute([dims.index(i) for i in range(len(dims))]), call)


@rule(family="move", reads="", gradient=own)
def expand(relevance: Tensor, call: Call) -> Shares:
    """expand: sums over what was repeated."""
    return _single(relevance.sum_to_size(call.inputs[0].shape), call)


@rule(family="move", reads="", gradient=own)
def select(relevance: Tensor, call: Call) -> Shares:
    """select: zeros but for the chosen slice."""
    shape = call.inputs[0].shape
    axis = call.argument(1, "dim", 0) % len(shape)
    place = call.argument(2, "index") % shape[axis]
    return _single(ZeroPadded(relevance, axis, place, shape), call)


@rule(family="move", reads="", gradient=own)
def slice_(relevance: Tensor, call: Call) -> Shares:
    """slice: zeros outside it."""
    shape = call.inputs[0].shape
    axis = call.argument(1, "dim", 0) % len(shape)
    start, end, step = cut_of(call, shape[axis])
    if step == 1:
        return _single(ZeroPadded(relevance, axis, start, shape), call)
    return _single(aten.slice_backward(relevance, shape, axis, start, end, step), call)


@rule(family="move", reads="", gradient=own)
def cat(relevance: Tensor, call: Call) -> Shares:
    """cat: cut where it was joined. PyTorch lets an empty vector (a fresh cache) pass among tensors
    of any shape."""
    dim = call.argument(1, "dim", 0)
    lengths = [x.shape[dim] if x.dim() == relevance.dim() else 0 for x in call.inputs]
    return tuple(
        part.reshape(x.shape)
        for part, x in zip(relevance.split(lengths, dim), call.inputs, strict=True)
    )


@rule(family="move", reads="", name="fill", gradient=own)
def masked_fill(relevance: Tensor, call: Call) -> Split:
    """masked_fill by a number: what arrives at that is lost, and measured."""
    x, mask, *others = call.inputs
    if others:
        made: Split = fill.function(relevance, call)
        return made
    share = relevance.masked_fill(mask, 0).sum_to_size(x.shape)
    lost = Deferred(lambda: {FILLED: total(torch.where(mask, relevance, 0.0))})
    return Split((share, None), lost)


def _single(share: Tensor | ZeroPadded, call: Call) -> Shares:
    """One floating operand, whatever its role: a parameter's share is booked, too."""
    return (share, *(None for _ in call.operands[1:]))
