"""What a mask picks, then weighed: each token's own expert and its share."""

from __future__ import annotations

from torch import fx

from relprop.operations import is_call
from relprop.tracer.editing import (
    arguments,
    aten,
    before_reshapes,
    emit,
    is_live,
    is_tensor,
    reshaped,
    shape_of,
    swap,
)
from relprop.tracer.passes.products.raising import is_mask


def weigh_masks(graph: fx.Graph) -> None:
    """(m @ v)·s with a mask m and one number s for each row of it → (m·s) @ v."""
    for node in list(graph.nodes):
        if not is_call(node, aten.mul) or not all(is_tensor(x) for x in arguments(node)):
            continue
        for whole, share in (arguments(node), arguments(node)[::-1]):
            new = _weighed(node, whole, share)
            if new is not None:
                swap(node, new)
                break


def _weighed(node: fx.Node, whole: fx.Node, share: fx.Node) -> fx.Node | None:
    rows = shape_of(node)[:-1]
    if not is_live(share) or shape_of(share) != [*rows, 1] or shape_of(whole) != shape_of(node):
        return None
    product = before_reshapes(whole, alone=True)
    if not is_call(product, aten.matmul) or len(product.users) != 1:
        return None
    mask, values = arguments(product)
    if not is_live(mask) or not is_mask(mask) or shape_of(product)[-1] != shape_of(node)[-1]:
        return None
    small = reshaped(node, share, [*shape_of(product)[:-1], 1])
    made = emit(node, aten.matmul.default, emit(node, aten.mul.Tensor, mask, small), values)
    return reshaped(node, made, shape_of(node))
