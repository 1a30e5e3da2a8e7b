"""What a concatenation does to axes: one axis after another, or things laid side by side along an
axis of their own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from relprop.operations import ELEMENTWISE, Kind, argument, kind, listed, operand
from relprop.tracer.atoms import Axes, Axis, fresh, length, line_up, relate
from relprop.tracer.editing import shape_of, tensor_inputs


def joined(node: fx.Node, known: Mapping[fx.Node, Axes]) -> Axes:
    """The axes of tensors joined along one: the others are those of each, and of one group."""
    parts = [p for p in listed(node, 0) if p is not None]
    first, *others = [known[p] for p in parts if p in known]
    dim = argument(node, "dim") % len(first)
    for other in others:
        for i, (a, b) in enumerate(zip(first, other, strict=True)):
            if i != dim and line_up(a, b):
                relate(a, b)
    new = _new_axis(parts, dim, shape_of(node)[dim], known)
    return tuple(new if i == dim else axis for i, axis in enumerate(first))


def _new_axis(parts: list[fx.Node], dim: int, size: int, known: Mapping[fx.Node, Axes]) -> Axis:
    """The axis along which tensors are joined."""
    if not _are_stacked(parts, dim):
        atoms = tuple(atom for p in parts if p in known for atom in known[p][dim])
        several = len({p for p in parts if p in known}) > 1
        cut = tuple(atom for p in parts if not atoms for atom in _cut_from(p, dim, known))
        return fresh(size, like=atoms or cut or (None if several else ()))
    turns = _taken_in_turn(parts, known)
    return fresh(size, like=turns) if turns else fresh(size, "feature")


def _cut_from(part: fx.Node, dim: int, known: Mapping[fx.Node, Axes]) -> Axis:
    """What the axis is made of along which single positions were cut that are laid side by side
    again, with what was worked out of each for itself."""
    left, seen = [part], {part}
    while left:
        node = left.pop()
        axes = known.get(node, ())
        if len(axes) > dim and axes[dim]:
            return axes[dim]
        for_itself = kind(node) in ELEMENTWISE | {Kind.SLICE, Kind.LINEAR, Kind.NORM}
        above = [i for i in tensor_inputs(node) if for_itself and i in known and i not in seen]
        seen |= set(above)
        left += above
    return ()


def _are_stacked(parts: list[fx.Node], dim: int) -> bool:
    """Whether tensors are laid side by side along an axis that none of them has."""

    def has_one_more(part: fx.Node) -> bool:
        before, after = shape_of(operand(part)), shape_of(part)
        return after[dim] == 1 and after.count(1) > before.count(1)

    return all(kind(p) is Kind.RESHAPE and has_one_more(p) for p in parts)


def _taken_in_turn(parts: list[fx.Node], known: Mapping[fx.Node, Axes]) -> Axis:
    """What the axes are made of from whose positions, one after another, tensors that are stacked
    were worked out: a recurrence that is written as a loop, constants beside them left out."""
    ends = [operand(p) for p in parts if operand(p) in known]
    picked = [_picked_at(place, end, ends, known) for place, end in enumerate(ends)]
    shared = picked[0].intersection(*picked[1:]) if picked else set()
    axes = (known[x][dim] for x, dim in shared if x in known)
    return tuple(atom for axis in axes if length(axis) == len(ends) for atom in axis)


def _picked_at(
    place: int, end: fx.Node, ends: list[fx.Node], known: Mapping[fx.Node, Axes]
) -> set[tuple[fx.Node, int]]:
    """The tensors, each with an axis, of which ``end`` was worked out from the position ``place``,
    other than through one of ``ends``."""
    seen, left = set(ends), [end]
    found: set[tuple[fx.Node, int]] = set()
    while left:
        n = left.pop()
        if kind(n) is Kind.SELECT and argument(n, "index") == place:
            found.add((operand(n), argument(n, "dim")))
        elif kind(n) is not Kind.SELECT:
            above = [i for i in tensor_inputs(n) if i in known and i not in seen]
            seen |= set(above)
            left += above
    return found
