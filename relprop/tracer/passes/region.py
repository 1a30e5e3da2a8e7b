"""Regions: the nodes between one tensor and another that depends on it alone, as a function that
can be tried out.

What a region *is* (a norm, a softmax, an activation) is asked of its numbers, in double precision,
and not of how it is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from relprop.operations import ELEMENTWISE, Kind, argument, is_call, kind
from relprop.tracer.editing import (
    aten,
    dims_of,
    is_float,
    is_live,
    rank,
    shape_of,
    tensor_inputs,
    val,
)
from relprop.tracer.order import Flow

REDUCTIONS = frozenset({Kind.TOTAL, Kind.STATISTIC, Kind.LARGEST})
MOST = 40  # nodes in a region
INSIDE = ELEMENTWISE | REDUCTIONS | {Kind.RESHAPE, Kind.EXPAND}


@dataclass(frozen=True)
class Slot:
    """In a recipe, the value with this number."""

    number: int


@dataclass(frozen=True)
class Step:
    """One operation of a recipe. ``shapes``: of a reshape that puts in or leaves out axes of length
    1, before and after."""

    op: Any
    args: Any
    kwargs: Any
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class Recipe:
    """What a region computes, without its graph: values 0 to ``inputs`` − 1 are given, each step
    adds one. Shapes that are written out follow those of the operands, and so do floating types."""

    inputs: int
    steps: tuple[Step, ...]

    def __call__(self, *tensors: Tensor) -> Tensor:
        values: list[Any] = list(tensors)
        for step in self.steps:
            args, kwargs = (_filled(part, values) for part in (step.args, step.kwargs))
            if step.shapes is not None:
                values.append(args[0].reshape(as_before(*step.shapes, list(args[0].shape))))
            else:
                values.append(args[0] if step.op is None else step.op(*args, **kwargs))
        return values[-1]  # type: ignore[no-any-return]


def _filled(part: Any, values: list[Any]) -> Any:
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
    slots = {node: Slot(i) for i, node in enumerate(inputs)}
    steps = []
    for node in nodes:
        args, kwargs = plain(fx.node.map_arg((node.args, node.kwargs), lambda n: slots[n]))
        if kind(node) is Kind.CAST:
            steps.append(_cast(node, args[0]))
        elif kind(node) is Kind.EXPAND:
            steps.append(Step(None, args, {}))
        elif kind(node) is Kind.RESHAPE:
            shapes = tuple(shape_of(node.args[0])), tuple(shape_of(node))
            steps.append(Step(None, args[:1], {}, shapes))
        else:
            kwargs = {k: v for k, v in kwargs.items() if k != "dtype"}
            if kind(node) in REDUCTIONS:
                args, kwargs = _from_behind(node, args, kwargs)
            steps.append(Step(node.target, args, kwargs))
        slots[node] = Slot(len(inputs) + len(steps) - 1)
    return Recipe(len(inputs), tuple(steps))


def _cast(node: fx.Node, given: Any) -> Step:
    """From one floating type to another nothing is done. What becomes truth values or whole numbers
    does; what they become is of the first input's type."""
    if not is_float(node):
        return Step(aten.to.dtype, (given, val(node).dtype), {})
    return (
        Step(None, (given,), {})
        if is_float(node.args[0])
        else Step(aten.type_as.default, (given, Slot(0)), {})
    )


