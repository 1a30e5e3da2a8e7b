"""Sums of products, written as letters: whichever operator spells one, it is a matrix product of
two activations, or, where one side depends on no input, a linear map.

Every such operator is two lists of letters, one per axis of each operand, and the letters that are
left. A letter that both operands have and the result has not is summed over."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from relprop.operations import Kind, argument, is_call, kind, of, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    dims_of,
    is_float,
    is_tensor,
    rank,
    reshaped,
    shape_of,
    val,
)
from relprop.tracer.passes.products.factors import root_of


@dataclass(frozen=True)
class Product:
    """Σ x·w over the letters that ``out`` lacks."""

    x: fx.Node
    x_axes: str
    w: fx.Node
    w_axes: str
    out: str

    def sizes(self) -> dict[str, int]:
        """The length of every letter."""
        found: dict[str, int] = {}
        for node, axes in ((self.x, self.x_axes), (self.w, self.w_axes)):
            for c, s in zip(axes, shape_of(node), strict=True):
                found[c] = max(found.get(c, 1), s)
        return found

    def turned(self) -> Product:
        """With the operands' roles exchanged."""
        return Product(self.w, self.w_axes, self.x, self.x_axes, self.out)

    def trimmed(self, at: fx.Node) -> Product:
        """Without axes of length 1 along which an operand is only repeated."""
        sizes = self.sizes()

        def trim(node: fx.Node, axes: str) -> tuple[fx.Node, str]:
            pairs = list(zip(axes, shape_of(node), strict=True))
            kept = [(c, s) for c, s in pairs if s > 1 or sizes[c] == 1]
            return reshaped(at, node, [s for _, s in kept]), "".join(c for c, _ in kept)

        return Product(*trim(self.x, self.x_axes), *trim(self.w, self.w_axes), self.out)


def letters_of(node: fx.Node) -> Product | None:
    """What a call sums, in letters; ``None`` for one that is no sum of products."""
    if is_call(node, aten.matmul):
        return _of_matmul(node)
    if is_call(node, aten.mul):
        return _of_product(arguments(node)[:2], rank(node), [])
    if is_call(node, aten.sum, aten.mean):
        return _of_total(node)
    return _of_convolution(node) if kind(node) is Kind.CONVOLUTION else None


def _of_matmul(node: fx.Node) -> Product:
    x, w = arguments(node)[:2]
    letters = string.ascii_letters
    batch = letters[: rank(node) - 2]
    n, k, m = (letters[rank(node) + i] for i in range(3))
    x_axes = batch[len(batch) - (rank(x) - 2) :] + n + k
    w_axes = batch[len(batch) - (rank(w) - 2) :] + k + m
    return Product(x, x_axes, w, w_axes, batch + n + m)


def _of_product(factors: Sequence[object], width: int, summed: list[int]) -> Product | None:
    """An elementwise product of two tensors, of ``width`` axes, summed over some of them."""
    a, b = factors
    letters = string.ascii_letters[:width]
    if not is_float(a) or not is_float(b) or len(letters) < width:
        return None
    out = "".join(c for i, c in enumerate(letters) if i not in summed)
    a_axes, b_axes = (letters[width - rank(x) :] for x in (a, b))
    return Product(a, a_axes, b, b_axes, out)


def _of_total(node: fx.Node) -> Product | None:
    """A sum over axes of a product that nobody else reads, where both factors lie along them."""
    product = whole = operand(node)
    if kind(product) is Kind.RESHAPE and len(product.users) == 1:
        product = operand(product)
    if not is_call(product, aten.mul) or len(product.users) != 1:
        return None
    factors = arguments(product)[:2]
    if val(node).dtype != val(product).dtype or _is_function(factors):
        return None
    if product is not whole:
        factors = tuple(_split(node, x, product, shape_of(whole)) for x in factors)
    p = _of_product(factors, rank(whole), dims_of(node))
    if p is None:
        return None
    lengths = (
        dict(zip(axes, shape_of(x), strict=True)) for x, axes in ((p.x, p.x_axes), (p.w, p.w_axes))
    )
    x, w = ({c for c, s in found.items() if s > 1} for found in lengths)
    gone = {c for c, s in p.sizes().items() if c not in p.out and s > 1}
    return p if gone and gone <= x & w else None


def _is_function(factors: Sequence[object]) -> bool:
    """Whether a product is a function of one tensor: a square, or x·Φ(x)."""
    roots = [root_of(f) if isinstance(f, fx.Node) else f for f in factors]
    return roots[0] is roots[1]


def _split(at: fx.Node, x: object, product: fx.Node, shape: list[int]) -> fx.Node | None:
    """A factor as it lies in its product's other shape, which only splits axes of the product."""
    if not is_tensor(x):
        return None
    own = [1] * (rank(product) - rank(x)) + shape_of(x)
    made: list[int] = []
    for whole, length in zip(shape_of(product), own, strict=True):
        parts: list[int] = []
        while math.prod(parts) < whole and len(made) + len(parts) < len(shape):
            parts.append(shape[len(made) + len(parts)])
        if math.prod(parts) != whole:
            return None
        made += parts if length > 1 else [1] * len(parts)
    made += [1] * (len(shape) - len(made))
    return reshaped(at, x, made)


def _of_convolution(node: fx.Node) -> Product | None:
    """A convolution whose kernel is, along each axis, one position or all of them."""
    (x, w), axes, turned = arguments(node)[:2], of(node).axes, of(node).transposed
    padding, more = argument(node, "padding"), argument(node, "output_padding") if turned else 0
    if isinstance(padding, str) or any(_entries(padding)) or any(_entries(more)):
        return None
    if rank(x) != axes + 2:
        return None
    (batch, channels, *space), (made, given, *kernel) = shape_of(x), shape_of(w)
    strides = _entries(argument(node, "stride"))
    steps = strides * (axes // len(strides))
    if turned and any(k != 1 or s != 1 for k, s in zip(kernel, steps, strict=True)):
        return None
    seen = [
        k if k == size and not k == s == 1 else 0
        for k, s, size in zip(kernel, steps, space, strict=True)
    ]
    if any(
        not all_of and (k, s) != (1, 1) for all_of, k, s in zip(seen, kernel, steps, strict=True)
    ):
        return None
    groups, letters = argument(node, "groups"), string.ascii_letters
    places = "".join(letters[i] for i in range(axes) if not seen[i])
    inside = "".join(letters[axes + i] for i in range(axes) if seen[i])
    along = "".join(letters[axes + i] if seen[i] else letters[i] for i in range(axes))
    x = reshaped(node, x, [batch, groups, channels // groups, *space])
    w = reshaped(node, w, [groups, made // groups, given, *filter(None, seen)])
    return Product(x, "XGY" + along, w, "G" + ("YZ" if turned else "ZY") + inside, "XGZ" + places)


def _entries(value: int | Sequence[int]) -> list[int]:
    return [value] if isinstance(value, int) else list(value)
