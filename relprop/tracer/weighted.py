"""Attention written as a product and a sum, ``(softmax(s) * v).sum(d)``, is the contraction it
stands for: a matrix product.

So is a softmax written out, ``exp(x − logsumexp(x))``.
"""

from __future__ import annotations

import string

from torch import Tensor, fx

from relprop.tracer.attention import SOFTMAX, lies_along, rows_after
from relprop.tracer.editing import argument, aten, emit, is_tensor, name_of, swap, val
from relprop.tracer.einsum import lower_einsum
from relprop.tracer.labels import Labels


def lower_weighted_sums(graph: fx.Graph) -> None:
    """Every sum over a softmax's axis of a product with what descends from that softmax → a batched
    matrix product."""
    for softmax in [n for n in graph.nodes if name_of(n) in SOFTMAX]:
        keys: dict[fx.Node, int | Tensor] = {
            softmax: argument(softmax, 1, "dim", -1) % val(softmax).dim()
        }
        labels = Labels()
        for node in list(graph.nodes):
            known = (
                [i for i in node.all_input_nodes if i in keys]
                if node.op == "call_function" and node is not softmax
                else []
            )
            if not known:
                continue
            if (
                name_of(node) == "mul"
                and len(known) == 1
                and all(map(is_tensor, node.args[:2]))
                and (total := _sum_over(node, known[0], keys[known[0]])) is not None
            ):
                _contract(node, total, _axis(total) % val(node).dim())
            elif (after := rows_after(node, known, keys, labels)) is not None:
                keys[node] = after


def _sum_over(product: fx.Node, weights: fx.Node, where: int | Tensor) -> fx.Node | None:
    """The sum over exactly the softmax's axis that is the product's only use."""
    total = next(iter(product.users)) if len(product.users) == 1 else None
    dims = argument(total, 1, "dim") if total is not None and name_of(total) == "sum" else None
    dims = [dims] if isinstance(dims, int) else dims
    if (
        dims is None
        or len(dims) != 1
        or val(total).dtype != val(product).dtype
        or val(product).dim() > 20
    ):
        return None
    axis = dims[0] % val(product).dim() - val(product).dim()
    spans = all(
        -axis <= val(a).dim()
        and val(a).shape[axis] == val(product).shape[axis] > 1
        and val(a).dtype == val(product).dtype
        for a in product.args[:2]
    )
    return total if spans and lies_along(where, axis + val(weights).dim()) else None


def _axis(total: fx.Node) -> int:
    dims = argument(total, 1, "dim")
    return dims if isinstance(dims, int) else dims[0]


def _contract(product: fx.Node, total: fx.Node, axis: int) -> None:
    shape = val(product).shape
    letters = string.ascii_lowercase[: len(shape)]
    terms, operands = [], []
    for operand in product.args[:2]:
        padded = (1,) * (len(shape) - val(operand).dim()) + tuple(val(operand).shape)
        kept = [i for i, size in enumerate(padded) if size != 1]
        operands.append(emit(total, aten.reshape.default, operand, [padded[i] for i in kept]))
        terms.append("".join(letters[i] for i in kept))
    out = "".join(c for i, c in enumerate(letters) if i != axis and shape[i] != 1)
    einsum = emit(total, aten.einsum.default, f"{terms[0]},{terms[1]}->{out}", operands)
    product_of = lower_einsum(einsum)
    swap(einsum, product_of)  # type: ignore[arg-type]
    swap(total, emit(total, aten.reshape.default, product_of, list(val(total).shape)))


def join_softmax(graph: fx.Graph) -> None:
    """``exp(x − logsumexp(x, d, keepdim))`` → ``softmax(x, d)``."""
    for node in list(graph.nodes):
        inner = node.args[0] if name_of(node) == "exp" else None
        if name_of(inner) != "sub" or argument(inner, 2, "alpha", 1) != 1:  # type: ignore[arg-type]
            continue
        x, normaliser = inner.args[:2]  # type: ignore[union-attr]
        if name_of(normaliser) != "logsumexp" or normaliser.args[0] is not x:  # type: ignore[union-attr]
            continue
        dims = argument(normaliser, 1, "dim")  # type: ignore[arg-type]
        if len(dims) == 1 and argument(normaliser, 2, "keepdim", False):  # type: ignore[arg-type]
            swap(node, emit(node, aten.softmax.int, x, dims[0]))
