"""Eq. 5 on a large linear layer by three products, with the output that the forward pass has.

Z⁺ = Σ(x_j·w_j)⁺ is half of Σ x_j·w_j + Σ|x_j·w_j|, and what goes back is parted in the same way. A
difference of such sums loses digits where Z⁺ is small beside Σ|x_j·w_j|: rows where an output is
are done by the four products of ``closed.Linear``, in which nothing cancels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from relprop.numerics import just_below, positive, smallest
from relprop.operations.looking import is_recorded
from relprop.rules.call import Call, Split
from relprop.rules.closed import Linear
from relprop.rules.families import NO_POSITIVE, lost_at_zero

#: Weights of more numbers are large: below, more calls take longer than a product.
LARGE = 2**18
#: What Z⁺ is at least of Σ|x_j·w_j| where three products do: four bits are lost then.
LEAST = 1 / 16


@dataclass(frozen=True)
class LargeLinear:
    """Eq. 5 on ``linear(x, W, b)`` with y: 2Z = y − b + |x||W|ᵀ, S = R/2Z,
    R_x = x⊙(S W) + |x|⊙(S|W|). A run that is recorded cannot look which rows need four products,
    and makes all of them by four."""

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        x, weight = call.inputs[:2]
        alone = call.activations != (0,) or weight.dim() != 2
        if alone or is_recorded():
            return Linear()(relevance, call)
        bias = call.argument(2, "bias")
        share, s = _Terms.apply(relevance, x, weight, call.output, bias)
        return Split(call.only(share), lost_at_zero(relevance, s, NO_POSITIVE))


class _Terms(torch.autograd.Function):
    """R_x and S of rows x (..., inputs), for relevance (..., outputs) that may have axes before
    those of x, of walks that begin elsewhere. It can look at values in a ``vmap``."""

    @staticmethod
    def forward(
        relevance: Tensor, x: Tensor, weight: Tensor, output: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Both, by three products and where need be by four. What is large is written over."""
        sizes, lengths = weight.abs(), x.abs()
        magnitude = F.linear(lengths, sizes, None if bias is None else -bias)
        twice = output + magnitude
        if bias is not None:
            magnitude.add_(bias + bias.abs())
        few = (twice < magnitude.mul_(2 * LEAST)).any(-1)
        del magnitude
        # what is below 0 is of the few
        least = just_below(2 * smallest(twice.dtype), twice.dtype)
        s = relevance / torch.threshold(twice, least, math.inf)
        del twice
        share = (s @ weight).mul_(x)
        share.add_((s @ sizes).mul_(lengths))
        if few.any():
            del sizes, lengths
            mine = Linear().half(relevance[..., few, :], x[few], weight, positive)
            share[..., few, :], _, s[..., few, :] = mine  # of S is read where it is 0
        return share, s

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept: relevance is not differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
        """All samples as more rows, all walks as more relevance."""
        relevance, x, weight, output, bias = given
        if in_dims[2] is not None or in_dims[4] is not None:
            every = (_unbound(info.batch_size, *each) for each in zip(given, in_dims, strict=True))
            made = [_Terms.apply(*one) for one in zip(*every, strict=True)]
            return tuple(map(torch.stack, zip(*made, strict=True))), (0, 0)
        if in_dims[1] is None and in_dims[3] is None:  # other walks over the same values
            return _Terms.apply(relevance.movedim(in_dims[0], 0), *given[1:]), (0, 0)
        x, output = (_in_front(t, d, info) for t, d in ((x, in_dims[1]), (output, in_dims[3])))
        walks = relevance.dim() - x.dim() + (in_dims[0] is None)
        relevance = _in_front(relevance, in_dims[0], info).movedim(0, walks)
        return _Terms.apply(relevance, x, weight, output, bias), (walks, walks)


def _in_front(t: Tensor, dim: int | None, info: Any) -> Tensor:
    if dim is None:
        return t.expand(info.batch_size, *t.shape)
    return t.movedim(dim, 0)


def _unbound(count: int, given: Any, dim: int | None) -> Any:
    return [given] * count if dim is None else given.unbind(dim)
