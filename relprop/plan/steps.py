"""A Step: one operation as the walk sees it, with what its rule is told; and what is said of
operations without a rule, and which take no generic one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from types import FunctionType

import torch
from torch import Tensor, fx

from relprop.errors import UnknownOperation
from relprop.operations import Args, Kwargs, Operator, Value
from relprop.rules.call import Call, Operand
from relprop.rules.notes import Note
from relprop.rules.rule import Rule
from relprop.rules.ruleset import RuleSet
from relprop.tracer.facts import booked_as, is_floating, place, role
from relprop.tracer.program import describe

#: Where a share goes: a node, and which of its outputs.
Edge = tuple[fx.Node, int]


def _picked(relevance: Tensor, call: Call) -> tuple[Tensor]:
    return (relevance,)


#: How relevance passes the choice of one of several outputs.
PICK = Rule(_picked, "one of several outputs", "move", frozenset())


@dataclass(frozen=True)
class Step:
    """One operation as the walk sees it: a node, or a region (a whole module call, or a norm
    written out) whose output ``node`` is.

    ``operands`` are the tensors that enter it, each with its role and the operator's own name of
    its argument; ``needed`` says of which the relevance is read. ``output``: which output of its
    operand it picks, for one of several.
    """

    node: fx.Node
    rule: Rule
    operands: tuple[fx.Node, ...]
    roles: tuple[str, ...]
    needed: tuple[bool, ...]
    rebuild: Callable[..., tuple[Args, Kwargs]]
    function: Callable[..., Value]
    op: Operator
    arguments: tuple[str, ...]
    inner: frozenset[fx.Node] = frozenset()
    note: Note | None = None
    output: int = 0

    @cached_property
    def read(self) -> frozenset[fx.Node]:
        """The values that its rule reads, and always what is not differentiable (indices, masks): a
        move needs those."""
        inputs, output = "inputs" in self.rule.reads, "output" in self.rule.reads
        read = {o for o in self.operands if inputs or not is_floating(o)}
        return frozenset(read | {self.node} if output else read)

    @cached_property
    def edges(self) -> tuple[Edge | None, ...]:
        """Where each share goes; ``None``: nobody reads it."""
        return tuple(
            (o, self.output) if needed else None
            for o, needed in zip(self.operands, self.needed, strict=True)
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """How the ledger calls what each operand absorbs."""
        return tuple(booked_as(o) or "a constant" for o in self.operands)

    @cached_property
    def path(self) -> str:
        """Which module's call it is part of."""
        return place(self.node).call

    @cached_property
    def _rest(self) -> tuple[tuple[str, bool, str, str], ...]:
        """What is said of each operand beside its value."""
        booked = map(booked_as, self.operands)
        return tuple(zip(self.roles, self.needed, booked, self.arguments, strict=True))

    @cached_property
    def op_name(self) -> str:
        """What the operation is called: a module call by its class, one of relprop's own by its
        function."""
        own = isinstance(self.op, (type, FunctionType))
        return self.op.__qualname__ if own else str(self.op)

    def call(self, tensors: tuple[Tensor, ...], output: Value, extra: Tensor | None) -> Call:
        """What the rule is told, for one sample's tensors."""
        operands = tuple([Operand(t, *rest) for t, rest in zip(tensors, self._rest, strict=True)])  # type: ignore[arg-type]
        return Call(
            self.op,
            operands,
            output,
            self.rebuild,
            self.function,
            self.path,
            extra,
            self.note,
        )


@dataclass(frozen=True)
class Finding:
    """Something ``check`` reports about a node: ``kind`` is generic, unknown, hidden site, or
    detached."""

    kind: str
    node: fx.Node
    text: str


def other_role(operand: fx.Node) -> str:
    """What an operand is that no relevance reaches."""
    return "parameter" if role(operand) == "parameter" else "constant"


def argument_names(node: fx.Node, operands: tuple[fx.Node, ...]) -> tuple[str, ...]:
    """The operator's own names of the arguments its tensors stand in."""
    schema = getattr(node.target, "_schema", None)
    own = getattr(node.target, "arguments", ())
    names = list(own) if schema is None else [a.name for a in schema.arguments]
    named = [(names[i] if i < len(names) else "", value) for i, value in enumerate(node.args)]
    found: list[str] = []
    for label, value in (*named, *node.kwargs.items()):
        inside: list[fx.Node] = []
        fx.node.map_arg(value, inside.append)
        found += [label] * len(inside)
    return tuple(found)


def used_twice(starts: tuple[fx.Node, ...], steps: list[Step]) -> frozenset[fx.Node]:
    """The nodes at which several relevances meet."""
    uses = Counter(starts)
    for step in steps:
        uses.update(o for o, n in zip(step.operands, step.needed, strict=True) if n)
    return frozenset(n for n, count in uses.items() if count > 1)


def kept(steps: Iterable[Step]) -> frozenset[fx.Node]:
    """The values that the rules of some steps read."""
    return frozenset[fx.Node]().union(*(step.read for step in steps))


def no_rule(node: fx.Node, rules: RuleSet, why: str) -> UnknownOperation:
    """The refusal of an operation, with what to write."""
    op, preset = str(node.target), rules.name.split("+")[0].upper()
    return UnknownOperation(
        f"no relevance rule for {op}{why}",
        at=f"{describe(node)}, feeds {len(node.users)} operations",
        then=[
            f"rules = relprop.rules.{preset}.with_rule(torch.ops.{op}, relprop.rules.carry)  "
            " # one element in, one element out",
            "@relprop.register_rule(op)  def rule(relevance, call): return "
            "share_of_each_input   # docs/write-a-rule.md",
            "relprop.check(model, inputs)   # to see every operation of this model",
        ],
    )


def lacking(node: fx.Node) -> str:
    """Why Eq. 2 cannot be taken of the op, or "": no derivative, or one that ``torch.func`` cannot
    enter (ops made by ``torch.library``)."""
    operator = node.target
    if not isinstance(operator, torch._ops.OpOverload) or operator.namespace == "aten":
        return ""
    definition = torch._library.custom_ops.OPDEFS.get(operator._schema.name)
    if definition is not None and definition._backward_fn is not None:
        return "torch.func cannot enter its derivative"
    has = partial(torch._C._dispatch_has_kernel_for_dispatch_key, operator.name())
    known = definition is None and (has("Autograd") or has("CompositeImplicitAutograd"))
    return "" if known else "PyTorch has no derivative of it"
