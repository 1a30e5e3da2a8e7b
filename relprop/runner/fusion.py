"""How the heads of a site become one map, and which entries of it are dropped: options that every
method over attention maps shares.

The roll-up takes the mean over heads (E_h). Another fusion is put in the place of every head's own
map, so that the mean is that fusion.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from relprop.errors import OptionError
from relprop.numerics import safe_divide

Fusion = Callable[[Tensor, Tensor | None], Tensor]


def _by_gradient(maps: Tensor, gradient: Tensor | None) -> Tensor:
    """Each head by the mean of its (∂y_t/∂A)⁺, the weights of a sample's heads scaled to a mean of
    1."""
    assert gradient is not None
    weights = gradient.to(maps.dtype).clamp(min=0).flatten(2).mean(2)
    weights = safe_divide(weights, weights.mean(1, keepdim=True))
    return maps * weights.reshape(*weights.shape, *(1,) * (maps.dim() - 2))


FUSIONS: dict[str, Fusion] = {
    "mean": lambda maps, gradient: maps,
    "max": lambda maps, gradient: maps.amax(1, keepdim=True).expand_as(maps),
    "min": lambda maps, gradient: maps.amin(1, keepdim=True).expand_as(maps),
    "gradient": _by_gradient,
}


def fusion_named(name: object) -> Fusion:
    """A fusion by its name. Raises ``OptionError`` with the list."""
    if name not in FUSIONS:
        raise OptionError(f"head_fusion={name!r}: there are {', '.join(map(repr, FUSIONS))}")
    return FUSIONS[name]


def check_ratio(ratio: object) -> None:
    """Raises ``OptionError`` for what is no part of 1 below it."""
    if not isinstance(ratio, (int, float)) or isinstance(ratio, bool) or not 0 <= ratio < 1:
        raise OptionError(
            f"discard_ratio={ratio!r}: the part of each map's entries to set to 0, at "
            "least 0 and less than 1"
        )


def fused(maps: Tensor, head_axes: tuple[int, ...], how: str, gradient: Tensor | None) -> Tensor:
    """A site's maps (batch, ...) after the fusion of the heads, of the same shape. ``head_axes``:
    which axes the heads are."""
    if how == "mean" or not head_axes:
        return maps
    others = [i for i in range(1, maps.dim()) if i not in head_axes]
    order = [0, *head_axes, *others]

    def together(t: Tensor) -> Tensor:
        return t.permute(order).flatten(1, len(head_axes))

    found: Tensor = fusion_named(how)(
        together(maps), None if gradient is None else together(gradient)
    )
    sizes = [maps.shape[i] for i in head_axes]
    apart: Tensor = found.unflatten(1, sizes)  # type: ignore[no-untyped-call]
    return apart.permute([order.index(i) for i in range(maps.dim())])


def without_smallest(maps: Tensor, head_axes: tuple[int, ...], ratio: float) -> Tensor:
    """Per sample the smallest ``ratio`` of the entries of the map of all heads together set to 0
    (rounded down); ties fall to the earlier entry."""
    mean = maps.mean(head_axes, keepdim=True) if head_axes else maps
    count = int(ratio * mean[0].numel())
    if not count:
        return maps
    flat = mean.flatten(1)
    dropped = flat.argsort(dim=1, stable=True)[:, :count]
    kept = torch.ones_like(flat).scatter(1, dropped, 0.0)
    return maps * kept.reshape(mean.shape)
