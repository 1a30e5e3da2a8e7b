"""Rules as gradients. Where the relevance of an operation's output z is z ⊙ g, many rules give each
input x the relevance x ⊙ g′, with g′ linear in g: the gradient of an operation that has the same
value and another derivative. That operation is the rule's *gradient form*. If every rule of a plan
has one, one backward pass by autograd is the whole relevance pass, and fused kernels stay whole.

A form is exact where a rule divides by the plain output; ε of LRP-ε is then a factor |z|/(|z| + ε)
on g (``Damped``), or left out where it only keeps 0/0 away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relprop.operations import Kind, Value, kind
from relprop.rules.call import Call

#: A call's value, to be differentiated at ``call.inputs``; ``call.output`` is not there yet.
Form = Callable[[Call], Value]
Factors = Callable[[Call], tuple[float, ...]]


class _Given(torch.autograd.Function):
    """A value with a derivative that is given: ∂z/∂x = ``slope``, element by element."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, z: Tensor, slope: Tensor) -> Tensor:
        """The value."""
        return z.view_as(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the slope."""
        x, _, slope = inputs
        ctx.save_for_backward(slope)
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient at x."""
        (slope,) = ctx.saved_tensors
        return (gradients[0] * slope).sum_to_size(ctx.shape), None, None


class _Scaled(torch.autograd.Function):
    """A value z whose gradient is multiplied by a number, or, with an ε, by |z|/(|z| + ε)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, factor: float, epsilon: float | None) -> Tensor:
        """The value."""
        return z.view_as(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the numbers and, with an ε, the value."""
        z, ctx.factor, ctx.epsilon = inputs
        ctx.save_for_backward(*() if ctx.epsilon is None else (z,))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient, times the number, or held down where the value is small."""
        if ctx.epsilon is None:
            return gradients[0] * ctx.factor, None, None
        return gradients[0] / (1 + ctx.epsilon / ctx.saved_tensors[0].abs()), None, None


def scaled(value: Tensor, factor: float) -> Tensor:
    """``value``, its gradient times ``factor``."""
    if factor in (0, 1):
        return value if factor else value.detach()
    made: Tensor = _Scaled.apply(value, factor, None)  # type: ignore[no-untyped-call]
    return made


def ones(call: Call) -> tuple[float, ...]:
    """1 for every operand."""
    return (1.0,) * len(call.operands)


@dataclass(frozen=True)
class Own:
    """The operation's own derivative, the gradient at each operand times a number: what moves
    values, and LRP-ε wherever an operation is linear in each activation."""

    factors: Factors = ones

    def __call__(self, call: Call) -> Value:
        factors = self.factors(call)
        if len(set(factors)) == 1 and isinstance(made := call.apply(*call.inputs), Tensor):
            return scaled(made, factors[0])
        return call.apply(*map(scaled, call.inputs, factors))


own = Own()


def _half_each(call: Call) -> tuple[float, ...]:
    return (0.5, -0.5 if kind(call.op) is Kind.QUOTIENT else 0.5)


#: Half to each of two factors, as Lemma 2 has it; dividing by v is multiplying with 1/v.
halved = Own(_half_each)


@dataclass(frozen=True)
class Carried:
    """R_in = R_out for a function of one number: the gradient times f(x)/x.

    Not defined where x is 0 and f(x) is not: the gradient is no finite number there.
    """

    def factors(self, call: Call) -> tuple[float, ...] | None:
        """1 where the operation multiplies x by something, f(x)/x being its derivative."""
        what, at = kind(call.op), call.activations[0]
        linear = what in (Kind.IDENTITY, Kind.CAST, Kind.PRODUCT)
        return ones(call) if linear or (what is Kind.QUOTIENT and at == 0) else None

    def __call__(self, call: Call) -> Value:
        at = call.activations[0]
        x = call.inputs[at]
        if kind(call.op) is Kind.DETACH:
            return x
        if self.factors(call) is not None:
            return call.apply(*call.inputs)
        held = x.detach()
        z = call.apply(*call.inputs[:at], held, *call.inputs[at + 1 :])
        slope = torch.nan_to_num(z / held, 0.0, torch.inf, -torch.inf)
        made: Tensor = _Given.apply(x, z, slope)  # type: ignore[no-untyped-call]
        return made


carried = Carried()


def factors_of(form: Form, call: Call) -> tuple[float, ...] | None:
    """By what a form multiplies the operation's own gradient at each operand; ``None`` where its
    derivative is another."""
    return form.factors(call) if isinstance(form, Own | Carried) else None


@dataclass(frozen=True)
class Damped:
    """LRP-ε with an ε that is felt: the operation's own derivative, the gradient at its output
    times |z|/(|z| + ε)."""

    epsilon: float
    factors: Factors = ones

    def __call__(self, call: Call) -> Value:
        made: Tensor = _Scaled.apply(Own(self.factors)(call), 1.0, self.epsilon)  # type: ignore[no-untyped-call]
        return made
