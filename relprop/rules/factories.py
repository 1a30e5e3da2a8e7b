"""Rules with numbers of one's own, for one operation, class or path (``with_rule``): ``epsilon``,
``gamma``, ``alpha_beta``, ``z_box``, ``w_squared``, ``flat``.

Each is for operations that are linear in one activation, z = Σ_j x_j·w_j + b: given to a module, it
takes every such one in the module's call. ``alpha_beta`` and the three after it share R by the
terms of that operation on other numbers than x, w and b.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import OptionError
from relprop.numerics import Epsilon, negative, positive
from relprop.operations import Kind
from relprop.rules.attnlrp import SUMMED
from relprop.rules.baselines import GAMMA, EpsilonLinear, Gamma
from relprop.rules.call import Call, Split
from relprop.rules.families import NO_POSITIVE, Part, Terms
from relprop.rules.gradient_form import Damped, Form
from relprop.rules.rule import Rule, RuleFunction

LINEAR = frozenset({Kind.LINEAR, Kind.MATMUL, *SUMMED})
NO_NEGATIVE = "no negative term"
Bound = float | Tensor


POSITIVE = Terms(
    parts=(Part(positive, positive, positive), Part(negative, negative)), cause=NO_POSITIVE
)
NEGATIVE = Terms(
    parts=(Part(positive, negative, negative), Part(negative, positive)), cause=NO_NEGATIVE
)


@dataclass(frozen=True)
class AlphaBeta:
    """α·R by the positive terms, −β·R by the negative ones."""

    alpha: float
    beta: float

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        plus, minus = POSITIVE(self.alpha * relevance, call), NEGATIVE(-self.beta * relevance, call)
        both: Any = zip(plus.shares, minus.shares, strict=True)
        shares = tuple(None if one is None else one + other for one, other in both)
        return Split(shares, {**plus.lost, **minus.lost})


def _made(name: str, function: RuleFunction, form: Form | None = None) -> Rule:
    reads = frozenset({"inputs"})
    return Rule(function, name, "share", reads, gradient=form, kinds=LINEAR)


@guarded
def epsilon(epsilon: float = 1e-6) -> Rule:
    """LRP-ε: R_j = x_j·w_j·R/(z + ε·sgn z); ε is absolute (Bach et al. 2015, Eq. 58).

    The bias absorbs its share. What ε holds back is booked as the stabiliser's.

    >>> import relprop, torch
    >>> rules = relprop.rules.ATTNLRP.with_rule(torch.nn.Linear, relprop.rules.epsilon(0.1))
    """
    number = at_least_zero("epsilon", epsilon)
    return _made(f"LRP-ε, ε = {number:g}", EpsilonLinear(Epsilon(number)), Damped(number))


@guarded
def gamma(gamma: float = GAMMA) -> Rule:
    """LRP-γ: terms with the sign of z count 1 + γ times (Montavon et al. 2019, 10.2.3; Andéol et
    al. 2021, for values of either sign). The bias absorbs its share."""
    made = Gamma(at_least_zero("gamma", gamma))
    return _made(f"LRP-γ, γ = {made.gamma:g}", made, made.form)


@guarded
def alpha_beta(alpha: float = 2.0, beta: float = 1.0) -> Rule:
    """LRP-αβ: R_j = (α·(x_j·w_j)⁺/z⁺ − β·(x_j·w_j)⁻/z⁻)·R, where z± = Σ_j (x_j·w_j)± + b±
    (Bach et al. 2015, Eq. 60). α − β must be 1; the bias absorbs its share."""
    made = AlphaBeta(at_least_zero("alpha", alpha), at_least_zero("beta", beta))
    if not math.isclose(made.alpha - made.beta, 1.0, abs_tol=1e-9):
        fact = f"alpha={alpha!r}, beta={beta!r}: what is shared out is α − β = "
        raise OptionError(
            f"{fact}{made.alpha - made.beta:g} times what arrives, and must be 1 time",
            then=[f"alpha_beta({made.beta + 1:g}, {made.beta:g})"],
        )
    return _made(f"LRP-αβ, α = {made.alpha:g}, β = {made.beta:g}", made)


@guarded
def z_box(low: Bound, high: Bound) -> Rule:
    """z^B, for a first layer whose inputs x_j lie between l_j and h_j, as pixels do:
    R_j = (x_j·w_j − l_j·w_j⁺ − h_j·w_j⁻)·R/Σ (Montavon et al. 2017, Table 1). The bias takes no
    part.

    ``low`` and ``high``: the smallest and the largest value that an input can have, as numbers or
    as tensors that stretch to one sample's, ``(channels, 1, 1)``: for pixels from 0 to 1,
    normalised, −mean/std and (1 − mean)/std.
    """
    ends = [torch.as_tensor(end) for end in (low, high)]
    try:
        least, most = torch.broadcast_tensors(*ends)
    except RuntimeError as error:
        shapes = " and ".join(str(tuple(end.shape)) for end in ends)
        raise OptionError(f"low and high have the shapes {shapes}, which do not meet") from error
    if not bool((least <= most).all()):
        raise OptionError(f"low={low!r} is not below high={high!r} everywhere")
    parts = (
        Part(torch.positive, torch.positive),
        Part(partial(_stretched, -ends[0]), positive),
        Part(partial(_stretched, -ends[1]), negative),
    )
    return _made("z^B", Terms(parts=parts))


@guarded
def w_squared() -> Rule:
    """w²: R_j = w_j²·R/Σ w², whatever x is (Montavon et al. 2017, Table 1). The bias takes no
    part."""
    return _made("w²", Terms(parts=(Part(torch.ones_like, torch.square),)))


@guarded
def flat() -> Rule:
    """R spread evenly over the inputs that an output is made of (Lapuschkin et al. 2019). The bias
    takes no part."""
    return _made("flat", Terms(parts=(Part(torch.ones_like, torch.ones_like),)))


def _stretched(end: Tensor, x: Tensor) -> Tensor:
    return end.to(dtype=x.dtype, device=x.device).expand_as(x)


def at_least_zero(name: str, value: float) -> float:
    """Raises ``OptionError`` for what is no finite number ≥ 0."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and value >= 0):
        raise OptionError(f"{name}={value!r}: a finite number, 0 or more")
    return float(value)
