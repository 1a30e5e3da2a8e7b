"""Functions of one element that torch has a name for, and how they are called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, fx

from relprop.operations import Kwargs, Operator
from relprop.tracer.editing import aten, emit
from relprop.tracer.passes.trials.comparison import equal_functions

#: The functions of one element that torch has, as they are called.
KNOWN: tuple[tuple[Operator, Kwargs], ...] = (
    (aten.relu.default, {}),
    (aten.gelu.default, {}),
    (aten.gelu.default, {"approximate": "tanh"}),
    (aten.silu.default, {}),
    (aten.sigmoid.default, {}),
    (aten.tanh.default, {}),
    (aten.softplus.default, {}),
    (aten.mish.default, {}),
    (aten.hardswish.default, {}),
    (aten.hardsigmoid.default, {}),
    (aten.relu6.default, {}),
    (aten.elu.default, {}),
    (aten.selu.default, {}),
    (aten.log_sigmoid.default, {}),
    (aten.abs.default, {}),
    (aten.square.default, {}),
    (aten.exp.default, {}),
    (aten.reciprocal.default, {}),
)


#: Those of a multiple of it: 2·σ(x) − 1 and ½ + ½·tanh(x).
OF_MULTIPLES: tuple[tuple[Operator, float], ...] = (
    (aten.tanh.default, 0.5),
    (aten.sigmoid.default, 2.0),
)


_GRID = torch.cat(
    [torch.linspace(-9, 9, 181), torch.tensor([-40.0, -1e-3, 1e-3, 0.5, 2.99, 3.01, 40.0])]
).double()


def line_of(function: Callable[..., Tensor]) -> tuple[float, float] | None:
    """a and b, where the function is a·x + b; what rounding leaves of 0, or beside 1, is none of
    it."""
    try:
        zero, one = function(torch.tensor([0.0, 1.0]).double()).tolist()
    except (RuntimeError, TypeError, ValueError):
        return None
    zero = 0.0 if abs(zero) <= 1e-13 * abs(one) else zero
    one = zero + 1.0 if abs(one - zero - 1) <= 1e-13 else one

    def line(x: Tensor) -> Tensor:
        return (one - zero) * x + zero

    return (one - zero, zero) if equal_functions(function, line, [_GRID + 0.0123]) else None


def emit_line(at: fx.Node, x: fx.Node, slope: float, offset: float) -> fx.Node:
    """slope·x + offset."""
    x = x if slope == 1 else emit(at, aten.mul.Tensor, x, slope)
    return x if offset == 0 else emit(at, aten.add.Tensor, x, offset)


def known_function(
    function: Callable[..., Tensor],
) -> Callable[[fx.Node, fx.Node], fx.Node] | None:
    """How a function of each element is emitted that torch has, or that is a·x + b."""
    if (line := line_of(function)) is not None:
        return lambda at, x: emit_line(at, x, *line)
    return known_by_torch(function)


def known_by_torch(function: Callable[..., Tensor]) -> Callable[[fx.Node, fx.Node], fx.Node] | None:
    """How torch's own function with the same values and derivatives is emitted."""
    for op, options in KNOWN:
        if _agree(function, partial(op, **options)):
            return partial(_emitted, op, options)
    for op, factor in OF_MULTIPLES:
        if _agree(function, partial(_of_multiple, op, factor)):
            return partial(_emitted_of_multiple, op, factor)
    try:
        slope = -float(function(torch.tensor(-1.0).double()))
    except (RuntimeError, TypeError, ValueError):
        return None
    leaky = {"negative_slope": slope}
    if 0 < slope < 1 and _agree(function, partial(aten.leaky_relu.default, **leaky)):
        return partial(_emitted, aten.leaky_relu.default, leaky)
    return None


def _emitted(op: Operator, options: Kwargs, at: fx.Node, x: fx.Node) -> fx.Node:
    return emit(at, op, x, **options)


def _of_multiple(op: Operator, factor: float, x: Tensor) -> Tensor:
    made: Tensor = op(factor * x)
    return made


def _emitted_of_multiple(op: Operator, factor: float, at: fx.Node, x: fx.Node) -> fx.Node:
    return emit(at, op, emit(at, aten.mul.Tensor, x, factor))


def _agree(one: Callable[..., Tensor], other: Callable[..., Tensor]) -> bool:
    """Whether two functions have the same values and derivatives, point by point."""
    try:
        a, b = one(_GRID), other(_GRID)
    except (RuntimeError, TypeError, ValueError):
        return False
    if a.shape != b.shape or not bool(((a - b).abs() <= 1e-12 * (1 + b.abs())).all()):
        return False
    return equal_functions(one, other, [_GRID])
