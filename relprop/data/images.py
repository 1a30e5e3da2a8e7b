"""Pictures in files, and what makes them a model's images: sizes and crops as the model's own
configuration has them, normalisation apart.

Perturbations are of images in [0, 1] ("black" is 0 there), so a sample's image is what comes
*before* normalisation; ``image_transform`` cuts a model's processing in these two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relprop.adapters.rgb import rgb
from relprop.adapters.timm import data_config
from relprop.data.files import needed
from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError, first_line

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
SIZE = 224
Size = int | tuple[int, int]
Transform = Callable[[Any], Tensor]


@guarded
@dataclass(frozen=True)
class Normalize:
    """Images (..., C, H, W) in [0, 1] less ``mean``, divided by ``std``, per channel: the second
    half of ``image_transform``."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Of the same shape, dtype and device."""
        mean, std = (
            torch.tensor(v, dtype=images.dtype, device=images.device).reshape(-1, 1, 1)
            for v in (self.mean, self.std)
        )
        return (images - mean) / std


@dataclass(frozen=True)
class Resized:
    """A picture as an image (3, H, W) in [0, 1] of exactly this ``size`` (H, W), bilinear, whatever
    its aspect: what the paper's evaluation does (224)."""

    size: tuple[int, int]

    def __call__(self, picture: Any) -> Tensor:
        """From a PIL image."""
        bilinear = needed("PIL.Image").Resampling.BILINEAR
        resized = rgb(picture.resize(self.size[::-1], bilinear))
        pixels = torch.from_numpy(np.array(resized, copy=True))
        return pixels.permute(2, 0, 1).contiguous().float().div(255)


@dataclass(frozen=True, eq=False)
class Processed:
    """A picture through a Hugging Face image processor, except for its normalisation."""

    processor: Any

    def __call__(self, picture: Any) -> Tensor:
        """(C, H, W) in [0, 1]. Raises ``InputError`` for a processor that makes something else."""
        image = self.processor(picture, do_normalize=False, return_tensors="pt")["pixel_values"][0]
        if not _is_image(image) or image.min() < 0 or image.max() > 1:
            fact = f"{type(self.processor).__name__} does not make images (C, H, W) in [0, 1]"
            then = ["transform=   # a function from a picture to (C, H, W) in [0, 1]"]
            raise InputError(f"{fact} before it normalises", then=then)
        return image


@guarded
def image_transform(source: Any) -> tuple[Transform, Normalize]:
    """``(transform, normalize)`` for evaluation: ``normalize(transform(picture))`` is the model's
    input of a PIL image, without the batch's axis.

    ``source``: a timm model (its resolved data configuration, at the size it was built for), such a
    configuration as a mapping, or a Hugging Face image processor. For timm the two compose to
    ``timm.data.create_transform(**config, is_training=False)``, to the bit. Raises ``OptionError``.
    """
    processor = getattr(source, "image_processor", source)
    if hasattr(processor, "image_mean") and hasattr(processor, "do_normalize"):
        normalises = processor.do_normalize and processor.image_mean is not None
        mean, std = (processor.image_mean, processor.image_std) if normalises else ((0.0,), (1.0,))
        return Processed(processor), Normalize(_floats(mean), _floats(std))
    of_timm = isinstance(source, nn.Module) and getattr(source, "pretrained_cfg", None)
    if isinstance(source, Mapping) or of_timm:
        return _timm_transform(source)
    then = [
        "a timm model, or timm.data.resolve_model_data_config(model)",
        "transformers.AutoImageProcessor.from_pretrained(name)",
    ]
    fact = f"{type(source).__name__} says nothing of how pictures become its images"
    raise OptionError(fact, then=then)


def _timm_transform(source: Any) -> tuple[Transform, Normalize]:
    timm = needed("timm.data", package="timm")
    config = source if isinstance(source, Mapping) else data_config(source)
    try:
        *steps, last = timm.create_transform(**config, is_training=False).transforms
    except TypeError as error:
        raise OptionError(f"timm makes no transform of {dict(config)}: {error}") from error
    if not all(hasattr(last, name) for name in ("mean", "std")):
        fact = f"timm's transform ends with {type(last).__name__}, not with a normalisation"
        raise OptionError(f"{fact}: give transform=, from a picture to (C, H, W) in [0, 1]")
    compose = needed("torchvision.transforms", package="torchvision").Compose
    return compose(steps), Normalize(_floats(last.mean), _floats(last.std))


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(v) for v in values)


def to_image(size: Size | None, transform: Transform | None) -> Transform:
    """``transform``, or the plain resize to ``size`` (224 if neither is given). Raises
    ``OptionError`` for both, and for no size."""
    if transform is not None:
        if size is not None:
            fact = "size= and transform= exclude each other: a transform decides the size"
            raise OptionError(fact)
        return transform
    sides = (SIZE, SIZE) if size is None else (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise OptionError(f"size={size!r}: pixels, or (height, width), are needed")
    return Resized((sides[0], sides[1]))


def as_image(picture: Any, transform: Transform, name: str) -> Tensor:
    """The image of a picture. Raises ``InputError`` if the transform makes anything but (C, H, W)
    of floating-point numbers in [0, 1]."""
    try:
        image = transform(picture)
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"the transform does not take this picture: {reason}", at=name) from error
    if not _is_image(image):
        tensor = isinstance(image, Tensor)
        made = f"{list(image.shape)}, {image.dtype}" if tensor else type(image).__name__
        fact = f"the transform makes {made}: floating-point images (C, H, W) are needed"
        raise InputError(fact, at=name)
    if not (image.min() >= 0 and image.max() <= 1):
        pixels = f"the transform makes pixels from {image.min():.4g} to {image.max():.4g}"
        fact = f"{pixels}: images in [0, 1], before normalisation, are needed"
        then = "transform, normalize = relprop.data.image_transform(model)   # the two apart"
        raise InputError(fact, at=name, then=[then])
    return image


def _is_image(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 3 and value.is_floating_point()
