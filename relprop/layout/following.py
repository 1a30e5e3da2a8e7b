"""Reaches followed through a graph: from an input of the model to its tokens, op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, fx

from relprop.layout.reach import NOWHERE, Reaches, compact, hull, merged, with_rank
from relprop.layout.windows import columns, convolution, padded, pool, resized
from relprop.operations import MOVES, Kind, argument, function_of, kind, listed, operand
from relprop.tracer.calls import template
from relprop.tracer.editing import val
from relprop.tracer.facts import is_floating
from relprop.tracer.follow import follow
from relprop.tracer.order import Flow


def reaches_between(
    leaf: fx.Node, to: fx.Node, axis: int, flow: Flow, known: Mapping[fx.Node, Tensor]
) -> dict[fx.Node, Tensor]:
    """The reach, (4, *shape), of every node on the way ``to`` a tensor, along one axis of the leaf.
    ``known``: values of ``indices``.

    What an op makes that is not understood comes from everywhere.
    """

    def after(node: fx.Node, reaches: Reaches) -> Tensor | None:
        if not isinstance(val(node), Tensor):
            return None
        reach = _step(node, reaches, known)
        return _everywhere(node, reaches) if reach is None else reach

    return follow(flow.between(leaf, to), {leaf: _own_positions(leaf, axis)}, after)


def _own_positions(leaf: fx.Node, axis: int) -> Tensor:
    """The reach of the leaf itself: every value is at its own position."""
    shape = val(leaf).shape
    first = torch.arange(shape[axis], dtype=torch.float64)
    first = first.reshape([n if i == axis else 1 for i, n in enumerate(shape)])
    return torch.stack([first, first + 1, first, first + 1])


def _everywhere(node: fx.Node, reaches: Reaches) -> Tensor:
    """The hull of all that enters a node, at each of its elements."""
    entering = [reaches[i].flatten(1) for i in node.all_input_nodes if i in reaches]
    return hull(torch.cat(entering, 1), (1,)).reshape(4, *[1] * val(node).dim())


def indices(leaf: fx.Node, to: fx.Node, flow: Flow) -> set[fx.Node]:
    """The whole numbers by which values are put in other places between two tensors: what the reach
    cannot be known without."""
    moves = [n for n in flow.between(leaf, to) if kind(n) in MOVES]
    return {
        o
        for n in moves
        for o in template(n)[0]
        if not is_floating(o) and isinstance(val(o), Tensor) and val(o).dtype != torch.bool
    }


def _step(node: fx.Node, reaches: Reaches, known: Mapping[fx.Node, Tensor]) -> Tensor | None:
    """The reach after one op; ``None`` if the op is not understood."""
    if kind(node) in MOVES and (moved := _moved(node, reaches, known)) is not None:
        return moved
    if kind(node) in KINDS:
        return KINDS[kind(node)](node, reaches)
    return _elementwise(node, reaches)


def _elementwise(node: fx.Node, reaches: Reaches) -> Tensor | None:
    """The operands' reaches merged, if their shapes are those of an elementwise op."""
    shape = tuple(val(node).shape)
    entering = [o for o in template(node)[0] if o in reaches and val(o).dim() <= len(shape)]
    operands = [with_rank(reaches[o], len(shape)) for o in entering]
    fits = all(
        n in (1, size) for reach in operands for n, size in zip(reach.shape[1:], shape, strict=True)
    )
    return merged(operands) if operands and fits else None


def _moved(node: fx.Node, reaches: Reaches, known: Mapping[fx.Node, Tensor]) -> Tensor | None:
    """The op itself, on each of the four numbers; parameters and constants are nowhere."""
    operands, rebuild = template(node)
    if any(o not in reaches and o not in known and not is_floating(o) for o in operands):
        return None
    call = function_of(node)
    full = {o: reaches[o].expand(4, *val(o).shape) for o in operands if o in reaches}
    results = []
    for k, nowhere in enumerate(NOWHERE):
        given = (
            full[o][k] if o in full else known[o] if o in known else nowhere.expand(val(o).shape)
            for o in operands
        )
        args, kwargs = rebuild(*given)
        results.append(call(*args, **kwargs))
    return compact(torch.stack(results))


def _indexed(node: fx.Node, reaches: Reaches) -> Tensor | None:
    """Indexed along one axis by values that are not known here: that axis must be one along which
    nothing changes."""
    if operand(node) not in reaches:
        return None
    reach = reaches[operand(node)]
    places = [(axis, index) for axis, index in enumerate(listed(node, 1)) if index is not None]
    if len(places) != 1 or val(places[0][1]).dim() != 1:
        return None
    return reach if reach.shape[places[0][0] + 1] <= 1 else None


def _linear(node: fx.Node, reaches: Reaches) -> Tensor | None:
    return hull(reaches[operand(node)], (-1,)) if operand(node) in reaches else None


def _matmul(node: fx.Node, reaches: Reaches) -> Tensor | None:
    """The hull over the axis that is summed; of two products' factors the narrower says where it
    is."""
    factors = zip(node.args[:2], (-1, -2), strict=True)
    mixed = [
        with_rank(hull(reaches[factor], (axis,)), val(node).dim())
        for factor, axis in factors
        if isinstance(factor, fx.Node) and factor in reaches and val(factor).dim() > 1
    ]
    return merged(mixed) if mixed else None


def _reduced(node: fx.Node, reaches: Reaches) -> Tensor:
    """The hull over the axes that a sum, a maximum or a statistic takes away."""
    reach, dims = reaches[operand(node)], argument(node, "dim")
    rank = reach.dim() - 1
    gone = [d % rank + 1 for d in ([dims] if isinstance(dims, int) else dims or range(rank))]
    reach = hull(reach, gone)
    return reach if argument(node, "keepdim") else reach.squeeze(gone)


KINDS: dict[Kind, Callable[[fx.Node, Reaches], Tensor | None]] = {
    Kind.CONVOLUTION: convolution,
    Kind.MAX_POOL: pool,
    Kind.AVERAGE_POOL: pool,
    Kind.RESAMPLE: resized,
    Kind.PAD: padded,
    Kind.LINEAR: _linear,
    Kind.INDEX: _indexed,
    Kind.WINDOWS: columns,
    Kind.MATMUL: _matmul,
    **dict.fromkeys((Kind.TOTAL, Kind.LARGEST, Kind.STATISTIC), _reduced),
}
