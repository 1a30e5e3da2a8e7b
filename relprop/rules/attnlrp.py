"""Rules that treat a transformer as locally linear: LRP-ε wherever an op is linear or bilinear,
Taylor's first order on the softmax.

AttnLRP (Achtibat et al. 2024) and CP-LRP (Ali et al. 2022) differ in two places: what a softmax
hands to its scores, and what a gate receives. As ε → 0 every share is x ⊙ g, where g is a gradient
in which norms divide by a constant, f(x) is x·const and products count half: the gradient forms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relprop.numerics import Divide, Epsilon, safe_divide, total
from relprop.operations import Kind, kind, packet
from relprop.rules.baselines import EpsilonLinear
from relprop.rules.call import Call, Split, Total
from relprop.rules.closed import Matmul, Product, is_convolution_of_images, transposed
from relprop.rules.families import ZERO, Sample, carry, lost_by_division
from relprop.rules.gradient_form import Own, own
from relprop.rules.linear_norm import Norm
from relprop.rules.notes import Constants
from relprop.rules.rule import Rule, rule
from relprop.rules.ruleset import Key
from relprop.rules.sums import STABILISER, Add

#: ε of ``attnlrp`` and ``cp_lrp``, absolute. A term of an all but cancelling sum is held down by
#: it; ordinary sums do not feel it.
EPSILON = 1e-13
INPUTS, BOTH = frozenset({"inputs"}), frozenset({"inputs", "output"})
aten = torch.ops.aten
#: Sums of one operand, with weights or without.
SUMMED = (Kind.CONVOLUTION, Kind.TOTAL, Kind.SCAN, Kind.AVERAGE_POOL, Kind.RESAMPLE, Kind.FOLD)
SOFTMAX = "constant term of the softmax"
CONSTANT = "a number added"


@dataclass(frozen=True)
class Softmax:
    """s = softmax(x), to first order at x: R_i = x_i·(R'_i − s_i·Σ_j R'_j) (Achtibat et al. 2024,
    Prop. 3.1).

    Not conserved: the constant term of the expansion keeps Σ_i R'_i·(1 − x_i + Σ_j s_j·x_j), booked
    by that name. A score that a mask set to −∞ or to a huge negative takes nothing, and neither
    does a row of such scores.
    """

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        s, dim = call.output, call.argument(1, "dim", -1)
        x = call.inputs[0].to(s.dtype)
        x = torch.where(x.abs() > torch.finfo(s.dtype).max / 4, 0.0, x)
        share = x * (relevance - s * relevance.sum(dim, keepdim=True))
        kept = relevance * (1 - x + (s * x).sum(dim, keepdim=True))
        return Split(call.only(share), {SOFTMAX: total(kept)})


@dataclass(frozen=True)
class Linear(EpsilonLinear):
    """LRP-ε on ``linear(x, W, b)`` and ``conv2d`` in closed form, R_x = x ⊙ (R/(z + ε·sgn z))·W; on
    any other op linear in one operand by its derivative."""

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        convolved = is_convolution_of_images(call)
        if call.activations != (0,) or not (convolved or kind(call.op) is Kind.LINEAR):
            return super().__call__(relevance, call)
        x, weight, s = *call.inputs[:2], self.divide(relevance, call.output)
        back = transposed(call, s, weight) if convolved else s @ weight

        def absorbed(bias: Tensor) -> Tensor:
            return bias * (s.sum((0, 2, 3)) if convolved else s.sum_to_size(bias.shape))

        others = (absorbed(o.value) if o.argument == "bias" else None for o in call.operands[1:])
        return Split((x * back, *others), lost_by_division(relevance, s, call.output, ZERO))


@dataclass(frozen=True)
class Sum(Add):
    """LRP-ε on u ± v, R_u = u·R/(u ± v + ε·sgn(u ± v)), without Lemma 2; a number added to a tensor
    absorbs its share, too.

    A mask (−∞ or huge) takes nothing, as in ``Add``.
    """

    normalise: bool = False

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        if len(call.operands) > 1:
            return super().__call__(relevance, call)
        x = -call.inputs[0] if packet(call.op) is aten.rsub else call.inputs[0]
        number = call.output - x
        s = (self.divide or safe_divide)(relevance, call.output)
        masked = number.abs() > torch.finfo(x.dtype).max / 4
        share = torch.where(masked, relevance, x * s)
        absorbed = torch.where(masked, 0.0, number * s)
        return Split(
            (share,), {CONSTANT: total(absorbed), STABILISER: total(relevance - share - absorbed)}
        )


@dataclass(frozen=True)
class Both:
    """LRP-ε on a product u·v of two activations, of matrices or element by element, half to each
    (Achtibat et al. 2024, Prop. 3.3): to the gate of a gated layer as to its values.

    Where the notes of the plan (``relprop.plan.gates``) name a constant of a kind that this rule
    set ``obeys``, everything goes to the other operand. A factor that is one over a deviation is
    such a ``constant``: dividing by σ(x) is the norm's business.
    """

    half_each: Callable[..., Matmul | Product]
    divide: Divide
    obeys: tuple[str, ...]

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        constant = self.constant(call)
        if constant is None:
            return self.half_each(self.divide)(relevance, call)
        unread = tuple(
            replace(o, needed=o.needed and i != constant) for i, o in enumerate(call.operands)
        )
        split = self.half_each(self.divide, half=1.0)(relevance, replace(call, operands=unread))
        return Split(
            tuple(None if i == constant else share for i, share in enumerate(split.shares)),
            split.lost,
        )

    def constant(self, call: Call) -> int | None:
        """Which of the two counts as a constant."""
        noted = call.noted(Constants)
        found = (getattr(noted, kind) for kind in self.obeys)
        return next((at for at in found if at is not None), None)

    def parts(self, call: Call) -> tuple[float, ...]:
        """What part of R each gets: half, or all and nothing beside a constant."""
        constant = self.constant(call)
        return (0.5, 0.5) if constant is None else tuple(float(i != constant) for i in range(2))


@rule(
    family="balance",
    reads="",
    name="quotient: the divisor is a constant",
    row_wise=True,
    gradient=Own(lambda call: (1.0, 0.0)),
)
def quotient(relevance: Tensor, call: Call) -> tuple[Tensor | Total | None, ...]:
    """u/v of two activations: R to the numerator (Achtibat et al. 2024, Prop. 3.4, of x/g(x))."""
    return call.only(relevance, 0)


def attnlrp_lines(
    epsilon: float = EPSILON, *, constants: tuple[str, ...] = ("constant",), norms: bool = True
) -> tuple[tuple[tuple[Key, ...], Rule], ...]:
    """The (kinds and operators, rule) lines in which AttnLRP and CP-LRP differ from the paper's
    rules.

    ``constants``: which operands of products count as constants (``relprop.plan.gates``).
    ``norms=False``: every norm is the identity, β and all.
    """
    divide = Epsilon(epsilon)
    names = "half to each" if "gate" not in constants else "to the values"

    def both(name: str, half_each: Callable[..., Matmul | Product], lone: Rule) -> Rule:
        to_both = Both(half_each, divide, constants)
        form = Own(to_both.parts)
        named = f"{name}: LRP-ε, {names}"
        return Rule(to_both, named, "balance", BOTH, lone, row_wise=True, gradient=form)

    linear = Rule(Linear(divide), "LRP-ε", "share", BOTH, gradient=own)
    matmul, product = both("matmul", Matmul, linear), both("product", Product, carry)
    read = Sample(divide=divide, signed=True)
    sample = Rule(read, "sample: LRP-ε", "balance", INPUTS, gradient=Own(_values_alone))
    norm_rule = Norm(divide)
    norm = Rule(norm_rule, "norm: LRP-ε, σ constant", "share", BOTH, gradient=norm_rule.form)
    add = Rule(Sum(divide), "add: LRP-ε", "balance", BOTH, row_wise=True, gradient=own)
    softmax = Rule(Softmax(), "softmax: first order", "taylor", BOTH, row_wise=True, gradient=own)
    lines = (
        ((Kind.LINEAR, *SUMMED, Kind.INDEXED_SUM), linear),
        ((Kind.SAMPLE,), sample),
        ((Kind.MATMUL,), matmul),
        ((Kind.QUOTIENT,), replace(quotient, lone=carry)),
        ((Kind.PRODUCT,), product),
        ((Kind.SUM, aten.rsub), add),
        ((Kind.SOFTMAX,), softmax),
        ((aten.rms_norm,), carry),
    )
    return (*lines, ((Kind.NORM, Kind.BATCH_NORM), norm)) if norms else lines


def _values_alone(call: Call) -> tuple[float, ...]:
    """Positions get nothing."""
    return (1.0, *(0.0 for _ in call.operands[1:]))
