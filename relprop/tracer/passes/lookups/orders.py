"""Positions in the order in which they are given: what puts them in another order sinks to where it
is undone, or makes no difference.

Tokens in another order give the same tokens in another order: of a linear map, of a norm, of what
is done to each number, of attention, if constants (masks, positions) are put in that order, too. A
sum over all of them, or one of them picked, is the same as before."""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor, fx

from relprop.operations import Args, argument, is_call
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_live,
    is_tensor,
    joined,
    rank,
    shape_of,
    swap,
)
from relprop.tracer.passes.lookups.axes import labels_of
from relprop.tracer.passes.simplify.joins import positions_joined

Order = tuple[int, ...]  # at each place, which one of before stands there


Orders = dict[int, Order]  # by axis


Known = dict[fx.Node, tuple[fx.Node, Orders]]  # a call that does nothing else, and what of


def sink_orders(graph: fx.Graph, constants: Constants) -> None:
    """Every change of an order as far down as it goes."""
    known: Known = {}
    made: set[fx.Node] = set()
    for node in list(graph.nodes):
        if node.op == "call_function" and is_live(node) and is_tensor(node):
            known[node] = _change(node, constants)
            if (new := _Sinking(node, constants, known, made).rewritten()) is not None:
                swap(node, new)


def _change(node: fx.Node, constants: Constants) -> tuple[fx.Node, Orders]:
    """What is put in another order, if a call of the user's does just that, and the order."""
    x, found = (arguments(node)[0] if node.args else None), dict[int, list[int]]()
    if is_call(node, aten.cat):
        x, places = positions_joined(node, arguments(node)[1])
        found = {} if x is node else {arguments(node)[1]: places}
    elif is_call(node, aten.flip):
        found = {d % rank(x): list(range(shape_of(x)[d]))[::-1] for d in arguments(node)[1]}
    elif is_call(node, aten.roll) and argument(node, "dims"):
        for d, by in zip(argument(node, "dims"), argument(node, "shifts"), strict=True):
            size = shape_of(x)[d]
            found[d % rank(x)] = [(i - by) % size for i in range(size)]
    elif is_call(node, aten.index):
        picked = [(d, index) for d, index in enumerate(arguments(node)[1]) if index is not None]
        where = constants.value(picked[0][1]) if len(picked) == 1 else None
        if isinstance(where, Tensor) and where.dim() == 1 and where.dtype != torch.bool:
            size = shape_of(x)[picked[0][0]]
            found = {picked[0][0]: [int(w) % size for w in where]}
    whole = is_tensor(x) and shape_of(x) == shape_of(node)
    whole = whole and all(sorted(o) == list(range(len(o))) for o in found.values())
    return (x, {d: tuple(o) for d, o in found.items()}) if whole and x is not None else (node, {})


