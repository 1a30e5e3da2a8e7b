"""Functions of one element that torch has a name for, and how they are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, fx

from relprop.operations import Kwargs, Operator
from relprop.tracer.editing import aten, emit
from relprop.tracer.passes.trials.comparison import equal_functions
from relprop.tracer.passes.trials.parts import rounded

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


#: Those of a multiple of it: 2·σ(x) − 1, (1 − eˣ)/(1 + eˣ), ½ + ½·tanh(x), and 1 − σ(x).
OF_MULTIPLES: tuple[tuple[Operator, float], ...] = (
    (aten.tanh.default, 0.5),
    (aten.tanh.default, -0.5),
    (aten.sigmoid.default, 2.0),
    (aten.sigmoid.default, -1.0),
)


_Emitter = Callable[[fx.Node, fx.Node], fx.Node]
#: Where values and derivatives are compared: beside 0 and whole numbers, at which derivatives go by
#: how a function is written (|x|, min(0, x)).
_GRID = torch.cat(
    [(torch.arange(-90, 91) + 0.123) / 10, torch.tensor([-40.1, -1e-3, 1e-3, 2.99, 3.01, 40.1])]
).double()
#: Where a function may decide: whether a number is 0, or 1.
_WHOLE = torch.arange(-9.0, 10.0).double()


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

    same = _same_values(function, line) and equal_functions(function, line, [_GRID])
    return (one - zero, zero) if same else None


def emit_line(at: fx.Node, x: fx.Node, slope: float, offset: float) -> fx.Node:
    """slope·x + offset."""
    x = x if slope == 1 else emit(at, aten.mul.Tensor, x, slope)
    return x if offset == 0 else emit(at, aten.add.Tensor, x, offset)


def known_function(function: Callable[..., Tensor]) -> _Emitter | None:
    """How a function of each element is emitted that torch has, or that is a·x + b."""
    if (line := line_of(function)) is not None:
        return lambda at, x: emit_line(at, x, *line)
    return known_by_torch(function)


def known_by_torch(function: Callable[..., Tensor]) -> _Emitter | None:
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
    return _multiple_of_sigmoid(function) or _multiple_of_tanh(function)


def _multiple_of_tanh(function: Callable[..., Tensor]) -> _Emitter | None:
    """c·tanh(x/2): c·(2·σ(x) − 1)."""
    times = rounded(float(function(_GRID[-1])))
    found = _Line(partial(_of_multiple, aten.tanh.default, 0.5), times, 0.0)
    if times not in (0.0, 1.0) and _agree(function, found):
        tanh = partial(_emitted_of_multiple, aten.tanh.default, 0.5)
        return partial(_emitted_line_of, tanh, times, 0.0)
    return None


def _multiple_of_sigmoid(function: Callable[..., Tensor]) -> _Emitter | None:
    """c·σ(k·x): 1 + tanh(x)."""
    times = 2 * float(function(torch.tensor(0.0).double()))
    for factor in (1.0, 2.0, -1.0, -2.0):
        found = _Line(partial(_of_multiple, aten.sigmoid.default, factor), times, 0.0)
        if times not in (0.0, 1.0) and _agree(function, found):
            sigmoid = partial(_emitted_of_multiple, aten.sigmoid.default, factor)
            return partial(_emitted_line_of, sigmoid, times, 0.0)
    return None


def line_of_known(function: Callable[..., Tensor]) -> _Emitter | None:
    """How a·f(x) + b of a function f that torch has is emitted: where(x > 0, x + 1, exp(x))."""
    try:
        y = function(_GRID)
    except (RuntimeError, TypeError, ValueError):
        return None
    if y.shape != _GRID.shape or not bool(y.isfinite().all()):
        return None
    for op, options in KNOWN:
        f = partial(op, **options)
        columns = torch.stack([f(_GRID), torch.ones_like(_GRID)], 1)
        if not bool(columns.isfinite().all()):
            continue
        a, b = map(rounded, torch.linalg.lstsq(columns, y[:, None]).solution[:, 0].tolist())
        if a != 0 and _agree(function, _Line(f, a, b)):
            return partial(_emitted_line_of, partial(_emitted, op, options), a, b)
    return None


@dataclass(frozen=True)
class _Line:
    """a·f(x) + b."""

    function: Callable[..., Tensor]
    slope: float
    offset: float

    def __call__(self, x: Tensor) -> Tensor:
        return self.slope * self.function(x) + self.offset


def _emitted_line_of(
    function: _Emitter, slope: float, offset: float, at: fx.Node, x: fx.Node
) -> fx.Node:
    return emit_line(at, function(at, x), slope, offset)


def _emitted(op: Operator, options: Kwargs, at: fx.Node, x: fx.Node) -> fx.Node:
    return emit(at, op, x, **options)


def _of_multiple(op: Operator, factor: float, x: Tensor) -> Tensor:
    made: Tensor = op(factor * x)
    return made


def _emitted_of_multiple(op: Operator, factor: float, at: fx.Node, x: fx.Node) -> fx.Node:
    return emit(at, op, emit_line(at, x, factor, 0.0))


def _agree(one: Callable[..., Tensor], other: Callable[..., Tensor]) -> bool:
    """Whether two functions have the same values and derivatives, point by point."""
    return _same_values(one, other) and equal_functions(one, other, [_GRID])


def _same_values(one: Callable[..., Tensor], other: Callable[..., Tensor]) -> bool:
    for given in (_WHOLE, _GRID):
        try:
            a, b = one(given), other(given)
        except (RuntimeError, TypeError, ValueError):
            return False
        if a.shape != b.shape or not bool(((a - b).abs() <= 1e-12 * (1 + b.abs())).all()):
            return False
    return True
