"""Products and quotients of complex numbers, as pairs of real ones."""

from __future__ import annotations

from torch import fx

from relprop.operations import Value, is_call
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_live,
    is_tensor,
    rank,
    reshaped,
    shape_of,
)
from relprop.tracer.passes.spelling.pairs import mirrored, part_of, parts_of, refused, stacked


def multiplied(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """The product of two tensors, or of one and a number, of which one at least is complex."""
    a, b = arguments(node)[:2]
    if a in pairs and b in pairs:
        a, b = (pairs[b], pairs[a]) if not is_live(a) and is_live(b) else (pairs[a], pairs[b])
        return _turned(node, a, b)
    return _scaled(node, a, b, pairs) if a in pairs else _scaled(node, b, a, pairs)


def _scaled(node: fx.Node, z: Value, x: Value, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """Complex numbers times (or over) real ones, and any with a number of Python's."""
    if z not in pairs:  # real numbers and a complex one
        x, z = (x, z) if is_tensor(x) else (z, x)
        parts = (complex(z).real, complex(z).imag)
        return stacked(node, *(emit(node, aten.mul.Tensor, x, p) for p in parts))
    if is_tensor(x):
        return emit(node, node.target, pairs[z], reshaped(node, x, [*shape_of(x), 1]))
    if not isinstance(x, complex):
        return emit(node, node.target, pairs[z], x)
    x = 1 / x if is_call(node, aten.div) else x
    first, second = part_of(node, pairs[z], 0), part_of(node, pairs[z], 1)
    quarter = stacked(node, emit(node, aten.neg.default, second), first)
    sides = (emit(node, aten.mul.Tensor, t, p) for t, p in ((pairs[z], x.real), (quarter, x.imag)))
    return emit(node, aten.add.Tensor, *sides)


def _turned(node: fx.Node, a: fx.Node, b: fx.Node) -> fx.Node:
    """a·Re(b) + J(a)·Im(b)."""
    real, imaginary = (
        reshaped(node, part, [*shape_of(part), 1])
        for part in (part_of(node, b, 0), part_of(node, b, 1))
    )
    first, second = part_of(node, a, 0), part_of(node, a, 1)
    quarter = stacked(node, emit(node, aten.neg.default, second), first)
    straight = emit(node, aten.mul.Tensor, a, real)
    return emit(node, aten.add.Tensor, straight, emit(node, aten.mul.Tensor, quarter, imaginary))


def divided(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """Over complex numbers: times their conjugates, over their squared sizes."""
    z, w = arguments(node)[:2]
    if w not in pairs:
        return _scaled(node, z, w, pairs)
    pair = pairs[w]
    size = emit(node, aten.sum.dim_IntList, _squared(node, pair), [rank(pair) - 1], True)
    inverse = emit(node, aten.div.Tensor, mirrored(node, pair), size)
    if z in pairs:
        return _turned(node, pairs[z], inverse)
    if is_tensor(z):
        z = reshaped(node, z, [*shape_of(z), 1])
    elif isinstance(z, complex):
        raise refused(node, "divides a complex number by them")
    return emit(node, aten.mul.Tensor, inverse, z)


def _squared(node: fx.Node, x: fx.Node) -> fx.Node:
    return emit(node, aten.mul.Tensor, x, x)


def contracted(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """A matrix product: of real and imaginary parts side by side, once for either."""
    (a, b), (c, d) = (parts_of(node, x, pairs) for x in arguments(node)[:2])
    if not is_tensor(b) and not is_tensor(d):
        product = emit(node, aten.matmul.default, a, c)
        return stacked(node, product, emit(node, aten.zeros_like.default, product))
    if not is_tensor(b) or not is_tensor(d):
        pieces = ((a, c), (a, d)) if is_tensor(d) else ((a, c), (b, c))
        return stacked(node, *(emit(node, aten.matmul.default, *piece) for piece in pieces))
    left = emit(node, aten.cat.default, [a, b], rank(a) - 1)
    rights = ([c, emit(node, aten.neg.default, d)], [d, c])
    joined = (emit(node, aten.cat.default, parts, rank(c) - 2) for parts in rights)
    return stacked(node, *(emit(node, aten.matmul.default, left, right) for right in joined))
