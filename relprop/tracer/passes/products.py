"""Sums of products, written as letters: whichever operator spells one, it is a matrix product of
two activations, or, where one side depends on no input, a linear map.

Every such operator is two lists of letters, one per axis of each operand, and the letters that are
left. A letter that both operands have and the result has not is summed over.
"""

from __future__ import annotations

import itertools
import math
import string
from dataclasses import dataclass
from typing import Any

from torch import fx

from relprop.operations import MOVES, Kind, argument, is_call, kind, of
from relprop.operations.vocabulary import grouped_linear
from relprop.tracer.editing import (
    aten,
    dims_of,
    emit,
    expanded,
    is_float,
    is_live,
    is_of_masks,
    is_picked,
    is_tensor,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)


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


# ---- einsum


def contracted(node: fx.Node) -> fx.Node | None:
    """``einsum`` of any number of operands → sums, permutations and matrix products, two operands
    at a time."""
    equation, operands = node.args[0], list(node.args[1])  # type: ignore[arg-type]
    if not isinstance(equation, str):
        return None
    terms, out = _spelled_out(equation.replace(" ", ""), [rank(o) for o in operands])
    return _multiplied(node, operands, terms, out)


def trilinear(node: fx.Node) -> fx.Node:
    """The product of three tensors, each with axes put in, summed over some axes."""
    (first, weight, last), put_in, gone = node.args[:3], node.args[3:6], node.args[6]
    letters = string.ascii_letters[: rank(first) + len(put_in[0])]  # type: ignore[arg-type]
    axes = ["".join(c for i, c in enumerate(letters) if i not in new) for new in put_in]  # type: ignore[operator]
    out = "".join(c for i, c in enumerate(letters) if i not in gone)  # type: ignore[operator]
    pairs: Any = [(weight, axes[1]), (first, axes[0]), (last, axes[2])]
    pairs.sort(key=lambda pair: not is_live(pair[0]))
    return _multiplied(node, [x for x, _ in pairs], [letters for _, letters in pairs], out)


def _multiplied(node: fx.Node, operands: Any, terms: Any, out: str) -> fx.Node:
    """The product of tensors, two at a time."""
    pairs = [_diagonal(node, o, t) for o, t in zip(operands, terms, strict=True)]
    while len(pairs) > 1:
        (a, a_axes), (b, b_axes), *others = _two_first([t for _, t in pairs], out, pairs)
        later = set(out).union(*(axes for _, axes in others))
        a, a_axes = _summed(node, a, a_axes, later | set(b_axes))
        b, b_axes = _summed(node, b, b_axes, later | set(a_axes))
        kept = "".join(dict.fromkeys(c for c in a_axes + b_axes if c in later))
        kept = out if not others else kept
        pairs = [(product_of(node, Product(a, a_axes, b, b_axes, kept)), kept), *others]
    x, axes = _summed(node, *pairs[0], set(out))
    return permuted(node, x, [axes.index(c) for c in out])


def _two_first(axes: list[str], out: str, pairs: list[Any]) -> list[Any]:
    """Operands, those two in front whose product comes first: the first two of which it sums
    something, or one only scales the other; the first two where every product grows."""

    def fits(i: int, j: int) -> bool:
        others = set(out).union(*(t for k, t in enumerate(axes) if k not in (i, j)))
        a, b = set(axes[i]), set(axes[j])
        return a <= b or b <= a or not a & b <= others

    chosen = next((p for p in itertools.combinations(range(len(axes)), 2) if fits(*p)), (0, 1))
    return [*(pairs[i] for i in chosen), *(p for k, p in enumerate(pairs) if k not in chosen)]


def _spelled_out(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """The terms and the result with letters in place of ``...``; a result that is implied (letters
    that appear once, in order) written down."""
    terms = equation.split("->")[0].split(",")
    spare = [c for c in string.ascii_letters if c not in equation]
    widths = [r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True)]
    most = max([w for w, t in zip(widths, terms, strict=True) if "..." in t], default=0)
    dots = "".join(spare[:most])
    terms = [t.replace("...", dots[len(dots) - w :]) for t, w in zip(terms, widths, strict=True)]
    if "->" in equation:
        return terms, equation.split("->")[1].replace("...", dots)
    letters = "".join(terms)
    once = sorted(c for c in set(letters) - set(dots) if letters.count(c) == 1)
    return terms, dots + "".join(once)


