"""What ids choose among tensors that depend on no input is a lookup in the table of what each id
gets: ``where`` and masks of every word, a table in several pieces, elements of a flat table."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from relprop.operations import ELEMENTWISE, Kind, kind
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    aten,
    dims_of,
    emit,
    is_float,
    is_live,
    is_tensor,
    rank,
    reshaped,
    shape_of,
    swap,
    tensor_inputs,
    val,
)
from relprop.tracer.leaves import same_ids
from relprop.tracer.passes.parts import MOST_NUMBERS
from relprop.tracer.passes.region import as_before, only_ones, plain

LOOKUPS = frozenset({Kind.EMBEDDING, Kind.INDEX, Kind.GATHER})
#: What ids may pass before they choose.
ON_NUMBERS = ELEMENTWISE | {Kind.RESHAPE, Kind.EXPAND}
DRAWS = 8
FAILURES = (RuntimeError, TypeError, ValueError, IndexError)


def join_choices(graph: fx.Graph, constants: Constants) -> None:
    """Every choice by ids that is no plain lookup → one ``embedding``."""
    chosen = _chosen(graph)
    if not chosen:
        return
    measured = _measured(graph)
    inputs = [n for n in graph.find_nodes(op="placeholder") if not is_float(n)]
    given = {i for n in inputs for i in same_ids(n)}
    left = [n for n in chosen if not any(user in chosen for user in n.users)]
    while left:
        node = left.pop()
        hidden = _is_hidden(node, chosen, constants)
        choice = _Choice(node, chosen, measured, constants)
        if not hidden and choice.ids in given and (new := choice.lookup()) is not None:
            swap(node, new)
        elif hidden or kind(node) in (Kind.JOIN, Kind.TOTAL, Kind.RESHAPE):
            left += [i for i in node.all_input_nodes if i in chosen]
    graph.eliminate_dead_code()


def _measured(graph: fx.Graph) -> set[fx.Node]:
    """What is made of floating numbers, element by element."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        made = kind(node) in ON_NUMBERS and any(i in found for i in tensor_inputs(node))
        if is_live(node) and (is_float(node) or made):
            found.add(node)
    return found


def _chosen(graph: fx.Graph) -> dict[fx.Node, None]:
    """The floating tensors that ids alone choose, from what depends on no input."""
    numbers: set[fx.Node] = set()
    chosen: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if not is_live(node) or not is_tensor(node):
            continue
        live = [i for i in tensor_inputs(node) if is_live(i)]
        if _are_whole(node) or (kind(node) in ON_NUMBERS and all(i in numbers for i in live)):
            numbers.add(node)
        if is_float(node) and _is_choice(node, numbers, chosen):
            chosen[node] = None
            numbers.discard(node)
    return chosen


def _are_whole(node: fx.Node) -> bool:
    return not is_float(node) and not val(node).is_complex() and val(node).dtype != torch.bool


def _is_choice(node: fx.Node, numbers: set[fx.Node], chosen: Iterable[fx.Node]) -> bool:
    """Whether a call chooses by ids, hides what was chosen, or puts choices together."""
    what, given = kind(node), tensor_inputs(node)
    parts = [i for i in given if i in chosen and len(i.users) == 1]
    ids = [i for i in given if i in numbers]
    still = [i for i in given if not is_live(i) and is_float(i)]
    if what in LOOKUPS:
        return still == [node.args[0]] and not parts and bool(ids)
    if what is Kind.LINEAR:
        return node.args[0] in ids and len(still) == len(given) - 1
    if what in (Kind.SUM, Kind.JOIN):
        return len(set(parts)) == len(given) > 1
    if what is Kind.TOTAL and parts and kind(parts[0]) is Kind.JOIN:
        return dims_of(node) == [parts[0].args[1]]
    if what is Kind.RESHAPE:
        return bool(parts) and only_ones(node)
    by_ids = len(given) == len(parts) + len(still) + 1 and len(ids) == 1
    return by_ids and (what is Kind.CHOICE or (what is Kind.PRODUCT and len(given) == 2))


