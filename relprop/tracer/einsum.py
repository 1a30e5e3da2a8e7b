"""``einsum`` of two operands → permute, reshape, one batched matrix product, reshape, permute: one rule fewer, and attention is found in it."""

from __future__ import annotations

import math

from torch import fx

from relprop.tracer.editing import aten, emit, val


def lower_einsum(node: fx.Node) -> fx.Node | None:
    """The same contraction through ``bmm``; ``None`` (left as it is) for one operand, for more than two, or repeated letters."""
    equation, operands = node.args[0], node.args[1]
    if not isinstance(equation, str) or len(operands) != 2 or "." in equation or "->" not in equation:  # type: ignore[arg-type]
        return None
    left, out = equation.replace(" ", "").split("->")
    a, b = left.split(",")
    if any(len(set(term)) != len(term) for term in (a, b, out)) or set(a + b) - set(out) - (set(a) & set(b)):
        return None
    x, y = operands  # type: ignore[misc]
    size = dict(zip(a, val(x).shape, strict=True)) | dict(zip(b, val(y).shape, strict=True))
    batch = [c for c in out if c in a and c in b]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    inner = [c for c in a if c in b and c not in out]

    def fold(operand: fx.Node, term: str, *groups: list[str]) -> fx.Node:
        order = [term.index(c) for group in groups for c in group]
        moved = emit(node, aten.permute.default, operand, order)
        return emit(node, aten.reshape.default, moved, [math.prod(size[c] for c in group) for group in groups])

    product = emit(node, aten.bmm.default, fold(x, a, batch, rows, inner), fold(y, b, batch, inner, columns))
    letters = [*batch, *rows, *columns]
    wide = emit(node, aten.reshape.default, product, [size[c] for c in letters])
    return emit(node, aten.permute.default, wide, [letters.index(c) for c in out])
