"""A map and the picture that lies under it: which picture, and where the map lies on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from relprop.adapters.pictures import Original, thumbnail
from relprop.errors import InputError, OptionError
from relprop.views.colours import colours
from relprop.views.heat import original_heatmap
from relprop.views.pixels import pixels
from relprop.views.regions import single_pixels
from relprop.views.shown import only

if TYPE_CHECKING:
    from relprop.explanation import Explanation, TokenScores

STRONGEST = 0.9  # the opacity of the strongest score over a picture; half its strength has 0.5


def laid(explanation: Explanation, sample: int, image: Any) -> tuple[Tensor, np.ndarray | None]:
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
    if image is None or image is False:
        return turned(explanation.heatmap()[sample].detach().cpu(), stream), None
    shown = pixels(image)
    if is_original(image, shown.shape[:2], stream, sample):
        return original_heatmap(stream, sample).detach().cpu(), shown
    under = turned(torch.tensor(shown), stream).numpy()
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
    found: np.ndarray = picture[..., :3] @ np.array([0.299, 0.587, 0.114])
    return found


def opacity(shares: np.ndarray) -> np.ndarray:
    """How much of a picture shares of the strongest score, in [−1, 1], hide."""
    found: np.ndarray = STRONGEST * np.abs(shares).clip(0, 1) ** 0.8
    return found


def blended(shares: np.ndarray, picture: np.ndarray | None) -> np.ndarray:
    """Bytes (H, W, 3) of a map of shares of the strongest, over its picture if there is one."""
    ground = colours(shares)
    if picture is None:
        return ground
    part = opacity(shares)[..., None]
    mixed: np.ndarray = part * ground + (1 - part) * 255 * grey(picture)[..., None]
    return mixed.round().astype(np.uint8)
