"""A program in which values are set: in place of what a node computes stands a value that is given,
or what a function makes of it, and all below read that.

What is given comes in as an input that is not explained, so that gradient and relevance end there
and the ledger names it. A function becomes part of the graph, and gradient and relevance pass it
like everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from relprop.errors import OptionError, RelpropError, first_line, message
from relprop.operations import Kind, kind, operand
from relprop.tracer.assemble import assemble
from relprop.tracer.binding import Inputs
from relprop.tracer.capture import Capture, import_graph
from relprop.tracer.editing import arguments, aten, emit, made_after, shape_of, val
from relprop.tracer.facts import (
    Facts,
    Place,
    decide_books,
    facts_of,
    is_floating,
    know,
    place,
    role,
)
from relprop.tracer.follow import depending
from relprop.tracer.passes import canonicalise
from relprop.tracer.program import Program
from relprop.tracer.surroundings import TRACING

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Change:
    """What stands at ``node``: ``value``, (batch, *one sample's shape), or what a ``function``
    makes of the node's own, which it is shown with the batch first; ``where`` (the same shape,
    bool) alone, if that is given. ``name`` is how it is told; ``example``: one sample's value,
    with which a function is tried."""

    node: fx.Node
    name: str
    value: Tensor | None = None
    function: Function | None = None
    where: Tensor | None = None
    example: Tensor | None = None

    @property
    def call(self) -> str:
        """The call of the module that returns the value, if ``name`` is a module's."""
        return self.name.split("[")[0]

    def is_read_by(self, user: fx.Node) -> bool:
        """Whether a reader of the node's value reads what is set: the module that returns it does
        not."""
        return self.call not in (path for path, _ in place(user).modules)


@dataclass(frozen=True)
class Changed:
    """The program, in which names name what stands there now, and its inputs; ``past``: what a
    value that is set is made of and others read, too, where it is not set."""

    program: Program
    inputs: Inputs
    past: tuple[fx.Node, ...]


def changed(program: Program, inputs: Inputs, change: Change, model: nn.Module | None) -> Changed:
    """The program with a change. What a module returns is changed for those who read it outside of
    the module, as a forward hook changes it; any other value for all. Raises ``OptionError`` for a
    function that cannot be followed."""
    graph, nodes = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in program.graph.nodes:
        nodes[node] = graph.node_copy(node, nodes.__getitem__)
    own = {"graph": graph, "constants": dict(program.constants), "stored": False}
    raw = Capture(**program.captured() | own)
    before, device = nodes[change.node], inputs.tensors[0].device
    entering = _Entering(program.inputs, change, before, raw.constants, device)
    after = entering.replacement()
    inside = made_after(before, after)
    before.replace_all_uses_with(after, lambda n: n not in inside and change.is_read_by(n))
    entering.redirect(after)
    past = tuple(nodes[n] for n in read_past(program, change) if _is_read_past(nodes[n], change))
    whole = entering.add_to(inputs)
    made = assemble(raw, whole.names, tuple(program.leaves), model)
    for name, node in entering.nodes.items():
        decide_books(node, name, side=False)
    labels = {name: nodes[node] for name, node in program.labels.items()}
    labels |= dict.fromkeys(_renamed(program, change), after)
    origin = program.changed or program
    made = replace(made, dtype=program.dtype, changed=origin, labels=labels)
    return Changed(made, whole, past)


def _renamed(program: Program, change: Change) -> list[str]:
    """The names whose value is now the one that is set: of a module its own and those around it
    that return the same, else all of the node."""
    same = [name for name, node in program.labels.items() if node is change.node]
    around = [path for path, _ in place(change.node).modules]
    if change.call not in around:
        return same
    outer = around[: around.index(change.call) + 1]
    return [n for n in same if n == change.name or n.split("[")[0] in outer]


def read_past(program: Program, change: Change) -> list[fx.Node]:
    """What the module that returns the changed value does not return, and others read in the graph:
    by another way, or because what they do with the returned value was rewritten."""

    def made() -> list[fx.Node]:
        named = {n for name, n in program.labels.items() if name.split("[")[0] == change.call}
        inside = (n for n in program.graph.nodes if not change.is_read_by(n) and n not in named)
        floating = (n for n in inside if is_floating(n) and role(n) == "activation")
        return [n for n in floating if _is_read_past(n, change)]

    return program.memo.cache(("read past", change.call), made)


def _is_read_past(node: fx.Node, change: Change) -> bool:
    return any(change.is_read_by(n) and n.op != "output" for n in node.users)