def _from_behind(node: fx.Node, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """A reduction's axes counted from the last one, so that more may stand in front."""
    place = next((i for i, a in enumerate(args) if i > 0 and a == argument(node, "dim")), None)
    behind = [d - rank(node.args[0]) for d in dims_of(node)]
    given: Any = behind if not isinstance(argument(node, "dim"), int) else behind[0]
    if place is None:
        return args, {**kwargs, "dim": given}
    return (*args[:place], given, *args[place + 1 :]), kwargs


def plain(part: Any) -> Any:
    """fx's immutable containers as ordinary ones."""
    if isinstance(part, dict):
        return {k: plain(v) for k, v in part.items()}
    if isinstance(part, list):
        return [plain(v) for v in part]
    return tuple(plain(v) for v in part) if type(part) is tuple else part


@dataclass(frozen=True)
class Region:
    """``output`` is a function of ``source`` and of ``parameters``, which depend on no input,
    through ``nodes`` (in order, ``output`` last); ``axes`` are those of ``source`` that something
    inside is summed over, or compared along."""

    source: fx.Node
    output: fx.Node
    nodes: tuple[fx.Node, ...]
    parameters: tuple[fx.Node, ...]
    axes: tuple[int, ...]
    recipe: Recipe

    def __call__(self, x: Tensor, *parameters: Tensor) -> Tensor:
        """The region's value for other tensors."""
        return self.recipe(x, *parameters)

    @property
    def signature(self) -> str:
        """What the answer to a trial depends on."""
        return repr((self.recipe, self.probe_shape(), self.parameter_shapes(), self.axes))

    def probe_shape(self) -> list[int]:
        """A shape to try the region with: two places along every axis that nothing is summed
        over."""
        sizes = shape_of(self.source)
        return [s if i in self.axes else min(s, 2) for i, s in enumerate(sizes)]

    def parameter_shapes(self) -> list[list[int]]:
        """The shapes of the parameters for it."""
        probe, whole = self.probe_shape(), shape_of(self.source)
        found = []
        for p in self.parameters:
            at = range(len(whole) - rank(p), len(whole))
            pairs = zip(at, shape_of(p), strict=True)
            found.append([probe[i] if s > 1 and i >= 0 else s for i, s in pairs])
        return found


def only_ones(node: fx.Node) -> bool:
    """Whether a reshape puts in or leaves out axes of length 1 and nothing else."""
    before, after = ([s for s in shape_of(n) if s != 1] for n in (node.args[0], node))
    return before == after


def flow_of(graph: fx.Graph) -> Flow:
    """Everything that depends on an input, whatever its type."""
    live = [n for n in graph.nodes if n.op != "output" and is_live(n)]
    return Flow(live, {n for n in live if n.op == "placeholder"})


def candidates(graph: fx.Graph) -> Iterator[Region]:
    """The largest regions first, from the last node to the first: where ways from one tensor meet
    again."""
    flow = flow_of(graph)
    for node in reversed(flow.nodes):
        region = region_of(flow, node)
        if region is not None:
            yield region


def region_of(flow: Flow, output: fx.Node, source: fx.Node | None = None) -> Region | None:
    """The region that ends in ``output``, an elementwise call of several tensors; it begins where
    these meet, or in ``source``."""
    inputs = flow.inputs[output]
    if kind(output) not in ELEMENTWISE or len(inputs) < 2 or not is_float(output):
        return None
    source = flow.common_dominator(inputs) if source is None else source
    if source is None or not is_float(source) or shape_of(source) != shape_of(output):
        return None
    nodes = _between(flow, source, output)
    if nodes is None:
        return None
    members = set(nodes)
    if any(u not in members for n in nodes if n is not output for u in n.users):
        return None
    return _region(source, output, nodes)


def _between(flow: Flow, source: fx.Node, output: fx.Node) -> list[fx.Node] | None:
    """The nodes from ``source`` (exclusive) to ``output``, in order, if all of them fit."""
    found, left = {output}, [output]
    while left:
        node = left.pop()
        if len(found) > MOST or not fits(node, source):
            return None
        for above in flow.inputs[node]:
            if above is not source and above not in found:
                found.add(above)
                left.append(above)
    return sorted(found, key=flow.index.__getitem__)


def _region(source: fx.Node, output: fx.Node, nodes: list[fx.Node]) -> Region | None:
    members = {source, *nodes}
    entering = dict.fromkeys(i for n in nodes for i in tensor_inputs(n) if i not in members)
    if any(is_live(p) or not isinstance(val(p), Tensor) for p in entering):
        return None
    axes: set[int] = set()
    for node in nodes:
        if kind(node) in REDUCTIONS:
            axes |= set(dims_of(node))
    recipe = recipe_of(nodes, [source, *entering])
    return Region(source, output, tuple(nodes), tuple(entering), tuple(sorted(axes)), recipe)


def fits(node: fx.Node, source: fx.Node) -> bool:
    """Whether a node may be inside a region of ``source``."""
    what = kind(node)
    if what not in INSIDE or not isinstance(val(node), Tensor) or not node.args:
        return False
    if what in REDUCTIONS:
        return rank(node.args[0]) == rank(source) and not is_call(node, aten.norm)
    return what is not Kind.RESHAPE or only_ones(node)


# ---- trying out


@dataclass(frozen=True)
class Trial:
    """One set of numbers to try a region with."""

    x: Tensor
    parameters: tuple[Tensor, ...]


def trials(region: Region) -> list[Trial]:
    """Ordinary, tiny and large numbers of both signs, seeded."""
    generator = torch.Generator().manual_seed(0)

    def draw(shape: list[int]) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    found = []
    for scale, shift in ((1.0, 0.3), (1e-3, 0.0), (30.0, -5.0)):
        x = scale * draw(region.probe_shape()) + shift * scale
        drawn = (draw(s) + 0.1 for s in region.parameter_shapes())
        masks = (val(p).dtype == torch.bool for p in region.parameters)
        given = tuple(t > 0 if m else t for t, m in zip(drawn, masks, strict=True))
        found.append(Trial(x, given))
    return found


def same(a: Any, b: Any, tolerance: float = 1e-11) -> bool:
    """Whether two results agree, relative to the largest."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape:
        return False
    if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
        return False
    gap = torch.where(a == b, 0.0, a - b).nan_to_num(0.0).abs().max().item() if a.numel() else 0.0
    finite = torch.where(b.isfinite(), b, 0.0).abs().max().item() if b.numel() else 0.0
    return gap <= tolerance * finite if math.isfinite(gap) else False


def equal_functions(
    one: Any, other: Any, given: Sequence[Tensor | tuple[Tensor, ...]], tolerance: float = 1e-11
) -> bool:
    """Whether two functions have the same values, and the same derivatives, at some tensors (a
    tuple: at several arguments)."""
    for x in given:
        at = x if isinstance(x, tuple) else (x,)
        try:
            a, pull_a = torch.func.vjp(one, *at)
            b, pull_b = torch.func.vjp(other, *at)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return False
        if not same(a, b, tolerance):
            return False
        weights = torch.linspace(0.5, 1.5, a.numel(), dtype=a.dtype).reshape(a.shape)
        pairs = zip(pull_a(weights), pull_b(weights), strict=True)
        if not all(same(s, t, 1e-8) for s, t in pairs):
            return False
    return True