def _is_hidden(node: fx.Node, chosen: Iterable[fx.Node], constants: Constants) -> bool:
    """Whether a choice is one that a number hides in some places: a lookup and a mask."""
    given = tensor_inputs(node)
    parts = [i for i in given if i in chosen]
    values = [i for i in given if is_float(i) and constants.number(i) is None]
    return kind(node) in (Kind.CHOICE, Kind.PRODUCT) and bool(parts) and len(values) < 2


Values = dict[fx.Node, Any]


@dataclass(frozen=True)
class _Extent:
    """The ids that have rows of their own; those ``beyond`` have that of the nearest."""

    first: int
    end: int
    beyond: bool = False

    @property
    def count(self) -> int:
        return self.end - self.first

    def around(self) -> tuple[int, int]:
        """Ids to try, from the first to the one after the last."""
        return self.first * 4, self.end + 4 * self.beyond

    def places(self, ids: Tensor) -> Tensor:
        """Their rows."""
        return ids.flatten().clamp(self.first, self.end - 1) - self.first


class _Choice:
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
            own = [] if node in measured or not _are_whole(node) else shape_of(node)
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
        known = kind(self.root) is Kind.EMBEDDING and self.root.args[1] is self.ids
        if known or (kind(self.root) not in LOOKUPS and len(self.tables) < 2):
            return None
        if self._is_joined():
            return self._emitted(_Extent(0, shape_of(self.tables[0])[0]))
        if sum(val(t).numel() for t in self.tables) > MOST_NUMBERS:
            return None
        try:
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
                or (kind(n) is Kind.JOIN and n.args[1] >= rank(self.ids))  # type: ignore[operator]
                for n in self.choices
            )
        )

    def _tried(self, width: int) -> fx.Node | None:
        generator = torch.Generator().manual_seed(0)
        drawn: Values = {
            t: torch.randn(shape_of(t), generator=generator, dtype=torch.float64)
            for t in self.tables
        }
        extent = self._extent(drawn, width)
        if extent.count < 2 or extent.count * width > MOST_NUMBERS:
            return None
        rows = self._rows(self._line(extent), drawn).reshape(extent.count, width)
        for _ in range(DRAWS):
            low, high = extent.around()
            ids = torch.randint(low, high, shape_of(self.ids), generator=generator)
            found = self._rows(ids.to(val(self.ids).dtype), drawn)
            if not torch.equal(found, rows[extent.places(ids)].reshape(found.shape)):
                return None
        for t, drawn_table in drawn.items():
            if drawn_table.numel() == rows.numel() and torch.equal(
                drawn_table.flatten(), rows.flatten()
            ):
                return self._of_table(t, extent)
        return self._emitted(extent)

    def _line(self, extent: _Extent) -> Tensor:
        """The ids of a table, along the last axis of ids."""
        ids = torch.arange(extent.first, extent.end, dtype=val(self.ids).dtype)
        return ids.reshape([1] * (rank(self.ids) - 1) + [-1])

    def _extent(self, drawn: Values, width: int) -> _Extent:
        """Which ids get a row: all from 0 until there is none. If there always is one, then those
        that the graph has numbers for, and those beyond must all get the same."""
        most = 2 * max(self._sizes()) + 2

        def is_missing(i: int) -> bool:
            try:
                self._rows(self._line(_Extent(i, i + 1)), drawn)
            except FAILURES:
                return True
            return False

        if is_missing(most):
            return _Extent(0, bisect_left(range(most), True, key=is_missing))
        if 2 * most * width > MOST_NUMBERS or not self._are_same(most, 2 * most, drawn):
            return _Extent(0, 0)
        below = not is_missing(-1) and self._are_same(-most, 0, drawn)
        return _Extent(-1 if below else 0, most + 1, beyond=True)

    def _are_same(self, first: int, end: int, drawn: Values) -> bool:
        rows = self._rows(self._line(_Extent(first, end)), drawn).reshape(end - first, -1)
        return bool((rows == rows[:1]).all())

    def _sizes(self) -> Iterator[int]:
        """The lengths of the tables, and the numbers that ids are compared with."""
        yield from (s for t in self.still for s in shape_of(t))
        for node in self.numbers:
            fixed = [self.constants.value(i) for i in tensor_inputs(node) if not is_live(i)]
            yield from (_largest(a) for a in (*node.args, *fixed) if not isinstance(a, fx.Node))

    def _rows(self, ids: Tensor, drawn: Values) -> Tensor:
        """What ids get from drawn tables."""
        known = drawn | self._numbers(ids)
        return self._run(self.choices, known, _call)[self.root]  # type: ignore[no-any-return]

    def _numbers(self, ids: Tensor) -> Values:
        """What it is chosen by for other ids."""
        found = self._run(self.numbers, {self.ids: ids}, _call)  # type: ignore[dict-item]
        return {end: found[end] for end in self.ends}

    def _run(self, nodes: list[fx.Node], known: Values, call: Callable[..., Any]) -> Values:
        """The values of ``nodes`` for others than the graph's, in whatever number."""
        known = dict(known)

        def value(node: fx.Node) -> Any:
            if node in known:
                return known[node]
            number = self.constants.number(node) if is_float(node) else None
            if number is None:
                return self.constants.value(node)
            options = {"dtype": val(node).dtype, "device": self.constants.device}
            return call(aten.full.default, [1] * rank(node), number, **options)

        for node in nodes:
            if node not in known:
                args, kwargs = plain(fx.node.map_arg((node.args, node.kwargs), value))
                known[node] = _again(node, args, kwargs, call)
        return known

    def _emitted(self, extent: _Extent) -> fx.Node:
        """A lookup in what tables give to the ids one after the other."""
        at, line = self.root, self._line(extent)
        numbers = self._numbers(line)
        known: Values = {t: t for t in self.still if t in self.tables or not is_float(t)}
        for end, value in numbers.items():
            known[end] = emit(at, Held(value.to(self.constants.device)))
        for node in self.choices:
            if kind(node) is Kind.EMBEDDING and (table := node.args[0]) in known:
                own = torch.arange(shape_of(table)[0]).reshape([1] * (line.dim() - 1) + [-1])
                if torch.equal(numbers[node.args[1]], own.to(line.dtype)):  # type: ignore[index]
                    known[node] = reshaped(at, table, [*own.shape, *shape_of(table)[1:]])  # type: ignore[arg-type]
        made = self._run(self.choices, known, lambda op, *a, **k: emit(at, op, *a, **k))[at]
        return self._of_table(made, extent)

    def _of_table(self, table: fx.Node, extent: _Extent) -> fx.Node:
        at, ids = self.root, self.ids
        assert ids is not None
        if extent.beyond:
            low = extent.first or None
            ids = emit(at, aten.clamp.default, ids, low, extent.end - 1)
        if extent.first:
            ids = emit(at, aten.sub.Tensor, ids, extent.first)
        rows = reshaped(at, table, [extent.count, val(table).numel() // extent.count])
        return reshaped(at, emit(at, aten.embedding.default, rows, ids), shape_of(at))


def _largest(numbers: Any) -> int:
    """The size of a number, or of the largest of several; of what is none, 0."""
    if not isinstance(numbers, (int, float, Tensor)):
        return 0
    sizes = torch.as_tensor(numbers).double().abs()
    return int(sizes[sizes.isfinite()].amax()) if bool(sizes.isfinite().any()) else 0


def _call(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **{k: v for k, v in kwargs.items() if k != "device"})


def _again(node: fx.Node, args: Any, kwargs: Any, call: Callable[..., Any]) -> Any:
    """A call of tensors in another shape: shapes that are written out follow."""
    if kind(node) not in (Kind.RESHAPE, Kind.EXPAND):
        return call(node.target, *args, **kwargs)
    old, shape, new = shape_of(node.args[0]), shape_of(node), shape_of(args[0])
    if kind(node) is Kind.EXPAND:
        sides = zip(
            shape[::-1], new[::-1] + [1] * len(shape), old[::-1] + [1] * len(shape), strict=False
        )
        sizes = [n if n != 1 or o == s else s for s, n, o in sides][::-1]
        return call(aten.expand.default, args[0], sizes)
    if not only_ones(node):
        raise ValueError("a reshape that does more")
    return call(aten.reshape.default, args[0], as_before(tuple(old), tuple(shape), new))
