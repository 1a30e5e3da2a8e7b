"""Images as matplotlib takes them, from the forms in which people have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from relprop.errors import InputError


def pixels(image: Any) -> np.ndarray:
    """An image as matplotlib takes it, (H, W) or (H, W, channels) in [0, 1]. Raises ``InputError``
    for other shapes and for values far from [0, 1]."""
    found = _channels_last(_numbers(image), isinstance(image, Tensor))
    if found.dim() not in (2, 3) or (found.dim() == 3 and found.shape[2] not in (3, 4)):
        raise InputError(
            f"image has shape {list(getattr(image, 'shape', found.shape))}: one picture, "
            "(H, W) or (channels, H, W), is needed"
        )
    least, most = float(found.min()), float(found.max())
    if least < -0.05 or most > 1.05:
        raise InputError(
            f"image has values from {least:.3g} to {most:.3g}; a picture's are in [0, 1]",
            then=["undo the normalisation: image * std + mean"],
        )
    shown: np.ndarray = found.clamp(0, 1).numpy()
    return shown


def _numbers(image: Any) -> Tensor:
    """The image's values, bytes as shares of 255."""
    if isinstance(image, Tensor):
        found, is_bytes = image.detach().float().cpu(), image.dtype == torch.uint8
    else:
        array = np.array(image)
        if array.dtype.kind not in "buif":
            then = ["give a PIL picture, an array or a tensor"]
            raise InputError(f"image is {type(image).__name__}, no picture", then=then)
        found, is_bytes = torch.from_numpy(array).float(), array.dtype == np.uint8
    return found / 255 if is_bytes else found


def _channels_last(found: Tensor, channels_come_first: bool) -> Tensor:
    """(H, W) for one channel, else (H, W, channels). An array whose first and last axis may both be
    the channels has them last, a tensor first."""
    first = found.dim() == 3 and found.shape[0] in (1, 3, 4)
    if first and (channels_come_first or found.shape[2] not in (1, 3, 4)):
        found = found[0] if found.shape[0] == 1 else found.movedim(0, -1)
    return found[..., 0] if found.dim() == 3 and found.shape[2] == 1 else found