class _Sinking:
    """One call, some of whose operands are in another order. ``known``: what the calls above do to
    an order; ``made``: those of them that were emitted on the way."""

    def __init__(
        self, node: fx.Node, constants: Constants, known: Known, made: set[fx.Node]
    ) -> None:
        self.node, self.constants, self.known, self.made = node, constants, known, made
        self.bases: dict[fx.Node, fx.Node] = {}
        self.orders: dict[fx.Node, Orders] = {}
        self.features: dict[fx.Node, set[int]] = {}  # axes of features: they are left as they are

    def rewritten(self) -> fx.Node | None:
        """The call on operands as they were, then what their order makes of its result; ``None``:
        nothing sinks."""
        if self.known[self.node][1]:
            return self._parts_exchanged()
        for x in self.node.all_input_nodes:
            self.bases[x], self.orders[x] = self._peeled(x)
        undone = any(base is not x and not self.orders[x] for x, base in self.bases.items())
        if not undone and not any(self.orders.values()):
            return None
        if is_call(self.node, aten.select, aten.slice) and (new := self._picked()) is not None:
            return new
        if is_call(self.node, aten.cat) and (new := self._joined()) is not None:
            return new
        labels, sunk, changed = list(labels_of(self.node)), Orders(), undone
        for label in dict.fromkeys(of for _, _, of in labels):
            at = [(x, axis) for x, axis, of in labels if of == label]
            if label >= 0 and any(axis in self.features[x] for x, axis in at):
                continue
            if (order := self._common(at)) is not None:
                changed = True
                if label >= 0:
                    sunk[label] = order
        return self._emitted(self.node.args, sunk) if changed else None

    def _peeled(self, x: fx.Node) -> tuple[fx.Node, Orders]:
        """What lies below changes of an order, and all of them together."""
        found: Orders = {}
        features = self.features[x] = set()
        while (here := self.known.get(x, (x, {})))[1]:
            features |= {a for a in here[1] if x not in self.made and a == rank(x) - 1}
            x, orders = here
            for axis, order in orders.items():
                found[axis] = _after(order, found[axis]) if axis in found else order
        return x, {a: o for a, o in found.items() if o != tuple(range(len(o)))}

    def _common(self, at: list[tuple[fx.Node, int]]) -> Order | None:
        """The order in which all operands are along the axes of one label, which is taken from
        them; ``None`` if they are in none, or in several."""
        found = {self.orders[x].get(axis) for x, axis in at if is_live(x)}
        order = found.pop() if len(found) == 1 else None
        if order is None:
            return None
        for x, axis in dict.fromkeys(at):
            if is_live(x):
                del self.orders[x][axis]
            else:
                self.orders[x][axis] = _inverse(order)
        return order

    def _parts_exchanged(self) -> fx.Node | None:
        """Whole parts of what was joined, in another order → joined in that order."""
        whole, orders = self._peeled(self.node)
        dim = arguments(whole)[1] if is_call(whole, aten.cat) else None
        if dim not in orders:
            return None
        parts = joined(whole)
        at = [(part, i) for part in range(len(parts)) for i in range(shape_of(parts[part])[dim])]
        placed = [at[i] for i in orders[dim]]
        sequence = [part for part, _ in groupby(part for part, _ in placed)]
        if len(sequence) != len(parts) or sequence == sorted(sequence):
            return None
        ordered = sorted(placed, key=lambda p: (sequence.index(p[0]), p[1]))
        place = {at: i for i, at in enumerate(ordered)}
        orders[dim] = tuple(place[p] for p in placed)
        made = emit(self.node, aten.cat.default, [parts[i] for i in sequence], dim)
        return self._in_order(made, orders)

    def _picked(self) -> fx.Node | None:
        """One position, or evenly spaced ones, of an axis in another order."""
        x, dim, *at = arguments(self.node)
        order = self.orders[x].get(dim)
        if order is None or not all(isinstance(i, int) for i in at):
            return None
        if is_call(self.node, aten.select):
            del self.orders[x][dim]
            kept = {a - (a > dim): o for a, o in self.orders[x].items()}
            self.orders[x] = {}
            return self._emitted((x, dim, order[at[0]]), kept)
        run = order[slice(*at)]
        low = sorted(run)
        step = low[1] - low[0] if len(low) > 1 else 1
        if not low or low != list(range(low[0], low[-1] + 1, step)):
            return None
        kept, self.orders[x] = self.orders[x], {}
        kept[dim] = tuple((i - low[0]) // step for i in run)
        return self._emitted((x, dim, low[0], low[-1] + 1, step), kept)

    def _joined(self) -> fx.Node | None:
        """An order of a part is one of the whole."""
        parts, dim = joined(self.node), arguments(self.node)[1]
        if not any(dim in self.orders[p] for p in parts):
            return None
        if any(dim in self.features[p] for p in parts):
            return None
        whole: list[int] = []
        for p in parts:
            size = shape_of(p)[dim]
            whole += [len(whole) + i for i in self.orders[p].get(dim, range(size))]
        for p in set(parts):
            self.orders[p].pop(dim, None)
        return self._emitted((parts, dim), {dim: tuple(whole)})

    def _emitted(self, args: Args, sunk: Orders) -> fx.Node:
        given = {x: self._in_order(self.bases[x], self.orders[x]) for x in self.bases}
        args, kwargs = fx.node.map_arg((args, self.node.kwargs), given.__getitem__)
        made = emit(self.node, self.node.target, *args, **kwargs)
        self.known[made] = _change(made, self.constants)
        return self._in_order(made, sunk)

    def _in_order(self, x: fx.Node, orders: Orders) -> fx.Node:
        for axis, order in sorted(orders.items()):
            if order != tuple(range(len(order))):
                places = emit(self.node, Held(torch.tensor(order).to(self.constants.device)))
                moved = emit(self.node, aten.index.Tensor, x, [*[None] * axis, places])
                self.known[moved] = (x, {axis: order})
                self.made.add(moved)
                x = moved
        return x


def _after(first: Order, then: Order) -> Order:
    """Both, one after the other."""
    return tuple(first[i] for i in then)


def _inverse(order: Order) -> Order:
    return tuple(sorted(range(len(order)), key=order.__getitem__))
