"""What each axis of each tensor is made of: tokens or features. Worked out forward from the leaves,
never from names. What moves do to axes is in ``axes_moved``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

import torch
from torch import fx

from relprop.operations import ELEMENTWISE, Kind, argument, kind, listed, operand
from relprop.tracer.atoms import (
    Atom,
    Axes,
    Axis,
    Group,
    fresh,
    length,
    parts_of,
    relate,
)
from relprop.tracer.axes_moved import ANYWHERE, MOVED, moved_anywhere
from relprop.tracer.constants import Constants
from relprop.tracer.editing import dims_of, shape_of, tensor_inputs, val
from relprop.tracer.follow import follow, reached
from relprop.tracer.labels import Labels

Known = Mapping[fx.Node, Axes]


def axes_below(
    graph: fx.Graph, leaves: Iterable[fx.Node], constants: Constants
) -> dict[fx.Node, Axes]:
    """The axes of every tensor that depends on a leaf."""
    labels = Labels(constants)

    def after(node: fx.Node, known: Known) -> Axes | None:
        value = val(node)
        if node.op != "call_function" or not isinstance(value, torch.Tensor):
            return None
        axes = _step(node, known, labels)
        if axes is not None and [length(axis) for axis in axes] == list(value.shape):
            return axes
        return tuple(fresh(s) for s in value.shape)

    return follow(graph.nodes, {leaf: _leaf(leaf) for leaf in leaves}, after)


def settle_features(graph: fx.Graph, axes: Known) -> None:
    """What layers sum over holds features where no attention has shown that it holds tokens: those
    of an input that is read as it is."""
    summed = {Kind.LINEAR: -1, Kind.CONVOLUTION: 1}
    for node in graph.nodes:
        if kind(node) in summed and operand(node) in axes:
            for atom in axes[operand(node)][summed[kind(node)]]:
                if atom.kind == "unknown":
                    atom.group.root().kind = "feature"


def _leaf(node: fx.Node) -> Axes:
    shape = shape_of(node)
    axes = tuple(() if s == 1 else (Atom(s, Group(of_leaf=True)),) for s in shape)
    return (*axes[:-1], fresh(shape[-1], "feature")) if kind(node) is Kind.EMBEDDING else axes


def _step(node: fx.Node, known: Known, labels: Labels) -> Axes | None:
    """The axes of one call's result; ``None`` where they are not understood."""
    what, first = kind(node), node.args[0] if node.args else None
    if what in _OF_ALL:
        return _OF_ALL[what](node, known)
    axes = known.get(first) if isinstance(first, fx.Node) else None
    if axes is None:
        return _broadcast(node, known)
    if what in ANYWHERE:
        return moved_anywhere(node, axes, labels)
    return _OF_FIRST[what](node, axes) if what in _OF_FIRST else _broadcast(node, known)


def _broadcast(node: fx.Node, known: Known) -> Axes:
    """Elementwise: each output axis is made of what the operands that span it are made of; they are
    of one group."""
    result: list[Axis] = []
    over: dict[int, list[tuple[Axis, Axis]]] = {}
    shape = shape_of(node)
    for i, size in enumerate(shape, -len(shape)):
        spanning = [
            known[operand][i]
            for operand in tensor_inputs(node)
            if operand in known and len(known[operand]) >= -i and shape_of(operand)[i] == size
        ]
        for k, other in enumerate(spanning[1:]):
            over.setdefault(k, []).append((spanning[0], other))
        result.append(spanning[0] if spanning else fresh(size, like=()))
    for pairs in over.values():
        relate(pairs)
    return tuple(result)


def _linear(node: fx.Node, axes: Axes) -> Axes:
    """The last axis becomes features; where the features are elsewhere, it mixes tokens, and its
    results are tokens, too."""
    last, size = axes[-1], shape_of(node)[-1]
    features = any(a.kind == "feature" for axis in axes[:-1] for a in axis)
    if last and features and not any(a.kind == "feature" for a in last):
        return (*axes[:-1], fresh(size, like=last))
    made = fresh(size, "feature")
    for atom in made if features else ():  # of what numbers learned queries, it numbers tokens, too
        atom.of = last
    return (*axes[:-1], made)


def _conv(node: fx.Node, axes: Axes) -> Axes:
    spatial = tuple(
        axis if length(axis) == s else fresh(s, like=axis or None)
        for axis, s in zip(axes[2:], shape_of(node)[2:], strict=True)
    )
    return (axes[0], fresh(shape_of(node)[1], "feature"), *spatial)


def _pool(node: fx.Node, axes: Axes) -> Axes:
    return tuple(
        axis if length(axis) == s else fresh(s, like=axis)
        for axis, s in zip(axes, shape_of(node), strict=True)
    )


def _matmul(node: fx.Node, known: Known) -> Axes:
    """Rows of the left operand, columns of the right; each batch is like that of the first operand
    that has it, and has it of its own before one that repeats it (GCViT's global queries)."""
    shape = shape_of(node)
    a, b = known.get(operand(node, 0)), known.get(operand(node, 1))
    rows = a[-2] if a is not None and len(a) > 1 else fresh(shape[-2])
    columns = b[-1] if b is not None else fresh(shape[-1])
    both = [axes for axes in (a, b) if axes is not None]
    batch = []
    for i, size in enumerate(shape[:-2], -len(shape)):
        having = [axes[i] for axes in both if len(axes) >= -i and axes[i]]
        own = [axis for axis in having if not any(atom.repeated for atom in axis)]
        batch.append(next(iter(own or having), fresh(size)))
    return (*batch, rows, columns)


