"""A ``Call`` from an ATen operator and plain tensors, without any graph: what a rule is told, built
by hand.

A ``Spec`` is such a call before its tensors are known: an operator, its arguments with
``Hole(shape)`` where a tensor is to stand, and a role for each tensor (``a`` activation, ``p``
parameter, ``c`` constant), in order of appearance.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from relprop.rules.call import Call, Operand, Total

ROLES = {"a": "activation", "p": "parameter", "c": "constant"}


@dataclass(frozen=True)
class Hole:
    """Where a floating tensor of this shape is to stand (``nonzero``: a divisor)."""

    shape: tuple[int, ...]
    nonzero: bool = False


def leaves(value, kind):
    """Everything of type ``kind`` in nested arguments, in order of appearance."""
    if isinstance(value, kind):
        return [value]
    children = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, (list, tuple))
        else ()
    )
    return [leaf for child in children for leaf in leaves(child, kind)]


def replaced(value, kind, new):
    """Nested arguments with the next of ``new`` in place of everything of type ``kind``."""
    if isinstance(value, kind):
        return next(new)
    if isinstance(value, dict):
        return {key: replaced(child, kind, new) for key, child in value.items()}
    return (
        type(value)(replaced(child, kind, new) for child in value)
        if isinstance(value, (list, tuple))
        else value
    )


def argument_names(op, args, kwargs):
    """The operator's own name of the argument that each tensor stands in."""
    schema = getattr(op, "_schema", None)
    own = op.arguments if schema is None else [a.name for a in schema.arguments]
    by_position = [own[i] for i, value in enumerate(args) for _ in leaves(value, Tensor)]
    return by_position + [name for name, value in kwargs.items() for _ in leaves(value, Tensor)]


def make_call(op, *args, roles="", needed=(), output=None, **kwargs):
    """The call ``op(*args, **kwargs)``. ``roles``: one letter per tensor (default: floating ones
    are activations)."""
    tensors = leaves((args, kwargs), Tensor)
    letters = roles or "".join("a" if x.is_floating_point() else "c" for x in tensors)
    names = argument_names(op, args, kwargs)

    def template(*new):
        return replaced((args, kwargs), Tensor, iter(new))

    operands = tuple(
        Operand(x, ROLES[letter], not needed or needed[i], f"operand {i}", name)
        for i, (x, letter, name) in enumerate(zip(tensors, letters, names, strict=True))
    )
    return Call(op, operands, op(*args, **kwargs) if output is None else output, template, op)


@dataclass(frozen=True)
class Spec:
    op: Any
    args: tuple[Any, ...]
    roles: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def holes(self):
        """Where tensors are still missing."""
        return leaves((self.args, self.kwargs), Hole)

    @property
    def hole_roles(self):
        """The roles of the tensors still missing."""
        kinds = leaves((self.args, self.kwargs), (Hole, Tensor))
        return [
            role for role, kind in zip(self.roles, kinds, strict=True) if isinstance(kind, Hole)
        ]

    def call(self, tensors):
        """The call with ``tensors`` in the holes."""
        args, kwargs = replaced((self.args, self.kwargs), Hole, iter(tensors))
        return make_call(self.op, *args, roles=self.roles, **kwargs)

    def output_shape(self):
        """The output's shape."""
        return tuple(self.call([torch.ones(hole.shape) for hole in self.holes]).output.shape)


def given(share, operand):
    """A share as a tensor of its operand's shape: ``None`` is zeros."""
    return torch.zeros_like(operand.value) if share is None else share


def amounts(split):
    """The sums of a split's shares, ``Total`` included."""
    return [
        s.value.double() if isinstance(s, Total) else s.double().sum()
        for s in split.shares
        if s is not None
    ]


def unread(call, *indices):
    """The same call where nobody reads the relevance of operands ``indices``."""
    return replace(
        call,
        operands=tuple(replace(o, needed=i not in indices) for i, o in enumerate(call.operands)),
    )