def _diagonal(node: fx.Node, x: fx.Node, axes: str) -> tuple[fx.Node, str]:
    """A letter that stands twice in one term reads the diagonal."""
    while repeated := next((c for c in axes if axes.count(c) > 1), None):
        first, second = (i for i, c in enumerate(axes) if c == repeated)
        x = emit(node, aten.diagonal.default, x, 0, first, second)
        axes = "".join(c for i, c in enumerate(axes) if i not in (first, second)) + repeated
    return x, axes


def _summed(node: fx.Node, x: fx.Node, axes: str, kept: set[str]) -> tuple[fx.Node, str]:
    """The sum over the letters that nobody else has."""
    gone = [i for i, c in enumerate(axes) if c not in kept]
    if not gone:
        return x, axes
    x = emit(node, aten.sum.dim_IntList, x, gone)
    return x, "".join(c for c in axes if c in kept)


# ---- from letters to operators


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
    w, w_axes = _summed(at, w, w_axes, set(p.x_axes) | set(p.out))
    inner = [c for c in p.x_axes if c in w_axes and c not in p.out]
    columns = [c for c in p.out if c in w_axes and c not in p.x_axes]
    groups = [c for c in p.out if c in w_axes and c in p.x_axes]
    rows = [c for c in p.out if c in p.x_axes and c not in w_axes]
    x, x_axes = _summed(at, p.x, p.x_axes, set(inner) | set(p.out))
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


def _replayed(w: fx.Node) -> Any:
    moves = (Kind.RESHAPE, Kind.PERMUTE, Kind.EXPAND, Kind.SELECT, Kind.SLICE)
    if kind(w) in moves and isinstance(w.args[0], fx.Node):
        return w.target(_replayed(w.args[0]), *w.args[1:], **w.kwargs)  # type: ignore[operator]
    return val(w)


# ---- raising


def raise_products(graph: fx.Graph, *, spreads: bool) -> None:
    """Every sum of products with something that depends on no input → a linear map of the rest;
    sums of elementwise products of two activations → matrix products. ``spreads``: a number times
    a row of weights is a linear map of one number, too (and not the scale of a norm)."""
    for node in list(graph.nodes):
        if not is_live(node) or not is_float(node) or node._erased:
            continue
        new = _activations_as_weight(node) if kind(node) is Kind.LINEAR else _raised(node, spreads)
        if new is not None:
            swap(node, reshaped(node, new, shape_of(node)))


def raise_totals(graph: fx.Graph) -> None:
    """Sums of products of two activations → matrix products, once lanes are merged, too; a sum of
    what a mask leaves is one of tokens, and stays."""
    for node in list(graph.nodes):
        if kind(node) is Kind.TOTAL and is_live(node) and is_float(node):
            p = letters_of(node)
            if p is None or not is_live(p.x) or not is_live(p.w) or is_mask(p.x) or is_mask(p.w):
                continue
            if val(p.x).dtype == val(p.w).dtype:
                swap(node, reshaped(node, _scaled(node, product_of(node, p)), shape_of(node)))
    graph.eliminate_dead_code()


def is_mask(x: Any) -> bool:
    """Whether a tensor is one of truth values or whole numbers, cast and moved."""
    while is_float(x) and (kind(x) in MOVES or kind(x) in (Kind.CAST, Kind.AFFINE)):
        x = next((n for n in x.all_input_nodes if is_live(n)), None)
    return not is_float(x)


