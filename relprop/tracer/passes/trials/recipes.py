"""What part of a graph computes, without the graph: a recipe, which runs on tensors of other
shapes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, fx

from relprop.operations import Args, Kind, Kwargs, Operator, Value, argument, kind, operand
from relprop.tracer.editing import aten, dims_of, is_float, rank, shape_of, val

REDUCTIONS = frozenset({Kind.TOTAL, Kind.STATISTIC, Kind.LARGEST})


@dataclass(frozen=True)
class Slot:
    """In a recipe, the value with this number."""

    number: int


@dataclass(frozen=True)
class Step:
    """One operation of a recipe. ``shapes``: of a reshape that puts in or leaves out axes of length
    1, before and after."""

    op: Operator
    args: Args
    kwargs: Kwargs
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class Recipe:
    """What a subgraph computes, without its graph: values 0 to ``inputs`` − 1 are given, each step
    adds one. Shapes that are written out follow those of the operands, and so do floating types."""

    inputs: int
    steps: tuple[Step, ...]

    def __call__(self, *tensors: Tensor) -> Tensor:
        values: list[Value] = list(tensors)
        for step in self.steps:
            args, kwargs = (_filled(part, values) for part in (step.args, step.kwargs))
            if step.shapes is not None:
                values.append(args[0].reshape(as_before(*step.shapes, list(args[0].shape))))
            else:
                values.append(args[0] if step.op is None else step.op(*args, **kwargs))
        made: Tensor = values[-1]
        return made


def _filled(part: Value, values: list[Value]) -> Value:
    """Arguments with values in their slots."""
    if isinstance(part, Slot):
        return values[part.number]
    if isinstance(part, dict):
        return {k: _filled(v, values) for k, v in part.items()}
    if isinstance(part, (list, tuple)):
        return type(part)(_filled(v, values) for v in part)
    return part


def as_before(old: tuple[int, ...], shape: tuple[int, ...], new: list[int]) -> list[int]:
    """``shape``, made of ``old`` by putting in or leaving out axes of length 1, for ``new``."""
    sizes = iter([n for o, n in zip(old, new, strict=True) if o != 1])
    return [1 if s == 1 else next(sizes) for s in shape]


def recipe_of(nodes: list[fx.Node], inputs: list[fx.Node]) -> Recipe:
    """The recipe of ``nodes``, in order, from ``inputs``."""
    slots: dict[fx.Node, Value] = {node: Slot(i) for i, node in enumerate(inputs)}
    steps = []
    for node in nodes:
        args, kwargs = plain(fx.node.map_arg((node.args, node.kwargs), lambda n: slots[n]))
        if kind(node) is Kind.CAST:
            steps.append(_cast(node, args[0]))
        elif kind(node) is Kind.EXPAND:
            steps.append(Step(None, args, {}))
        elif kind(node) is Kind.RESHAPE:
            shapes = tuple(shape_of(operand(node))), tuple(shape_of(node))
            steps.append(Step(None, args[:1], {}, shapes))
        else:
            kwargs = {k: v for k, v in kwargs.items() if k != "dtype"}
            if kind(node) in REDUCTIONS:
                args, kwargs = _from_behind(node, args, kwargs)
            steps.append(Step(node.target, args, kwargs))
        slots[node] = Slot(len(inputs) + len(steps) - 1)
    return Recipe(len(inputs), tuple(steps))


def _cast(node: fx.Node, given: object) -> Step:
    """From one floating type to another nothing is done. What becomes truth values or whole numbers
    does; what they become is of the first input's type."""
    if not is_float(node):
        return Step(aten.to.dtype, (given, val(node).dtype), {})
    return (
        Step(None, (given,), {})
        if is_float(operand(node))
        else Step(aten.type_as.default, (given, Slot(0)), {})
    )


def _from_behind(node: fx.Node, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """A reduction's axes counted from the last one, so that more may stand in front."""
    place = next((i for i, a in enumerate(args) if i > 0 and a == argument(node, "dim")), None)
    behind = [d - rank(operand(node)) for d in dims_of(node)]
    given: int | list[int] = behind if not isinstance(argument(node, "dim"), int) else behind[0]
    if place is None:
        return args, {**kwargs, "dim": given}
    return (*args[:place], given, *args[place + 1 :]), kwargs


def plain(part: Value) -> Value:
    """fx's immutable containers as ordinary ones."""
    if isinstance(part, dict):
        return {k: plain(v) for k, v in part.items()}
    if isinstance(part, list):
        return [plain(v) for v in part]
    return tuple(plain(v) for v in part) if type(part) is tuple else part
