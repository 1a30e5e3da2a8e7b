"""The graph for one more length of the inputs, from one or two that were captured.

Two captures of a model that differ in the length of their inputs mostly give the same graph twice,
with other whole numbers in it: shapes, ends of slices, how many positions are made. Most of them
are the length itself: so the graph for a second length is guessed from the first one's. Where that
is not the model, a second one is captured. Where each number lies on one line through both, the
line gives those of a third length. Whether the model follows (it need not: a window may begin to
matter at some length) is known only from the model's own outputs, with which the graph is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, fx

from relprop.operations import ELEMENTWISE, Kind, Value, function_of, kind
from relprop.tracer.editing import val, without_numbers
from relprop.tracer.facts import facts_of, know, shape
from relprop.tracer.model_comparison import tolerance
from relprop.tracer.program import Program

Shapes = tuple[tuple[int, ...], ...]


#: How a graph was made of those of other lengths; in ``Program.kin``, once one was not the model.
GUESSED, ON_LINE = "made of that of another length", "made of those of two other lengths"


class _OffLine(Exception):
    """What differs between two graphs other than by whole numbers on a line."""


@dataclass(frozen=True)
class _Line:
    """``share``: where the third length lies, from 0 (the first) to 1 (the second) and beyond."""

    share: Fraction

    @classmethod
    def through(cls, first: Shapes, second: Shapes, third: Shapes) -> _Line:
        """The line on which all sizes of three inputs lie."""
        sizes = list(zip(*(sum(s, ()) for s in (first, second, third)), strict=True))
        moved = next(((a, b, c) for a, b, c in sizes if a != b), None)
        if moved is None:
            raise _OffLine
        a, b, c = moved
        line = cls(Fraction(c - a, b - a))
        if any(line.at(a, b) != c for a, b, c in sizes):
            raise _OffLine
        return line

    def at(self, a: object, b: object, _: Kind = Kind.UNKNOWN) -> object:
        """The third of two arguments that are no nodes: a whole number on the line, or what both
        are."""
        if type(a) is int and type(b) is int:
            made = a + self.share * (b - a)
            if made.denominator != 1:
                raise _OffLine
            return int(made)
        if type(a) is not type(b) or not (a is b or a == b):
            raise _OffLine
        return a


@dataclass(frozen=True)
class _Guess:
    """``moved``: the sizes of inputs that are others, and which; every number that is one of them
    is taken for it, in shapes and places. Where numbers are worked with (a window, a modulus), it
    may be another."""

    moved: Mapping[int, int]

    @classmethod
    def of(cls, first: Shapes, other: Shapes) -> _Guess:
        """The guess from the sizes of inputs; a size must not be another in one place alone."""
        pairs = {*zip(sum(first, ()), sum(other, ()), strict=True)}
        if len(dict(pairs)) < len(pairs):
            raise _OffLine
        return cls({a: b for a, b in pairs if a != b})

    def at(self, a: object, _: object, what: Kind) -> object:
        """An argument of a call of the first graph at the other sizes."""
        if type(a) is not int or a not in self.moved:
            return a
        if what in ELEMENTWISE:
            raise _OffLine
        return self.moved[a]


def ways(others: Collection[Program]) -> Iterator[tuple[str, Program, Program]]:
    """How a graph may be made of the ``others``, the newest first: on a line through two of them;
    guessed from the only one."""
    newest = tuple(reversed(tuple(others)))
    if len(newest) == 1:
        yield GUESSED, newest[0], newest[0]
    for pair in combinations(newest, 2):
        yield ON_LINE, *pair


def graph_at(first: Program, second: Program, sizes: Shapes) -> fx.Graph | None:
    """The graph of two programs of one model, for inputs of other ``sizes`` (of one sample, leading
    1), or of one, given twice, as a guess; ``None`` where there is none: two differ in more than
    numbers on a line, or the sizes do not fit."""
    try:
        if first is second:
            return _graph(first.graph, first.graph, _Guess.of(sizes_of(first), sizes), sizes)
        _compare_constants(first.constants, second.constants)
        line = _Line.through(sizes_of(first), sizes_of(second), sizes)
        return _graph(first.graph, second.graph, line, sizes)
    except _OffLine:
        return None


def is_alike(program: Program, other: Program) -> bool:
    """Whether two programs of one graph's nodes have the same inputs explained and the same
    attention sites, node by node."""
    return _structure(program) == _structure(other)


def has_same_calls(program: Program, other: Program) -> bool:
    """Whether two programs make the same calls in the same order, whatever numbers these are
    given."""
    nodes = (p.graph.nodes for p in (program, other))
    return is_alike(program, other) and all(
        a.op == b.op and _same_target(a.target, b.target) for a, b in zip(*nodes, strict=True)
    )


def _structure(program: Program) -> tuple[object, ...]:
    number = {node: i for i, node in enumerate(program.graph.nodes)}
    parts = [(s.contraction, s.attention, s.values, s.softmax) for s in program.sites]
    sites = [[number[node] for node in nodes] for nodes in parts]
    turned = [s.transposed for s in program.sites]
    leaves = {name: number[leaf] for name, leaf in program.leaves.items()}
    return len(number), leaves, sites, turned, [number[n] for n, _ in program.no_sites]


def is_coarse(program: Program) -> bool:
    """Whether a program rounds so much (half precision) that its outputs do not tell a graph from
    one that is nearly the same (a window that is wider by a token)."""
    return tolerance(program, torch.float32) > 1e-3


def by_length(program: Program) -> Hashable:
    """What ``kin`` has of a program that was made of other lengths, until it is compared with the
    model."""
    return "not compared yet", sizes_of(program)


def is_unconfirmed(program: Program) -> bool:
    """Whether a program was made of other lengths and nobody has compared it with the model."""
    return bool(program.made) and by_length(program) in program.kin


def was_wrong(program: Program) -> None:
    """Write down that a program that was made of other lengths is not the model."""
    program.kin.cache(program.made, lambda: True)


def sizes_of(program: Program) -> Shapes:
    """The shapes of a program's inputs, of one sample."""
    return tuple(map(shape, program.placeholders))


