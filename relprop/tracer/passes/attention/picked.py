"""Keys that are picked for each query by what the model computes: attention over some of the keys
is attention over all of them, in which those that were not picked have no weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.operations import Kind, argument, is_call, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    applied,
    arguments,
    aten,
    emit,
    expanded,
    is_live,
    is_tensor,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.labels import LARGEST, along

PICKS = frozenset({Kind.GATHER, Kind.INDEX})
#: What lies between the values of all keys and those that were picked.
WAY = PICKS | {Kind.RESHAPE, Kind.PERMUTE, Kind.EXPAND, Kind.SELECT, Kind.SLICE}


def spread_picked(graph: fx.Graph, constants: Constants) -> None:
    """Σ_j a_qj v[i_qj] → Σ_t (Σ_j a_qj [i_qj = t]) v_t, with indices i that depend on the input."""
    for node in list(graph.nodes):
        both = is_call(node, aten.matmul) and all(is_live(x) for x in arguments(node))
        if both and (new := _spread(node, constants)) is not None:
            swap(node, new)


def _spread(node: fx.Node, constants: Constants) -> fx.Node | None:
    weights, picked = arguments(node)
    if rank(weights) < 3 or shape_of(weights)[-2] != 1 or rank(weights) != rank(picked):
        return None
    if val(picked).numel() > LARGEST:  # not tried out; it is explained as it stands
        return None
    way = _way(picked)
    last = [i for i, n in enumerate(way) if _picks_by_input(n, constants)]
    for start in range(len(way), last[-1] if last else len(way), -1):  # from the lowest tensor on
        laid = _Laid.of(operand(way[start - 1]), way[:start][::-1], constants)
        if laid is not None:
            return laid.product(node, weights)
    return None


def _way(node: fx.Node) -> list[fx.Node]:
    """The moves that end in a tensor, the last one first."""
    found: list[fx.Node] = []
    while kind(node) in WAY and is_tensor(operand(node)):
        found.append(node)
        node = operand(node)
    return found


def _indices(node: fx.Node) -> list[tuple[int, fx.Node]]:
    """What a pick takes, by the axis that it takes it from."""
    if kind(node) is Kind.GATHER:
        return [(argument(node, "dim") % rank(operand(node)), argument(node, "index"))]
    return [(i, index) for i, index in enumerate(arguments(node)[1]) if index is not None]


def _picks_by_input(node: fx.Node, constants: Constants) -> bool:
    return kind(node) in PICKS and any(constants.value(i) is None for _, i in _indices(node))


class _Drawn:
    """Indices, those that depend on the input drawn by chance where they were worked out."""

    def __init__(self, constants: Constants, seed: int) -> None:
        self.constants, self.generator = constants, torch.Generator().manual_seed(seed)
        self._known: dict[fx.Node, Tensor] = {}

    def index(self, node: fx.Node, size: int) -> Tensor:
        """An index among ``size`` positions."""
        if node not in self._known:
            self._known[node] = self._found(node, size)
        return self._known[node]

    def _found(self, node: fx.Node, size: int) -> Tensor:
        held = self.constants.value(node)
        if isinstance(held, Tensor):
            return held
        if kind(node) in WAY - PICKS and is_tensor(operand(node)):
            return applied(node, self.index(operand(node), size))
        if is_call(node, aten.add) and len(offsets := self._offsets(node)) == 1:
            ((operands, offset),) = offsets  # where each head's own positions begin
            return self.index(operands, size - int(offset.max())) + offset
        return torch.randint(size, shape_of(node), generator=self.generator)

    def _offsets(self, node: fx.Node) -> list[tuple[fx.Node, Tensor]]:
        """What is added to a known tensor, and the tensor."""
        one, other = arguments(node)[:2]
        pairs = [
            (x, self.constants.value(y))
            for x, y in ((one, other), (other, one))
            if y in node.all_input_nodes
        ]
        return [(x, held) for x, held in pairs if isinstance(held, Tensor) and is_tensor(x)]

    def after(self, node: fx.Node, x: Tensor) -> Tensor:
        """What a move makes of ``x``."""
        if kind(node) not in PICKS:
            return applied(node, x)
        indices = [(axis, self.index(i, x.shape[axis])) for axis, i in _indices(node)]
        if kind(node) is Kind.GATHER:
            ((axis, index),) = indices
            return x.gather(axis, index)
        by_axis = dict(indices)
        made: Tensor = aten.index(x, [by_axis.get(i) for i in range(max(by_axis) + 1)])
        return made


@dataclass(frozen=True)
class _Laid:
    """How the values of all keys lie, of which a ``way`` of moves picks some for each query.

    ``keys``: their axis; ``features``: that of their features, before and after each move;
    ``batches``: for each axis but the last two of what was picked, the same of the values, or
    ``None`` where they were repeated.
    """

    values: fx.Node
    way: tuple[fx.Node, ...]
    keys: int
    features: tuple[int, ...]
    batches: tuple[int | None, ...]
    constants: Constants

    @classmethod
    def of(cls, values: fx.Node, way: Sequence[fx.Node], constants: Constants) -> _Laid | None:
        """``None`` where the moves do something else."""
        shape, result = tuple(shape_of(values)), tuple(shape_of(way[-1]))
        wide = [i for i, size in enumerate(shape) if size > 1]
        found: set[tuple[tuple[int, int | None], ...]] = set()
        for seed in range(2):
            drawn = _Drawn(constants, seed)
            try:
                ends = {i: _pushed(along(shape, i), way, drawn)[-1] for i in wide}
            except (RuntimeError, IndexError):
                return None
            found.add(tuple((i, _axis_of(end)) for i, end in ends.items()))
            keys = [i for i, end in ends.items() if _axis_of(end) is None]
            if len(found) > 1 or len(keys) != 1 or not _alike(ends[keys[0]], len(result) - 1):
                return None
        at = {axis: i for i, axis in found.pop() if axis is not None}
        features = at.get(len(result) - 1)
        if features is None or len(at) != len(wide) - 1 or len(result) - 2 in at:
            return None
        steps = [along(shape, features), *_pushed(along(shape, features), way, drawn)]
        axes = tuple(_axis_of(step) for step in steps)
        if None in axes:
            return None
        batches = tuple(at.get(o) for o in range(len(result) - 2))
        return cls(values, tuple(way), keys[0], axes, batches, constants)  # type: ignore[arg-type]

    def product(self, node: fx.Node, weights: fx.Node) -> fx.Node:
        """The same ``node``, a product of weights and what was picked, over all keys."""
        batch, count = shape_of(self.way[-1])[:-2], shape_of(self.values)[self.keys]
        ones = [i for i, size in enumerate(shape_of(self.values)) if size == 1]
        order = [*ones, *(i for i in self.batches if i is not None), self.keys, self.features[0]]
        sizes = [1 if i is None else shape_of(self.values)[i] for i in self.batches]
        one_query = bool(batch) and self.batches[-1] is None
        sizes = sizes[:-1] if one_query else sizes
        laid = permuted(node, self.values, order)
        laid = reshaped(node, laid, [*sizes, count, shape_of(self.values)[self.features[0]]])
        places = reshaped(node, self._places(node), [*batch, 1, shape_of(weights)[-1]])
        given = expanded(node, weights, [*batch, *shape_of(weights)[-2:]])
        options = {"dtype": val(weights).dtype, "device": self.constants.device}
        none = emit(node, aten.full.default, [*batch, 1, count], 0.0, **options)
        spread = emit(node, aten.scatter_add.default, none, len(batch) + 1, places, given)
        if one_query:  # of one query each: they are the rows of one map
            spread = reshaped(node, spread, [*batch, count])
        return reshaped(node, emit(node, aten.matmul.default, spread, laid), shape_of(node))

    def _places(self, node: fx.Node) -> fx.Node:
        """Which of all keys each picked one is, with one feature: the moves, of numbers."""
        shape = shape_of(self.values)
        sizes = [size if i == self.keys else 1 for i, size in enumerate(shape)]
        made = emit(node, aten.arange.default, shape[self.keys], device=self.constants.device)
        made = reshaped(node, made, sizes)
        shape[self.features[0]] = 1
        made = expanded(node, made, shape)
        for move, before, after in zip(self.way, self.features, self.features[1:], strict=False):
            args = list(arguments(move)[1:])
            if kind(move) in (Kind.RESHAPE, Kind.EXPAND):
                args[0] = [1 if i == after else n for i, n in enumerate(shape_of(move))]
            elif kind(move) is Kind.GATHER and shape_of(args[1])[before] > 1:
                args[1] = emit(node, aten.slice.Tensor, args[1], before, 0, 1, 1)
            made = emit(node, move.target, made, *args)  # type: ignore[arg-type]
        return made


def _pushed(x: Tensor, way: Sequence[fx.Node], drawn: _Drawn) -> list[Tensor]:
    """``x`` after each of the moves."""
    found = []
    for node in way:
        x = drawn.after(node, x)
        found.append(x)
    return found


def _axis_of(coordinate: Tensor) -> int | None:
    """The axis that a coordinate counts from the first position to the last."""
    shape = tuple(coordinate.shape)
    return next((i for i in range(len(shape)) if torch.equal(coordinate, along(shape, i))), None)


def _alike(x: Tensor, axis: int) -> bool:
    """Whether all along an axis is the same."""
    return bool((x == x.narrow(axis, 0, 1)).all())
