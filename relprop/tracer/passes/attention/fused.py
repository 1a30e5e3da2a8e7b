"""Attention in one call → matmul, scale, mask, softmax, matmul, so that A is a node: heads alone,
with the projections around them, or a whole layer."""

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
    if is_call(node, aten._transformer_encoder_layer_fwd):
        return _layer(node)
    if is_call(node, aten._native_multi_head_attention):
        results = _many_heads(node)
    else:
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


def _many_heads(node: fx.Node, x: fx.Node | None = None) -> list[fx.Node]:
    """Projections, attention of every head, and the projection behind: its result, and the map
    (the mean of the heads', if that is asked for). ``x``: what it is called on, if not its own
    arguments."""
    given = [argument(node, n) if x is None else x for n in ("query", "key", "value")]
    width = shape_of(argument(node, "qkv_weight"))[0] // 3
    q, k, v = (_heads_of(node, part, i, width) for i, part in enumerate(given))
    shown = _shown(node)
    _, attention = _map(node, _scores(node, q, k, None), shown, False)
    made = permuted(node, emit(node, aten.matmul.default, attention, v), [0, 2, 1, 3])
    made = reshaped(node, made, [*shape_of(given[0])[:2], width])
    weights = (argument(node, n) for n in ("proj_weight", "proj_bias"))
    result = emit(node, aten.linear.default, made, *weights)
    if argument(node, "average_attn_weights"):
        attention = emit(node, aten.mean.dim, attention, [1])
    return [result, attention]


def _heads_of(node: fx.Node, x: fx.Node, which: int, width: int) -> fx.Node:
    """The queries (0), keys (1) or values (2) of every head."""
    heads = argument(node, "num_head") or argument(node, "num_heads")
    rows = [
        emit(node, aten.slice.Tensor, t, 0, which * width, (which + 1) * width, 1)
        for t in (argument(node, "qkv_weight"), argument(node, "qkv_bias"))
    ]
    made = emit(node, aten.linear.default, x, *rows)
    made = reshaped(node, made, [*shape_of(x)[:2], heads, width // heads])
    return permuted(node, made, [0, 2, 1, 3])


def _shown(node: fx.Node) -> fx.Node | None:
    """The mask that such a call is given, true where a key is hidden, as one that is true where it
    is shown, for (batch, heads, queries, keys)."""
    mask, what = argument(node, "mask"), argument(node, "mask_type")
    if mask is None:
        return None
    if val(mask).dtype != torch.bool:
        raise _refused(node, "has a mask that is not of booleans")
    batch, *rest = shape_of(mask)
    shape = {0: [1, 1, batch, *rest], 1: [batch, 1, 1, *rest], 2: [batch, *rest]}[what]
    return emit(node, aten.logical_not.default, reshaped(node, mask, shape))


def _layer(node: fx.Node) -> fx.Node:
    """``_transformer_encoder_layer_fwd``: attention and two linear layers, each with a norm."""
    x: fx.Node = argument(node, "src")

    def normed(x: fx.Node, number: int) -> fx.Node:
        weights = (argument(node, f"norm_{n}_{number}") for n in ("weight", "bias"))
        shape = [shape_of(x)[-1]]
        return emit(node, aten.layer_norm.default, x, shape, *weights, argument(node, "eps"))

    def linear(x: fx.Node, number: int) -> fx.Node:
        weights = (argument(node, f"ffn_{n}_{number}") for n in ("weight", "bias"))
        return emit(node, aten.linear.default, x, *weights)

    def attended(x: fx.Node) -> fx.Node:
        return _many_heads(node, x)[0]

    def fed(x: fx.Node) -> fx.Node:
        bent = aten.gelu.default if argument(node, "use_gelu") else aten.relu.default
        return linear(emit(node, bent, linear(x, 1)), 2)

    for number, function in ((1, attended), (2, fed)):
        if argument(node, "norm_first"):
            x = emit(node, aten.add.Tensor, x, function(normed(x, number)))
        else:
            x = normed(emit(node, aten.add.Tensor, x, function(x)), number)
    return x


def _repeated(node: fx.Node, x: fx.Node, groups: int) -> fx.Node:
    shape = shape_of(x)
    wide = reshaped(node, x, [*shape[:-2], 1, *shape[-2:]])
    wide = expanded(node, wide, [*shape[:-2], groups, *shape[-2:]])
    return reshaped(node, wide, [*shape[:-3], shape[-3] * groups, *shape[-2:]])
