"""``einsum`` of any number of operands: sums, permutations and products of two operands at a
time."""

from __future__ import annotations

import itertools
import string

from torch import fx

from relprop.tracer.editing import arguments, aten, emit, is_live, permuted, rank
from relprop.tracer.passes.products.letters import Product
from relprop.tracer.passes.products.operators import product_of, summed_out

Lettered = tuple[fx.Node, str]  # a tensor, and a letter for each of its axes


def contracted(node: fx.Node) -> fx.Node | None:
    """``einsum`` of any number of operands → sums, permutations and matrix products, two operands
    at a time."""
    equation, operands = arguments(node)[:2]
    if not isinstance(equation, str):
        return None
    terms, out = _spelled_out(equation.replace(" ", ""), [rank(o) for o in operands])
    return _multiplied(node, operands, terms, out)


def trilinear(node: fx.Node) -> fx.Node:
    """The product of three tensors, each with axes put in, summed over some axes."""
    (first, weight, last), put_in, gone = (
        arguments(node)[:3],
        arguments(node)[3:6],
        arguments(node)[6],
    )
    letters = string.ascii_letters[: rank(first) + len(put_in[0])]
    axes = ["".join(c for i, c in enumerate(letters) if i not in new) for new in put_in]
    out = "".join(c for i, c in enumerate(letters) if i not in gone)
    pairs: list[Lettered] = [(weight, axes[1]), (first, axes[0]), (last, axes[2])]
    pairs.sort(key=lambda pair: not is_live(pair[0]))
    return _multiplied(node, [x for x, _ in pairs], [letters for _, letters in pairs], out)


def _multiplied(node: fx.Node, operands: list[fx.Node], terms: list[str], out: str) -> fx.Node:
    """The product of tensors, two at a time."""
    pairs = [_diagonal(node, o, t) for o, t in zip(operands, terms, strict=True)]
    while len(pairs) > 1:
        (a, a_axes), (b, b_axes), *others = _two_first([t for _, t in pairs], out, pairs)
        later = set(out).union(*(axes for _, axes in others))
        a, a_axes = summed_out(node, a, a_axes, later | set(b_axes))
        b, b_axes = summed_out(node, b, b_axes, later | set(a_axes))
        kept = "".join(dict.fromkeys(c for c in a_axes + b_axes if c in later))
        kept = out if not others else kept
        pairs = [(product_of(node, Product(a, a_axes, b, b_axes, kept)), kept), *others]
    x, axes = summed_out(node, *pairs[0], set(out))
    return permuted(node, x, [axes.index(c) for c in out])


def _two_first(axes: list[str], out: str, pairs: list[Lettered]) -> list[Lettered]:
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
