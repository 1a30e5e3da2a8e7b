"""The attention that each token of a layer receives: AttCAT's α, where the keys are the layer's own
tokens, or become them by being merged, cut or moved."""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx

from relprop.errors import UnexplainedPartWarning, warn
from relprop.numerics import at_least_float32
from relprop.operations.looking import recorded
from relprop.rollup import tokens_of
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.values import LayerValues, SiteValues


def attention_received(at: AttentionStudy, values: SiteValues, layer: LayerValues) -> Tensor | None:
    """The attention that each token of a layer receives, meaned over heads and queries, (batch,
    tokens); ``None`` where the keys are not the layer's own tokens, or its values no one's."""
    site, program = values.site, at.program
    if not are_own_keys(at, values):
        return None
    mean, keyed = _mean_over_queries(at, values), tokens_of(program, site.values)
    same = len(keyed) <= 1 and keyed == tokens_of(program, layer.node)
    if same and mean.shape[1] == layer.tokens:
        return mean[:, order_of_keys(at, values, layer)]
    held, kinds = mean.shape[1], "pairs of tokens"
    if held == math.prod(keyed):
        moved = at.move(site.values, mean, _nearest_below(at, values, layer))
        if moved.shape[1] == layer.tokens:
            return moved
        held, kinds = moved.shape[1], "steps of a cache, pooled queries"
    warn(
        UnexplainedPartWarning(
            f"the layer at {site.path!r} is passed over: the attention that a token receives is "
            f"taken from {held} tokens there, and its output holds {layer.tokens} ({kinds})"
        )
    )
    return None


def are_own_keys(at: AttentionStudy, values: SiteValues) -> bool:
    """Whether the keys of a site are the tokens that its queries are."""
    site = values.site
    queries, keys = (
        {atom.group.root() for atom in axis} for axis in at.program.axes[site.attention][-2:]
    )
    return bool(queries & keys) and site.values in at.session.flow.members


def _mean_over_queries(at: AttentionStudy, values: SiteValues) -> Tensor:
    """The mean of the map over heads and queries, (batch, keys). A query that nothing attends to,
    itself neither, is padding, and counts in no mean. Maps mixed after their softmax are signed."""
    attention, heads = values.attention, at.head_axes(values)
    attention = attention.mT if values.site.transposed else attention
    attention = attention.mean(heads, keepdim=True) if heads else attention
    if attention.shape[-2] != attention.shape[-1]:
        return attention.mean(-2).flatten(1)
    present = (attention != 0).any(-2).to(attention.dtype)
    counted = present.sum(-1, keepdim=True).clamp(min=1)
    mean = (attention * present[..., None]).sum(-2) / counted
    return mean.flatten(1)


def _nearest_below(at: AttentionStudy, values: SiteValues, layer: LayerValues) -> fx.Node:
    """The output of the layer below, or the input's token tensor, from which the keys come."""
    reaches, node = at.session.flow.reaches, values.site.values
    before = [n for n in at.needs.layers.values() if n is not layer.node and reaches(n, node)]
    return before[-1] if before else next(s.node for s in at.streams if reaches(s.node, node))


@recorded(False)  # the same at every call
def order_of_keys(at: AttentionStudy, values: SiteValues, layer: LayerValues) -> Tensor:
    """Which of a site's keys is the token at each place of its layer's output, where keys and
    tokens are the same: in another order, if tokens of two kinds are projected by maps of their
    own and joined. Where the numbers of this call do not tell, it is asked again at the next."""
    below, memo = _nearest_below(at, values, layer), at.program.memo
    places = torch.arange(layer.tokens, device=at.home)
    key = "order of keys", values.site.values, below

    def found() -> Tensor:
        numbers = (places + 1).expand(len(layer.value), -1).to(at_least_float32(layer.value.dtype))
        return at.move(values.site.values, numbers.contiguous(), below)[0].round().long() - 1

    order = memo.cache(key, found)
    if torch.equal(order.sort().values, places):
        return order
    memo.forget(key)
    return places
