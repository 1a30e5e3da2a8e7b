"""What only the authors' published code does, so that ``reference`` and ``reference_lrp`` reproduce
its numbers.

Facts about that code, written anew: their stabiliser stands on index, cat and fan-out too, pools
(in whatever way a mean is written) take the generic z-rule, a three-channel convolution is taken to
be the image's and gets the z^B rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relprop.numerics import AuthorsStabiliser, Divide, negative, positive, total
from relprop.rules import moves
from relprop.rules.call import Call, Split
from relprop.rules.closed import Conv2d, by_convolution
from relprop.rules.families import GENERIC, Share
from relprop.rules.rule import Rule
from relprop.rules.sums import STABILISER


def stabilised_sum(value: Tensor, relevances: tuple[Tensor, ...]) -> Tensor:
    """Fan-out: x · Σ_k R_k/(x + 1e-9), which is the sum up to the stabiliser, 0 where x = 0, and
    the sum where x is infinite (masked scores)."""
    divide = AuthorsStabiliser()
    kept = value * sum((divide(r, value) for r in relevances[1:]), divide(relevances[0], value))
    return torch.where(value.isinf(), sum(relevances[1:], relevances[0]), kept)


def stabilised_move(inverse: Rule, name: str) -> Rule:
    """x · R/(x + 1e-9) in place of R, then ``inverse``; what their stabiliser takes is booked to
    it."""

    def function(relevance: Tensor, call: Call) -> Split:
        kept = stabilised_sum(call.output, (relevance,))
        return Split(tuple(inverse.function(kept, call)), {STABILISER: total(relevance - kept)})

    return Rule(function, name, "move")


#: Selection of a token, and concatenation, cut where it was joined.
indexed = stabilised_move(moves.select, "select, authors'")
joined = stabilised_move(moves.cat, "cat, authors'")


@dataclass(frozen=True)
class OrigLinear:
    """Their LRP baseline's linear rule: the positive and the negative half are normalised apart, so
    that relevance doubles."""

    divide: Divide
    alpha: float = 1.0

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        if call.activations != (0,):
            return Share(self.divide)(relevance, call)
        x, weight = call.inputs[0], call.inputs[1]
        share = self.halves(relevance, x, positive(weight), negative(weight))
        if self.alpha != 1:
            share = self.alpha * share - (self.alpha - 1) * self.halves(
                relevance, x, negative(weight), positive(weight)
            )
        return Split(call.only(share), {GENERIC: total(relevance) - total(share)})

    def halves(self, relevance: Tensor, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        """x⁺⊙(R/(x⁺w1) w1) + x⁻⊙(R/(x⁻w2) w2)."""
        parts = ((positive(x), w1), (negative(x), w2))
        first, second = (part * (self.divide(relevance, part @ w.mT) @ w) for part, w in parts)
        return first + second


@dataclass(frozen=True)
class InputConv2d:
    """z^B on a three-channel input, with the sample's own minimum and maximum as bounds; Eq. 5 on
    every other convolution."""

    divide: Divide

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        x, weight = call.inputs[0], call.inputs[1]
        if call.activations != (0,) or x.dim() != 4 or x.shape[1] != 3:
            return Conv2d(self.divide)(relevance, call)
        low = torch.zeros_like(x) + x.amin((1, 2, 3), keepdim=True)
        high = torch.zeros_like(x) + x.amax((1, 2, 3), keepdim=True)
        terms = ((x, weight), (-low, positive(weight)), (-high, negative(weight)))
        share, _, _ = by_convolution(relevance, call, terms, lambda r, z: r / (z + 1e-9))
        return Split(call.only(share), {GENERIC: total(relevance) - total(share)})
