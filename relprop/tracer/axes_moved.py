"""What moves do to axes: each output axis is made of the input's atoms whose positions change along
it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.operations import Kind, argument, integers, is_call, kind, listed, operand
from relprop.tracer.atoms import Atom, Axes, Axis, fresh, length, parts_of
from relprop.tracer.editing import aten, shape_of, tensor_inputs
from relprop.tracer.labels import Labels, along


def _reshape(node: fx.Node, axes: Axes) -> Axes | None:
    """The atoms of ``axes`` in row-major order, dealt out to axes of other sizes, split where
    needed; ``None`` if they do not divide."""
    queue = [atom for axis in axes for atom in axis]
    result: list[Axis] = []
    if 0 in shape_of(node):
        return None
    for size in shape_of(node):
        taken: list[Atom] = []
        need = size
        while need > 1:
            if not queue:
                return None
            atom = queue.pop(0)
            if need % atom.size == 0:
                taken.append(atom)
                need //= atom.size
            elif atom.size % need == 0:
                parts = need, atom.size // need
                outer, inner = (Atom(n, atom.group, repeated=atom.repeated) for n in parts)
                taken.append(outer)
                queue.insert(0, inner)
                need = 1
            else:
                return None
        result.append(tuple(taken))
    return tuple(result)


def _permute(node: fx.Node, axes: Axes) -> Axes:
    return tuple(axes[d] for d in integers(node, "dims"))


def _expand(node: fx.Node, axes: Axes) -> Axes:
    shape = shape_of(node)
    padded = ((),) * (len(shape) - len(axes)) + axes
    return tuple(
        axis if axis or size == 1 else fresh(size, like=())
        for axis, size in zip(padded, shape, strict=True)
    )


def _select(node: fx.Node, axes: Axes) -> Axes:
    dim = argument(node, "dim") % len(axes)
    return axes[:dim] + axes[dim + 1 :]


def moved_anywhere(node: fx.Node, axes: Axes, labels: Labels) -> Axes:
    """A move that may bring any element anywhere: each output axis is like the input atoms whose
    coordinates change along it."""
    source = tensor_inputs(node)[0]
    atoms = tuple(atom for axis in axes for atom in axis)
    sizes = tuple(atom.size for atom in atoms)
    pushed: list[Tensor] = []
    for i in range(len(atoms)):
        coordinate = along(sizes, i).reshape(shape_of(source))
        after = labels.push(node, {source: coordinate})
        if after is None:
            return _indexed(node, axes) if is_call(node, aten.index) else _same_rank(node, axes)
        pushed.append(after)
    return tuple(_made_of(o, size, atoms, pushed) for o, size in enumerate(shape_of(node)))


def _indexed(node: fx.Node, axes: Axes) -> Axes:
    """``x[i, j]`` with indices that depend on the input: the picked positions are like the axes
    they were picked from."""
    where = [i for i, index in enumerate(listed(node, 1)) if index is not None]
    shape = shape_of(node)
    picked = len(shape) - (len(axes) - len(where))
    first = where[0] if where == list(range(where[0], where[-1] + 1)) else 0
    others = [axis for i, axis in enumerate(axes) if i not in where]
    source = tuple(atom for i in where for atom in axes[i])
    new = (fresh(size, like=source) for size in shape[first : first + picked])
    return (*others[:first], *new, *others[first:])


@dataclass(frozen=True)
class _Turn:
    """An atom whose coordinate changes along a line of the output, and the coordinates there."""

    atom: Atom
    line: Tensor

    @property
    def held(self) -> int:
        """For how many positions the first coordinate stays."""
        return int((self.line != self.line[0]).nonzero()[0])

    @property
    def count(self) -> int:
        """How many coordinates there are."""
        return len(self.line.unique())


def _made_of(o: int, size: int, atoms: tuple[Atom, ...], labels: list[Tensor]) -> Axis:
    """Output axis ``o``: like the one atom whose coordinate changes along it, or, where several do
    and take turns, one atom for each."""
    if size == 1:
        return ()
    turns = _turns(o, size, atoms, labels)
    if len(turns) == 1 and (copies := _copies(turns[0])) is not None:
        return copies
    order = sorted(turns, key=lambda turn: -turn.held)
    if len(order) > 1 and math.prod(turn.count for turn in order) == size:
        return tuple(fresh(turn.count, like=(turn.atom,))[0] for turn in order)
    changes = (bool((pushed != pushed.narrow(o, 0, 1)).any()) for pushed in labels)
    like = (atom for atom, changing in zip(atoms, changes, strict=True) if changing)
    return fresh(size, like=tuple(like))


def _turns(o: int, size: int, atoms: tuple[Atom, ...], labels: list[Tensor]) -> list[_Turn]:
    """The atoms that change along one line of the output: the middle one of axis ``o``, or the
    first with the least padding (whose labels are 0)."""
    lines = [p.movedim(o, -1).reshape(-1, size) for p in labels]
    if not lines:
        return []
    padded, at = (lines[0] == 0).sum(-1), len(lines[0]) // 2
    at = at if padded[at] == padded.min() else int(padded.argmin())
    turns = [_Turn(atom, line[at]) for atom, line in zip(atoms, lines, strict=True)]
    return [turn for turn in turns if bool((turn.line != turn.line[0]).any())]


def _copies(turn: _Turn) -> Axis | None:
    """Every position several times, next to each other or all of them again: positions, and
    copies of each; ``None`` for anything else."""
    line, own = turn.line, turn.line.unique()
    times = len(line) // len(own)
    if times < 2 or len(line) % len(own):
        return None
    one, copies = fresh(len(own), like=(turn.atom,)), fresh(times, like=())
    if turn.atom.kind == "feature":
        copies[0].group.kind = "feature"
    if torch.equal(line, own.repeat_interleave(times)):
        return (*one, *copies)
    return (*copies, *one) if torch.equal(line, own.repeat(times)) else None


def _same_rank(node: fx.Node, axes: Axes) -> Axes:
    """slice, roll, flip, pad, index along an axis: a changed axis is new, of the same group."""
    shape, what = shape_of(node), kind(node)
    if len(shape) != len(axes):
        return tuple(fresh(s) for s in shape)
    everywhere = range(len(axes)) if what in (Kind.SHIFT, Kind.INDEX, Kind.GATHER) else ()
    chosen = (integers(node, "dims") if what is Kind.SHIFT else []) or everywhere
    if what is Kind.GATHER and (dim := argument(node, "dim")) is not None:
        chosen = [dim]  # along all others, a position is what it was
    touched = {d % len(axes) for d in chosen}
    before = shape_of(operand(node))
    if what is Kind.SLICE and (piece := _piece(node, axes)) is not None:
        dim = argument(node, "dim") % len(axes)
        return (*axes[:dim], piece, *axes[dim + 1 :])
    return tuple(
        axis if size == was and i not in touched else fresh(size, like=axis)
        for i, (axis, size, was) in enumerate(zip(axes, shape, before, strict=True))
    )


def _piece(node: fx.Node, axes: Axes) -> Axis | None:
    """The piece of a joined axis that a slice cuts out, if it is one."""
    dim, *cut = (argument(node, name) for name in ("dim", "start", "end", "step"))
    begin = 0
    for piece in parts_of(axes[dim]):
        if cut == [begin, begin + length(piece), 1]:
            return piece
        begin += length(piece)
    return None


#: Moves that say themselves where each axis goes.
MOVED: dict[Kind, Callable[[fx.Node, Axes], Axes | None]] = {
    Kind.RESHAPE: _reshape,
    Kind.PERMUTE: _permute,
    Kind.EXPAND: _expand,
    Kind.SELECT: _select,
    **dict.fromkeys((Kind.SLICE, Kind.SHIFT, Kind.PAD, Kind.GATHER), _same_rank),
}
#: Moves of which only their elements say it.
ANYWHERE = frozenset({Kind.INDEX, Kind.VIEW, Kind.WINDOWS, Kind.REPEAT, Kind.SHUFFLE})
