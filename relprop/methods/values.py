"""Methods over what attention moves: how large the moved vectors are, and what a layer would give
without one of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from relprop.errors import OptionError
from relprop.methods.branches import refuse_branches
from relprop.methods.projection import projected_norms, sum_norms
from relprop.methods.received import are_own_keys, order_of_keys
from relprop.numerics import safe_divide
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.values import LayerValues, SiteValues
from relprop.tracer.atoms import length


def attention_norm(at: AttentionStudy, *, variant: str = "2020") -> Mapping[fx.Node, Tensor]:
    """‖α_ij f(x_j)‖, f the value and output projections of a head, in place of A, rolled up
    (Kobayashi et al. 2020). Not class-specific.

    ``variant="2021"`` (Kobayashi et al. 2021): the norm of all that token j puts into token i, ‖Σ_h
    α_ij f(x_j) + δ_ij x_i‖, after the layer norm behind the sum, if there is one, with the
    statistics of the whole sum: its matrix holds the skip connection already, and what is rolled up
    is that matrix.
    """
    if variant not in ("2020", "2021"):
        raise OptionError(f"variant={variant!r}: '2020' or '2021'")
    if variant == "2021":
        return {v.site.contraction: _for_every_head(v, sum_norms(at, v)) for v in at.sites}
    return {
        v.site.contraction: v.attention
        * projected_norms(at, v).unsqueeze(-1 if v.site.transposed else -2)
        for v in at.sites
    }


def _for_every_head(values: SiteValues, matrix: Tensor) -> Tensor:
    """One matrix (batch, queries, keys) in the shape of a site's maps."""
    matrix = matrix.mT if values.site.transposed else matrix
    heads = (1,) * (values.attention.dim() - 3)
    return matrix.reshape(len(matrix), *heads, *matrix.shape[1:]).expand_as(values.attention)


def value_zeroing(at: AttentionStudy) -> Mapping[fx.Node, Tensor]:
    """1 − cos(h_i, h_i without token j's value vectors), h the layer's output, rows divided by
    their sums, rolled up (Mohebbi et al. 2023). Not class-specific.

    As many runs of each layer as it has keys.
    """
    refuse_branches(at.program, "value_zeroing")
    layers = {layer.site: layer for layer in at.layers}
    found = {}
    for values in at.sites:
        layer = layers.get(values.site)
        if layer is None or not _queries_are_tokens(at, values, layer):
            raise OptionError(
                f"value_zeroing: the queries of the attention at {values.site.path!r} are not "
                "the tokens of its layer's output, one for one"
            )
        matrix = _distances(at, values, layer)
        matrix = safe_divide(matrix, matrix.sum(2, keepdim=True))
        if matrix.shape[1] == matrix.shape[2] and are_own_keys(at, values):
            matrix = matrix[:, order_of_keys(at, values, layer).argsort()]
        found[values.site.contraction] = _for_every_head(values, matrix)
    return found


def _queries_are_tokens(at: AttentionStudy, values: SiteValues, layer: LayerValues) -> bool:
    """Whether a site's queries are the tokens of a layer's output, one for one."""
    axes, maps = at.program.axes, values.attention
    query = axes[values.site.attention][-1 if values.site.transposed else -2]
    tokens = [axes[layer.node][i] for i in layer.token_axes]
    groups = [{atom.group.root() for atom in axis} for axis in (*tokens, query)]
    heads = at.head_axes(values)
    windows = [i for i in range(1, maps.dim() - 2) if maps.shape[i] > 1 and i not in heads]
    if len(tokens) != 1 or length(tokens[0]) != length(query):
        return False  # landmarks, of several tokens each
    return groups[0] == groups[1] and not windows


def _distances(at: AttentionStudy, values: SiteValues, layer: LayerValues) -> Tensor:
    """1 − cos of the layer's output with and without each key's value vectors, (batch, queries,
    keys); 0 where it stays as it is, be it 0."""
    site, given = values.site, at.of_each(values.site.values)
    key = given.dim() + (-1 if site.transposed else -2)
    count = given.shape[key]
    zeroed = 1 - torch.eye(count, dtype=given.dtype, device=given.device)
    zeroed = zeroed.reshape(count, *(count if i == key else 1 for i in range(given.dim())))
    variants = torch.cat([given.unsqueeze(0), given.unsqueeze(0) * zeroed])
    plain, *_ = changed = at.replay(site.values, layer.node, variants)
    other, feature = changed[1:], _feature_axis(values, layer) + 1
    same = plain.unsqueeze(0).expand_as(other)
    least = torch.finfo(other.dtype).tiny
    alike = F.cosine_similarity(other, same, dim=feature, eps=least)
    alike = torch.where((other == same).all(feature), 1, alike)
    return (1 - alike).clamp(min=0).flatten(2).permute(1, 2, 0)


def _feature_axis(values: SiteValues, layer: LayerValues) -> int:
    """The axis of features of a layer's output, the batch being axis 0."""
    rest = [i + 1 for i in range(layer.value.dim() - 1) if i not in layer.token_axes]
    found = [i for i in rest if layer.value.shape[i] > 1] or rest[-1:]
    if len(found) != 1:
        raise OptionError(
            f"value_zeroing: the output of the layer of {values.site.path!r} has "
            f"{len(found)} axes of features"
        )
    return found[0]
