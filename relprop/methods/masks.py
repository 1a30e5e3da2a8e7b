"""ViT-CX: feature maps as masks on the image, each weighed by what the model says of the masked
image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from relprop.errors import OptionError
from relprop.numerics import safe_divide
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.method import row_wise
from relprop.runner.values import LayerValues, TokenMap


@row_wise()
def vit_cx(
    at: AttentionStudy,
    *,
    target_layers: str | Sequence[str] | None = None,
    threshold: float = 0.1,
    noise: float = 0.1,
    seed: int = 0,
) -> Mapping[str, TokenMap]:
    """Σ_k s_k M_k / Σ_k M_k over masks M_k, s_k = y_t(x ⊙ M_k + z ⊙ (1 − M_k)) (ViT-CX: Xie et al.
    2023).

    The masks: the features of a token tensor (``target_layers``; ``None``: what the last site's
    queries, keys and values come from), each min–max scaled to [0, 1] over the patches; those
    within a cosine distance of ``threshold`` (complete linkage) are meaned to one. z: normal noise
    of standard deviation ``noise``, the same for every sample, from ``seed``. y_t is the logit, as
    everywhere here; the paper speaks of the probability. As many forward passes as the sample with
    most masks has masks. Needs SciPy, and an image whose patches are the feature map's tokens.
    """
    real = isinstance(threshold, (int, float)) and isinstance(noise, (int, float))
    if not real or not 0 < threshold <= 1 or noise < 0:
        raise OptionError(
            f"threshold={threshold!r} must be above 0 and at most 1, noise={noise!r} at least 0"
        )
    name, (grid, size) = _image(at)
    if len(at.features) != 1:
        raise OptionError(f"vit_cx takes one feature map; target_layers= names {len(at.features)}")
    content = at.content[name]
    pixels = at.inputs[name]
    masks = [_masks(maps, threshold) for maps in _patch_maps(at.features[0], content, grid)]
    most = max(len(m) for m in masks)
    generator = torch.Generator().manual_seed(seed)
    z = noise * torch.randn(pixels.shape[1:], generator=generator, dtype=torch.float64).to(pixels)
    numbers: list[Tensor] = []
    for k in range(most):
        chosen = torch.stack([m[min(k, len(m) - 1)] for m in masks]).reshape(len(masks), 1, *grid)
        mask = F.interpolate(chosen, size=size, mode="bilinear", align_corners=False).to(pixels)
        with torch.no_grad():
            numbers.append(at.output(name, pixels * mask + z * (1 - mask)))
    weights = torch.stack(numbers, 1)
    both = [(w[: len(m), None], m) for w, m in zip(weights, masks, strict=True)]
    found = torch.stack([safe_divide((w * m).sum(0), m.sum(0)) for w, m in both])
    scores = torch.zeros(content.shape, dtype=found.dtype, device=found.device)
    scores[content] = found.flatten()
    return {name: TokenMap(scores)}


def _image(at: AttentionStudy) -> tuple[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """The explained image, its grid of patches and its size."""
    images = [(n, grid) for n, grid in at.grids.items() if grid is not None and len(grid[0]) == 2]
    if len(images) != 1 or len(at.grids) != 1:
        raise OptionError(
            "vit_cx masks an image: the explained inputs "
            f"{', '.join(map(repr, at.grids))} have {len(images)} grids of patches"
        )
    return images[0]


def _patch_maps(features: LayerValues, content: Tensor, grid: tuple[int, ...]) -> list[Tensor]:
    """Each sample's feature maps, (features, patches)."""
    axes = [i + 1 for i in features.token_axes]
    others = [i for i in range(1, features.value.dim()) if i not in axes]
    maps = features.value.permute(0, *others, *axes).reshape(
        len(content), -1, features.per_token(features.value).shape[1]
    )
    patches = grid[0] * grid[1]
    if maps.shape[2] != content.shape[1] or not bool((content.sum(1) == patches).all()):
        raise OptionError(
            f"vit_cx: the feature map has {maps.shape[2]} tokens, of which the {patches} "
            "patches of the image cannot be told"
        )
    return [one[:, keep] for one, keep in zip(maps, content, strict=True)]


def _masks(maps: Tensor, threshold: float) -> Tensor:
    """Feature maps (features, patches) scaled to [0, 1], and those that point the same way meaned:
    (masks, patches)."""
    try:
        from scipy.cluster.hierarchy import fcluster, linkage
    except ImportError:
        raise OptionError("vit_cx needs SciPy: pip install scipy") from None
    least, most = maps.amin(1, keepdim=True), maps.amax(1, keepdim=True)
    scaled = safe_divide(maps - least, most - least)
    scaled = scaled[scaled.any(1)]
    if len(scaled) < 2:
        return scaled if len(scaled) else torch.ones_like(maps[:1])
    tree = linkage(scaled.double().cpu().numpy(), method="complete", metric="cosine")
    labels = torch.from_numpy(fcluster(tree, t=threshold, criterion="distance")).to(scaled.device)
    return torch.stack([scaled[labels == k].mean(0) for k in labels.unique()])
