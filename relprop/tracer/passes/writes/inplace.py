"""In-place operations made functional, also through views: who reads a tensor, or any view of it,
after a write reads what was written."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from relprop.operations import Kind, Operator, is_inplace, kind, operand, out_of_place
from relprop.tracer.constants import Constants
from relprop.tracer.editing import arguments, aten, emit, is_tensor, shape_of, val
from relprop.tracer.facts import facts_of, know, refusal
from relprop.tracer.passes.spelling.slices import piece
from relprop.tracer.passes.spelling.views import is_view
from relprop.tracer.passes.writes.places import put_back


def functionalise(graph: fx.Graph, constants: Constants) -> None:
    """``x.add_(y)`` → ``x = add(x, y)``: later uses of ``x``, of what it is a view of, and of other
    views of that, read the new value. A number that Python reads from a constant is that number."""
    if any(node.op == "call_function" and is_inplace(node) for node in graph.nodes):
        _Versions(graph, constants).run()


class _Versions:
    """Each original node's value as of now: which node computes it, and whether a write elsewhere
    has outdated it."""

    def __init__(self, graph: fx.Graph, constants: Constants) -> None:
        self.graph, self.constants = graph, constants
        self.now: dict[fx.Node, fx.Node] = {}
        self.parent: dict[fx.Node, fx.Node] = {}
        self.family: dict[fx.Node, list[fx.Node]] = {}
        self.stale: set[fx.Node] = set()
        self.written: set[fx.Node] = set()

    def run(self) -> None:
        """Walk the graph once, in order."""
        for node in list(self.graph.nodes):
            writes = node.op == "call_function" and is_inplace(node)
            given = arguments(node)[0] if node.args else None
            first = given if isinstance(given, fx.Node) else None
            shows = first is not None and (writes or is_view(node))
            known = partial(self._known, at=node)
            node.args, node.kwargs = fx.node.map_arg((node.args, node.kwargs), known)
            self.now[node] = node
            if shows:
                assert first is not None
                self.parent[node] = (
                    self.parent.get(first, first) if kind(node) is Kind.OUTPUT else first
                )
                self.family[node] = self.family[first]
                self.family[node].append(node)
            else:
                self.family[node] = [node]
            if writes and first is not None:
                self._write(node, first)

    def _known(self, node: fx.Node, at: fx.Node) -> Argument:
        """What enters ``at``: all above is functional by now, so that constants can be told."""
        read = self._read(node, at)
        is_number = isinstance(val(read), (int, torch.SymInt))
        number = self.constants.value(read) if is_number and at.op == "call_function" else None
        return read if number is None else number

    def _read(self, node: fx.Node, at: fx.Node) -> fx.Node:
        """The node that computes ``node``'s value at ``at``: an outdated view is taken anew."""
        if node in self.stale:
            self.stale.discard(node)
            self.now[node] = self._again(node, self._read(self.parent[node], at), at)
        return self.now[node]

    def _again(self, node: fx.Node, whole: fx.Node, at: fx.Node) -> fx.Node:
        if node in self.written:  # an in-place op returns the tensor it wrote into
            return whole
        if kind(node) is Kind.OUTPUT:
            return piece(at, node, whole)
        with self.graph.inserting_before(at):
            made = self.graph.create_node(
                node.op, node.target, (whole, *arguments(node)[1:]), node.kwargs
            )
        know(made, facts_of(node))
        return made

    def _write(self, node: fx.Node, base: fx.Node) -> None:
        """``node`` becomes the functional form; its value is now that of ``base``, and what
        ``base`` is a view of is put together anew."""
        reshapes = torch.Tag.inplace_view in getattr(node.target, "tags", ())
        _make_functional(node)
        self.now[base] = node
        if reshapes:  # the tensor is another view of the same values
            return
        self.written.add(node)
        chain, child, after = {base, node}, base, node.next
        while child in self.parent:
            above = self.parent[child]
            if child in self.written or kind(child) in (Kind.IDENTITY, Kind.DETACH, Kind.CAST):
                self.now[above] = self.now[child]
                self.stale.discard(above)
            else:
                self.now[above] = put_back(after, self._read(above, after), self.now[child], child)
            chain.add(above)
            child = above
        self.stale |= {n for n in self.family[base] if n not in chain}


def _make_functional(node: fx.Node) -> None:
    """The operator that gives a new tensor in place of the one that writes into its first."""
    base, packet = operand(node), out_of_place(node)
    if packet in (aten.copy, aten.fill, aten.zero):
        _make_filled(node, base, 0 if packet is aten.zero else arguments(node)[1])
    else:
        functional = _overload(packet, node.target)
        if functional is None:
            raise refusal(node, f"no functional form of {node.target}")
        node.target = functional
    written = val(node)
    if is_tensor(base) and isinstance(written, Tensor) and written.dtype != val(base).dtype:
        raise refusal(node, f"{node.target} writes {written.dtype} into {val(base).dtype}")


def _make_filled(node: fx.Node, base: fx.Node, source: fx.Node | complex) -> None:
    """A tensor, or a number, in the shape and the type of ``base``."""
    if is_tensor(source):
        source = _typed(node, source, val(base).dtype)
        node.target, node.args = aten.expand.default, (source, shape_of(base))
    else:
        node.target, node.args = aten.full_like.default, (base, source)


def _overload(functional: Operator, inplace: Operator) -> Operator:
    """The overload of an operator that takes what another takes; ``None`` if there is none."""

    def types(op: Operator) -> list[str]:
        return [str(a.type) for a in op._schema.arguments]

    overloads = [getattr(functional, name) for name in getattr(functional, "overloads", list)()]
    return next((o for o in overloads if types(o) == types(inplace)), None)


def _typed(node: fx.Node, source: fx.Node, dtype: torch.dtype) -> fx.Node:
    if val(source).dtype == dtype:
        return source
    return emit(node, aten.to.dtype, source, dtype)
