"""One choice by ids, as a function of the ids: which ids have rows of their own, and the lookup
that gives the same."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor, fx

from relprop.operations import ELEMENTWISE, Kind, kind, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.calls import Values
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_float,
    is_live,
    rank,
    reshaped,
    shape_of,
    tensor_inputs,
    val,
)
from relprop.tracer.passes.lookups.tables import FAILURES, Extent, largest, run
from relprop.tracer.passes.trials.comparison import same
from relprop.tracer.passes.trials.parts import MOST_NUMBERS

LOOKUPS = frozenset({Kind.EMBEDDING, Kind.INDEX, Kind.GATHER})


#: What ids may pass before they choose.
ON_NUMBERS = ELEMENTWISE | {Kind.RESHAPE, Kind.EXPAND}


DRAWS = 8


FAR = (1 << 31) - 1


def are_whole(node: fx.Node) -> bool:
    """Whether a tensor holds whole numbers."""
    return not is_float(node) and not val(node).is_complex() and val(node).dtype != torch.bool


class Choice:
    """What is chosen at ``root`` by ids."""

    def __init__(
        self,
        root: fx.Node,
        chosen: Iterable[fx.Node],
        measured: set[fx.Node],
        constants: Constants,
    ) -> None:
        self.root, self.constants = root, constants
        inside, left = {root}, [root]
        while left:
            parts = {i for i in left.pop().all_input_nodes if i in chosen} - inside
            inside |= parts
            left += parts
        self.choices = sorted(inside)
        given = dict.fromkeys(i for n in self.choices for i in tensor_inputs(n) if i not in inside)
        self.still = [i for i in given if not is_live(i)]
        self.tables = [i for i in self.still if is_float(i) and constants.number(i) is None]
        self.ends = [i for i in given if is_live(i)]
        self.numbers: list[fx.Node] = []
        self.ids = self._source(measured)

    def _source(self, measured: set[fx.Node]) -> fx.Node | None:
        """The nearest whole numbers that all it is chosen by is made of, a row for each."""
        ends, shape = set(self.ends), shape_of(self.root)
        while ends:
            node = max(ends)
            own = [] if node in measured or not are_whole(node) else shape_of(node)
            rows = len(ends) == 1 and own and shape[: len(own)] == own
            if rows and math.prod(shape[len(own) :]) > 1:
                return node
            if node.op != "call_function" or kind(node) not in ON_NUMBERS:
                return None
            self.numbers.insert(0, node)
            ends.remove(node)
            ends |= {i for i in tensor_inputs(node) if is_live(i)}
        return None

    def lookup(self) -> fx.Node | None:
        """The same by one lookup; ``None`` if it is one already, or none."""
        if self.ids is None:
            return None
        known = kind(self.root) is Kind.EMBEDDING and arguments(self.root)[1] is self.ids
        rows = max(len(self.tables), sum(kind(n) in LOOKUPS for n in self.choices))
        if known or (kind(self.root) not in LOOKUPS and rows < 2):
            return None
        try:
            if self._is_joined():
                return self._emitted(Extent(0, shape_of(self.tables[0])[0]))
            if sum(val(t).numel() for t in self.tables) > MOST_NUMBERS:
                return None
            return self._tried(val(self.root).numel() // val(self.ids).numel())
        except FAILURES:
            return None

    def _is_joined(self) -> bool:
        """Whether it is whole tables' rows, added or one beside the other."""
        lengths = {shape_of(t)[0] for t in self.tables}
        return (
            self.still == self.tables
            and self.ends == [self.ids]
            and len(lengths) == 1
            and all(
                kind(n) in (Kind.EMBEDDING, Kind.SUM)
                or (kind(n) is Kind.JOIN and arguments(n)[1] >= rank(self.ids))
                for n in self.choices
            )
        )

    def _tried(self, width: int) -> fx.Node | None:
        generator = torch.Generator().manual_seed(0)
        drawn: Values = {
            t: torch.randn(shape_of(t), generator=generator, dtype=torch.float64)
            for t in self.tables
        }
        extent = self._extent(drawn)
        if extent.count < 2 or extent.count * width > MOST_NUMBERS:
            return None
        rows = self._rows(self._line(extent.ids), drawn).reshape(extent.count, width)
        for _ in range(DRAWS):
            low, high = extent.around()
            ids = torch.randint(low, high, shape_of(self.ids), generator=generator)
            found = self._rows(ids.to(val(self.ids).dtype), drawn)
            if not same(found, rows[extent.places(ids)].reshape(found.shape)):
                return None
        whole = [t for t in drawn if torch.equal(drawn[t].flatten(), rows.flatten())]
        return self._of_table(whole[0], extent) if whole else self._emitted(extent)

    def _line(self, ids: Tensor) -> Tensor:
        """Ids along the last axis of those that the graph has."""
        return ids.to(val(self.ids).dtype).reshape([1] * (rank(self.ids) - 1) + [-1])

    def _extent(self, drawn: Values) -> Extent:
        """Which ids get a row: all from 0 until there is none. If there always is one, then those
        that the graph has numbers for, and those beyond must all get the same."""
        most = 2 * max(self._sizes()) + 2

        def is_missing(i: int) -> bool:
            try:
                self._rows(self._line(torch.tensor([i])), drawn)
            except FAILURES:
                return True
            return False

        if is_missing(most):
            return Extent(0, bisect_left(range(most), True, key=is_missing))
        far = torch.tensor([*range(most, most + 50), *(most * i for i in range(2, 9)), FAR])
        if not self._are_same(far, drawn):
            return Extent(0, 0)
        below = not is_missing(-1) and self._are_same(most - 1 - far, drawn)
        return Extent(-1 if below else 0, most + 1, beyond=True)

    def _are_same(self, ids: Tensor, drawn: Values) -> bool:
        """Whether all of these ids get the same."""
        rows = self._rows(self._line(ids), drawn).reshape(len(ids), -1)
        return bool((rows == rows[:1]).all())

    def _sizes(self) -> Iterator[int]:
        """The lengths of the tables, and the numbers that ids are compared with."""
        yield from (s for t in self.still for s in shape_of(t))
        for node in self.numbers:
            fixed = [self.constants.value(i) for i in tensor_inputs(node) if not is_live(i)]
            yield from (
                largest(a) for a in (*arguments(node), *fixed) if not isinstance(a, fx.Node)
            )

    def _rows(self, ids: Tensor, drawn: Values) -> Tensor:
        """What ids get from drawn tables."""
        known = drawn | self._numbers(ids)
        rows: Tensor = run(self.choices, known, self.constants)[self.root]
        return rows

    def _numbers(self, ids: Tensor) -> Values:
        """What it is chosen by for other ids."""
        assert self.ids is not None
        found = run(self.numbers, {self.ids: ids}, self.constants)
        return {end: found[end] for end in self.ends}

    def _emitted(self, extent: Extent) -> fx.Node:
        """A lookup in what tables give to the ids one after the other."""
        at, line = self.root, self._line(extent.ids)
        numbers = self._numbers(line)
        known: Values = {t: t for t in self.still if t in self.tables or not is_float(t)}
        for end, value in numbers.items():
            known[end] = emit(at, Held(value.to(self.constants.device)))
        for node in self.choices:
            if kind(node) is Kind.EMBEDDING and (table := operand(node)) in known:
                own = torch.arange(shape_of(table)[0]).reshape([1] * (line.dim() - 1) + [-1])
                if torch.equal(numbers[arguments(node)[1]], own.to(line.dtype)):
                    known[node] = reshaped(at, table, [*own.shape, *shape_of(table)[1:]])
        made = run(self.choices, known, self.constants, partial(emit, at))
        return self._of_table(made[at], extent)

    def _of_table(self, table: fx.Node, extent: Extent) -> fx.Node:
        at, ids = self.root, self.ids
        assert ids is not None
        if extent.beyond:
            low = extent.first or None
            ids = emit(at, aten.clamp.default, ids, low, extent.end - 1)
        if extent.first:
            ids = emit(at, aten.sub.Tensor, ids, extent.first)
        rows = reshaped(at, table, [extent.count, val(table).numel() // extent.count])
        return reshaped(at, emit(at, aten.embedding.default, rows, ids), shape_of(at))