def _reduce(node: fx.Node, axes: Axes) -> Axes | None:
    gone, keep = dims_of(node), argument(node, "keepdim")
    return tuple(() if i in gone else axis for i, axis in enumerate(axes) if keep or i not in gone)


def _sample(node: fx.Node, axes: Axes) -> Axes:
    """Values that are read at places of their own: new positions."""
    return (*axes[:2], *(fresh(size) for size in shape_of(node)[2:]))


def _joined(node: fx.Node, known: Known) -> Axes:
    """The axes of tensors joined along one: the others are those of each, and of one group."""
    parts = [p for p in listed(node, 0) if p is not None]
    first, *others = [known[p] for p in parts if p in known]
    dim = argument(node, "dim") % len(first)
    for other in others:
        both = enumerate(zip(first, other, strict=True))
        relate([pair for i, pair in both if i != dim])
    new = _new_axis(parts, dim, shape_of(node)[dim], known)
    return tuple(new if i == dim else axis for i, axis in enumerate(first))


def _new_axis(parts: list[fx.Node], dim: int, size: int, known: Known) -> Axis:
    """The axis along which tensors are joined."""
    if not _are_stacked(parts, dim):
        of_parts = tuple(known[p][dim] if p in known else fresh(shape_of(p)[dim]) for p in parts)
        if dim == len(shape_of(parts[0])) - 1 and any(map(_folds, of_parts)):
            flat = tuple(one for part in of_parts for one in parts_of(part) or (part,))
            return (Atom(size, Group("feature"), joined=flat),)
        atoms = tuple(atom for p in parts if p in known for atom in known[p][dim])
        several = len({p for p in parts if p in known}) > 1
        cut = tuple(atom for p in parts if not atoms for atom in _cut_from(p, dim, known))
        return fresh(size, like=atoms or cut or (None if several else ()))
    turns = _taken_in_turn(parts, known)
    return fresh(size, like=turns) if turns else fresh(size, "feature")


def _folds(axis: Axis) -> bool:
    """Whether other positions are folded with features in an axis, or in a piece of it (all
    columns' tokens beside numbers: TabTransformer)."""
    return bool(parts_of(axis)) or {"feature"} < {atom.kind for atom in axis}


def _cut_from(part: fx.Node, dim: int, known: Known) -> Axis:
    """What the axis is made of along which single positions were cut that are laid side by side
    again, with what was worked out of each for itself."""

    def above(node: fx.Node) -> list[fx.Node]:
        for_itself = kind(node) in ELEMENTWISE | {Kind.SLICE, Kind.LINEAR, Kind.NORM}
        return [i for i in tensor_inputs(node) if for_itself and i in known]

    along = (known.get(node, ())[dim : dim + 1] for node in reached([part], above))
    return next((axis for one in along for axis in one if axis), ())


def _are_stacked(parts: list[fx.Node], dim: int) -> bool:
    """Whether tensors are laid side by side along an axis that none of them has."""

    def has_one_more(part: fx.Node) -> bool:
        before, after = shape_of(operand(part)), shape_of(part)
        return after[dim] == 1 and after.count(1) > before.count(1)

    return all(kind(p) is Kind.RESHAPE and has_one_more(p) for p in parts)


def _taken_in_turn(parts: list[fx.Node], known: Known) -> Axis:
    """What the axes are made of from whose positions, one after another, tensors that are stacked
    were worked out: a recurrence that is written as a loop, constants beside them left out."""
    ends = [operand(p) for p in parts if operand(p) in known]
    every = set(ends)
    picked = [_picked_at(place, end, every, known) for place, end in enumerate(ends)]
    shared = picked[0].intersection(*picked[1:]) if picked else set()
    axes = (known[x][dim] for x, dim in shared if x in known)
    return tuple(atom for axis in axes if length(axis) == len(ends) for atom in axis)


def _picked_at(
    place: int, end: fx.Node, ends: Container[fx.Node], known: Known
) -> set[tuple[fx.Node, int]]:
    """The tensors, each with an axis, of which ``end`` was worked out from the position ``place``,
    other than through one of ``ends``."""

    def above(node: fx.Node) -> list[fx.Node]:
        inputs = () if kind(node) is Kind.SELECT else tensor_inputs(node)
        return [i for i in inputs if i in known and i not in ends]

    picks = [n for n in reached([end], above) if kind(n) is Kind.SELECT]
    return {(operand(n), argument(n, "dim")) for n in picks if argument(n, "index") == place}


_OF_ALL: dict[Kind, Callable[[fx.Node, Known], Axes]] = {Kind.JOIN: _joined, Kind.MATMUL: _matmul}
_OF_FIRST: dict[Kind, Callable[[fx.Node, Axes], Axes | None]] = {
    Kind.LINEAR: _linear,
    Kind.CONVOLUTION: _conv,
    **dict.fromkeys((Kind.TOTAL, Kind.LARGEST, Kind.STATISTIC), _reduce),
    **dict.fromkeys((Kind.AVERAGE_POOL, Kind.MAX_POOL, Kind.RESAMPLE), _pool),
    Kind.SAMPLE: _sample,
    **MOVED,
}
