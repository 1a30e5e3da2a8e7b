"""Methods over hidden states: gradient times value at the outputs of layers, or at one feature
map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from relprop.errors import OptionError
from relprop.methods.received import attention_received
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.method import row_wise
from relprop.runner.values import LayerValues, TokenMap


@row_wise()
def cat(at: AttentionStudy) -> Mapping[str, TokenMap]:
    """Σ over layers of Σ_d ∂y_t/∂h^l ⊙ h^l, h^l the layer's output (CAT: Qiang et al. 2022, Eq. 10;
    Σ_d as in their notebook). Signed."""
    return _over_layers(at, lambda values, numbers: numbers)


def attcat(at: AttentionStudy) -> Mapping[str, TokenMap]:
    """Σ over layers of α^l · CAT^l, α^l the attention a token receives, meaned over heads and
    queries (AttCAT: Qiang et al. 2022, Eq. 11–12). Signed.

    Layers of cross-attention have no α of their own tokens and are passed over.
    """
    sites = {v.site: v for v in at.sites}

    def weighted(layer: LayerValues, numbers: Tensor) -> Tensor | None:
        assert layer.site is not None
        received = attention_received(at, sites[layer.site], layer)
        return None if received is None else received * numbers

    return _over_layers(at, weighted)


@row_wise()
def gradcam_features(
    at: AttentionStudy, *, target_layers: str | Sequence[str] | None = None
) -> Mapping[str, TokenMap]:
    """(Σ_d w_d f_d)⁺ of a token feature map f on content tokens, w_d the mean over them of
    ∂y_t/∂f_d (Grad-CAM for transformers).

    ``target_layers``: module paths whose outputs are f (several: the mean of their maps); ``None``:
    what the last site's queries, keys and values come from, of blocks that normalise first the last
    block's first norm.
    """
    if not at.features:
        raise OptionError(
            "no feature map: the last site's queries and values come from different tensors",
            then=["name one: target_layers=[...]"],
        )
    maps = []
    for features in at.features:
        axes, sizes = [i + 1 for i in features.token_axes], features.value.shape
        content, gradient = _content_at(at, features), features.gradient
        shape = (n if i in axes else 1 for i, n in enumerate(sizes) if i)
        kept = content.reshape(len(content), *shape).to(gradient)
        count = kept.sum(axes, keepdim=True).clamp(min=1)
        weights = (gradient * kept).sum(axes, keepdim=True) / count
        found = features.per_token(weights * features.value * kept).clamp(min=0)
        maps.append(at.place(features.node, found))
    return {
        name: TokenMap(torch.stack([m[name] for m in maps]).mean(0) * at.content[name].to(at.home))
        for name in at.content
    }


def _over_layers(
    at: AttentionStudy, change: Callable[[LayerValues, Tensor], Tensor | None]
) -> Mapping[str, TokenMap]:
    parts = []
    for layer in at.layers:
        if (numbers := change(layer, layer.per_token(layer.gradient * layer.value))) is not None:
            parts.append(at.place(layer.node, numbers))
    if not parts:
        raise OptionError(
            "no layer's output holds the tokens of its own attention: there is no hidden "
            "state to take"
        )
    found = {name: torch.stack([p[name] for p in parts], 1) for name in at.content}
    return {name: TokenMap(layers.sum(1), layers) for name, layers in found.items()}


def _content_at(at: AttentionStudy, features: LayerValues) -> Tensor:
    """Which tokens of a tensor are content: those of the one input that has as many tokens, else
    all (merged tokens have no class token among them)."""
    count = features.per_token(features.value).shape[1]
    same = [content for content in at.content.values() if content.shape[1] == count]
    if len(same) == 1:
        return same[0]
    return torch.ones(len(features.value), count, dtype=torch.bool, device=features.value.device)
