"""Norms by stored statistics that are written out: every channel times a number, plus a number."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from relprop.operations import Kind, is_call, kind
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_float,
    is_live,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.functions.affine import axes_of


@dataclass(frozen=True)
class _Step:
    """A tensor that is multiplied with, divided by or added to parameters or a number."""

    node: fx.Node
    x: fx.Node
    by: fx.Node | float

    @property
    def axes(self) -> list[int]:
        """The axes along which the parameters vary."""
        return axes_of(self.by, self.x) if isinstance(self.by, fx.Node) else []

    @property
    def adds(self) -> bool:
        """Whether it is a sum."""
        return kind(self.node) is Kind.SUM


def raise_channels(graph: fx.Graph, constants: Constants) -> None:
    """x⊙w + b, where w and b are parameters with a number for each position of one axis and b is no
    layer's own, in however many pieces → ``batch_norm``."""
    for node in reversed(list(graph.nodes)):
        if node._erased or (steps := _steps_to(node)) is None:
            continue
        if {s.adds for s in steps if s.axes} == {True, False}:
            swap(node, _batch_norm(steps, constants))


def _steps_to(node: fx.Node) -> list[_Step] | None:
    """The last steps that lead to a node, in order, all along one axis; numbers among them."""
    step = _step(node)
    if step is None or len(step.axes) != 1:
        return None
    axes, steps = step.axes, [step]
    while (before := _step(step.x)) and before.axes in ([], axes) and len(step.x.users) == 1:
        steps.insert(0, step := before)
    while not steps[0].axes:
        steps.pop(0)
    return steps


def _step(node: fx.Node) -> _Step | None:
    if kind(node) not in (Kind.SUM, Kind.PRODUCT, Kind.QUOTIENT) or len(node.args) != 2:
        return None
    live = [a for a in arguments(node) if is_live(a)]
    if len(live) != 1 or node.kwargs or not is_float(node):
        return None
    (x,), first = live, is_live(arguments(node)[0])
    if shape_of(x) != shape_of(node) or val(x).dtype != val(node).dtype or rank(x) < 2:
        return None
    ordered = kind(node) is Kind.QUOTIENT or is_call(node, aten.sub)
    return None if ordered and not first else _Step(node, x, arguments(node)[1 if first else 0])


def _batch_norm(steps: list[_Step], constants: Constants) -> fx.Node:
    """All steps as one norm whose mean is 0 and whose variance is 1."""
    at, x, (axis,) = steps[-1].node, steps[0].x, steps[0].axes
    shape = [shape_of(x)[axis]]
    options = {"dtype": val(x).dtype, "device": constants.device}
    zero, one = (emit(at, aten.full.default, shape, n, **options) for n in (0.0, 1.0))
    weight, bias = one, zero
    for step in steps:
        by: fx.Node | float = step.by
        if isinstance(by, fx.Node):
            by = expanded(at, reshaped(at, by, shape if step.axes else [1]), shape)
        op = aten.add.Tensor if step.adds else aten.mul.Tensor
        op = aten.sub.Tensor if is_call(step.node, aten.sub) else op
        op = aten.div.Tensor if kind(step.node) is Kind.QUOTIENT else op
        bias = emit(at, op, bias, by)
        weight = weight if step.adds else emit(at, op, weight, by)
    order = list(range(rank(x)))
    order[1], order[axis] = axis, 1
    given = (permuted(at, x, order), weight, bias, zero, one, False, 0.0, 0.0, False)
    return permuted(at, emit(at, aten.batch_norm.default, *given), order)
