"""Functions of every element of one tensor, however they are written out: x·Φ(x), hard forms by
clamps, choices by sign. One that torch has is that; another is one operation all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from relprop.operations import Kind, kind
from relprop.operations.vocabulary import Written
from relprop.tracer.editing import aten, emit, is_float, is_live, shape_of, swap, val
from relprop.tracer.passes.region import (
    Recipe,
    Region,
    candidates,
    equal_functions,
    recipe_of,
    same,
    trials,
)

#: The functions of one element that torch has, as they are called.
KNOWN: tuple[tuple[Any, dict[str, Any]], ...] = (
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
_GRID = torch.cat(
    [torch.linspace(-9, 9, 181), torch.tensor([-40.0, -1e-3, 1e-3, 0.5, 2.99, 3.01, 40.0])]
).double()
_CHAIN = frozenset({Kind.FUNCTION, Kind.AFFINE, Kind.SUM, Kind.PRODUCT, Kind.QUOTIENT})


def raise_functions(graph: fx.Graph) -> bool:
    """Regions without a sum in them, then chains of functions → one call each; whether one was
    written anew."""
    taken: set[fx.Node] = set()
    for region in list(candidates(graph)):
        if region.axes or taken & set(region.nodes):
            continue
        if _stops_gradient(region.nodes):
            continue
        if region.parameters and _is_affine(region):
            continue
        new = _call(region.output, region.source, region.recipe, region.parameters)
        taken |= set(region.nodes)
        swap(region.output, new)
    graph.eliminate_dead_code()
    return _raise_chains(graph) or bool(taken)


def _stops_gradient(nodes: Any) -> bool:
    return any(kind(n) is Kind.DETACH for n in nodes)


def _call(at: fx.Node, x: fx.Node, recipe: Recipe, parameters: Any) -> fx.Node:
    """The function as torch has it, as a multiple of x if it is one, or as one that is written
    out."""
    if not parameters:
        if (line := _line(recipe)) is not None:
            return _emit_line(at, x, *line)
        if (known := _known(recipe)) is not None:
            return known(at, x)
    return emit(at, Written(recipe), x, *parameters)


def _is_affine(region: Region) -> bool:
    """Whether a region with parameters is a·x + b for all of them: no activation, but sums."""
    for t in trials(region):
        zero, one, two = (region(k * t.x, *t.parameters) for k in (0.0, 1.0, 2.0))
        if not same(two - one, one - zero, 1e-9):
            return False
    return True


def _line(function: Callable[..., Tensor]) -> tuple[float, float] | None:
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


def _emit_line(at: fx.Node, x: fx.Node, slope: float, offset: float) -> fx.Node:
    x = x if slope == 1 else emit(at, aten.mul.Tensor, x, slope)
    return x if offset == 0 else emit(at, aten.add.Tensor, x, offset)


def known_function(
    function: Callable[..., Tensor],
) -> Callable[[fx.Node, fx.Node], fx.Node] | None:
    """How a function of each element is emitted that torch has, or that is a·x + b."""
    if (line := _line(function)) is not None:
        return lambda at, x: _emit_line(at, x, *line)
    return _known(function)


def _known(function: Callable[..., Tensor]) -> Callable[[fx.Node, fx.Node], fx.Node] | None:
    """How torch's own function with the same values and derivatives is emitted."""
    for op, options in KNOWN:
        if _agree(function, partial(op, **options)):
            return partial(_emitted, op, options)
    try:
        slope = -float(function(torch.tensor(-1.0).double()))
    except (RuntimeError, TypeError, ValueError):
        return None
    leaky = {"negative_slope": slope}
    if 0 < slope < 1 and _agree(function, partial(aten.leaky_relu.default, **leaky)):
        return partial(_emitted, aten.leaky_relu.default, leaky)
    return None


def _emitted(op: Any, options: dict[str, Any], at: fx.Node, x: fx.Node) -> fx.Node:
    return emit(at, op, x, **options)


def _agree(one: Callable[..., Tensor], other: Callable[..., Tensor]) -> bool:
    """Whether two functions have the same values and derivatives, point by point."""
    try:
        a, b = one(_GRID), other(_GRID)
    except (RuntimeError, TypeError, ValueError):
        return False
    if a.shape != b.shape or not bool(((a - b).abs() <= 1e-12 * (1 + b.abs())).all()):
        return False
    return equal_functions(one, other, [_GRID])


# ---- chains


def _raise_chains(graph: fx.Graph) -> bool:
    """Functions of functions: what torch has a name for, from the longest chain on; else from the
    first function to the last as one."""
    done: set[fx.Node] = set()
    shorter = False
    for node in reversed(list(graph.nodes)):
        if node in done or node._erased or not _links(node):
            continue
        chain = [node]
        while _links(above := chain[0].args[0]) and len(above.users) == 1:  # type: ignore[union-attr, arg-type]
            chain.insert(0, above)  # type: ignore[arg-type]
        done |= set(chain)
        shorter |= _shorten(chain)
    graph.eliminate_dead_code()
    return shorter


def _links(node: Any) -> bool:
    """Whether a call is a function of one tensor and of numbers."""
    if not isinstance(node, fx.Node) or kind(node) not in _CHAIN or not is_float(node):
        return False
    x = node.args[0]
    single = len(node.all_input_nodes) == 1 and is_float(x) and is_live(x)
    return single and shape_of(x) == shape_of(node) and val(x).dtype == val(node).dtype


def _shorten(chain: list[fx.Node]) -> bool:
    curved = [i for i, n in enumerate(chain) if kind(n) is Kind.FUNCTION]
    if not curved or len(chain) < 2:
        return False
    for length in range(len(chain), 1, -1):
        for first in range(len(chain) - length + 1):
            part = chain[first : first + length]
            if not any(kind(n) is Kind.FUNCTION for n in part):
                continue
            known = _known(recipe_of(part, [part[0].args[0]]))  # type: ignore[list-item]
            if known is not None:
                swap(part[-1], known(part[-1], part[0].args[0]))  # type: ignore[arg-type]
                return True
    if len(curved) > 1:
        part = chain[curved[0] : curved[-1] + 1]
        recipe = recipe_of(part, [part[0].args[0]])  # type: ignore[list-item]
        swap(part[-1], _call(part[-1], part[0].args[0], recipe, ()))  # type: ignore[arg-type]
    return len(curved) > 1