def _activations_as_weight(node: fx.Node) -> fx.Node | None:
    """``linear`` of two activations → their matrix product."""
    x, weight, *bias = node.args
    if not is_call(node, aten.linear) or not is_live(weight) or is_picked(weight):
        return None
    made = emit(node, aten.matmul.default, x, permuted(node, weight, [1, 0]))  # type: ignore[arg-type]
    return emit(node, aten.add.Tensor, made, *bias) if bias else made


def _raised(node: fx.Node, spreads: bool) -> fx.Node | None:
    p = letters_of(node)
    if p is None or not (is_live(p.x) or is_live(p.w)) or val(p.x).dtype != val(p.w).dtype:
        return None
    if is_live(p.x) and is_live(p.w):
        picked = [is_picked(n) for n in (p.x, p.w)]
        if sum(picked) != 1 or is_call(node, aten.mul):
            if kind(node) is Kind.CONVOLUTION:
                return _with_channels(node, product_of(node, p))
            return _scaled(node, product_of(node, p)) if kind(node) is Kind.TOTAL else None
        p = p.turned() if picked[0] else p
    p = p if is_live(p.x) else p.turned()
    if is_of_masks(p.w):
        return None
    if is_call(node, aten.mul) and not (spreads and _makes_features(p)):
        return None
    made = as_linear(node, p)
    if made is None and kind(node) is Kind.CONVOLUTION:  # a factor for each channel
        factors = reshaped(node, p.w, [shape_of(node)[1], *[1] * of(node).axes])
        made = emit(node, aten.mul.Tensor, node.args[0], factors)
    if made is None:
        return None
    return _scaled(node, _with_channels(node, made))


def _with_channels(node: fx.Node, made: fx.Node) -> fx.Node:
    """What a convolution adds to every channel, added."""
    bias = argument(node, "bias") if kind(node) is Kind.CONVOLUTION else None
    if bias is None:
        return made
    channels = reshaped(node, bias, [-1, *[1] * of(node).axes])
    return emit(node, aten.add.Tensor, reshaped(node, made, shape_of(node)), channels)


def _scaled(node: fx.Node, made: fx.Node) -> fx.Node:
    """A mean of products is their sum over their number."""
    if not is_call(node, aten.mean):
        return made
    count = math.prod(shape_of(node.args[0])) // max(math.prod(shape_of(node)), 1)
    return emit(node, aten.div.Tensor, made, count)


def letters_of(node: fx.Node) -> Product | None:
    """What a call sums, in letters; ``None`` for one that is no sum of products."""
    if is_call(node, aten.matmul):
        return _of_matmul(node)
    if is_call(node, aten.mul):
        return _of_product(node.args[:2], rank(node), [])
    if is_call(node, aten.sum, aten.mean):
        return _of_total(node)
    return _of_convolution(node) if kind(node) is Kind.CONVOLUTION else None


def _of_matmul(node: fx.Node) -> Product:
    x, w = node.args[:2]
    letters = string.ascii_letters
    batch = letters[: rank(node) - 2]
    n, k, m = letters[rank(node) : rank(node) + 3]
    x_axes = batch[len(batch) - (rank(x) - 2) :] + n + k
    w_axes = batch[len(batch) - (rank(w) - 2) :] + k + m
    return Product(x, x_axes, w, w_axes, batch + n + m)  # type: ignore[arg-type]


def _of_product(factors: Any, width: int, summed: list[int]) -> Product | None:
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
    product = whole = node.args[0]
    if kind(product) is Kind.RESHAPE and len(product.users) == 1:  # type: ignore[union-attr]
        product = product.args[0]  # type: ignore[union-attr]
    if not is_call(product, aten.mul) or len(product.users) != 1:  # type: ignore[union-attr]
        return None
    factors = product.args[:2]  # type: ignore[union-attr]
    if factors[0] is factors[1] or val(node).dtype != val(product).dtype:
        return None
    if product is not whole:
        factors = tuple(_split(node, x, product, shape_of(whole)) for x in factors)  # type: ignore[assignment, arg-type]
    p = _of_product(factors, rank(whole), dims_of(node))
    if p is None:
        return None
    lengths = (
        dict(zip(axes, shape_of(x), strict=True)) for x, axes in ((p.x, p.x_axes), (p.w, p.w_axes))
    )
    x, w = ({c for c, s in found.items() if s > 1} for found in lengths)
    gone = {c for c, s in p.sizes().items() if c not in p.out and s > 1}
    return p if gone and gone <= x & w else None


