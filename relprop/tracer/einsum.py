"""``einsum`` of two operands → permute, reshape, one batched matrix product, reshape, permute: one
rule fewer, and attention is found in it."""

from __future__ import annotations

import math
import string

from torch import fx

from relprop.tracer.editing import aten, emit, val


def _spelled_out(equation: str, ranks: list[int]) -> str:
    """With letters in place of ``...`` and the implied result (letters that appear once, in order)
    written down."""
    terms = equation.split("->")[0].split(",")
    spare = [c for c in string.ascii_letters if c not in equation]
    widths = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    dots = "".join(
        spare[: max([w for w, t in zip(widths, terms, strict=True) if "..." in t], default=0)]
    )
    terms = [t.replace("...", dots[len(dots) - w :]) for t, w in zip(terms, widths, strict=True)]
    if "->" in equation:
        return f"{','.join(terms)}->{equation.split('->')[1].replace('...', dots)}"
    letters = "".join(terms)
    return f"{','.join(terms)}->{dots}{''.join(sorted(c for c in set(letters) - set(dots) if letters.count(c) == 1))}"  # noqa: E501


def lower_einsum(node: fx.Node) -> fx.Node | None:
    """The same contraction through ``bmm``; ``None`` (left as it is) for one operand, for more than
    two, or repeated letters."""
    equation, operands = node.args[0], node.args[1]
    if not isinstance(equation, str) or len(operands) != 2:  # type: ignore[arg-type]
        return None
    equation = _spelled_out(equation.replace(" ", ""), [val(o).dim() for o in operands])  # type: ignore[union-attr]
    left, out = equation.replace(" ", "").split("->")
    a, b = left.split(",")
    if any(len(set(term)) != len(term) for term in (a, b, out)) or set(a + b) - set(out) - (
        set(a) & set(b)
    ):
        return None
    x, y = operands  # type: ignore[misc]
    if any(
        val(x).shape[a.index(c)] != val(y).shape[b.index(c)] for c in set(a) & set(b)
    ):  # an axis of length 1 is stretched
        return None
    size = dict(zip(a, val(x).shape, strict=True)) | dict(zip(b, val(y).shape, strict=True))
    batch = [c for c in out if c in a and c in b]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    inner = [c for c in a if c in b and c not in out]

    def fold(operand: fx.Node, term: str, *groups: list[str]) -> fx.Node:
        order = [term.index(c) for group in groups for c in group]
        moved = emit(node, aten.permute.default, operand, order)
        return emit(
            node,
            aten.reshape.default,
            moved,
            [math.prod(size[c] for c in group) for group in groups],
        )

    product = emit(
        node, aten.bmm.default, fold(x, a, batch, rows, inner), fold(y, b, batch, inner, columns)
    )
    letters = [*batch, *rows, *columns]
    wide = emit(node, aten.reshape.default, product, [size[c] for c in letters])
    return emit(node, aten.permute.default, wide, [letters.index(c) for c in out])
