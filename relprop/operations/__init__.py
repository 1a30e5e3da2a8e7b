"""The one table of operations: what each *is*. Rules, axes, labels, attention sites, merges, gates,
DeepLIFT and targets all ask it, so that they cannot disagree. Knows no graph's meaning, no rule.

Here is how the table is asked: what a call is, and what its arguments are, by their own names.

>>> import torch
>>> from relprop.operations import Kind, of
>>> of(torch.ops.aten.gelu.default).kind is Kind.FUNCTION
True
>>> of(torch.ops.aten.max.other).kind, of(torch.ops.aten.max.dim).kind
(<Kind.EXTREMUM: 'the larger or the smaller of two operands'>, <Kind.PICK: 'values picked along an axis by their size, with their places'>)
"""  # noqa: E501

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any, TypeGuard

import torch
from torch import fx

from relprop.operations.kinds import ELEMENTWISE, FILLS, MOVES, STOPS, Kind
from relprop.operations.table import TABLE, Operation

__all__ = [
    "ELEMENTWISE",
    "FILLS",
    "MOVES",
    "STOPS",
    "Args",
    "Kind",
    "Kwargs",
    "Operation",
    "Operator",
    "Value",
    "argument",
    "function_of",
    "integers",
    "is_call",
    "is_inplace",
    "kind",
    "listed",
    "name_of",
    "of",
    "operand",
    "out_of_place",
    "packet",
]


Operator = Any  # an OpOverload, its packet, or another function that a graph calls
Args = tuple[Any, ...]  # what it is called with, by position: whatever an operator takes
Kwargs = dict[str, Any]  # and by name
Value = Any  # what it takes or gives: a tensor, a number, a list of them: see its schema

_UNKNOWN = Operation(Kind.UNKNOWN)
_CHECKS = ("_assert", "sym_constrain", "_set_grad_enabled")


def of(thing: Operator | fx.Node) -> Operation:
    """What a call (a node of a graph) or an operator is. What carries its own ``operation`` says so
    itself; a node that is no call is of an unknown kind."""
    if isinstance(thing, fx.Node):
        if thing.op != "call_function":
            return _UNKNOWN
        thing = thing.target
    found = _KNOWN.get(id(thing))
    return _known(thing)[1] if found is None else found[1]


#: Of operators, by their ids, which nothing else has while they are held here: the operator, what
#: it is, and it without its overload. (Asked so often that their hashes would take long.)
_KNOWN: dict[int, tuple[Operator, Operation, Operator]] = {}


def _known(target: Operator) -> tuple[Operator, Operation, Operator]:
    if isinstance(own := getattr(target, "operation", None), Operation):  # of one graph, maybe
        return target, own, target
    found = target, _of(target), getattr(target, "overloadpacket", target)
    return _KNOWN.setdefault(id(target), found) if callable(target) else found


def kind(thing: Operator | fx.Node) -> Kind:
    """The kind of a call or of an operator."""
    return of(thing).kind


def _of(target: Operator) -> Operation:
    if target is operator.getitem:
        return Operation(Kind.OUTPUT)
    name, overload = _name(target), getattr(target, "_overloadname", "")
    if name.endswith("_") and not name.endswith("__"):  # in place: what it writes is the same
        name = name.removesuffix("_")
    listed = TABLE.get(f"{name}.{overload}") or TABLE.get(name)
    if listed is not None and _is_torchs(target):
        return listed
    return _UNKNOWN if not _is_torchs(target) else _by_torch(target, name)


def _is_torchs(target: Operator) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace == "aten"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name.startswith("aten::")
    return isinstance(target, str) or getattr(target, "__module__", "").startswith("torch")


def _by_torch(target: Operator, name: str) -> Operation:
    """What torch's own tags and schemas say."""
    if name.startswith(_CHECKS):
        return Operation(Kind.CHECK)
    whole = isinstance(target, torch._ops.OpOverloadPacket)
    overloads = [getattr(target, o) for o in target.overloads()] if whole else [target]
    tags = [tag for o in overloads for tag in getattr(o, "tags", ())]
    if torch.Tag.pointwise in tags:
        return Operation(Kind.FUNCTION)
    if torch.Tag.nondeterministic_seeded in tags:
        return Operation(Kind.RANDOM)
    is_view = any(getattr(o, "is_view", False) for o in overloads)
    return Operation(Kind.VIEW) if is_view else _UNKNOWN


def _name(target: Operator) -> str:
    return str(getattr(getattr(target, "overloadpacket", target), "__name__", ""))


def name_of(thing: Operator | fx.Node) -> str:
    """The operator's name without its overload, to be printed: ``""`` for a node that is no call.

    Nothing is to be decided by it: that is what the kind is for.
    """
    if isinstance(thing, fx.Node):
        return _name(thing.target) if thing.op == "call_function" else ""
    return _name(thing)


def packet(thing: Operator | fx.Node) -> Operator:
    """The operator without its overload."""
    target = thing.target if isinstance(thing, fx.Node) else thing
    return (_KNOWN.get(id(target)) or _known(target))[2]


def is_call(node: object, *operators: Operator) -> TypeGuard[fx.Node]:
    """Whether ``node`` is a call of one of ``operators``, whichever overload."""
    return isinstance(node, fx.Node) and node.op == "call_function" and packet(node) in operators


def is_inplace(node: fx.Node) -> bool:
    """Whether a call writes into its first argument."""
    schema, name = getattr(node.target, "_schema", None), _name(node.target)
    ends = name.endswith("_") and not name.endswith("__")
    return schema is not None and schema.is_mutable and ends and bool(node.args)


def out_of_place(node: fx.Node) -> Operator:
    """The operator (without an overload) that gives a new tensor, of a call that writes into its
    first argument; ``None`` if there is none."""
    return getattr(torch.ops.aten, _name(node.target)[:-1], None)


@cache
def _parameters(target: Operator) -> dict[str, tuple[int, object]]:
    """Position and default of every argument of an operator, by its name."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return {name: (i, None) for i, name in enumerate(getattr(target, "arguments", ()))}
    return {a.name: (i, a.default_value) for i, a in enumerate(schema.arguments)}


def argument(node: fx.Node, name: str) -> Value:
    """An argument of a call by the operator's own name for it, wherever it was given; else its
    default; ``None`` if the operator has no such argument."""
    if name in node.kwargs:
        return node.kwargs[name]
    position, default = _parameters(node.target).get(name, (len(node.args), None))
    return node.args[position] if position < len(node.args) else default


def operand(node: fx.Node, position: int = 0) -> fx.Node:
    """The node that a call reads as its argument at a position."""
    given = node.args[position]
    if not isinstance(given, fx.Node):
        raise TypeError(f"argument {position} of {node.target} is no node: {given!r}")
    return given


def listed(node: fx.Node, position: int) -> list[fx.Node | None]:
    """A list of tensors that a call reads as its argument at a position; ``None`` where an index
    leaves an axis as it is."""
    given = node.args[position]
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"argument {position} of {node.target} is no list: {given!r}")
    return [part if isinstance(part, fx.Node) else None for part in given]


def integers(node: fx.Node, name: str) -> list[int]:
    """An argument of whole numbers, by its name: one alone as a list of one, none at all as an
    empty list."""
    given = argument(node, name)
    return [given] if isinstance(given, int) else [int(g) for g in given or ()]


def function_of(node: fx.Node) -> Callable[..., Value]:
    """What a call calls."""
    if not callable(node.target):
        raise TypeError(f"{node} is no call: {node.target!r}")
    return node.target
