"""Ids are looked up as they are given: what moves them before the lookup moves the rows behind it.

An explanation of ids starts at their embedding, and its scores are those of the ids' positions. So
the rows of ``W[ids.flip(1)]`` are those of ``W[ids]``, flipped; in ``W[cat([start, ids[:, :-1]])]``
a row of ``start`` stands before those of the ids; and of ``W[ids.sort(1).values]`` each row is that
of the id that the sorting puts there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor, fx

from relprop.operations import ELEMENTWISE, MOVES, Kind, kind, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    drop_unused,
    emit,
    is_float,
    is_live,
    is_tensor,
    joined,
    permuted,
    rank,
    reshaped,
    rows_at,
    shape_of,
    swap,
    tensor_inputs,
    val,
)
from relprop.tracer.leaves import same_ids
from relprop.tracer.passes.simplify.rules import simplify
from relprop.tracer.passes.trials.parts import Piece

Key = tuple[Hashable, ...]


FIRST = 1 << 40  # the number that stands for the first position: no id is as large


def look_up_as_given(graph: fx.Graph, constants: Constants) -> None:
    """No lookup of ids that were moved."""
    waiting = [n for n in reversed(graph.nodes) if kind(n) is Kind.EMBEDDING]
    joined = False
    tables: defaultdict[Key, _Table] = defaultdict(_Table)
    for node in waiting:
        _Lookup(node, constants, tables).count()
    while waiting:
        node = waiting.pop()
        given = graph.find_nodes(op="placeholder")
        if any(arguments(node)[1] in same_ids(p) for p in given if not is_float(p)):
            lookup = _Lookup(node, constants, tables)
            if (new := lookup.rewritten()) is not None:
                joined |= kind(arguments(node)[1]) is Kind.JOIN
                swap(node, new)
                waiting += lookup.made
    drop_unused(graph)
    if joined:  # what was looked up at once may be added
        simplify(graph, constants)


@dataclass
class _Table:
    """Of all lookups of some ids in one table: the positions that they have, and the rows of all
    ids, once they are looked up."""

    places: set[int] = field(default_factory=set)
    rows: fx.Node | None = None

    def has_all(self, ids: fx.Node) -> bool:
        """Whether there is a lookup of each."""
        return self.places.issuperset(range(shape_of(ids)[1]))


class _Lookup:
    """A lookup ``node``; ``made``: those in its place. ``tables``: what is looked up of the same
    ids in the same table, all having been made into others in the same way."""

    def __init__(
        self, node: fx.Node, constants: Constants, tables: defaultdict[Key, _Table]
    ) -> None:
        self.node, self.constants, self.tables = node, constants, tables
        self.made: list[fx.Node] = []
        self.functions, self.moved = _functions(arguments(node)[1])

    def count(self) -> None:
        """Count the positions that this lookup has."""
        if is_live(self.moved):
            nodes, sources = self._moves()
            x = sources[0] if len(sources) == 1 else self.moved
            if rank(x) > 1 and rank(self.moved) > 1:
                places = self._places(nodes, x) or ()
                self._table(x).places.update(i - FIRST for i in places if i >= FIRST)

    def _table(self, ids: fx.Node) -> _Table:
        """What is looked up of ``ids`` after the same functions of them; or as they are, where all
        are, and the functions change no number of a row."""
        table = operand(self.node)
        owner = table.target if table.op == "get_attr" else table
        plain = self.tables[owner, ids]
        if rank(ids) > 1 and plain.has_all(ids) and self._is_identity():
            return plain
        places = {n: i for i, n in enumerate((self.moved, *self.functions))}
        functions = (
            (str(f.target), str(fx.node.map_arg((f.args, f.kwargs), lambda n: places.get(n, n))))
            for f in self.functions
        )
        return self.tables[owner, ids, *functions]

    def _is_identity(self) -> bool:
        """Whether the functions change no number of the table's rows."""
        numbers = torch.arange(shape_of(operand(self.node))[0])
        numbers = numbers.reshape(-1, *[1] * (rank(self.moved) - 1)).to(val(self.moved).dtype)
        part = Piece((self.moved,), arguments(self.node)[1], tuple(self.functions), self.constants)
        try:
            return torch.equal(part(numbers), numbers)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return False

    def rows(self, ids: fx.Node) -> fx.Node:
        """The rows of other ids, by the same functions of them."""
        made = {self.moved: ids}
        for f in self.functions:
            args, kwargs = fx.node.map_arg((f.args, f.kwargs), lambda n: made.get(n, n))
            ids = made[f] = emit(self.node, f.target, *args, **kwargs)
        self.made.append(emit(self.node, aten.embedding.default, operand(self.node), ids))
        return self.made[-1]

    def rewritten(self) -> fx.Node | None:
        """The same rows, by a lookup of ids that are moved once less; ``None``: of ids as they
        are."""
        moved, what = self.moved, kind(self.moved)
        if not is_live(moved):
            return None
        if moved.op != "call_function":
            return self._once(self._table(moved))
        x = arguments(moved)[0]
        if what is Kind.PERMUTE:
            return permuted(self.node, self.rows(x), [*arguments(moved)[1], rank(x)])
        if what is Kind.GATHER and is_live(x) and is_live(arguments(moved)[2]):
            return rows_at(
                self.node, self.rows(x), arguments(moved)[1] % rank(x), arguments(moved)[2]
            )
        if what is Kind.INDEX and is_live(x) and any(map(is_live, arguments(moved)[1])):
            return emit(self.node, moved.target, self.rows(x), arguments(moved)[1])
        nodes, sources = self._moves()
        axis = arguments(moved)[1] % rank(moved) if what is Kind.JOIN else 1
        if len(sources) == 1 and nodes and axis == 1:
            return self._along_an_axis(nodes, sources[0])
        return self._joined(axis) if sources and what is Kind.JOIN else None

    def _joined(self, axis: int) -> fx.Node | None:
        if not all(is_tensor(p) for p in joined(self.moved)):
            return None
        parts = [self.rows(p) for p in joined(self.moved)]
        return emit(self.node, aten.cat.default, parts, axis)

    def _moves(self) -> tuple[list[fx.Node], list[fx.Node]]:
        """The moves above the ids, in order, and the live tensors that are moved."""
        moves: set[fx.Node] = set()
        sources: dict[fx.Node, None] = {}
        left = [self.moved]
        while left:
            node = left.pop()
            if node in moves or not is_live(node):
                continue
            live = [i for i in tensor_inputs(node) if is_live(i)]
            one = live == [*arguments(node)[:1]] or (kind(node) is Kind.CHOICE and len(live) == 1)
            kinds = MOVES | {Kind.PAD, Kind.CHOICE}
            constant = not is_float(node) and (kind(node) is Kind.JOIN or one)
            if node.op == "call_function" and constant and kind(node) in kinds:
                moves.add(node)
                left += tensor_inputs(node)
            else:
                sources[node] = None
        return sorted(moves), list(sources)

    def _along_an_axis(self, nodes: list[fx.Node], x: fx.Node) -> fx.Node | None:
        """Positions of the second axis change place, or constants come between them."""
        old, new = shape_of(x), shape_of(self.moved)
        if len(old) < 2 or len(new) < 2 or old[0] != new[0]:
            return None
        found = self._places(nodes, x)
        if found is None or found == list(range(FIRST, FIRST + old[1])):
            return None if found is None else self._in_shape(self.rows(x))
        kept = [FIRST + i in found for i in range(old[1])]
        table = self._table(x)
        if not (whole := table.has_all(x)):
            mask = torch.tensor(kept).to(val(x).dtype).reshape(-1, *[1] * (len(old) - 2))
            x = emit(self.node, aten.mul.Tensor, x, emit(self.node, self._held(mask)))
        rows, parts = table.rows, []
        for constant, run in _runs(found):
            if constant:
                shape = [old[0], len(run), *old[2:]]
                ids = torch.tensor(run).reshape(-1, *[1] * (len(old) - 2)).expand(shape)
                parts.append(self.rows(emit(self.node, self._held(ids.contiguous()))))
            else:
                rows = self.rows(x) if rows is None else rows
                table.rows = rows if whole and x.op == "placeholder" else None
                parts.append(self._part(rows, [i - FIRST for i in run]))
        joined = parts[0] if len(parts) == 1 else emit(self.node, aten.cat.default, parts, 1)
        return self._in_shape(joined)

    def _once(self, table: _Table) -> fx.Node | None:
        """The rows of all ids, if another lookup has them."""
        table.rows = table.rows or self.node
        return None if table.rows is self.node else table.rows

    def _in_shape(self, rows: fx.Node) -> fx.Node:
        return reshaped(self.node, rows, [*shape_of(self.moved), shape_of(rows)[-1]])

    def _part(self, rows: fx.Node, run: list[int]) -> fx.Node:
        if run == list(range(run[0], run[0] + len(run))):
            last = run[0] + len(run)
            return emit(self.node, aten.slice.Tensor, rows, 1, run[0], last, 1)
        places = emit(self.node, self._held(torch.tensor(run)))
        return emit(self.node, aten.index.Tensor, rows, [None, places])

    def _held(self, value: Tensor) -> Held:
        return Held(value.to(self.constants.device))

    def _places(self, nodes: list[fx.Node], x: fx.Node) -> list[int] | None:
        """For each place of the second axis the position that stands there, from ``FIRST`` on, or
        the constant; ``None`` where it is not the same for all places beside."""
        shape = shape_of(x)
        size = val(x).numel()
        given = torch.arange(FIRST, FIRST + size).reshape(shape)
        try:
            moved = Piece((x,), self.moved, tuple(nodes), self.constants)(given)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None
        if moved.is_floating_point() or list(moved.shape) != shape_of(self.moved):
            return None
        beside = size // (shape[0] * shape[1])
        if not beside or moved.numel() % (shape[0] * beside):
            return None
        rows = moved.reshape(shape[0], -1, beside)
        lead = torch.arange(shape[0]).reshape(-1, 1, 1) * shape[1] * beside
        offset = lead + torch.arange(beside)
        places = torch.where(rows >= FIRST, (rows - FIRST - offset) // beside + FIRST, rows)
        first = places[:1, :, :1]
        again = torch.where(first >= FIRST, (first - FIRST) * beside + FIRST + offset, first)
        return first.flatten().tolist() if torch.equal(again, rows) else None


def _runs(places: list[int]) -> Iterator[tuple[bool, list[int]]]:
    """Places beside each other that hold constants, or positions."""
    for constant, run in groupby(places, key=lambda i: i < FIRST):
        yield constant, list(run)


def _functions(ids: fx.Node) -> tuple[list[fx.Node], fx.Node]:
    """What makes ids, id by id, of others, in order; and the others."""
    found: set[fx.Node] = set()
    while _is_function(source := max(_read(found) or {ids}), ids):
        found.add(source)
    return (sorted(found), source) if len(_read(found)) < 2 else ([], ids)


def _read(functions: set[fx.Node]) -> set[fx.Node]:
    """What some calls read that depends on an input and is none of them."""
    return {i for f in functions for i in tensor_inputs(f) if is_live(i)} - functions


def _is_function(node: fx.Node, ids: fx.Node) -> bool:
    """Whether a call works out, id by id, something of other ids, and of single numbers."""
    if node.op != "call_function" or kind(node) not in ELEMENTWISE or not is_live(node):
        return False
    given = tensor_inputs(node)
    live = [i for i in given if is_live(i)]
    alike = all(shape_of(i) == shape_of(ids) and not is_float(i) for i in (node, *live))
    return alike and all(val(i).numel() == 1 for i in given if i not in live)