def _compare_constants(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    if first.keys() != second.keys() or not all(_equal(t, second[n]) for n, t in first.items()):
        raise _OffLine


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a, b))


def _graph(first: fx.Graph, second: fx.Graph, line: _Line | _Guess, sizes: Shapes) -> fx.Graph:
    """The first graph with the numbers of the third length."""
    if len(first.nodes) != len(second.nodes):
        raise _OffLine
    graph, given = fx.Graph(), iter(sizes)
    made: dict[fx.Node, fx.Node] = {}
    pairs: dict[fx.Node, fx.Node] = {}

    def argument(what: Kind, x: object, y: object) -> object:
        if not isinstance(x, fx.Node):
            return line.at(x, y, what)
        if pairs[x] is not y:
            raise _OffLine
        return made[x]

    for a, b in zip(first.nodes, second.nodes, strict=True):
        if a.op != b.op or not (a.op == "placeholder" or _same_target(a.target, b.target)):
            raise _OffLine
        third = partial(argument, kind(a))
        args = _of_both(third, a.args, b.args), _of_both(third, dict(a.kwargs), dict(b.kwargs))
        new = graph.create_node(a.op, a.target, *args, name=a.name)
        if a.op == "placeholder":
            value: Value = val(a).new_empty(next(given))
        else:
            value = val(a) if a.op == "get_attr" else _value(new, val(a))
        if facts_of(a).body is not None:
            raise _OffLine
        know(new, replace(facts_of(a), value=value))
        made[a], pairs[a] = new, b
    return graph


def _of_both(function: Callable[[Value, Value], Value], x: Any, y: Any) -> Any:
    """What a function makes of what stands at the same places of two arguments."""
    if not isinstance(x, (tuple, list, dict)):
        return function(x, y)
    if type(x) is not type(y) or len(x) != len(y):  # the two are given different things
        raise _OffLine
    if isinstance(x, dict):
        return {k: _of_both(function, v, dict(y).get(k)) for k, v in x.items()}
    made = [_of_both(function, i, j) for i, j in zip(x, y, strict=True)]
    return tuple(made) if isinstance(x, tuple) else made


def _same_target(a: object, b: object) -> bool:
    """Whether two calls do the same; functions that the user's code writes out are compared by
    what is known of them, and otherwise by the outputs."""
    if a is b or a == b:
        return True
    if type(a) is not type(b) or not is_dataclass(a):
        return False
    for name in (f.name for f in fields(a)):
        x, y = getattr(a, name), getattr(b, name)
        same = _equal(x, y) if isinstance(x, Tensor) and isinstance(y, Tensor) else x == y
        if not same and not (callable(x) and callable(y)):
            return False
    return True


def _value(node: fx.Node, before: Value) -> Value:
    """What a call gives, without numbers; ``before``: of another length."""
    if node.op != "call_function":
        return None
    try:
        if kind(node) in ELEMENTWISE and isinstance(before, Tensor):
            read = (val(n).shape for n in node.all_input_nodes)
            return before.new_empty(torch.broadcast_shapes(*read))
        return without_numbers(function_of(node), node.args, node.kwargs)
    except Exception as refused:  # any operator may refuse sizes, each by an error of its own
        raise _OffLine from refused
