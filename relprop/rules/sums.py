"""Sums of activations: Eq. 6 for each term, then Lemma 2."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relprop.numerics import Divide, just_below, safe_divide, sign, smallest, total
from relprop.operations import packet
from relprop.rules.call import Call, Deferred, Split

CANCEL = "operands cancel"
STABILISER = "stabiliser"


@dataclass(frozen=True)
class Add:
    """Eq. 6 for u + v (or u − v, or more terms), then Lemma 2: each branch times
    sgn(ΣR^u)·ΣR/(|ΣR^u| + |ΣR^v|), never a product of sums.

    ``relative`` > 0 stabilises: the denominator becomes z + ε·sgn(z)·(|u| + |v|), before the
    normalisation, which restores the sum. Where an operand is −inf or a huge negative (a mask), all
    goes to the other. A parameter's share is absorbed.
    """

    divide: Divide | None = None
    relative: float = 0.0
    normalise: bool = True

    def terms(self, call: Call) -> tuple[Tensor, ...]:
        """The tensors whose sum the output is."""
        u, *others = call.inputs
        if packet(call.op) is torch.ops.aten.sub:
            others = [-v for v in others]
        return (u, *others)

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        if len(call.operands) == 1:
            return Split(call.only(relevance))
        if self.normalise:
            shares = self.shares(relevance, call)
            return self.balanced(shares, total(relevance), [total(s) for s in shares])
        parts = self.eq6(relevance, self.terms(call))
        return Split(_fitted(parts, call), Deferred(lambda: self.lost(relevance, parts)))

    def shares(self, relevance: Tensor, call: Call) -> tuple[Tensor, ...]:
        """Eq. 6 for each operand, before Lemma 2."""
        return _fitted(self.eq6(relevance, self.terms(call)), call)

    def balanced(
        self, shares: tuple[Tensor, ...], arrived: Tensor, sums: Sequence[Tensor]
    ) -> Split:
        """Lemma 2 for these shares, of which ``sums`` are the sums over the whole tensor."""
        return Split(*lemma2(arrived, shares, sums, CANCEL, self.divide or safe_divide))

    def lost(self, relevance: Tensor, parts: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """What un-normalised shares leave behind: all of R where they are all 0; elsewhere what the
        stabiliser, if there is one, takes."""
        left, nothing = relevance, torch.ones_like(relevance, dtype=torch.bool)
        for part in parts:
            left, nothing = left - part, nothing & (part == 0)
        lost = {CANCEL: total(torch.where(nothing, left, 0.0))}
        if self.divide is None:
            return lost
        return {**lost, STABILISER: total(torch.where(nothing, 0.0, left))}

    def eq6(self, relevance: Tensor, terms: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """R·u/Σ for each term u. The ratio comes first: it is at most 2/eps, so nothing overflows.

        A term that is a mask takes no part; the only one that is none takes everything. Whole
        numbers and truth values are terms like any other.
        """
        terms = tuple(u.to(relevance.dtype) for u in terms)
        least = -torch.finfo(relevance.dtype).max / 4
        masks = [u < least for u in terms]
        terms = tuple(torch.threshold(u, just_below(least, u.dtype), 0.0) for u in terms)
        z = sum(terms[1:], terms[0])
        if self.relative:
            size = sum((u.abs() for u in terms[1:]), terms[0].abs())
            z = z + self.relative * sign(z) * size
        if self.divide is not None:
            r = self.divide(relevance, z)
            shares = [u * r for u in terms]
        else:
            divisor = torch.threshold(z.abs(), 0.0, math.inf).copysign(z)
            shares = [u / divisor * relevance for u in terms]
        return tuple(
            torch.where(alone, relevance, share)
            for alone, share in zip(_alone(masks), shares, strict=True)
        )


def _alone(masks: Sequence[Tensor]) -> Sequence[Tensor]:
    """For each term, where all others are masks and it is none."""
    if len(masks) == 2:
        return [masks[1] > masks[0], masks[0] > masks[1]]
    left = [~m for m in masks]
    single = torch.stack([m.to(torch.int8) for m in torch.broadcast_tensors(*left)]).sum(0) == 1
    return [single & m for m in left]


def _fitted(parts: tuple[Tensor, ...], call: Call) -> tuple[Tensor, ...]:
    """Shares of broadcast operands, summed to their shapes."""
    return tuple(part.sum_to_size(x.shape) for part, x in zip(parts, call.inputs, strict=True))


def lemma2(
    arrived: Tensor,
    shares: tuple[Tensor, ...],
    sums: Sequence[Tensor],
    cause: str,
    divide: Divide = safe_divide,
) -> tuple[tuple[Tensor, ...], Mapping[str, Tensor]]:
    """Lemma 2's normalisation: each share times sgn(its sum)·ΣR/Σ|sums|, and what is lost: if all
    ``sums`` are 0, everything, to ``cause``.

    A share whose sum is exactly 0 (the lemma divides by it) keeps its signs; with the authors'
    stabiliser it becomes 0, as in their code.
    """
    scale = sum((s.abs() for s in sums[1:]), sums[0].abs())
    nothing = scale < smallest(shares[0].dtype)
    factor = torch.where(nothing, 0.0, divide(arrived, scale))
    even = factor.abs() if divide is safe_divide else torch.zeros_like(factor)
    factors = [torch.where(s == 0, even, s.sign() * factor) for s in sums]
    scaled = tuple(share * f.to(share.dtype) for share, f in zip(shares, factors, strict=True))

    def lost() -> dict[str, Tensor]:
        rest = torch.where(nothing, 0.0, arrived - factor * scale)
        return {cause: torch.where(nothing, arrived, 0.0), STABILISER: rest}

    return scaled, Deferred(lost)
