"""Fused attention → matmul, scale, mask, softmax, matmul, so that A is a node."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from relprop.operations import argument
from relprop.tracer.editing import (
    aten,
    emit,
    expanded,
    is_tensor,
    permuted,
    rank,
    reshaped,
    shape_of,
    val,
)


def split_attention(node: fx.Node, device: torch.device) -> fx.Node:
    """The products and the softmax that ``scaled_dot_product_attention`` stands for. Rows masked
    throughout give zeros, as the fused operator does."""
    q, k, v = node.args[:3]
    mask, causal = argument(node, "attn_mask"), argument(node, "is_causal")
    scale = argument(node, "scale") or 1 / math.sqrt(shape_of(q)[-1])
    groups = (
        shape_of(q)[-3] // shape_of(k)[-3] if rank(q) > 2 and argument(node, "enable_gqa") else 1
    )
    if groups > 1:
        k, v = (_repeated(node, x, groups) for x in (k, v))
    turned = permuted(node, k, [*range(rank(k) - 2), rank(k) - 1, rank(k) - 2])  # type: ignore[arg-type]
    scores = emit(node, aten.matmul.default, q, turned)
    scores = emit(node, aten.mul.Tensor, scores, float(scale))
    softmax: Any = aten.softmax.int
    if causal:
        shape = shape_of(scores)[-2:]
        ones = emit(node, aten.ones.default, shape, dtype=torch.bool, device=device)
        mask = emit(node, aten.tril.default, ones)
    if is_tensor(mask) and val(mask).dtype == torch.bool:
        hidden = emit(node, aten.logical_not.default, mask)
        scores = emit(node, aten.masked_fill.Scalar, scores, hidden, float("-inf"))
        softmax = aten.softmax.int if causal else aten._safe_softmax.default
    elif mask is not None:
        scores = emit(node, aten.add.Tensor, scores, mask)
        softmax = aten._safe_softmax.default
    return emit(node, aten.matmul.default, emit(node, softmax, scores, rank(scores) - 1), v)


def _repeated(node: fx.Node, x: Any, groups: int) -> fx.Node:
    shape = shape_of(x)
    wide = reshaped(node, x, [*shape[:-2], 1, *shape[-2:]])
    wide = expanded(node, wide, [*shape[:-2], groups, *shape[-2:]])
    return reshaped(node, wide, [*shape[:-3], shape[-3] * groups, *shape[-2:]])
