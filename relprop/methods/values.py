"""Methods over what attention moves: how large the moved vectors are, and what a layer would give
without one of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from relprop.errors import OptionError
from relprop.methods.base import AttentionValues, SiteValues, refuse_branches
from relprop.numerics import safe_divide


def attention_norm(at: AttentionValues, *, variant: str = "2020") -> Mapping[fx.Node, Tensor]:
    """‖α_ij f(x_j)‖, f the value and output projections of a head, in place of A, rolled up
    (Kobayashi et al. 2020). Not class-specific.

    ``variant="2021"`` (Kobayashi et al. 2021): the norm of all that token j puts into token i, ‖Σ_h
    α_ij f(x_j) + δ_ij x_i‖, after the layer norm behind the sum, if there is one, with the
    statistics of the whole sum: its matrix holds the skip connection already, and what is rolled up
    is that matrix.
    """
    if variant not in ("2020", "2021"):
        raise OptionError(f"variant={variant!r}: '2020' or '2021'")
    if variant == "2020":
        return {
            v.site.contraction: v.attention * _along_keys(v, at.projected_norms(v))
            for v in at.sites
        }
    found = {}
    for v in at.sites:
        matrix = at.sum_norms(
            v
        )  # (batch, queries, keys); I + M of the roll-up is to be this, so M is it less I
        matrix = matrix - torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        matrix = matrix.mT if v.site.transposed else matrix
        found[v.site.contraction] = matrix.reshape(
            len(matrix), *(1,) * (v.attention.dim() - 3), *matrix.shape[1:]
        ).expand_as(v.attention)
    return found


def _along_keys(values: SiteValues, norms: Tensor) -> Tensor:
    """‖f(x_j)‖ (..., heads, keys) as a factor of the map."""
    return norms.unsqueeze(-1 if values.site.transposed else -2)


def value_zeroing(at: AttentionValues) -> Mapping[fx.Node, Tensor]:
    """1 − cos(h_i, h_i without token j's value vectors), h the layer's output, rows divided by
    their sums, rolled up (Mohebbi et al. 2023). Not class-specific.

    As many runs of each layer as it has keys.
    """
    refuse_branches(at.run.program, "value_zeroing")
    layers = {layer.site: layer for layer in at.layers}
    found = {}
    for values in at.sites:
        site = values.site
        layer = layers.get(site)
        if layer is None or not at.same_tokens(values, layer):
            raise OptionError(
                f"value_zeroing: the queries of the attention at {site.path!r} are not "
                "the tokens of its layer's output, one for one"
            )
        key = -1 if site.transposed else -2
        given = at.value(site.values)
        count = given.shape[key]
        apart = 1 - torch.eye(count, dtype=given.dtype, device=given.device)
        variants = given.unsqueeze(0) * apart.reshape(
            count, *(count if i == given.dim() + key else 1 for i in range(given.dim()))
        )
        plain, *_ = changed = at.replay(
            site.values, layer.node, torch.cat([given.unsqueeze(0), variants])
        )
        rest = [i + 1 for i in range(layer.value.dim() - 1) if i not in layer.token_axes]
        feature = [i for i in rest if layer.value.shape[i] > 1] or rest[-1:]
        if len(feature) != 1:
            raise OptionError(
                f"value_zeroing: the output of the layer of {site.path!r} has "
                f"{len(feature)} axes of features"
            )
        distance = 1 - F.cosine_similarity(
            changed[1:], plain.unsqueeze(0).expand_as(changed[1:]), dim=feature[0] + 1, eps=0
        )
        matrix = distance.clamp(min=0).flatten(2).permute(1, 2, 0)  # (batch, queries, keys)
        matrix = safe_divide(matrix, matrix.sum(2, keepdim=True))
        matrix = matrix.mT if site.transposed else matrix
        found[site.contraction] = matrix.reshape(
            len(matrix), *(1,) * (values.attention.dim() - 3), *matrix.shape[1:]
        ).expand_as(values.attention)
    return found
