"""Rules of older LRP variants, for comparison: z⁺ (Eq. 4) and LRP-ε."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relprop.numerics import Divide, positive, safe_divide
from relprop.rules.call import Call, Split
from relprop.rules.families import NO_POSITIVE, ZERO, Share, lost_by_division, split_vjp


@dataclass(frozen=True)
class ZPlus:
    """Eq. 4 on any op linear in its activation: terms x_j⁺·w_ji⁺ only; the bias takes no part."""

    divide: Divide = safe_divide

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        x_at = call.activations[0]

        def function(x: Tensor) -> Tensor:
            inputs = [positive(v) if v.is_floating_point() else v for v in call.inputs]
            inputs = [
                torch.zeros_like(v) if o.argument == "bias" else v
                for v, o in zip(inputs, call.operands, strict=True)
            ]
            inputs[x_at] = x
            made: Tensor = call.apply(*inputs)
            return made

        x = positive(call.inputs[x_at])
        z, pull = torch.func.vjp(function, x)  # type: ignore[misc]
        s = self.divide(relevance, z)
        return Split(
            call.only(x * pull(s)[0], x_at),
            lost_by_division(relevance, s, z, NO_POSITIVE, self.divide),
        )


@dataclass(frozen=True)
class EpsilonLinear:
    """LRP-ε: R_x = x · ∂z/∂x · R/(z + ε·sgn z). The bias keeps its part, booked to it by name."""

    divide: Divide

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        if len(call.activations) > 1:
            return Share(self.divide)(relevance, call)
        x_at = call.activations[0]
        bias = [i for i, o in enumerate(call.operands) if o.argument == "bias"]
        z, pull = split_vjp(call, (x_at, *bias))
        s = self.divide(relevance, z)
        shares: list[Tensor | None] = [None] * len(call.operands)
        for i, g in zip((x_at, *bias), pull(s), strict=True):
            shares[i] = call.inputs[i] * g
        return Split(tuple(shares), lost_by_division(relevance, s, z, ZERO, self.divide))
