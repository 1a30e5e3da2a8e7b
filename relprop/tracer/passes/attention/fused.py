"""Attention in one call → matmul, scale, mask, softmax, matmul, so that A is a node."""

from __future__ import annotations

import math

import torch
from torch import fx

from relprop.errors import CaptureError
from relprop.operations import Operator, argument, is_call
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_tensor,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap_results,
    val,
)
from relprop.tracer.facts import refusal


def split_attention(node: fx.Node, device: torch.device) -> fx.Node | None:
    """The products and the softmax that an attention in one call stands for; of several results
    each in place of its user."""
    if (dropped := argument(node, "dropout_p")) not in (None, 0):
        raise _refused(node, f"drops parts of its map by chance (dropout_p={dropped})")
    results = _of_heads(node, device)
    if not isinstance(val(node), (tuple, list)):
        return results[0]
    for user in node.users:
        if arguments(user)[1] >= len(results):
            raise _refused(
                node, f"gives more than attention: its result {arguments(user)[1]} is read"
            )
    swap_results(node, results)
    return None


def _refused(node: fx.Node, why: str) -> CaptureError:
    then = "call torch.nn.functional.scaled_dot_product_attention in its place"
    return refusal(node, f"{node.target} {why}", then)


def _of_heads(node: fx.Node, device: torch.device) -> list[fx.Node]:
    """``scaled_dot_product_attention`` and the operators that it chooses among: its result, and the
    second one that each of them has."""
    q, k, v = arguments(node)[:3]
    mask, causal = argument(node, "attn_mask"), bool(argument(node, "is_causal"))
    mask = argument(node, "attn_bias") if mask is None else mask
    math_only = is_call(node, aten._scaled_dot_product_attention_math)
    if math_only and is_tensor(mask) and val(mask).dtype == torch.bool:
        mask = emit(node, aten.to.dtype, mask, val(q).dtype)  # it adds whatever it is given
    groups = (
        shape_of(q)[-3] // shape_of(k)[-3] if rank(q) > 2 and argument(node, "enable_gqa") else 1
    )
    if groups > 1:
        k, v = (_repeated(node, x, groups) for x in (k, v))
    scores = _scores(node, q, k, argument(node, "scale"))
    mask = _causal_mask(node, scores, device) if causal else mask
    scores, attention = _map(node, scores, mask, causal)
    result = emit(node, aten.matmul.default, attention, v)
    if math_only:
        return [result, attention]
    return [result, emit(node, aten.logsumexp.default, scores, [rank(scores) - 1])]


def _scores(node: fx.Node, q: fx.Node, k: fx.Node, scale: float | None) -> fx.Node:
    """q·kᵀ, scaled."""
    scale = scale or 1 / math.sqrt(shape_of(q)[-1])
    turned = permuted(node, k, [*range(rank(k) - 2), rank(k) - 1, rank(k) - 2])
    scores = emit(node, aten.matmul.default, q, turned)
    return emit(node, aten.mul.Tensor, scores, float(scale))


def _causal_mask(node: fx.Node, scores: fx.Node, device: torch.device) -> fx.Node:
    shape = shape_of(scores)[-2:]
    ones = emit(node, aten.ones.default, shape, dtype=torch.bool, device=device)
    return emit(node, aten.tril.default, ones)


def _map(
    node: fx.Node, scores: fx.Node, mask: fx.Node | None, causal: bool
) -> tuple[fx.Node, fx.Node]:
    """The scores, masked, and their softmax. Rows that a mask, but a causal one, hides throughout
    give zeros, as the fused operator does."""
    softmax: Operator = aten.softmax.int
    if is_tensor(mask) and val(mask).dtype == torch.bool:
        hidden = emit(node, aten.logical_not.default, mask)
        scores = emit(node, aten.masked_fill.Scalar, scores, hidden, float("-inf"))
        softmax = aten.softmax.int if causal else aten._safe_softmax.default
    elif mask is not None:
        scores = emit(node, aten.add.Tensor, scores, mask)
        softmax = aten._safe_softmax.default
    return scores, emit(node, softmax, scores, rank(scores) - 1)


def _repeated(node: fx.Node, x: fx.Node, groups: int) -> fx.Node:
    shape = shape_of(x)
    wide = reshaped(node, x, [*shape[:-2], 1, *shape[-2:]])
    wide = expanded(node, wide, [*shape[:-2], groups, *shape[-2:]])
    return reshaped(node, wide, [*shape[:-3], shape[-3] * groups, *shape[-2:]])
