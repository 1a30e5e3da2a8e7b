"""Rules of LRP on an operation linear in its activation: z⁺ (Eq. 4), LRP-ε and LRP-γ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from relprop.numerics import positive, safe_divide, sign
from relprop.operations import Value
from relprop.rules.call import Call, Split, as_given
from relprop.rules.families import NO_POSITIVE, Part, Share, Terms

#: γ of ``lrp_gamma``, as zennit's ``Gamma`` has it, and its composites for convolutions.
GAMMA = 0.25


@dataclass(frozen=True)
class ZPlus(Terms):
    """Eq. 4 on any op linear in its activation: terms x_j⁺·w_ji⁺ only; the bias takes no part."""

    parts: Sequence[Part] = (Part(positive, positive),)
    cause: str = NO_POSITIVE


@dataclass(frozen=True)
class EpsilonLinear(Terms):
    """LRP-ε: R_x = x · ∂z/∂x · R/(z + ε·sgn z). The bias keeps its part, booked to it by name."""

    parts: Sequence[Part] = (Part(torch.positive, torch.positive, torch.positive),)

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        if len(call.activations) > 1:  # linear in each of them, and in no one of them alone
            return Share(self.divide)(relevance, call)
        return super().__call__(relevance, call)


@dataclass(frozen=True)
class Gamma:
    """LRP-γ on any operation linear in its activation, for values of either sign (Montavon et al.
    2019, 10.2.3; Andéol et al. 2021): with the terms t_j = x_j·w_j of an output z = Σ t_j + b,
    R_j = R·q_j/Σq, where q_j = (1 + γ)·t_j if t_j has the sign of z, else t_j. The bias is a term
    like any other, and absorbs its share by name.

    Of each pair of t and |t| one half is the part of either sign, so with Z = Σ|t_j| + |b|, the
    same operation on magnitudes, Σq = (1 + γ/2)·z + (γ/2)·sgn(z)·Z: two products, and |Σq| ≥ |z|,
    which needs no stabiliser.
    """

    gamma: float

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        raised = replace(call, template=as_given, function=partial(self.raised, call))
        return EpsilonLinear(safe_divide)(relevance, raised)

    def raised(self, call: Call, *inputs: Tensor, made: Tensor | None = None) -> Tensor:
        """Σq of every output; ``made``: z, if it is there."""
        z: Tensor = call.apply(*inputs) if made is None else made
        sizes = call.apply(*(x.abs() if x.is_floating_point() else x for x in inputs))
        raised: Tensor = (1 + self.gamma / 2) * z + (self.gamma / 2) * sign(z) * sizes
        return raised

    def form(self, call: Call) -> Value:
        """z with the derivative of Σq, times z/Σq."""
        z = call.apply(*call.inputs)
        raised = self.raised(call, *call.inputs, made=z)
        part = safe_divide(z.detach(), raised.detach())
        return z.detach() + part * (raised - raised.detach())
