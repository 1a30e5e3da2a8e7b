"""Lanes: the same computation several times side by side, for each head, query, key or chunk, then
put together. Merged, it is one computation with one more axis, or with a longer one.

Two ways, tried at every ``cat``. *Longer*: cat(f(x_1), ..., f(x_n)) = f(cat(x_1, ..., x_n)) where f
treats the positions of that axis apart; pieces may be unequal. *Lifted*: each lane is a place on a
new first axis, parallel linear maps become one. What enters the lanes must be the same tensor for
all, pieces of one tensor, or parameters: towers that only look alike are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import fx

from relprop.operations import ELEMENTWISE, Kind, argument, is_call, kind
from relprop.operations.vocabulary import Written, WrittenNorm, grouped_linear
from relprop.tracer.editing import (
    aten,
    emit,
    expanded,
    is_live,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
)
from relprop.tracer.passes.products import letters_of, product_of
from relprop.tracer.passes.region import Recipe, Slot, Step
from relprop.tracer.passes.same import Numbers
from relprop.tracer.passes.sums import added, is_top, joined_linear, terms_of

#: What makes lanes worth merging: rules or methods see the pieces apart.
WORTH = frozenset({Kind.SOFTMAX, Kind.LINEAR, Kind.MATMUL, Kind.NORM, Kind.SUM, Kind.TOTAL})
Lanes = tuple[fx.Node, ...]


class _Apart(Exception):
    """The lanes are not the same computation."""


def merge_lanes(graph: fx.Graph) -> None:
    """Merge the lanes at every ``cat`` whose parts do more than move."""
    for node in list(graph.nodes):
        if node._erased or not is_call(node, aten.cat) or not is_live(node):
            continue
        new = _merged(node)
        if new is not None:
            swap(node, new)
    graph.eliminate_dead_code()


def _merged(node: fx.Node) -> fx.Node | None:
    parts, dim = tuple(node.args[0]), node.args[1]  # type: ignore[arg-type]
    if len(parts) < 2 or any(not is_live(p) for p in parts) or not _worth(parts):  # type: ignore[arg-type]
        return None
    for attempt in (_longer, _lifted):
        mark = node.prev
        try:
            return attempt(node, parts, dim)  # type: ignore[arg-type]
        except _Apart:
            _undo(node, mark)
    return None


def merge_projections(graph: fx.Graph) -> None:
    """Σ W_i x_i of lanes x_i that are merged (heads, each with its own part of the output
    projection) → W x of the lanes side by side."""
    for node in list(graph.nodes):
        if node._erased or not is_top(node):
            continue
        terms = terms_of(node)
        parts = [
            n for sign, n in terms if sign > 0 and is_call(n, aten.linear) and len(n.users) == 1
        ]
        if len(parts) < 2:
            continue
        xs = [p.args[0] for p in parts]
        joined = emit(node, aten.cat.default, xs, rank(xs[0]) - 1)
        merged = _merged(joined)
        if merged is None:
            graph.erase_node(joined)
            continue
        swap(
            node,
            added(
                node,
                [
                    *((s, n) for s, n in terms if n not in parts),
                    (1, joined_linear(node, merged, parts)),
                ],
            ),
        )
    graph.eliminate_dead_code()


def fold_rows(graph: fx.Graph) -> None:
    """A matrix product with one row for each place of an axis that its other operand has not → one
    with that axis as its rows (queries that were taken one by one)."""
    for node in list(graph.nodes):
        if node._erased or not is_call(node, aten.matmul):
            continue
        p = letters_of(node)
        assert p is not None
        trimmed, sizes = p.trimmed(node), p.sizes()
        n, m = p.out[-2], p.out[-1]
        rows = [
            c
            for c in trimmed.x_axes
            if c in p.out[:-2] and c not in trimmed.w_axes and sizes[c] > 1
        ]
        columns = [
            c
            for c in trimmed.w_axes
            if c in p.out[:-2] and c not in trimmed.x_axes and sizes[c] > 1
        ]
        if (rows and sizes[n] == 1) or (columns and sizes[m] == 1):
            swap(node, reshaped(node, product_of(node, p), shape_of(node)))
    graph.eliminate_dead_code()


def _undo(node: fx.Node, mark: fx.Node) -> None:
    """Erase what an attempt left between ``mark`` and ``node``."""
    while node.prev is not mark:
        node.graph.erase_node(node.prev)


def _worth(parts: Lanes) -> bool:
    """Whether the lanes do something of their own that a rule would see apart, and none of them
    reads another."""
    own = _own(parts)
    return own is not None and any(kind(n) in WORTH and len(n.all_input_nodes) > 0 for n in own)


def _own(parts: Lanes) -> set[fx.Node] | None:
    """What only some lanes need; ``None`` where one is made from another, or they are the same."""
    if len(set(parts)) < len(parts):
        return None
    above = [_above(p) for p in parts]
    if any(p in a for i, a in enumerate(above) for j, p in enumerate(parts) if i != j):
        return None
    shared = set.intersection(*above)
    return {n for a in above for n in a if n not in shared} | set(parts)


def _above(node: fx.Node) -> set[fx.Node]:
    found: set[fx.Node] = set()
    left = [node]
    while left:
        for above in left.pop().all_input_nodes:
            if above not in found and is_live(above):
                found.add(above)
                left.append(above)
    return found


def _alike(nodes: Lanes) -> bool:
    """Whether all are calls of one operator with the same arguments but for tensors and shapes."""
    first = nodes[0]
    if any(n.op != "call_function" or n.target is not first.target for n in nodes):
        same = {_family(n) for n in nodes}
        return len(same) == 1 and None not in same
    return True


def _family(node: fx.Node) -> Any:
    """For functions written out, what they compute."""
    if isinstance(node.target, Written):
        return repr(node.target.function)
    if isinstance(node.target, WrittenNorm):
        return repr((node.target.core, node.target.axes, node.target.centred))
    return None


# ---- longer


def _longer(at: fx.Node, parts: Lanes, dim: int) -> fx.Node:
    longer = _Longer(at)
    whole = longer.join(parts, dim)
    cuts = longer.cuts
    if cuts is None:
        return whole
    return emit(
        at,
        aten.cat.default,
        [emit(at, aten.slice.Tensor, whole, dim, *cut) for cut in cuts],
        dim,
    )


class _Longer:
    """One computation along a longer axis. ``cuts``: where the lanes lie on it, if that is not one
    after another."""

    def __init__(self, at: fx.Node) -> None:
        self.at, self.numbers = at, Numbers()
        self.made: dict[tuple[Any, ...], fx.Node] = {}
        self.cuts: tuple[Any, ...] | None = None

    def join(self, nodes: Lanes, dim: int) -> fx.Node:
        """The lanes' tensors one after another along ``dim``, computed as one."""
        key = (*nodes, dim)
        if key not in self.made:
            self.made[key] = self._join(nodes, dim)
        return self.made[key]

    def _join(self, nodes: Lanes, dim: int) -> fx.Node:
        if not any(is_live(n) for n in nodes):
            return emit(self.at, aten.cat.default, list(nodes), dim)
        if (run := _one_run(self.at, nodes, dim)) is not None:
            return run
        if (whole := self._shuffled(nodes, dim)) is not None:
            return whole
        if not _alike(nodes) or len({rank(n) for n in nodes}) > 1:
            raise _Apart
        what, first = kind(nodes[0]), nodes[0]
        if what in ELEMENTWISE or isinstance(first.target, WrittenNorm):
            return self._pointwise(nodes, dim)
        if what is Kind.LINEAR and is_call(first, aten.linear) and dim != rank(first) - 1:
            self._same(nodes, slice(1, None))
            return emit(self.at, first.target, self.join(_operand(nodes, 0), dim), *first.args[1:])
        if what is Kind.MATMUL:
            return self._product(nodes, dim)
        if what in (Kind.SOFTMAX, Kind.LOG_SOFTMAX) and dim != first.args[1]:
            self._same(nodes, slice(1, None))
            return emit(self.at, first.target, self.join(_operand(nodes, 0), dim), *first.args[1:])
        if is_call(first, aten.layer_norm, aten.rms_norm):
            return self._norm(nodes, dim)
        if what is Kind.PERMUTE:
            self._same(nodes, slice(1, None))
            inner = self.join(_operand(nodes, 0), first.args[1][dim])  # type: ignore[index]
            return permuted(self.at, inner, first.args[1])  # type: ignore[arg-type]
        if what is Kind.RESHAPE:
            return self._reshape(nodes, dim)
        if what is Kind.EXPAND:
            return self._expand(nodes, dim)
        if what in (Kind.SELECT, Kind.SLICE):
            return self._cut(nodes, dim)
        if is_call(first, aten.cat) and first.args[1] != dim:
            return self._cat(nodes, dim)
        if is_call(first, aten.sum, aten.mean):
            return self._total(nodes, dim)
        raise _Apart

    def _shuffled(self, nodes: Lanes, dim: int) -> fx.Node | None:
        """The tensor all of whose positions the lanes are, in some order."""
        if not all(is_call(n, aten.slice) and n.args[1] == dim for n in nodes):
            return None
        x, cuts = nodes[0].args[0], tuple(n.args[2:5] for n in nodes)
        places = sorted(p for cut in cuts for p in range(*cut))
        whole = places == list(range(shape_of(x)[dim]))
        if any(n.args[0] is not x for n in nodes) or not whole or self.cuts not in (None, cuts):
            return None
        self.cuts = cuts
        return x  # type: ignore[return-value]

    def _same(self, nodes: Lanes, which: slice) -> None:
        """The lanes' other arguments must be the same."""
        rows = zip(*(n.args[which] for n in nodes), strict=True)
        if any(n.kwargs != nodes[0].kwargs for n in nodes) or not all(map(self._one, rows)):
            raise _Apart

    def _one(self, given: Sequence[Any]) -> bool:
        """Whether an argument is the same for all lanes."""
        if all(isinstance(g, fx.Node) for g in given):
            return self.numbers.same(given)
        return all(g == given[0] for g in given)

    def _pointwise(self, nodes: Lanes, dim: int) -> fx.Node:
        """Operands that lie along the axis are joined, those that are repeated along it must be
        one."""
        first = nodes[0]
        args = []
        for i in range(len(first.args)):
            given = [n.args[i] for n in nodes]
            if not isinstance(given[0], fx.Node):
                if any(g != given[0] for g in given):
                    raise _Apart
                args.append(given[0])
                continue
            missing = rank(first) - rank(given[0])
            along = dim - missing
            lies = along >= 0 and all(
                shape_of(g)[along] == shape_of(n)[dim] for g, n in zip(given, nodes, strict=True)
            )
            if lies and (shape_of(first)[dim] > 1 or not self._one(given)):
                args.append(self.join(tuple(given), along))
            elif self._one(given):
                args.append(given[0])
            else:
                raise _Apart
        if any(n.kwargs != first.kwargs for n in nodes):
            raise _Apart
        return emit(self.at, first.target, *args, **first.kwargs)

    def _product(self, nodes: Lanes, dim: int) -> fx.Node:
        first, last = nodes[0], rank(nodes[0]) - 1
        left, right = _operand(nodes, 0), _operand(nodes, 1)
        if dim == last - 1 and self._one(right):
            left_axis = rank(left[0]) - 2
            return emit(self.at, first.target, self.join(left, left_axis), right[0])
        if dim == last and self._one(left):
            return emit(self.at, first.target, left[0], self.join(right, rank(right[0]) - 1))
        if dim < last - 1:
            sides = []
            for side in (left, right):
                along = dim - (rank(first) - rank(side[0]))
                lies = along >= 0 and shape_of(side[0])[along] == shape_of(first)[dim]
                if lies:
                    sides.append(self.join(side, along))
                elif self._one(side):
                    sides.append(side[0])
                else:
                    raise _Apart
            return emit(self.at, first.target, *sides)
        raise _Apart

    def _norm(self, nodes: Lanes, dim: int) -> fx.Node:
        first = nodes[0]
        self._same(nodes, slice(1, None))
        if dim >= rank(first) - len(first.args[1]):  # type: ignore[arg-type]
            raise _Apart
        return emit(self.at, first.target, self.join(_operand(nodes, 0), dim), *first.args[1:])

    def _reshape(self, nodes: Lanes, dim: int) -> fx.Node:
        """A reshape that leaves the axis alone, as many elements before it as after."""
        axes = {_kept_axis(n, dim) for n in nodes}
        if len(axes) > 1 or None in axes:
            raise _Apart
        axis = axes.pop()
        assert axis is not None
        shape = shape_of(nodes[0])
        shape[dim] = sum(shape_of(n)[dim] for n in nodes)
        return reshaped(self.at, self.join(_operand(nodes, 0), axis), shape)

    def _expand(self, nodes: Lanes, dim: int) -> fx.Node:
        inner = _operand(nodes, 0)
        along = dim - (rank(nodes[0]) - rank(inner[0]))
        shape = shape_of(nodes[0])
        shape[dim] = sum(shape_of(n)[dim] for n in nodes)
        lies = along >= 0 and all(
            shape_of(x)[along] == shape_of(n)[dim] for x, n in zip(inner, nodes, strict=True)
        )
        if lies:
            return expanded(self.at, self.join(inner, along), shape)
        if self._one(inner):
            return expanded(self.at, inner[0], shape)
        raise _Apart

    def _cut(self, nodes: Lanes, dim: int) -> fx.Node:
        """A cut along another axis."""
        first = nodes[0]
        self._same(nodes, slice(1, None))
        cut = first.args[1]
        axis = dim + (kind(first) is Kind.SELECT and cut <= dim)  # type: ignore[operator]
        if kind(first) is Kind.SLICE and cut == dim:
            raise _Apart
        return emit(self.at, first.target, self.join(_operand(nodes, 0), axis), *first.args[1:])

    def _cat(self, nodes: Lanes, dim: int) -> fx.Node:
        counts = {len(n.args[0]) for n in nodes}  # type: ignore[arg-type]
        if len(counts) > 1:
            raise _Apart
        rows = zip(*(n.args[0] for n in nodes), strict=True)  # type: ignore[arg-type]
        return emit(self.at, aten.cat.default, [self.join(r, dim) for r in rows], nodes[0].args[1])

    def _total(self, nodes: Lanes, dim: int) -> fx.Node:
        first = nodes[0]
        self._same(nodes, slice(1, None))
        dims, keep = _dims(first), shape_of(first)
        wide = rank(first.args[0])
        kept = len(keep) == wide
        left = [i for i in range(wide) if kept or i not in dims]
        if left[dim] in dims:
            raise _Apart
        inner = self.join(_operand(nodes, 0), left[dim])
        return emit(self.at, first.target, inner, *first.args[1:], **first.kwargs)