def _split(at: fx.Node, x: Any, product: Any, shape: list[int]) -> fx.Node | None:
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
    x, w, axes = node.args[0], node.args[1], of(node).axes
    stride, padding, groups = (argument(node, n) for n in ("stride", "padding", "groups"))
    more = argument(node, "output_padding") if of(node).transposed else 0
    if isinstance(padding, str) or any(_entries(padding)) or any(_entries(more)):
        return None
    if rank(x) != axes + 2:
        return None
    kernel, space = shape_of(w)[2:], shape_of(x)[2:]  # type: ignore[arg-type]
    steps = _entries(stride) * (axes // len(_entries(stride)))
    if of(node).transposed and any(k != 1 or s != 1 for k, s in zip(kernel, steps, strict=True)):
        return None
    batch, channels = shape_of(x)[:2]
    rows = "YZ" if of(node).transposed else "ZY"
    shape, x_axes = [batch, groups, channels // groups], "XGY"
    w_axes, out = "G" + rows, "XGZ"
    seen: list[int] = []
    for i, (k, s, size) in enumerate(zip(kernel, steps, space, strict=True)):
        place, inside = string.ascii_letters[i], string.ascii_letters[axes + i]
        shape.append(size)
        if k == s == 1:
            x_axes += place
            out += place
        elif k == size:
            x_axes += inside
            w_axes += inside
            seen.append(size)
        else:
            return None
    x = reshaped(node, x, shape)  # type: ignore[arg-type]
    w = reshaped(node, w, [groups, shape_of(w)[0] // groups, shape_of(w)[1], *seen])  # type: ignore[arg-type]
    return Product(x, x_axes, w, w_axes, out)


def _entries(value: Any) -> list[int]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _makes_features(p: Product) -> bool:
    """Whether an elementwise product spreads ``x`` along axes that only the weight has: a linear
    map of one number."""
    x, w = (
        dict(zip(axes, shape_of(n), strict=True)) for n, axes in ((p.x, p.x_axes), (p.w, p.w_axes))
    )
    strides = dict(zip(p.w_axes, repeats(p.w), strict=True))
    return any(w.get(c, 1) > 1 == x.get(c, 1) and strides[c] != 0 for c in p.out)


# ---- one spelling


def as_matmul(node: fx.Node) -> fx.Node | None:
    """``bmm``, ``mm``, ``mv``, ``dot`` and products with vectors → ``matmul`` of two matrices."""
    x, y = node.args[:2]
    if rank(x) >= 2 and rank(y) >= 2:
        return None if is_call(node, aten.matmul) else emit(node, aten.matmul.default, x, y)
    left = reshaped(node, x, [1, *shape_of(x)]) if rank(x) == 1 else x  # type: ignore[arg-type]
    right = reshaped(node, y, [*shape_of(y), 1]) if rank(y) == 1 else y  # type: ignore[arg-type]
    made = emit(node, aten.matmul.default, left, right)
    return reshaped(node, made, shape_of(node))


def linear_of_matrix(node: fx.Node) -> fx.Node | None:
    """A weight that is a vector is a matrix of one row; operands stand in their places."""
    if not is_call(node, aten.linear):
        return None
    x, weight, bias = node.args[0], node.args[1], argument(node, "bias")
    if rank(weight) == 1:
        row = reshaped(node, weight, [1, *shape_of(weight)])  # type: ignore[arg-type]
        given = [] if bias is None else [reshaped(node, bias, [1])]
        made = emit(node, aten.linear.default, x, row, *given)
        return reshaped(node, made, shape_of(node))
    wanted = (x, weight) if bias is None else (x, weight, bias)
    if node.args == wanted and not node.kwargs:
        return None
    return emit(node, aten.linear.default, *wanted)
