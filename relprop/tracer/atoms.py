"""What an axis is made of: atoms, each known to number tokens or features, or not known yet.

An axis is a tuple of *atoms*; ``reshape`` splits and joins them, linear layers and channels make
new ones that are *features*. Atoms that come from one another (a slice, a concatenation, a strided
convolution) are of one *group*, so that when an attention site shows that its keys are tokens, the
patches they come from are known to be tokens, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

Made = Literal["unknown", "token", "feature"]


class Group:
    """Atoms known to be of one kind (a union-find cell)."""

    def __init__(self, kind: Made = "unknown", of_leaf: bool = False) -> None:
        self.kind: Made = kind
        self.of_leaf = of_leaf
        self.parent: Group | None = None

    def root(self) -> Group:
        """The cell that speaks for this group."""
        return self if self.parent is None else self.parent.root()

    def join(self, other: Group) -> None:
        """One group of two; *token* wins over *feature*, both over *unknown*."""
        a, b = self.root(), other.root()
        if a is not b:
            kinds = {a.kind, b.kind}
            b.parent = a
            a.of_leaf = a.of_leaf or b.of_leaf
            a.kind = "token" if "token" in kinds else "feature" if "feature" in kinds else "unknown"


@dataclass(eq=False)
class Atom:
    """An indivisible run of positions along an axis (so far: a reshape may still split it).

    ``position``: whatever its group is, it numbers tokens (of k that were made of each, or laid
    beside each). ``repeated``: its positions hold one and the same thing, or are those of something
    that was laid beside it. ``of``: what it was cut from, or is made of by weights. ``joined``: the
    axes that lie in it one behind another, if tokens are folded into the features of some.
    """

    size: int
    group: Group = field(default_factory=Group)
    position: bool = False
    repeated: bool = False
    of: Axis = ()
    joined: tuple[Axis, ...] = ()

    @property
    def kind(self) -> Made:
        """What its positions are."""
        made = bool(self.of) and all(atom.kind == "token" for atom in self.of)
        return "token" if self.position or made else self.group.root().kind


Axis = tuple[Atom, ...]
Axes = tuple[Axis, ...]


def is_token(axis: Axis) -> bool:
    """Whether the axis holds tokens and nothing else (an axis of length 1 holds nothing)."""
    return bool(axis) and all(atom.kind == "token" for atom in axis)


def token_count(axis: Axis) -> int:
    """How many token positions are folded into the axis."""
    if joined := parts_of(axis):
        return max(1, sum(n for n in map(token_count, joined) if n > 1))
    return math.prod(atom.size for atom in axis if atom.kind == "token")


def parts_of(axis: Axis) -> tuple[Axis, ...]:
    """The axes that lie in this one, one behind another, if it is not all one."""
    return axis[0].joined if len(axis) == 1 else ()


def fresh(size: int, kind: Made = "unknown", like: Axis | None = None) -> Axis:
    """A new axis; what it is made of, ``like``, if that is known: of length 1, it is repeated."""
    if size == 1:
        return ()
    repeated = like is not None and all(a.repeated for a in like)
    atom = Atom(size, Group(kind), repeated=repeated, of=like or ())
    # of tokens × features (routed to experts, shifted positions): tokens
    for other in [a for a in like or () if a.kind != "feature"] or like or ():
        other.group.join(atom.group)
    return (atom,)


def length(axis: Axis) -> int:
    """How many positions an axis has."""
    return math.prod(atom.size for atom in axis)


def relate(pairs: Iterable[tuple[Axis, Axis]]) -> None:
    """Axes that lie one over the other, each axis of a tensor over that of another, are of one
    group where they are split alike, unless one is known to be features and the other is not known:
    relative positions (a projection's output cut to one number per key) say nothing of the keys
    they are added to. So are copies of the positions of a grid, along both its axes, laid over a
    finer one; along one axis they may be a token's, one for each of its experts."""
    copied = []
    for one, other in pairs:
        if [a.size for a in one] == [b.size for b in other]:
            _join(zip(one, other, strict=True))
        elif 1 in (len(one), len(other)) and any(atom.repeated for atom in one + other):
            copied.append((one, other))
    for one, other in copied if len(copied) > 1 else ():
        _join(product(one, other))


def _join(pairs: Iterable[tuple[Atom, Atom]]) -> None:
    for a, b in pairs:
        if {a.kind, b.kind} != {"unknown", "feature"}:
            a.group.join(b.group)
