"""From letters to operators: a sum of products as a matrix product or as a linear map."""

from __future__ import annotations

import math

from torch import Tensor, fx

from relprop.operations import Kind, kind, operand
from relprop.operations.vocabulary import grouped_linear
from relprop.tracer.editing import applied, aten, emit, expanded, permuted, reshaped, shape_of, val
from relprop.tracer.passes.products.letters import Product


def summed_out(node: fx.Node, x: fx.Node, axes: str, kept: set[str]) -> tuple[fx.Node, str]:
    """The sum over the letters that nobody else has."""
    gone = [i for i, c in enumerate(axes) if c not in kept]
    if not gone:
        return x, axes
    x = emit(node, aten.sum.dim_IntList, x, gone)
    return x, "".join(c for c in axes if c in kept)


def product_of(at: fx.Node, p: Product) -> fx.Node:
    """The product as a matrix product, as an elementwise one where nothing is summed, and as the
    sum of squares where a tensor meets itself."""
    sizes, p = p.sizes(), p.trimmed(at)
    inner = [c for c in p.x_axes if c in p.w_axes and c not in p.out]
    if not inner or (p.x is p.w and p.x_axes == p.w_axes):
        letters = p.out + "".join(c for c in inner)
        sides = (_spread(at, p.x, p.x_axes, letters), _spread(at, p.w, p.w_axes, letters))
        made = emit(at, aten.mul.Tensor, *sides)
        made = expanded(at, made, [sizes[c] for c in letters])
        return (
            emit(at, aten.sum.dim_IntList, made, list(range(len(p.out), len(letters))))
            if inner
            else made
        )
    batch = [c for c in p.out if c in p.x_axes and c in p.w_axes]
    rows = [c for c in p.out if c in p.x_axes and c not in p.w_axes]
    columns = [c for c in p.out if c in p.w_axes and c not in p.x_axes]
    left = _folded(at, p.x, p.x_axes, sizes, batch, rows, inner)
    right = _folded(at, p.w, p.w_axes, sizes, batch, inner, columns)
    made = emit(at, aten.matmul.default, left, right)
    letters = "".join([*batch, *rows, *columns])
    return _unfolded(at, made, letters, p.out, sizes)


def _spread(at: fx.Node, x: fx.Node, axes: str, letters: str) -> fx.Node:
    """The operand with its axes in the order of ``letters``, axes of length 1 for the others."""
    x = permuted(at, x, sorted(range(len(axes)), key=lambda i: letters.index(axes[i])))
    there = dict(zip(sorted(axes, key=letters.index), shape_of(x), strict=True))
    return reshaped(at, x, [there.get(c, 1) for c in letters])


def _folded(
    at: fx.Node, x: fx.Node, axes: str, sizes: dict[str, int], batch: list[str], *groups: list[str]
) -> fx.Node:
    """The operand with its batch axes first, then one axis for each group of letters."""
    wanted = [*batch, *(c for group in groups for c in group)]
    x = permuted(at, x, [axes.index(c) for c in wanted])
    folded = [math.prod(sizes[c] for c in group) for group in groups]
    return reshaped(at, x, [*(sizes[c] for c in batch), *folded])


def _unfolded(at: fx.Node, x: fx.Node, letters: str, out: str, sizes: dict[str, int]) -> fx.Node:
    x = reshaped(at, x, [sizes[c] for c in letters])
    return permuted(at, x, [letters.index(c) for c in out])


def as_linear(at: fx.Node, p: Product) -> fx.Node | None:
    """The product as a linear map of ``x`` with the weight ``w``: of every position alike, or,
    where letters of the weight stay, a map for each group. ``None`` where it only scales."""
    sizes, p = p.sizes(), p.trimmed(at)
    w, w_axes = _without_repeats(at, p.w, p.w_axes)
    w, w_axes = summed_out(at, w, w_axes, set(p.x_axes) | set(p.out))
    inner = [c for c in p.x_axes if c in w_axes and c not in p.out]
    columns = [c for c in p.out if c in w_axes and c not in p.x_axes]
    groups = [c for c in p.out if c in w_axes and c in p.x_axes]
    rows = [c for c in p.out if c in p.x_axes and c not in w_axes]
    x, x_axes = summed_out(at, p.x, p.x_axes, set(inner) | set(p.out))
    if not inner and not columns:
        return None
    missing = [c for c in p.out if c not in x_axes and c not in w_axes]  # of length 1
    if not groups:
        x = permuted(at, x, [x_axes.index(c) for c in (*rows, *inner)])
        x = reshaped(at, x, [*(sizes[c] for c in rows), math.prod(sizes[c] for c in inner)])
        weight = _weight(at, w, w_axes, sizes, columns, inner)
        made = emit(at, aten.linear.default, x, weight)
    else:
        x = _folded(at, x, x_axes, sizes, groups, rows, inner)
        weight = _folded(at, w, w_axes, sizes, groups, columns, inner)
        count = math.prod(sizes[c] for c in groups)
        x = reshaped(at, x, [count, *shape_of(x)[-2:]])
        made = emit(at, grouped_linear, x, reshaped(at, weight, [count, *shape_of(weight)[-2:]]))
    letters = "".join([*groups, *rows, *columns, *missing])
    return _unfolded(at, made, letters, p.out, sizes)


def _weight(
    at: fx.Node, w: fx.Node, axes: str, sizes: dict[str, int], columns: list[str], inner: list[str]
) -> fx.Node:
    w = permuted(at, w, [axes.index(c) for c in (*columns, *inner)])
    shape = [math.prod(sizes[c] for c in group) for group in (columns, inner)]
    return reshaped(at, w, shape)


def _without_repeats(at: fx.Node, w: fx.Node, axes: str) -> tuple[fx.Node, str]:
    """The weight without axes of length 1, and without those along which it is only repeated."""
    strides = repeats(w)
    gone = [i for i, s in enumerate(shape_of(w)) if s == 1 or strides[i] == 0]
    for i in reversed(gone):
        w = emit(at, aten.select.int, w, i, 0)
    return w, "".join(c for i, c in enumerate(axes) if i not in gone)


def repeats(w: fx.Node) -> tuple[int, ...]:
    """The strides of a weight, its moves replayed on a tensor that lies as the parameter does: 0
    along an axis that only repeats."""
    return tuple(int(s) for s in _replayed(w).stride())


def _replayed(w: fx.Node) -> Tensor:
    moves = (Kind.RESHAPE, Kind.PERMUTE, Kind.EXPAND, Kind.SELECT, Kind.SLICE)
    if kind(w) in moves and isinstance(w.args[0], fx.Node):
        return applied(w, _replayed(operand(w)))
    held: Tensor = val(w)
    return held
