"""A map and the picture that lies under it: which picture, from the forms in which people have it,
and where the map lies on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from relprop.adapters.pictures import Original, thumbnail
from relprop.errors import InputError, OptionError
from relprop.views.colours import colours
from relprop.views.heat import original_heatmap
from relprop.views.regions import single_pixels
from relprop.views.shown import only

if TYPE_CHECKING:
    from relprop.explanation import Explanation, TokenScores

STRONGEST = 0.9  # the opacity of the strongest score over a picture; half its strength has 0.5


def heatmap_and_image(
    explanation: Explanation, sample: int, image: Any
) -> tuple[Tensor, np.ndarray | None]:
    """One sample's map (H, W), and the picture under it, (H, W) or (H, W, channels) in [0, 1].

    Of a spectrogram time runs to the right and pitch upwards. ``image``: the model's own image or
    the picture it was made from, by their sizes; of one size for both, a PIL picture and one like
    that which was kept is the latter. ``None``: the picture that was kept, if one was; ``False``:
    none. Raises ``InputError`` for an image of another size.
    """
    stream = only(explanation, "heatmap()")
    _refuse_no_picture(stream)
    kept = None if stream.originals is None else stream.originals[sample].picture
    if image is None and kept is not None:
        return original_heatmap(stream, sample, (kept.shape[1], kept.shape[2])), pixels(kept)
    shown = None if image is None or image is False else pixels(image)
    if shown is not None and is_original(image, shown.shape[:2], stream, sample):
        return original_heatmap(stream, sample).detach().cpu(), shown
    under = None if shown is None else turned(torch.tensor(shown), stream).numpy()
    return turned(explanation.heatmap()[sample].detach().cpu(), stream), under


def turned(values: Tensor, stream: TokenScores) -> Tensor:
    """A map or a picture as it is looked at: of a spectrogram time to the right, pitch upwards."""
    if stream.clock is None:
        return values
    return (values.transpose(0, 1) if stream.clock[0] == 0 else values).flip(0)


def full_colour(heat: Tensor, stream: TokenScores) -> float:
    """The |score| that has the strongest colour: the map's largest; where every pixel has a score,
    that which one in a hundred exceeds, since a few pixels would leave all others without colour.
    """
    sizes = heat.detach().abs().double().flatten().cpu()
    largest = float(sizes.max())
    if not single_pixels(stream):
        return largest or 1.0
    rank = max(1, round(0.99 * len(sizes)))
    return float(sizes.kthvalue(rank).values) or largest or 1.0


def is_original(image: Any, size: tuple[int, ...], stream: TokenScores, sample: int) -> bool:
    """Whether an image of that ``size`` is the picture that was given, else the model's own image.
    Raises ``InputError`` if it has the size of neither."""
    original = None if stream.originals is None else stream.originals[sample]
    if original is None or size != original.size:
        if size != stream.image:
            raise _no_known_size(size, original, stream.image)
        return False
    return size != stream.image or hasattr(image, "convert") or _is_like(image, original.picture)


def _is_like(image: Any, kept: Tensor | None) -> bool:
    """Whether an array is the picture of which this one was kept."""
    small = None if isinstance(image, Tensor) else thumbnail(image)
    if kept is None or small is None or small.shape != kept.shape:
        return False
    return bool(((small.int() - kept.int()).abs() <= 2).all())


def _no_known_size(size: Any, original: Original | None, own: Any) -> InputError:
    """Where on such an image the map lies nobody knows."""

    def written(pixels: Any) -> str:
        return f"{pixels[0]}×{pixels[1]}"

    fact = f"image has {written(size)} pixels (height × width), and the model saw {written(own)}"
    if original is not None:
        fact += f", made from a picture of {written(original.size)}"
    then = ["give the model's own image, undoing its normalisation: image * std + mean"]
    if original is None:
        then.append("relprop.explain(model, picture, processor=...) knows where its picture lies")
    return InputError(fact, then=then)


def _refuse_no_picture(stream: TokenScores) -> None:
    if stream.grid is None or stream.image is None:
        raise OptionError(
            "heatmap() is for images: this explanation has no patch grid",
            then=["relprop.plot.text(explanation)", "explanation.plot()"],
        )
    if len(stream.grid) != 2:
        raise OptionError(
            f"heatmap() is for one picture: this explanation's grid is {stream.grid}",
            then=["explanation.picture(0).heatmap()", "explanation.plot()   # a map for each"],
        )


def grey(picture: np.ndarray) -> np.ndarray:
    """A picture without its colours, (H, W), so that those of the map are the only ones."""
    if picture.ndim == 2:
        return picture
    return picture[..., :3] @ np.array([0.299, 0.587, 0.114])


def opacity(shares: np.ndarray) -> np.ndarray:
    """How much of a picture shares of the strongest score, in [−1, 1], hide."""
    return STRONGEST * np.abs(shares).clip(0, 1) ** 0.8


def blended(shares: np.ndarray, picture: np.ndarray | None) -> np.ndarray:
    """Bytes (H, W, 3) of a map of shares of the strongest, over its picture if there is one."""
    ground = colours(shares)
    if picture is None:
        return ground
    part = opacity(shares)[..., None]
    mixed = part * ground + (1 - part) * 255 * grey(picture)[..., None]
    return mixed.round().astype(np.uint8)


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
    return found.clamp(0, 1).numpy()


def _numbers(image: Any) -> Tensor:
    """The image's values, bytes as shares of 255."""
    array = image.detach().cpu() if isinstance(image, Tensor) else np.array(image)
    if isinstance(array, np.ndarray) and array.dtype.kind not in "buif":
        then = ["give a PIL picture, an array or a tensor"]
        raise InputError(f"image is {type(image).__name__}, no picture", then=then)
    found = torch.as_tensor(array)
    return found.float() / 255 if found.dtype == torch.uint8 else found.float()


def _channels_last(found: Tensor, channels_come_first: bool) -> Tensor:
    """(H, W) for one channel, else (H, W, channels). An array whose first and last axis may both be
    the channels has them last, a tensor first."""
    first = found.dim() == 3 and found.shape[0] in (1, 3, 4)
    if first and (channels_come_first or found.shape[2] not in (1, 3, 4)):
        found = found[0] if found.shape[0] == 1 else found.movedim(0, -1)
    return found[..., 0] if found.dim() == 3 and found.shape[2] == 1 else found