@dataclass(frozen=True)
class _Entering:
    """What comes in beside the inputs of a program, ``known``, for a change of the node ``before``.
    ``constants``: those of the new graph."""

    known: tuple[str, ...]
    change: Change
    before: fx.Node
    constants: dict[str, Tensor]
    device: torch.device
    nodes: dict[str, fx.Node] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def at(self) -> Place:
        """Where the call of the module stands that returns the node; of no module's, the node."""
        found, call = place(self.before), self.change.call
        around = [path for path, _ in found.modules]
        depth = around.index(call) if call in around else len(around)
        return replace(found, modules=found.modules[:depth])

    def replacement(self) -> fx.Node:
        """What stands in place of the node, made behind it."""
        before, change = self.before, self.change
        after = before
        if change.function is not None:
            after = self._inlined()
            if after not in depending(before.graph.nodes, [before]):
                fact = f"the function for {change.name!r} makes nothing of the value that it gets"
                then = ["set what it gives: probe.set(name, function(probe.value(name)[name]))"]
                raise OptionError(message(fact, then=then))
        elif change.value is not None:
            after = self._input(f"set {change.name}", change.value)
        if change.where is None:
            return after
        mask = self._input(f"where {change.name} is set", change.where)
        return self._emitted(aten.where.self, mask, after, before)

    def redirect(self, after: fx.Node) -> None:
        """Let those who read the same numbers laid out otherwise, as they were before the module's
        last moves, read what is set."""
        before = self.before
        while kind(before) in (Kind.RESHAPE, Kind.PERMUTE):
            after, moved = self._moved_back(before, after), operand(before)
            for user in [n for n in moved.users if self.change.is_read_by(n) and after < n]:
                if user is not before:
                    user.replace_input_with(moved, after)
            before = moved

    def add_to(self, inputs: Inputs) -> Inputs:
        """The call with them."""
        names, tensors = (*inputs.names, *self.tensors), (*inputs.tensors, *self.tensors.values())
        batched = (*inputs.batched, *(True for _ in self.tensors))
        return replace(inputs, names=names, tensors=tensors, batched=batched)

    def _input(self, wanted: str, tensor: Tensor) -> fx.Node:
        """One more behind the others, in the shape of the node's value."""
        name = wanted if wanted not in self.known else f"{wanted} ({len(self.known)})"
        graph = self.before.graph
        others = graph.find_nodes(op="placeholder")
        with graph.inserting_after(others[-1]):
            given = graph.placeholder(f"set_{len(others)}")
        know(given, Facts(tensor[:1].to("meta"), live=True))
        self.tensors[name], self.nodes[name] = tensor, given
        shape = shape_of(self.before)
        same = shape_of(given) == shape
        return given if same else self._emitted(aten.reshape.default, given, shape)

    def _moved_back(self, move: fx.Node, value: fx.Node) -> fx.Node:
        """What a reshape or a permutation reads if it gives ``value``."""
        if kind(move) is Kind.RESHAPE:
            return self._emitted(aten.reshape.default, value, shape_of(operand(move)))
        order = arguments(move)[1]
        back = [order.index(i) for i in range(len(order))]
        return self._emitted(aten.permute.default, value, back)

    def _emitted(self, op: object, *args: object) -> fx.Node:
        """A call behind all that it reads."""
        last = max(self.before, *(a for a in args if isinstance(a, fx.Node)))
        new = emit(last.next, op, *args)  # type: ignore[arg-type]
        know(new, replace(facts_of(new), place=self.at))
        return new

    def _inlined(self) -> fx.Node:
        """What the function makes of the node's value, as nodes behind it."""
        own, (graph, held) = self.before.graph, self._traced()
        at, copied = self.before, dict[fx.Node, fx.Node]()
        for node in graph.nodes:
            if node.op == "placeholder":
                copied[node] = self.before
            elif node.op == "output":
                return copied[node.args[0][0]]  # type: ignore[index, return-value]
            else:
                with own.inserting_after(at):
                    at = copied[node] = own.node_copy(node, copied.__getitem__)
                if node.op == "get_attr":
                    at.target = f"set{len(self.known)}.{node.target}"
                    self.constants[at.target] = held[str(node.target)]
                know(at, replace(facts_of(node), place=self.at, live=None))
        raise AssertionError("a graph has an output")

    def _traced(self) -> tuple[fx.Graph, dict[str, Tensor]]:
        """The function's own graph, of one sample's value."""
        like, change, function = val(self.before), self.change, self.change.function
        lead = like.dim() > 1 and like.shape[0] == 1
        assert function is not None

        def one(x: Tensor) -> tuple[Tensor]:
            made = function(x if lead else x[None])
            return (made.expand(1, *like.shape[lead:]).reshape(like.shape),)

        try:
            with TRACING:
                sample = torch.zeros(like.shape, dtype=like.dtype, device=self.device)
                with torch.enable_grad():
                    module = make_fx(one, tracing_mode="real", pre_dispatch=True)(sample)
                _refuse_no_grad(module.graph, change.name)
                graph, held = import_graph(module, None)
                canonicalise(graph, self.device, held)
            if change.example is not None:
                shown = change.example.to(like.dtype).reshape(like.shape)
                off = (module(shown)[0] - one(shown)[0]).abs().max()
                if not off <= 1e-4 * (1 + shown.abs().max()):
                    fact = "it leaves tensor operations, so that its values are constants"
                    raise ValueError(fact)
        except RelpropError:
            raise
        except Exception as error:
            why = "it branches on values" if "tracing" in str(error) else first_line(error)
            fact = f"the function for {change.name!r} cannot be followed: {why}"
            then = [
                "it gets the value, batch first, and returns one of its shape, by tensor "
                "operations that treat each sample alone",
                "or set a value: probe.set(name, function(probe.value(name)[name]))",
            ]
            raise OptionError(message(fact, then=then)) from error
        return graph, held


def _refuse_no_grad(graph: fx.Graph, name: str) -> None:
    """Raises ``OptionError`` for a part of a function that autograd is not to see."""
    switch: Any = torch._C._set_grad_enabled
    if any(n.target is switch and not n.args[0] for n in graph.nodes):
        fact = f"the function for {name!r} uses torch.no_grad(), which no graph holds"
        raise OptionError(message(fact, then=["take .detach() where the gradient is to end"]))