def _operand(nodes: Lanes, i: int) -> Lanes:
    return tuple(n.args[i] for n in nodes)  # type: ignore[misc]


def _dims(node: fx.Node) -> set[int]:
    dims, wide = argument(node, "dim"), rank(node.args[0])
    return {d % wide for d in ([dims] if isinstance(dims, int) else dims or range(wide))}


def _kept_axis(node: fx.Node, dim: int) -> int | None:
    """The axis of a reshape's operand that axis ``dim`` of its result is."""
    before, after = shape_of(node.args[0]), shape_of(node)
    ahead = math.prod(after[:dim])
    found = [i for i, s in enumerate(before) if s == after[dim] and math.prod(before[:i]) == ahead]
    return found[-1] if found and after[dim] > 1 else found[0] if len(found) == 1 else None


def _one_run(at: fx.Node, nodes: Lanes, dim: int) -> fx.Node | None:
    """The tensor of which the lanes are neighbouring pieces, or that part of it."""
    if not all(is_call(n, aten.slice) and n.args[1] == dim for n in nodes):
        return None
    x = nodes[0].args[0]
    pairs = zip(nodes, nodes[1:], strict=False)
    if any(n.args[0] is not x or n.args[4] != 1 for n in nodes):
        return None
    if any(a.args[3] != b.args[2] for a, b in pairs):
        return None
    first, last = nodes[0].args[2], nodes[-1].args[3]
    if (first, last) == (0, shape_of(x)[dim]):
        return x  # type: ignore[return-value]
    return emit(at, aten.slice.Tensor, x, dim, first, last, 1)


