"""Closed forms of the hot ops. Each equals its family in ``families.py`` (a test holds both
together) and reuses what the forward pass has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

from relprop.numerics import Divide, negative, positive, safe_divide, total
from relprop.operations import Value, packet
from relprop.operations.looking import is_recorded
from relprop.rules.call import Call, Split, Total
from relprop.rules.families import NO_POSITIVE, ZERO, Halves, Share, lost_by_division

aten = torch.ops.aten


@dataclass(frozen=True)
class Linear:
    """Eq. 5 on ``linear(x, W, b)``, of groups or not: Z = x⁺W⁺ᵀ + x⁻W⁻ᵀ, S = R/Z,
    R_x = x⁺⊙(S W⁺) + x⁻⊙(S W⁻): four matrix products.

    ``alpha`` ≠ 1 is the α-β rule, α·f(W⁺, W⁻) − (α−1)·f(W⁻, W⁺).
    """

    divide: Divide = safe_divide
    alpha: float = 1.0

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        if call.activations != (0,):
            return Share(self.divide)(relevance, call)
        x, weight = call.inputs[0], call.inputs[1]
        share, z, s = self.half(relevance, x, weight, positive)
        if self.alpha != 1:
            inhibitor, _, _ = self.half(relevance, x, weight, negative)
            share = self.alpha * share - (self.alpha - 1) * inhibitor
        return Split(call.only(share), lost_by_division(relevance, s, z, NO_POSITIVE, self.divide))

    def half(
        self, relevance: Tensor, x: Tensor, weight: Tensor, part: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """R_x, Z and S for positive inputs through a ``part`` of the weight, W⁺ or W⁻, and negative
        ones through the other.

        The other is what is left of the weight, so that there is one copy of it at a time; but for
        its sign, which is exact. A run that is recorded writes nothing in place.
        """
        up, down, w = positive(x), negative(x), part(weight)
        recorded = is_recorded()
        z = _through(up, w)
        rest = w - weight if recorded else w.sub_(weight)
        z = z - _through(down, rest)
        s = self.divide(relevance, z)
        share = down * (s @ rest)
        del down  # the largest step of an explanation comes next
        w = w if recorded else rest.add_(weight)
        return up * (s @ w) - share, z, s


def _through(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight) if weight.dim() == 2 else x @ weight.mT


def is_convolution_of_images(call: Call) -> bool:
    """Whether a call is ``conv2d`` of an activation, with a batch, and padding in numbers."""
    images = packet(call.op) is aten.conv2d and call.inputs[0].dim() == 4
    alone = images and call.activations == (0,)
    return alone and not isinstance(call.argument(4, "padding", 0), str)


def transposed(call: Call, s: Tensor, weight: Tensor) -> Tensor:
    """S through the transposed convolution, in the shape of the input."""
    made: Tensor = conv2d_input(call.inputs[0].shape, weight, s, *_options(call))
    return made


def _options(call: Call) -> list[Value]:
    given = enumerate({"stride": 1, "padding": 0, "dilation": 1, "groups": 1}.items(), 3)
    return [call.argument(i, name, default) for i, (name, default) in given]


def by_convolution(
    relevance: Tensor, call: Call, terms: Sequence[tuple[Tensor, Tensor]], divide: Divide
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ_k x_k ⊙ (S through the transposed w_k) for terms (x_k, w_k), S = R/Z, and S and Z, their
    convolutions' sum."""
    first, *others = (F.conv2d(x, w, None, *_options(call)) for x, w in terms)
    z = sum(others, first)
    s = divide(relevance, z)
    share, *more = (x * transposed(call, s, w) for x, w in terms)
    return sum(more, share), s, z


@dataclass(frozen=True)
class Conv2d:
    """Eq. 5 on ``conv2d``, with the transposed convolution in place of the derivative."""

    divide: Divide = safe_divide

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        if not is_convolution_of_images(call):
            return Share(self.divide)(relevance, call)
        x, weight = call.inputs[0], call.inputs[1]
        halves = ((positive(x), positive(weight)), (negative(x), negative(weight)))
        share, s, z = by_convolution(relevance, call, halves, self.divide)
        return Split(call.only(share), lost_by_division(relevance, s, z, NO_POSITIVE, self.divide))


@dataclass(frozen=True)
class Matmul:
    """Eq. 6 with Lemma 2's ½ on ``matmul(u, v)``: Z is the forward's own output, S = R/Z, R^u =
    ½·u⊙(S vᵀ), R^v = ½·v⊙(uᵀ S).

    A share nobody reads is not computed; its sum is ½·Σ S·Z.
    """

    divide: Divide = safe_divide
    half: float = 0.5

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        u, v = call.inputs
        if u.dim() < 2 or v.dim() < 2:
            return Halves(self.divide, self.half)(relevance, call)
        s = self.divide(relevance, call.output)
        needed = [operand.needed for operand in call.operands]
        amount = None if all(needed) else Total(self.half * total(s * call.output))
        lost = lost_by_division(relevance, s, call.output, ZERO, self.divide)
        if s.numel() < u.numel() + v.numel():  # the ½ goes where there are fewer numbers
            half_u, half_v, s = u, v, self.half * s
        else:
            half_u, half_v = self.half * u, self.half * v
        left = half_u * (s @ v.mT).sum_to_size(u.shape) if needed[0] else amount
        right = half_v * (u.mT @ s).sum_to_size(v.shape) if needed[1] else amount
        return Split((left, right), lost)


@dataclass(frozen=True)
class Product:
    """Eq. 6 with Lemma 2's ½ on an elementwise product u·v: R/2 to each, lost where u·v = 0."""

    divide: Divide = safe_divide
    half: float = 0.5

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        s = self.divide(relevance, call.output)
        kept = (s if self.half == 1 else self.half * s) * call.output
        shares = tuple(kept.sum_to_size(x.shape) for x in call.inputs)
        return Split(shares, lost_by_division(relevance, s, call.output, ZERO, self.divide))
