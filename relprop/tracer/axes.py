"""What each axis of each tensor is made of: tokens or features. Worked out forward from the leaves,
never from names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from relprop.operations import Kind, argument, is_call, kind
from relprop.tracer.atoms import Atom, Axes, Axis, Group, Made
from relprop.tracer.constants import Constants
from relprop.tracer.editing import aten, tensor_inputs, val
from relprop.tracer.follow import follow
from relprop.tracer.labels import Labels, along


def axes_below(
    graph: fx.Graph, leaves: Iterable[fx.Node], constants: Constants
) -> dict[fx.Node, Axes]:
    """The axes of every tensor that depends on a leaf."""
    labels = Labels(constants)

    def after(node: fx.Node, known: Mapping[fx.Node, Axes]) -> Axes | None:
        value = val(node)
        if node.op != "call_function" or not isinstance(value, torch.Tensor):
            return None
        axes = _step(node, known, labels)
        if axes is not None and _fits(axes, value.shape):
            return axes
        return tuple(_fresh(s) for s in value.shape)

    return follow(graph.nodes, {leaf: _leaf(leaf) for leaf in leaves}, after)


def _fits(axes: Axes, shape: torch.Size) -> bool:
    return len(axes) == len(shape) and all(
        math.prod(a.size for a in axis) == s for axis, s in zip(axes, shape, strict=True)
    )


def _fresh(size: int, kind: Made = "unknown", like: Axis | None = None) -> Axis:
    """A new axis; what it is made of, ``like``, if that is known: of length 1, it is repeated."""
    if size == 1:
        return ()
    repeated = like is not None and all(a.repeated for a in like)
    atom = Atom(size, Group(kind), repeated=repeated)
    for other in (
        [a for a in like or () if a.kind != "feature"] or like or ()
    ):  # of tokens × features (routed to experts, shifted positions): tokens
        other.group.join(atom.group)
    return (atom,)


def _leaf(node: fx.Node) -> Axes:
    shape = val(node).shape
    axes = tuple(() if s == 1 else (Atom(s, Group(of_leaf=True)),) for s in shape)
    return (*axes[:-1], _fresh(shape[-1], "feature")) if kind(node) is Kind.EMBEDDING else axes


def _step(node: fx.Node, known: Mapping[fx.Node, Axes], labels: Labels) -> Axes | None:
    x = node.args[0] if node.args else None
    axes = known.get(x) if isinstance(x, fx.Node) else None
    if kind(node) in _MOVED and axes is not None:
        return _moved(node, axes, known, labels)
    handler = _HANDLERS.get(kind(node))
    if handler is not None and (axes is not None or kind(node) in (Kind.JOIN, Kind.MATMUL)):
        return handler(node, axes, known)  # type: ignore[no-any-return]
    return _broadcast(node, known)


def _broadcast(node: fx.Node, known: Mapping[fx.Node, Axes]) -> Axes:
    """Elementwise: each output axis is made of what the operands that span it are made of; they are
    of one group."""
    shape = val(node).shape
    result: list[Axis] = []
    for i, size in enumerate(shape):
        found: Axis | None = None
        for operand in tensor_inputs(node):
            axes = known.get(operand)
            at = i - (len(shape) - len(axes)) if axes is not None else -1
            if axes is None or at < 0 or val(operand).shape[at] != size:
                continue
            if found is None:
                found = axes[at]
            elif len(found) == len(axes[at]) and [a.size for a in found] == [
                a.size for a in axes[at]
            ]:
                _relate(found, axes[at])
        result.append(found if found is not None else _fresh(size, like=()))
    return tuple(result)


def _relate(one: Axis, other: Axis) -> None:
    """Axes that line up are of one group, unless one is known to be features and the other is not
    known: relative positions (a projection's output cut to one number per key) say nothing of the
    keys they are added to."""
    for a, b in zip(one, other, strict=True):
        if {a.kind, b.kind} != {"unknown", "feature"}:
            a.group.join(b.group)


def _reshape(node: fx.Node, axes: Axes, known: Mapping[fx.Node, Axes]) -> Axes | None:
    return regroup(axes, tuple(val(node).shape))


def regroup(axes: Axes, shape: tuple[int, ...]) -> Axes | None:
    """The atoms of ``axes`` in row-major order, dealt out to axes of ``shape``, split where needed;
    ``None`` if they do not divide."""
    queue = [atom for axis in axes for atom in axis]
    result: list[Axis] = []
    if 0 in shape:
        return None
    for size in shape:
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
                outer, inner = _divide(atom, need)
                taken.append(outer)
                queue.insert(0, inner)
                need = 1
            else:
                return None
        result.append(tuple(taken))
    return tuple(result)


def _divide(atom: Atom, outer: int) -> tuple[Atom, Atom]:
    return (
        Atom(outer, atom.group, repeated=atom.repeated),
        Atom(atom.size // outer, atom.group, repeated=atom.repeated),
    )


def _permute(node: fx.Node, axes: Axes, known: Mapping[fx.Node, Axes]) -> Axes:
    return tuple(axes[d] for d in node.args[1])


def _expand(node: fx.Node, axes: Axes, known: Mapping[fx.Node, Axes]) -> Axes:
    shape = val(node).shape
    padded = ((),) * (len(shape) - len(axes)) + axes
    return tuple(
        axis if axis or size == 1 else _fresh(size, like=())
        for axis, size in zip(padded, shape, strict=True)
    )


def _select(node: fx.Node, axes: Axes, known: Mapping[fx.Node, Axes]) -> Axes:
    dim = argument(node, "dim") % len(axes)
    return axes[:dim] + axes[dim + 1 :]


def _moved(node: fx.Node, axes: Axes, known: Mapping[fx.Node, Axes], labels: Labels) -> Axes | None:
    """Any other move of one tensor: each output axis is like the input atoms whose coordinates
    change along it."""
    source, shape = tensor_inputs(node)[0], tuple(val(node).shape)
    atoms = tuple((atom,) for axis in axes for atom in axis)
    sizes = tuple(atom.size for (atom,) in atoms)
    numbers = (along(sizes, i).reshape(val(source).shape) for i in range(len(atoms)))
    pushed = [labels.push(node, {source: n}) for n in numbers]
    if any(p is None for p in pushed):
        return _indexed(node, axes) if is_call(node, aten.index) else _same_rank(node, axes, known)
    return tuple(_made_of(o, size, atoms, pushed) for o, size in enumerate(shape))


def _indexed(node: fx.Node, axes: Axes) -> Axes:
    """``x[i, j]`` with indices that depend on the input: the picked positions are like the axes
    they were picked from."""
    where = [i for i, index in enumerate(node.args[1]) if index is not None]
    shape = tuple(val(node).shape)
    picked = len(shape) - (len(axes) - len(where))
    first = where[0] if where == list(range(where[0], where[-1] + 1)) else 0
    kept = [axis for i, axis in enumerate(axes) if i not in where]
    source = tuple(atom for i in where for atom in axes[i])
    return (
        *kept[:first],
        *(_fresh(size, like=source) for size in shape[first : first + picked]),
        *kept[first:],
    )


def _made_of(o: int, size: int, axes: Axes, labels: list[torch.Tensor | None]) -> Axis:
    """Output axis ``o``: like the one input axis whose coordinate changes along it, or, where
    several do and take turns, one atom for each."""
    if size == 1:
        return ()
    lines = {
        i: pushed.movedim(o, -1).reshape(-1, size)[pushed.numel() // size // 2]
        for i, pushed in enumerate(labels)
        if pushed is not None
    }
    turns = {
        i: (int((line != line[0]).nonzero()[0]), int(line.unique().numel()))
        for i, line in lines.items()
        if bool((line != line[0]).any())
    }
    if len(turns) == 1:
        ((i, line),) = ((i, lines[i]) for i in turns)
        if (copies := _copies(line, axes[i])) is not None:
            return copies
    order = sorted(turns, key=lambda i: -turns[i][0])
    if len(order) > 1 and math.prod(turns[i][1] for i in order) == size:
        return tuple(_fresh(turns[i][1], like=axes[i])[0] for i in order)
    changing = [
        i
        for i, pushed in enumerate(labels)
        if pushed is not None and bool((pushed != pushed.narrow(o, 0, 1)).any())
    ]
    return _fresh(size, like=tuple(atom for i in changing for atom in axes[i]))


def _copies(line: torch.Tensor, axis: Axis) -> Axis | None:
    """Every position several times, next to each other or all of them again: positions, and
    copies of each; ``None`` for anything else."""
    own, size = line.unique(), len(line)
    times = size // len(own)
    if times < 2 or size % len(own):
        return None
    one, copies = _fresh(len(own), like=axis), _fresh(times, like=())
    if all(a.kind == "feature" for a in axis):
        copies[0].group.kind = "feature"
    if torch.equal(line, own.repeat_interleave(times)):
        return (*one, *copies)
    return (*copies, *one) if torch.equal(line, own.repeat(times)) else None


def _same_rank(node: fx.Node, axes: Axes, known: Mapping[fx.Node, Axes]) -> Axes:
    """slice, roll, flip, pad, index along an axis: a changed axis is new, of the same group."""
    shape = val(node).shape
    if len(shape) != len(axes):
        return tuple(_fresh(s) for s in shape)
    old = val(node.args[0]).shape
    dims = argument(node, "dims") if kind(node) is Kind.SHIFT else None
    everywhere = range(len(axes)) if kind(node) in (Kind.SHIFT, Kind.INDEX, Kind.GATHER) else ()
    chosen = [dims] if isinstance(dims, int) else dims or everywhere
    touched = {d % len(axes) for d in chosen}
    return tuple(
        axis if size == was and i not in touched else _fresh(size, like=axis)
        for i, (axis, size, was) in enumerate(zip(axes, shape, old, strict=True))
    )


def _cat(node: fx.Node, axes: Axes | None, known: Mapping[fx.Node, Axes]) -> Axes:
    parts = [known[p] for p in node.args[0] if p in known]  # type: ignore[union-attr]
    dim = argument(node, "dim") % len(parts[0])
    joined = tuple(atom for part in parts for atom in part[dim])
    for part in parts[1:]:
        for i, (a, b) in enumerate(zip(parts[0], part, strict=True)):
            if i != dim and [x.size for x in a] == [x.size for x in b]:
                _relate(a, b)
    size = val(node).shape[dim]
    several = len({p for p in node.args[0] if p in known}) > 1  # type: ignore[union-attr]
    like = joined or (None if several else ())
    if not _stacks(node, dim):
        new = _fresh(size, like=like)
    elif turns := _taken_in_turn(node, known):
        new = _fresh(size, like=turns)
    else:
        new = _fresh(size, "feature")
    return tuple(new if i == dim else axis for i, axis in enumerate(parts[0]))


def _stacks(node: fx.Node, dim: int) -> bool:
    """Whether tensors are laid side by side along an axis that none of them has."""

    def has_one_more(part: fx.Node) -> bool:
        before, after = val(part.args[0]).shape, val(part).shape
        return after[dim] == 1 and after.count(1) > before.count(1)

    return all(kind(p) is Kind.RESHAPE and has_one_more(p) for p in node.args[0])  # type: ignore[union-attr]


def _taken_in_turn(node: fx.Node, known: Mapping[fx.Node, Axes]) -> Axis:
    """What the axes are made of from whose positions, one after another, tensors that are stacked
    were worked out: a recurrence that is written as a loop, constants beside them left out."""
    ends = [p.args[0] for p in node.args[0] if p.args[0] in known]  # type: ignore[union-attr]
    picked: list[set[tuple[fx.Node, int]]] = []
    for place, end in enumerate(ends):
        seen, left, found = set(ends), [end], set()
        while left:
            n = left.pop()
            if kind(n) is Kind.SELECT and argument(n, "index") == place:
                found.add((n.args[0], argument(n, "dim")))
            elif kind(n) is not Kind.SELECT:
                above = [i for i in tensor_inputs(n) if i in known and i not in seen]
                seen |= set(above)
                left += above
        picked.append(found)
    shared = set[tuple[fx.Node, int]].intersection(*picked) if picked else ()
    axes = (known[x][dim] for x, dim in shared if x in known)
    whole = (axis for axis in axes if math.prod(a.size for a in axis) == len(ends))
    return tuple(atom for axis in whole for atom in axis)


def _linear(node: fx.Node, axes: Axes, known: Mapping[fx.Node, Axes]) -> Axes:
    """The last axis becomes features; where the features are elsewhere, it mixes tokens, and its
    results are tokens, too."""
    last, size = axes[-1], val(node).shape[-1]
    features = any(a.kind == "feature" for axis in axes[:-1] for a in axis)
    if last and features and not any(a.kind == "feature" for a in last):
        return (*axes[:-1], _fresh(size, like=last))
    return (*axes[:-1], _fresh(size, "feature"))


def _conv(node: fx.Node, axes: Axes, known: Mapping[fx.Node, Axes]) -> Axes:
    shape = val(node).shape
    spatial = tuple(
        axis if math.prod(a.size for a in axis) == s else _fresh(s, like=axis or None)
        for axis, s in zip(axes[2:], shape[2:], strict=True)
    )
    return (axes[0], _fresh(shape[1], "feature"), *spatial)


def _pool(node: fx.Node, axes: Axes, known: Mapping[fx.Node, Axes]) -> Axes:
    return tuple(
        axis if math.prod(a.size for a in axis) == s else _fresh(s, like=axis)
        for axis, s in zip(axes, val(node).shape, strict=True)
    )


def _matmul(node: fx.Node, axes: Axes | None, known: Mapping[fx.Node, Axes]) -> Axes:
    shape = val(node).shape
    a, b = known.get(node.args[0]), known.get(node.args[1])  # type: ignore[arg-type]
    rows = a[-2] if a is not None and len(a) > 1 else _fresh(shape[-2])
    columns = b[-1] if b is not None else _fresh(shape[-1])
    batch = [
        next(
            (
                x[i - len(shape)]
                for x in (a, b)
                if x is not None and len(x) >= len(shape) - i and x[i - len(shape)]
            ),
            _fresh(s),
        )
        for i, s in enumerate(shape[:-2])
    ]
    return (*batch, rows, columns)


def _reduce(node: fx.Node, axes: Axes, known: Mapping[fx.Node, Axes]) -> Axes | None:
    dims, keep = argument(node, "dim"), argument(node, "keepdim")
    if dims is None or dims == []:
        return tuple(() for _ in val(node).shape)
    gone = {d % len(axes) for d in ([dims] if isinstance(dims, int) else dims)}
    return tuple(() if i in gone else axis for i, axis in enumerate(axes) if keep or i not in gone)


def _sample(node: fx.Node, axes: Axes, known: Mapping[fx.Node, Axes]) -> Axes:
    """Values that are read at places of their own: new positions."""
    return (*axes[:2], *(_fresh(size) for size in val(node).shape[2:]))


_MOVED = frozenset({Kind.INDEX, Kind.VIEW, Kind.WINDOWS, Kind.REPEAT, Kind.SHUFFLE})
_HANDLERS: dict[Kind, Any] = {
    Kind.RESHAPE: _reshape,
    Kind.PERMUTE: _permute,
    Kind.EXPAND: _expand,
    Kind.SELECT: _select,
    **dict.fromkeys((Kind.SLICE, Kind.SHIFT, Kind.PAD, Kind.GATHER), _same_rank),
    Kind.JOIN: _cat,
    Kind.LINEAR: _linear,
    Kind.CONVOLUTION: _conv,
    Kind.MATMUL: _matmul,
    **dict.fromkeys((Kind.TOTAL, Kind.LARGEST, Kind.STATISTIC), _reduce),
    **dict.fromkeys((Kind.AVERAGE_POOL, Kind.MAX_POOL, Kind.RESAMPLE), _pool),
    Kind.SAMPLE: _sample,
}