# ---- lifted


def _lifted(at: fx.Node, parts: Lanes, dim: int) -> fx.Node:
    """The lanes on a first axis of their own, laid down along ``dim``."""
    if len({tuple(shape_of(p)) for p in parts}) > 1:
        raise _Apart
    lifted = _Lift(at, len(parts)).lane(parts)
    if lifted is None:
        raise _Apart
    order = [*range(1, dim + 1), 0, *range(dim + 1, rank(parts[0]) + 1)]
    shape = shape_of(parts[0])
    shape[dim] *= len(parts)
    return reshaped(at, permuted(at, lifted, order), shape)


class _Lift:
    """One computation with a first axis of ``count`` lanes."""

    def __init__(self, at: fx.Node, count: int) -> None:
        self.at, self.count, self.numbers = at, count, Numbers()
        self.made: dict[Lanes, fx.Node | None] = {}

    def lane(self, nodes: Lanes) -> fx.Node | None:
        """The lanes' tensors on a first axis; ``None``: they are all the same tensor, which has no
        such axis."""
        if nodes not in self.made:
            self.made[nodes] = self._lane(nodes)
        return self.made[nodes]

    def _lane(self, nodes: Lanes) -> fx.Node | None:
        if self.numbers.same(nodes):
            return None
        if len({tuple(shape_of(n)) for n in nodes}) > 1:
            raise _Apart
        if not any(is_live(n) for n in nodes):
            return self._stacked(nodes)
        if (pieces := self._pieces(nodes)) is not None:
            return pieces
        if not _alike(nodes):
            raise _Apart
        return self._call(nodes)

    def _stacked(self, nodes: Lanes) -> fx.Node:
        shape = [1, *shape_of(nodes[0])]
        return emit(self.at, aten.cat.default, [reshaped(self.at, n, shape) for n in nodes], 0)

    def _pieces(self, nodes: Lanes) -> fx.Node | None:
        """Pieces of one tensor, evenly spaced along an axis → that axis in front."""
        if all(is_call(n, aten.select) for n in nodes):
            x, dim = nodes[0].args[:2]
            places = [n.args[2] for n in nodes]
            if any(n.args[:2] != (x, dim) or not isinstance(n.args[2], int) for n in nodes):
                return None
            x = self._run(x, dim, places)  # type: ignore[arg-type]
            return (
                None
                if x is None
                else permuted(self.at, x, [dim, *(i for i in range(rank(x)) if i != dim)])
            )  # type: ignore[arg-type, list-item]
        if all(is_call(n, aten.slice) and n.args[4] == 1 for n in nodes):
            return self._slices(nodes)
        return None

    def _run(self, x: fx.Node, dim: int, places: Sequence[int]) -> fx.Node | None:
        """``x`` cut to some places of an axis, which follow one another, in order or turned."""
        first = min(places)
        if list(places) == list(range(first, first + self.count)):
            whole = (first, self.count) == (0, shape_of(x)[dim])
            return (
                x
                if whole
                else emit(self.at, aten.slice.Tensor, x, dim, first, first + self.count, 1)
            )
        cuts = [emit(self.at, aten.slice.Tensor, x, dim, p, p + 1, 1) for p in places]
        return emit(self.at, aten.cat.default, cuts, dim)

    def _slices(self, nodes: Lanes) -> fx.Node | None:
        x, dim = nodes[0].args[:2]
        length = shape_of(nodes[0])[dim]  # type: ignore[index]
        starts = [n.args[2] for n in nodes]
        if any(n.args[:2] != (x, dim) for n in nodes):
            return None
        if starts != list(range(starts[0], starts[0] + self.count * length, length)):  # type: ignore[arg-type, operator]
            return None
        end = starts[0] + self.count * length  # type: ignore[operator]
        whole = (starts[0], end) == (0, shape_of(x)[dim])  # type: ignore[index]
        run = x if whole else emit(self.at, aten.slice.Tensor, x, dim, starts[0], end, 1)
        shape = shape_of(run)
        apart = reshaped(self.at, run, [*shape[:dim], self.count, length, *shape[dim + 1 :]])  # type: ignore[arg-type, misc, operator]
        return permuted(self.at, apart, [dim, *(i for i in range(rank(apart)) if i != dim)])  # type: ignore[list-item]

    def _call(self, nodes: Lanes) -> fx.Node | None:
        first, what = nodes[0], kind(nodes[0])
        if is_call(first, aten.cat):
            return self._cat(nodes)
        tensors = [i for i, a in enumerate(first.args) if isinstance(a, fx.Node)]
        if any(
            isinstance(a, (list, tuple)) and any(isinstance(e, fx.Node) for e in a)
            for a in first.args
        ):
            raise _Apart
        plain = [a for i, a in enumerate(first.args) if i not in tensors]
        for n in nodes:
            others = [a for i, a in enumerate(n.args) if i not in tensors]
            if others != plain or n.kwargs != first.kwargs or len(n.args) != len(first.args):
                raise _Apart
        lanes = {i: self.lane(_operand(nodes, i)) for i in tensors}
        if all(lane is None for lane in lanes.values()):
            return None
        given = {i: first.args[i] if lane is None else lane for i, lane in lanes.items()}
        return self._with_axis(first, what, lanes, given)

    def _with_axis(self, first: fx.Node, what: Kind, lanes: Any, given: Any) -> fx.Node:
        """One call of the operator on operands of which some have the lanes' axis in front."""
        if what in ELEMENTWISE:
            return self._pointwise(first, lanes, given)
        if what is Kind.LINEAR:
            return self._linear(first, lanes, given)
        if what is Kind.MATMUL:
            return emit(
                self.at, first.target, *(self._aligned(first, lanes, given, i) for i in (0, 1))
            )
        x, rest = given[0], first.args[1:]
        if lanes[0] is None:
            if what is not Kind.NORM:
                raise _Apart
            x = expanded(
                self.at, reshaped(self.at, x, [1, *shape_of(x)]), [self.count, *shape_of(x)]
            )
        if what in (Kind.SOFTMAX, Kind.LOG_SOFTMAX):
            return emit(self.at, first.target, x, rest[0] + 1)
        if what is Kind.NORM:
            return self._norm(first, x, lanes, given)
        if what is Kind.RESHAPE:
            return reshaped(self.at, x, [self.count, *shape_of(first)])
        if what is Kind.PERMUTE:
            return permuted(self.at, x, [0, *(d + 1 for d in rest[0])])
        if what is Kind.EXPAND:
            missing = rank(first) - rank(first.args[0])
            x = reshaped(self.at, x, [self.count, *[1] * missing, *shape_of(first.args[0])])
            return expanded(self.at, x, [self.count, *shape_of(first)])
        if what in (Kind.SELECT, Kind.SLICE):
            return emit(self.at, first.target, x, rest[0] + 1, *rest[1:])
        if what in (Kind.TOTAL, Kind.LARGEST) and rest:
            dims = [d + 1 for d in sorted(_dims(first))]
            return emit(self.at, first.target, x, dims, *rest[1:], **first.kwargs)
        raise _Apart

    def _pointwise(self, first: fx.Node, lanes: Any, given: Any) -> fx.Node:
        args = [
            self._aligned(first, lanes, given, i) if i in given else a
            for i, a in enumerate(first.args)
        ]
        return emit(self.at, first.target, *args, **first.kwargs)

    def _aligned(self, first: fx.Node, lanes: Any, given: Any, i: int) -> fx.Node:
        """An operand with its lanes in front of as many axes as the result has."""
        x = given[i]
        if lanes[i] is None:
            return x  # type: ignore[no-any-return]
        missing = rank(first) - (rank(x) - 1)
        shape = shape_of(x)
        return reshaped(self.at, x, [shape[0], *[1] * missing, *shape[1:]])

    def _linear(self, first: fx.Node, lanes: Any, given: Any) -> fx.Node:
        """Parallel linear maps of one tensor are one; of the lanes' own, one for each group."""
        if not is_call(first, aten.linear):
            raise _Apart
        weight, bias = given[1], given.get(2)
        own = lanes[1] is not None or (2 in lanes and lanes[2] is not None)
        if not own:
            return emit(self.at, first.target, given[0], *first.args[1:])
        if lanes[1] is None:
            weight = self._repeated(weight)
        if bias is not None and lanes.get(2) is None:
            bias = self._repeated(bias)
        outputs, inputs = shape_of(weight)[1:]
        if lanes[0] is None:
            weight = reshaped(self.at, weight, [self.count * outputs, inputs])
            more = [] if bias is None else [reshaped(self.at, bias, [self.count * outputs])]
            made = emit(self.at, aten.linear.default, given[0], weight, *more)
            shape = shape_of(made)[:-1]
            made = reshaped(self.at, made, [*shape, self.count, outputs])
            return permuted(self.at, made, [len(shape), *range(len(shape)), len(shape) + 1])
        rows = shape_of(given[0])[1:-1]
        x = reshaped(self.at, given[0], [self.count, math.prod(rows), inputs])
        more = [] if bias is None else [reshaped(self.at, bias, [self.count, 1, outputs])]
        made = emit(self.at, grouped_linear, x, weight, *more)
        return reshaped(self.at, made, [self.count, *rows, outputs])

    def _repeated(self, x: fx.Node) -> fx.Node:
        shape = shape_of(x)
        return expanded(self.at, reshaped(self.at, x, [1, *shape]), [self.count, *shape])

    def _norm(self, first: fx.Node, x: fx.Node, lanes: Any, given: Any) -> fx.Node:
        """Norms with parameters of their own: those stand in front of what they scale."""
        if not any(lanes[i] is not None for i in given if i > 0):
            return emit(self.at, first.target, x, *first.args[1:])
        norm, args = first.target, list(first.args)
        if is_call(first, aten.layer_norm):
            x0, shape, weight, bias, eps = [*args, None, None][:5]
            core = Recipe(1, (Step(first.target, (Slot(0), list(shape), None, None, eps), {}),))
            norm = WrittenNorm(core, tuple(range(-len(shape), 0)), centred=True)
            places = [0, 2, 3]
        elif isinstance(norm, WrittenNorm):
            places = list(range(len(args)))
        else:
            raise _Apart
        full = [
            self._aligned(first, lanes, given, i) if i in given else args[i]
            for i in places
            if i < len(args)
        ]
        return emit(self.at, norm, x, *full[1:])

    def _cat(self, nodes: Lanes) -> fx.Node | None:
        first = nodes[0]
        if any(n.args[1] != first.args[1] or len(n.args[0]) != len(first.args[0]) for n in nodes):  # type: ignore[arg-type]
            raise _Apart
        rows = [tuple(r) for r in zip(*(n.args[0] for n in nodes), strict=True)]  # type: ignore[arg-type]
        lanes = [self.lane(r) for r in rows]  # type: ignore[arg-type]
        if all(lane is None for lane in lanes):
            return None
        full = [
            self._repeated(r[0]) if lane is None else lane
            for r, lane in zip(rows, lanes, strict=True)
        ]  # type: ignore[arg-type]
        return emit(self.at, aten.cat.default, full, first.args[1] + 1)  # type: ignore[operator]
