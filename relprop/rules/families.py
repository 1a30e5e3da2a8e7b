"""The five ways relevance passes an operation, each written once, for any operator.

An op whose every output element depends on ONE input element hands relevance on unchanged (*carry*;
*move* if values only change place). An op that sums many inputs splits it by Eq. 5 (*share*). An op
that mixes two activations splits it by Eq. 6, normalised by Lemma 2 (*balance*). A value used k
times receives the sum of k relevances. *stop* is where nothing flows. Equations are those of
Chefer, Gur & Wolf, CVPR 2021. Faster closed forms of the hot ops are in ``closed.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relprop.numerics import Divide, negative, positive, safe_divide, total
from relprop.rules.call import Call, Deferred, Split
from relprop.rules.gradient_form import carried, own
from relprop.rules.rule import Rule, rule
from relprop.rules.sums import STABILISER, lemma2

ZERO = "zero denominator"
NO_POSITIVE = "no positive term"
GENERIC = "not conserved: generic"
POSITIONS = "positions that are read"
FILLED = "constant in its place"
Shares = tuple[Tensor | None, ...]
Change = Callable[[Tensor], Tensor]


def split_vjp(
    call: Call, indices: tuple[int, ...]
) -> tuple[Tensor, Callable[..., tuple[Tensor, ...]]]:
    """The op's output (of several: the floating ones) as a function of the operands ``indices``
    alone, and its vector–Jacobian product."""

    def function(*replaced: Tensor) -> Tensor | tuple[Tensor, ...]:
        inputs = list(call.inputs)
        for index, value in zip(indices, replaced, strict=True):
            inputs[index] = value
        result = call.apply(*inputs)
        if isinstance(result, Tensor):
            return result
        return tuple(r for r in result if r.is_floating_point())

    output, pull = torch.func.vjp(function, *(call.inputs[i] for i in indices))  # type: ignore[misc]
    return output, pull


def _place(call: Call, indices: tuple[int, ...], shares: tuple[Tensor, ...]) -> Shares:
    """Shares in operand order, ``None`` elsewhere."""
    by_index = dict(zip(indices, shares, strict=True))
    return tuple(by_index.get(i) for i in range(len(call.operands)))


def _floating(call: Call) -> tuple[int, ...]:
    return tuple(i for i, x in enumerate(call.inputs) if x.is_floating_point())


@rule(family="carry", reads="", gradient=carried)
def carry(relevance: Tensor, call: Call) -> Shares:
    """R_in = R_out: activations, softmax, norms, scaling by parameters. Broadcast axes are
    summed."""
    return call.only(relevance)


@rule(family="move", reads="", gradient=own)
def move(relevance: Tensor, call: Call) -> Shares:
    """Relevance goes where the values came from: the op's own vector–Jacobian product, which is 0s
    and 1s."""
    where = _floating(call)
    _, pull = split_vjp(call, where)
    return _place(call, where, pull(relevance))


#: As ``move``, for ops whose choice of place depends on the values: maximum, sort, top-k.
route = replace(move, name="route", reads=frozenset({"inputs", "output"}))


@rule(family="move", reads="", gradient=own)
def fill(relevance: Tensor, call: Call) -> Split:
    """As ``move``, where constants may stand in place of inputs (masked_fill, where, pad): what
    arrives at those is lost, and measured."""
    ones, zeros = (
        [torch.full_like(x, value) if x.is_floating_point() else x for x in call.inputs]
        for value in (1, 0)
    )
    moved = call.apply(*ones) - call.apply(*zeros)
    lost = total(torch.where(moved == 1, 0.0, relevance))
    return Split(move.function(relevance, call), {FILLED: lost})


@dataclass(frozen=True)
class Part:
    """The operation with other numbers in the place of x, of its weight and of its bias."""

    x: Change
    weight: Change
    bias: Change = torch.zeros_like


@dataclass(frozen=True)
class Terms:
    """R_j = Σ_k x_k,j·(∂z_k/∂x_k)ᵀ·R/Σ_k z_k for any op that is linear in its activation, z_k being
    the ``parts``; a bias that takes part absorbs its share by name.

    The weight is the first other floating operand that is no bias; the rest are 0, as all are where
    they are not ``weighted``. An operation without a weight (a mean, a pooling) keeps the weights
    that it has, which are not negative. ``cause``: of what is lost where Σ_k z_k is 0.
    """

    divide: Divide = safe_divide
    weighted: bool = True
    parts: Sequence[Part] = ()
    cause: str = ZERO

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        at = call.activations[0]
        others = [i for i in _floating(call) if i != at]
        bias = [i for i in others if call.operands[i].argument == "bias"]
        weights = [i for i in others if self.weighted and i not in bias]
        absorbs = any(part.bias is not torch.zeros_like for part in self.parts)
        where, made = (at, *bias) if absorbs else (at,), []
        for part in (p for p in self.parts if weights or p.weight is not negative):
            change = dict.fromkeys(others, torch.zeros_like) | dict.fromkeys(bias, part.bias)
            change |= {**dict.fromkeys(weights[:1], part.weight), at: part.x}
            operands = list(call.operands)
            for i, of in change.items():
                operands[i] = replace(operands[i], value=of(operands[i].value))
            changed = replace(call, operands=tuple(operands))
            made.append((changed.inputs, *split_vjp(changed, where)))
        first, *more = (z for _, z, _ in made)
        z = sum(more, first)
        s = self.divide(relevance, z)
        shares = [
            [inputs[i] * g for i, g in zip(where, pull(s), strict=True)] for inputs, _, pull in made
        ]
        summed = tuple(sum(same[1:], same[0]) for same in zip(*shares, strict=True))
        lost = lost_by_division(relevance, s, z, self.cause, self.divide)
        return Split(_place(call, where, summed), lost)


@dataclass(frozen=True)
class Share(Terms):
    """Eq. 5 for any op that is linear in its activation: only the terms x_j·w_ji ≥ 0 share R_i.

    The halves x⁺w⁺ + x⁻w⁻ are exact (nothing cancels). The bias takes no part. Ops without a weight
    (mean, sum, average pooling) have w ≥ 0 throughout.
    """

    parts: Sequence[Part] = (Part(positive, positive), Part(negative, negative))
    cause: str = NO_POSITIVE


@dataclass(frozen=True)
class Sample:
    """Values read at positions that the second operand gives (``grid_sample``): Eq. 5 with the
    interpolation's weights; positions receive nothing.

    ``signed``: values of both signs take part, as in LRP-ε (the interpolation is linear in them).
    """

    divide: Divide = safe_divide
    signed: bool = False

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        if not call.operands[0].flows:
            return Split((None,) * len(call.operands), {POSITIONS: total(relevance)})
        values, *others = call.inputs
        x = values if self.signed else positive(values)
        z, pull = torch.func.vjp(lambda t: call.apply(t, *others), x)  # type: ignore[misc]
        s = self.divide(relevance, z)
        cause = ZERO if self.signed else NO_POSITIVE
        return Split(
            call.only(x * pull(s)[0], 0), lost_by_division(relevance, s, z, cause, self.divide)
        )


def lost_by_division(
    relevance: Tensor, s: Tensor, z: Tensor, cause: str, divide: Divide | None = None
) -> Mapping[str, Tensor]:
    """What R − (R/z)·z leaves behind, measured element by element: at zero denominators under
    ``cause``, elsewhere the stabiliser's. ``divide``: what made S = R/z, if that is known:
    ``safe_divide`` leaves nothing elsewhere."""
    if divide is safe_divide:
        return lost_at_zero(relevance, s, cause)

    def made() -> dict[str, Tensor]:
        left = torch.addcmul(relevance, s, z, value=-1)
        nothing = total(torch.where(s == 0, left, 0.0))
        return {cause: nothing, STABILISER: total(left) - nothing}

    return Deferred(made)


def lost_at_zero(relevance: Tensor, s: Tensor, cause: str) -> Mapping[str, Tensor]:
    """What arrives where S = R/z is 0, since z is: lost to ``cause``."""
    return Deferred(lambda: {cause: total(torch.where(s == 0, relevance, 0.0))})


def by_gradient(
    relevance: Tensor, call: Call, divide: Divide
) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """x ⊙ (∂Z/∂x)ᵀ·S for every activation x, with S = R/Z, and S and Z."""
    z, pull = split_vjp(call, call.activations)
    s = divide(relevance, z)
    pulled = zip(call.activations, pull(s), strict=True)
    return tuple(call.inputs[i] * g for i, g in pulled), s, z


@dataclass(frozen=True)
class Halves:
    """Eq. 6 both ways for a product of two activations (matmul, einsum, elementwise), R^u =
    ½·u·∂Z/∂u·R/Z, likewise v.

    The ½ is Lemma 2's factor: both sums equal ΣR, exactly. ``half=1`` leaves it out.
    """

    divide: Divide = safe_divide
    half: float = 0.5

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        whole, s, z = by_gradient(relevance, call, self.divide)
        shares = _place(call, call.activations, tuple(self.half * share for share in whole))
        return Split(shares, lost_by_division(relevance, s, z, ZERO, self.divide))


@dataclass(frozen=True)
class Generic:
    """Eq. 2 for any differentiable op: R_j = x_j · vjp(R/z)_j.

    With one activation it is not rescaled and the difference is booked as not conserved; with
    several, Lemma 2 normalises, or each gets the same part of its share (``normalise=False``).
    """

    divide: Divide = safe_divide
    normalise: bool = True

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        shares, _, _ = by_gradient(relevance, call, self.divide)
        if not self.normalise:
            shares = tuple(share / len(shares) for share in shares)
        sums = [total(share) for share in shares]
        if len(shares) == 1 or not self.normalise:
            lost: Mapping[str, Tensor] = {GENERIC: total(relevance) - sum(sums)}
        else:
            shares, lost = lemma2(total(relevance), shares, sums, GENERIC)
        return Split(_place(call, call.activations, shares), lost)


def either(one: Rule, both: Rule) -> Rule:
    """``one`` where a single operand is an activation, ``both`` where two are: x·γ carries, u·v is
    balanced."""
    return replace(both, lone=one)
