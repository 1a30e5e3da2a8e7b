"""DeepLIFT's rules for one operation: what each element of its result owes to the difference of its
operands from a reference.

A value whose gradient is the multiplier: every rule returns a tensor equal to the operation's
result whose derivative by autograd is Δy/Δx instead of ∂y/∂x, so that one backward pass chains the
multipliers (Shrikumar et al. 2017, Eq. 3). Sums of linear operations need no rule: their derivative
is their multiplier (3.5.1, the Linear rule). Univariate functions take the Rescale rule (3.5.2).
What the paper leaves open is written as these two and a product of two factors, whose Shapley value
is Δ(a·b) = Δa·(b + b′)/2 + (a + a′)/2·Δb (Lundberg & Lee 2017, 4.2, Deep SHAP). Every rule sums to
Δy exactly. Knows operators, no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from relprop.operations import Args, Kind, Kwargs, Operator, Value
from relprop.operations.vocabulary import WrittenNorm


class Pair(NamedTuple):
    """A quantity at the input (attached to autograd, its derivative a multiplier) and at the
    reference."""

    value: Tensor
    reference: Tensor


@dataclass(frozen=True)
class Operation:
    """One call of an operator at the input and at the reference: ``args`` and ``reference`` differ
    where a tensor depends on the input."""

    run: Callable[..., Tensor]
    args: Args
    reference: Args
    kwargs: Kwargs

    def pair(self, i: int) -> Pair:
        """An operand at both."""
        return Pair(self.args[i], self.reference[i])

    def argument(self, i: int, name: str, default: object = None) -> Value:
        """An argument that does not depend on the input, wherever it was given."""
        return self.args[i] if len(self.args) > i else self.kwargs.get(name, default)


Rule = Callable[[Operation], Tensor]


def affine(function: Callable[..., Tensor], *pairs: Pair) -> Pair:
    """The Linear rule: ``function`` is affine in all of them together, and its own derivative is
    the multiplier."""
    return Pair(function(*(p.value for p in pairs)), function(*(p.reference for p in pairs)))


def univariate(function: Callable[[Tensor], Tensor], a: Pair, outputs: Pair | None = None) -> Pair:
    """The Rescale rule, m = Δy/Δx element by element; where Δx is rounding, the derivative half
    way. ``outputs``: y, where it is known more exactly."""
    x, x0 = a.value.detach(), a.reference
    y, y0 = (function(x), function(x0)) if outputs is None else outputs
    change = _difference(x, x0)
    flat = change.abs() <= torch.finfo(x.dtype).eps ** 0.5 * torch.maximum(x.abs(), x0.abs())
    slope = torch.func.vjp(function, torch.where(flat, (x + x0) / 2, x))[1](torch.ones_like(x))[0]
    multiplier = torch.where(flat, slope, _difference(y, y0) / torch.where(flat, 1.0, change))
    return Pair(y + torch.where(multiplier.isfinite(), multiplier, 0.0) * moved(a.value), y0)


def product(function: Callable[[Tensor, Tensor], Tensor], a: Pair, b: Pair) -> Pair:
    """Of two factors: each one's change times the mean of the other's two values."""
    x, y = a.value.detach(), b.value.detach()
    changes = function(moved(a.value), (y + b.reference) / 2) + function(
        (x + a.reference) / 2, moved(b.value)
    )
    return Pair(function(x, y) + changes, function(a.reference, b.reference))


def scaled(function: Callable[[Tensor, Tensor], Tensor], a: Pair, scale: Pair) -> Pair:
    """Of a norm's two factors, a and 1/σ: the change of a times the smaller scale of the two, the
    change of the scale times the a that had the larger.

    This is one of the two orders whose mean ``product`` takes. The other multiplies by 1/√ε where
    the reference, or the input, is constant (zeros before a norm), in every layer anew: the terms
    then cancel to Δy, but only in exact arithmetic.
    """
    x, s = a.value.detach(), scale.value.detach()
    own = s.abs() <= scale.reference.abs()
    changes = function(moved(a.value), torch.where(own, s, scale.reference)) + function(
        torch.where(own, a.reference, x), moved(scale.value)
    )
    return Pair(function(x, s) + changes, function(a.reference, scale.reference))


def moved(a: Tensor) -> Tensor:
    """0, with the derivative of ``a``."""
    return torch.where(a.isfinite(), a - a.detach(), 0.0)


def _difference(x: Tensor, x0: Tensor) -> Tensor:
    """x − x′, and 0 where both are the same infinity."""
    return torch.where(x == x0, 0.0, x - x0)


def _univariate(at: Operation) -> Tensor:
    return univariate(lambda t: at.run(t, *at.args[1:], **at.kwargs), at.pair(0)).value


def _product(at: Operation) -> Tensor:
    return product(at.run, at.pair(0), at.pair(1)).value


def _division(at: Operation) -> Tensor:
    """a/b is a·(1/b)."""
    inverse = univariate(torch.reciprocal, at.pair(1))
    return product(torch.mul, at.pair(0), inverse).value


def _log_softmax(at: Operation) -> Pair:
    """z − log Σ exp z, with one shift for both."""
    dim, z = at.args[1], at.pair(0)
    top = _finite(torch.maximum(*(t.amax(dim, keepdim=True) for t in _detached(z))))
    terms = univariate(torch.exp, affine(lambda t: t - top, z))
    known = Pair(*(_finite(torch.logsumexp(t, dim, keepdim=True)) for t in _detached(z)))
    total = univariate(torch.log, affine(lambda t: t.sum(dim, keepdim=True), terms), known)
    return affine(torch.sub, z, total)


def _finite(t: Tensor) -> Tensor:
    """0 for a row of −inf, whose softmax has nothing to share out."""
    return torch.where(t.isfinite(), t, 0.0)


def _softmax(at: Operation) -> Tensor:
    """exp(z − log Σ exp z): sums and univariate functions, however large z is."""
    return univariate(torch.exp, _log_softmax(at)).value


def _normalised(x: Pair, dims: tuple[int, ...], eps: float, *, centred: bool) -> Pair:
    """(x − mean)/√(mean (x − mean)² + ε) over ``dims``: a mean, a square, a reciprocal root, a
    product."""
    centre = affine(lambda t: t - t.mean(dims, keepdim=True), x) if centred else x
    spread = affine(lambda t: t.mean(dims, keepdim=True) + eps, univariate(torch.square, centre))
    return scaled(torch.mul, centre, univariate(torch.rsqrt, spread))


def _layer_norm(at: Operation) -> Tensor:
    eps = at.argument(4, "eps", 1e-5)
    unit = _normalised(at.pair(0), _last(at.args[1]), eps, centred=True).value
    return _scaled(unit, at.argument(2, "weight"), at.argument(3, "bias"))


def _rms_norm(at: Operation) -> Tensor:
    eps = at.argument(3, "eps")
    eps = torch.finfo(at.args[0].dtype).eps if eps is None else eps
    unit = _normalised(at.pair(0), _last(at.args[1]), eps, centred=False).value
    return _scaled(unit, at.argument(2, "weight"), None)


def _group_norm(at: Operation) -> Tensor:
    shape, groups, eps = at.args[0].shape, at.args[1], at.argument(4, "eps", 1e-5)
    grouped = affine(lambda t: t.reshape(shape[0], groups, -1), at.pair(0))
    whole = _normalised(grouped, (2,), eps, centred=True).value.reshape(shape)
    given, sizes = (at.argument(2, "weight"), at.argument(3, "bias")), (-1, *[1] * (len(shape) - 2))
    return _scaled(whole, *(None if t is None else t.reshape(sizes) for t in given))


def _last(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(-len(shape), 0))


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _vector_norm(at: Operation) -> Tensor:
    """√Σx² (the 2-norm alone)."""
    dims, keep = at.argument(2, "dim"), at.argument(3, "keepdim", False)
    total = affine(lambda t: t.sum(dims, keepdim=keep), univariate(torch.square, at.pair(0)))
    return univariate(torch.sqrt, total).value


def _max_pool(at: Operation) -> Tensor:
    """Δy goes to the largest element of the input's window where y ≥ y′, else to the reference's:
    the one that moved at least as far."""
    space = len(at.args[1])
    pool = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[space]
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    options = dict(zip(names, at.args[1:], strict=False)) | dict(at.kwargs)
    options["stride"] = options.get("stride") or None
    found = [pool(t.detach(), return_indices=True, **options) for t in at.pair(0)]
    return _taken(found, [t.flatten(-space) for t in at.pair(0)], space)


def _taken(
    found: Sequence[tuple[Tensor, Tensor]], rows: Sequence[Tensor], space: int = 1
) -> Tensor:
    """y, whose whole difference is due to one element of ``rows`` for each of its own; ``found``: y
    and y′, and where they stand."""
    (y, own), (y0, theirs) = found
    chosen = torch.where(y >= y0, own, theirs).flatten(-space)
    x, x0 = (t.gather(-1, chosen).reshape(y.shape) for t in rows)
    change = _difference(x.detach(), x0)
    still = change == 0
    multiplier = torch.where(still, 1.0, _difference(y, y0) / torch.where(still, 1.0, change))
    return y + multiplier * moved(x)


def _largest(sign: int) -> Rule:
    """The largest along axes, as a pool of one window; the smallest is that of what is turned
    (``sign`` −1)."""

    def rule(at: Operation) -> Tensor:
        wide = at.args[0].dim()
        axes = [d % wide for d in at.argument(1, "dim", ())] or list(range(wide))
        order = [*(i for i in range(wide) if i not in axes), *axes]
        rows = [sign * t.permute(order).flatten(wide - len(axes)) for t in at.pair(0)]
        made = sign * _taken([t.detach().max(-1, keepdim=True) for t in rows], rows)
        return made.reshape(at.run(at.args[0].detach(), *at.args[1:], **at.kwargs).shape)

    return rule


def _extremum(at: Operation) -> Tensor:
    """The larger of a and b is a + max(0, b − a), and the smaller likewise: a sum, and a function
    of the difference."""
    a, b = at.pair(0), at.pair(1)
    change = Pair(*((v - u).nan_to_num() for u, v in zip(_detached(a), _detached(b), strict=True)))

    def beyond(d: Tensor) -> Tensor:
        difference = Pair(d, change.reference)
        return univariate(lambda t: at.run(torch.zeros_like(t), t), difference).value

    of_b = torch.func.vjp(beyond, change.value)[1](torch.ones_like(change.value))[0]
    changes = (1 - of_b) * moved(a.value) + of_b * moved(b.value)
    made: Tensor = at.run(*(p.value.detach() for p in (a, b))) + changes
    return made


def _detached(x: Pair) -> Pair:
    return Pair(x.value.detach(), x.reference)


def _written_norm(at: Operation) -> Tensor:
    """A norm with a scale r of its own, as a function of the mean square of what it scales."""
    norm, weight, bias, others = at.run, at.argument(1, ""), at.argument(2, ""), at.args[3:]
    assert isinstance(norm, WrittenNorm)
    x = at.pair(0)
    centre = affine(norm.centre, x)
    spread = affine(lambda t: t.mean(norm.axes, keepdim=True), univariate(torch.square, centre))
    size = spread.value.detach()
    unit = centre.value.detach() / torch.where(size > 0, size, 1.0).sqrt()

    def scale(v: Tensor) -> Tensor:
        return norm.scale(unit * v.sqrt(), *others)

    known = Pair(*(norm.scale(t.detach(), *others) for t in x))
    return _scaled(scaled(torch.mul, centre, univariate(scale, spread, known)).value, weight, bias)


aten = torch.ops.aten
#: Rules for what is not affine in its first operand alone, by operator and by kind.
ALONE: dict[Operator | Kind, Rule] = {
    aten.layer_norm: _layer_norm,
    aten.rms_norm: _rms_norm,
    aten.group_norm: _group_norm,
    aten.linalg_vector_norm: _vector_norm,
    Kind.FUNCTION: _univariate,
    Kind.SOFTMAX: _softmax,
    Kind.LOG_SOFTMAX: lambda at: _log_softmax(at).value,
    Kind.MAX_POOL: _max_pool,
    aten.amax: _largest(1),
    aten.amin: _largest(-1),
    Kind.DETACH: lambda at: at.args[0].detach() + moved(at.args[0]),
    WrittenNorm: _written_norm,
}
#: Rules for two operands that both depend on the input; with one that does, these are affine (a
#: quotient: in its numerator), but for an extremum.
TOGETHER: dict[Kind, Rule] = {
    Kind.PRODUCT: _product,
    Kind.MATMUL: _product,
    Kind.QUOTIENT: _division,
    Kind.EXTREMUM: _extremum,
}
