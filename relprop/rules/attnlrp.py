"""Rules that treat a transformer as locally linear: LRP-ε wherever an op is linear or bilinear,
Taylor's first order on the softmax.

AttnLRP (Achtibat et al. 2024) and CP-LRP (Ali et al. 2022) differ in two places: what a softmax
hands to its scores, and what a gate receives. As ε → 0 every share is x ⊙ g, where g is a gradient
in which norms divide by a constant, f(x) is x·const and products count half.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.grad import conv2d_input

from relprop.numerics import Divide, Epsilon, safe_divide, total
from relprop.rules import operations as ops
from relprop.rules.baselines import EpsilonLinear
from relprop.rules.call import Call, Split, Total
from relprop.rules.closed import Matmul
from relprop.rules.families import STABILISER, ZERO, Add, Sample, carry, lost_by_division, split_vjp
from relprop.rules.rule import Rule, rule

#: ε of ``attnlrp`` and ``cp_lrp``, absolute. A term of an all but cancelling sum is held down by
#: it; ordinary sums do not feel it.
EPSILON = 1e-9
INPUTS, BOTH = frozenset({"inputs"}), frozenset({"inputs", "output"})
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
        x, packet = call.inputs[0], getattr(call.op, "overloadpacket", None)
        convolved = (
            packet in ops.CONV2D
            and x.dim() == 4
            and not isinstance(call.argument(4, "padding", 0), str)
        )
        if call.activations != (0,) or not (convolved or packet in ops.LINEAR):
            return super().__call__(relevance, call)
        s = self.divide(relevance, call.output)
        shares: list[Tensor | None] = [None] * len(call.operands)
        if convolved:
            options = [
                call.argument(p, n, d)
                for p, n, d in (
                    (3, "stride", 1),
                    (4, "padding", 0),
                    (5, "dilation", 1),
                    (6, "groups", 1),
                )
            ]
            shares[0] = x * conv2d_input(x.shape, call.inputs[1], s, *options)
        else:
            shares[0] = x * (s @ call.inputs[1])
        for i, operand in enumerate(call.operands):
            if operand.argument == "bias":
                shares[i] = operand.value * (
                    s.sum((0, 2, 3)) if convolved else s.sum_to_size(operand.value.shape)
                )
        return Split(tuple(shares), lost_by_division(relevance, s, call.output, ZERO))


@dataclass(frozen=True)
class Sum(Add):
    """LRP-ε on u ± v, R_u = u·R/(u ± v + ε·sgn(u ± v)), without Lemma 2; a number added to a tensor
    absorbs its share, too.

    ``sign`` is that of the second operand; ``turned`` is c − u. A mask (−∞ or huge) takes nothing,
    as in ``Add``.
    """

    normalise: bool = False
    sign: float = 1.0
    turned: bool = False

    def terms(self, call: Call) -> tuple[Tensor, Tensor]:
        """u and v such that the output is u + v."""
        return call.inputs[0], self.sign * call.inputs[1]

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        if len(call.operands) > 1:
            return super().__call__(relevance, call)
        x = -call.inputs[0] if self.turned else call.inputs[0]
        number = call.output - x
        s = (self.divide or safe_divide)(relevance, call.output)
        masked = number.abs() > torch.finfo(x.dtype).max / 4
        share = torch.where(masked, relevance, x * s)
        absorbed = torch.where(masked, 0.0, number * s)
        return Split(
            (share,), {CONSTANT: total(absorbed), STABILISER: total(relevance - share - absorbed)}
        )


@dataclass(frozen=True)
class BothFactors:
    """Elementwise u·v: R·z/(2z + 2ε) to each factor (Achtibat et al. 2024, Prop. 3.3), for the gate
    of a gated layer as for its values.

    A factor that is one over a deviation takes nothing (``constant`` in the notes of the plan):
    dividing by σ(x) is the norm's business.
    """

    divide: Divide
    obeys: tuple[str, ...] = ("constant",)

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        s = self.divide(relevance, call.output)
        kept, constant = s * call.output, constant_of(call, self.obeys)
        lost = lost_by_division(relevance, s, call.output, ZERO)
        if constant is not None:
            return Split(call.only(kept, 1 - constant), lost)
        return Split(tuple((0.5 * kept).sum_to_size(x.shape) for x in call.inputs), lost)


@dataclass(frozen=True)
class BothMatrices:
    """LRP-ε on a product of two matrices that are both activations, half to each (Achtibat et al.
    2024, Prop. 3.3): R_u = u ⊙ (R/(2z + 2ε))·vᵀ.

    Where the notes of the plan name a constant of a kind that this rule set ``obeys``, everything
    goes to the other operand: R_v = v ⊙ uᵀ·(R/(z + ε)).
    """

    divide: Divide
    obeys: tuple[str, ...] = ()

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        constant = constant_of(call, self.obeys)
        if constant is None:
            return Matmul(self.divide)(relevance, call)
        unread = tuple(
            replace(o, needed=o.needed and i != constant) for i, o in enumerate(call.operands)
        )
        split = Matmul(self.divide, half=1.0)(relevance, replace(call, operands=unread))
        return Split(
            tuple(None if i == constant else share for i, share in enumerate(split.shares)),
            split.lost,
        )


def constant_of(call: Call, kinds: tuple[str, ...]) -> int | None:
    """Which of two operands counts as a constant, by the plan's notes (``relprop.plan.gates``), or
    ``None``."""
    return next((call.notes[kind] for kind in kinds if kind in call.notes), None)


@rule(family="balance", reads="", name="quotient: the divisor is a constant")
def quotient(relevance: Tensor, call: Call) -> tuple[Tensor | Total | None, ...]:
    """u/v of two activations: R to the numerator (Achtibat et al. 2024, Prop. 3.4, of x/g(x))."""
    return call.only(relevance, 0)


@dataclass(frozen=True)
class Norm:
    """A norm whose deviation is held constant: y = γ·(x − μ(x))/σ + β is then linear in x, and
    LRP-ε applies; β absorbs its share.

    R_j = x_j·(t_j − mean(t)) with t = (γ/σ)·R/(y + ε·sgn y), the mean over what is normalised
    together (Achtibat et al. 2024, 3.3.3: centring and scaling are linear, dividing by σ(x) is the
    identity, Prop. 3.4; Ali et al. 2022, 3.2). With running statistics the norm is affine as it
    stands, and the running mean absorbs its share, too.
    """

    divide: Divide

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        if call.activations != (0,):
            return Split(carry.function(relevance, call))
        x, name = call.inputs[0], call.op.overloadpacket.__name__
        s = self.divide(relevance, call.output)
        given = {o.argument: _beside(o.value, x, name) for o in call.operands[1:]}
        t = s * given["weight"] if "weight" in given else s
        if name == "batch_norm" or (
            name == "instance_norm" and not call.argument(5, "use_input_stats")
        ):
            t = t * (given["running_var"] + call.argument(7, "eps")).rsqrt()
            pieces = {"running_mean": -t * given["running_mean"]}
        else:
            rows = (
                [*x.shape[: -len(call.argument(1, "normalized_shape"))], -1]
                if name == "layer_norm"
                else [
                    len(x),
                    call.argument(1, "num_groups") if name == "group_norm" else x.shape[1],
                    -1,
                ]
            )
            eps = call.argument(7 if name == "instance_norm" else 4, "eps", 1e-5)
            t = t.reshape(rows)
            t = (
                (t - t.mean(-1, keepdim=True))
                * (x.reshape(rows).var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
            ).reshape(x.shape)
            pieces = {}
        if "bias" in given:
            pieces["bias"] = s * given["bias"]
        shares: list[Tensor | None] = [x * t]
        for operand in call.operands[1:]:
            piece = pieces.get(operand.argument)
            shares.append(
                None
                if piece is None
                else piece.sum_to_size(given[operand.argument].shape).reshape(operand.value.shape)
            )
        return Split(tuple(shares), lost_by_division(relevance, s, call.output, ZERO))


def _beside(parameter: Tensor, x: Tensor, name: str) -> Tensor:
    """A norm's parameter as it is broadcast against ``x``: one number per channel (axis 1), in a
    layer norm one per element of the last axes."""
    return parameter if name == "layer_norm" else parameter.reshape(-1, *[1] * (x.dim() - 2))


@dataclass(frozen=True)
class WrittenNorm:
    """A norm written out in Python, whose statistics the plan holds constant: LRP-ε on what is then
    linear in x."""

    divide: Divide

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        at = call.activations[0]
        z, pull = split_vjp(call, (at,))
        s = self.divide(relevance, z)
        return Split(
            call.only(call.inputs[at] * pull(s)[0], at), lost_by_division(relevance, s, z, ZERO)
        )


def attnlrp_lines(
    epsilon: float = EPSILON, *, constants: tuple[str, ...] = ("constant",), norms: bool = True
) -> tuple[tuple[tuple[Any, ...], Rule], ...]:
    """The (operators, rule) lines in which AttnLRP and CP-LRP differ from the paper's rules.

    ``constants``: which operands of products count as constants (``relprop.plan.gates``).
    ``norms=False``: every norm is the identity, β and all.
    """
    divide = Epsilon(epsilon)
    linear = Rule(Linear(divide), "LRP-ε", "share", BOTH)
    names = "half to each" if "gate" not in constants else "to the values"
    matmul = Rule(
        BothMatrices(divide, constants), f"matmul: LRP-ε, {names}", "balance", BOTH, linear
    )
    product = Rule(
        BothFactors(divide, constants), f"product: LRP-ε, {names}", "balance", BOTH, carry
    )
    lines = (
        (ops.LINEAR + ops.CONV2D + ops.SHARE + ops.GATHERED_SUM, linear),
        (ops.SAMPLE, Rule(Sample(divide=divide, signed=True), "sample: LRP-ε", "balance", INPUTS)),
        (ops.MATMUL, matmul),
        (ops.packets("div divide true_divide"), replace(quotient, lone=carry)),
        (ops.PRODUCT, product),
        (ops.ADD, Rule(Sum(divide), "add: LRP-ε", "balance", BOTH)),
        (ops.SUBTRACT, Rule(Sum(divide, sign=-1.0), "sub: LRP-ε", "balance", BOTH)),
        (
            ops.packets("rsub"),
            Rule(Sum(divide, sign=-1.0, turned=True), "rsub: LRP-ε", "balance", BOTH),
        ),
        (
            ops.packets("softmax _softmax _safe_softmax"),
            Rule(Softmax(), "softmax: first order", "taylor", BOTH),
        ),
    )
    norm = Rule(Norm(divide), "norm: LRP-ε, σ constant", "share", BOTH)
    return (
        (*lines, (ops.packets("layer_norm group_norm instance_norm batch_norm"), norm))
        if norms
        else lines
    )


def written_norm(epsilon: float = EPSILON) -> Rule:
    """The rule on norms written out in Python, for ``RuleSet.norm``."""
    return Rule(
        WrittenNorm(Epsilon(epsilon)), "norm written out: LRP-ε, σ constant", "share", INPUTS
    )
