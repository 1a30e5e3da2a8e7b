"""What each axis of each tensor is made of: tokens or features. Worked out forward from the leaves,
never from names. What moves and joins do to axes is in ``axes_moved`` and ``axes_joined``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import fx

from relprop.operations import Kind, argument, kind, operand
from relprop.tracer.atoms import Atom, Axes, Axis, Group, fresh, length, line_up, relate
from relprop.tracer.axes_joined import joined
from relprop.tracer.axes_moved import ANYWHERE, MOVED, moved
from relprop.tracer.constants import Constants
from relprop.tracer.editing import dims_of, shape_of, tensor_inputs, val
from relprop.tracer.follow import follow
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
    if what in ANYWHERE | MOVED.keys():
        return moved(node, axes, labels)
    return _OF_FIRST[what](node, axes) if what in _OF_FIRST else _broadcast(node, known)


def _broadcast(node: fx.Node, known: Known) -> Axes:
    """Elementwise: each output axis is made of what the operands that span it are made of; they are
    of one group."""
    result: list[Axis] = []
    shape = shape_of(node)
    for i, size in enumerate(shape, -len(shape)):
        spanning = [
            known[operand][i]
            for operand in tensor_inputs(node)
            if operand in known and len(known[operand]) >= -i and shape_of(operand)[i] == size
        ]
        for other in spanning[1:]:
            if line_up(spanning[0], other):
                relate(spanning[0], other)
        result.append(spanning[0] if spanning else fresh(size, like=()))
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


_OF_ALL: dict[Kind, Callable[[fx.Node, Known], Axes]] = {Kind.JOIN: joined, Kind.MATMUL: _matmul}
_OF_FIRST: dict[Kind, Callable[[fx.Node, Axes], Axes | None]] = {
    Kind.LINEAR: _linear,
    Kind.CONVOLUTION: _conv,
    **dict.fromkeys((Kind.TOTAL, Kind.LARGEST, Kind.STATISTIC), _reduce),
    **dict.fromkeys((Kind.AVERAGE_POOL, Kind.MAX_POOL, Kind.RESAMPLE), _pool),
    Kind.SAMPLE: _sample,
}
