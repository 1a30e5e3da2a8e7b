"""One picture, however it is given, in 8-bit RGB: a path, a file's bytes, a PIL image, an array."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from relprop.errors import InputError, OptionError, PictureWarning, warn

CHANNELS = (1, 2, 3, 4)
LEVELS = {
    1: "picture = (255 * np.asarray(picture)).round().astype('uint8')   # where 1.0 is white",
    255: "picture = np.asarray(picture).round().astype('uint8')   # where 255.0 is white",
}
Levels = np.ndarray[Any, Any]
_BROKEN = OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError


def is_picture(thing: Any) -> bool:
    """Whether this is a PIL image, an array (H, W), (H, W, channels) or (channels, H, W), a path or
    a file's bytes."""
    if isinstance(thing, np.ndarray):
        sides = thing.shape[::2]
        return thing.ndim == 2 or (thing.ndim == 3 and any(n in CHANNELS for n in sides))
    return is_pil(thing) or isinstance(thing, (os.PathLike, bytes, bytearray))


def as_rgb(
    thing: Any, name: str = "", *, channels: int = 3, ready: str = "", upright: bool = False
) -> Any:
    """A PIL image of what ``is_picture`` or is the name of a file, in RGB (``rgb``); of one channel
    where the model reads one. ``ready``: a call that takes ``picture``, (H, W, 3) in 0 … 1;
    ``upright``: turned as its EXIF orientation says.

    Arrays hold the levels 0 … 255, of ``uint16`` 0 … 65535, or truth values. Warns where something
    of it is not read: transparency, levels beyond 8 bits, colours of other spaces, other frames.
    Raises ``InputError`` for floating-point pixels, which processors would scale twice.
    """
    if isinstance(thing, Tensor):
        thing = thing.detach().cpu().numpy()
    if isinstance(thing, str) and not thing:
        raise InputError("the path of a picture is an empty text", at=name)
    if isinstance(thing, (str, os.PathLike)):
        return _in(read_picture(Path(thing), str(thing), upright=upright), channels)
    if isinstance(thing, (bytes, bytearray)):
        source, name = io.BytesIO(thing), name or f"{len(thing)} bytes"
        return _in(read_picture(source, name, upright=upright), channels)
    array = isinstance(thing, np.ndarray)
    if not is_picture(thing) or (array and thing.dtype.kind not in "biuf"):
        what = f"an array {list(thing.shape)} of {thing.dtype}" if array else type(thing)
        fact = f"{getattr(what, '__name__', what)} is no picture"
        then = ["a path, a file's bytes, a PIL image, or an array (H, W), (H, W, 3) of uint8"]
        raise InputError(fact, at=name, then=then)
    if not array:
        return _in(rgb(thing, name, upright=upright), channels)
    if thing.dtype.kind == "f":
        raise _floats(thing, name, ready=ready if thing.shape[-1] == 3 else "")
    return _in(_of_array(thing, name), channels)


def rgb(picture: Any, name: str = "", *, upright: bool = False) -> Any:
    """A PIL image in 8-bit RGB, as torchvision's and timm's data sets have it, and where theirs
    clips (16 bits per pixel), scaled.

    Grey levels become three equal channels; palettes their colours; transparency is left out (the
    colours beneath it show); 16-bit levels 0 … 65535 become 0 … 255; of moving pictures the one
    that is shown is taken, the first. Warns of what is lost. Raises ``InputError`` for pixels that
    are floating-point or larger: nobody knows what is white. ``upright``: turned as its EXIF
    orientation says.
    """
    from PIL import ImageOps

    mode, frames = picture.mode, getattr(picture, "n_frames", 1)
    if frames > 1:
        _say(f"frame {picture.tell() + 1} of {frames} alone is read", name)
    if upright or frames > 1:  # a copy: of a file that is closed no frame can be sought
        picture = ImageOps.exif_transpose(picture) if upright else picture.copy()
    if mode == "RGB":
        return picture
    if mode == "F":
        raise _floats(np.asarray(picture), name)
    if mode.startswith("I"):
        levels = np.array(picture)
        small = mode == "I" and levels.min() >= 0 and levels.max() <= 255
        return _of_array(levels, name) if small else _of_16_bits(levels, name)
    if mode in ("CMYK", "YCbCr", "HSV", "LAB"):
        _say(f"its colours are {mode}, and are read as RGB", name)
    if mode == "LAB":
        from PIL import ImageCms

        profiles = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(picture, *profiles, outputMode="RGB")
    if mode in ("RGBA", "RGBa", "LA", "La", "P", "PA"):
        picture = (picture.convert("LA") if mode == "La" else picture).convert("RGBA")
        if picture.getextrema()[3][0] < 255:
            _say("transparency is left out: the colours beneath it are read", name)
    return picture.convert("RGB")


def read_picture(source: Any, name: str, *, upright: bool = False) -> Any:
    """The picture in a file, in RGB (``rgb``); ``upright``: turned as its EXIF orientation says.
    Raises ``InputError`` that names it, ``OptionError`` without Pillow."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise OptionError('this data needs PIL: pip install "relprop[data]"') from None
    try:
        with Image.open(source) as picture:
            picture.load()
            return rgb(picture, name, upright=upright)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError("there is no such file", at=name) from None
    except IsADirectoryError:
        raise InputError("it is a folder, not a picture's file", at=name) from None
    except (*_BROKEN, Image.DecompressionBombError) as error:
        raise InputError(f"no picture can be read: {error}", at=name) from None


def is_pil(thing: Any) -> bool:
    """Whether this is a PIL image."""
    return hasattr(thing, "convert") and isinstance(getattr(thing, "size", None), tuple)


def _in(picture: Any, channels: int) -> Any:
    return picture.convert("L") if channels == 1 else picture


def _of_array(pixels: Levels, name: str) -> Any:
    """A PIL image of an array of whole numbers or truth values."""
    from PIL import Image

    if pixels.ndim == 3 and all(n in CHANNELS for n in (pixels.shape[0], pixels.shape[-1])):
        fact = f"an array {list(pixels.shape)}: are the channels first, or last?"
        turned = [
            (0, "picture[0]", "picture.transpose(1, 2, 0)"),
            (-1, "picture[..., 0]", "picture"),
        ]
        then = [
            f"picture = {one if pixels.shape[k] == 1 else f'PIL.Image.fromarray({several})'}"
            f"   # they are {'last' if k else 'first'}"
            for k, one, several in turned
        ]
        raise InputError(fact, at=name, then=then)
    if pixels.ndim == 3 and pixels.shape[-1] not in CHANNELS:
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    if not pixels.size:
        raise InputError(f"it has no pixels: {list(pixels.shape)}", at=name)
    if pixels.dtype == bool:
        pixels = pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype.type is np.uint16:  # in any order of bytes
        return _of_16_bits(pixels, name)
    if pixels.min() < 0 or pixels.max() > 255:
        fact = f"pixels are {pixels.dtype} from {pixels.min()} to {pixels.max()}"
        raise InputError(f"{fact}: levels 0 to 255 are known, or 0 to 65535 as uint16", at=name)
    return rgb(Image.fromarray(np.ascontiguousarray(pixels.astype(np.uint8))), name)


def _of_16_bits(levels: Levels, name: str) -> Any:
    from PIL import Image

    if levels.min() < 0 or levels.max() > 65535:
        fact = f"pixels from {levels.min()} to {levels.max()}"
        raise InputError(f"{fact}: grey levels of 16 bits, 0 to 65535, are known", at=name)
    small = np.round(levels.astype(np.int64) / 257)
    if (small * 257 != levels).any():
        _say("its levels have 16 bits, and are rounded to 8", name)
    return rgb(Image.fromarray(small.astype(np.uint8)), name)


def _floats(levels: Levels, name: str, *, ready: str = "") -> InputError:
    least, most = (levels.min(), levels.max()) if levels.size else (0, 0)
    white = next((w for w in LEVELS if least >= 0 and most <= w), 0)
    then = [LEVELS[white]] if white else ["give levels 0 … 255, as uint8"]
    fact = f"pixels are floating-point numbers from {least:.4g} to {most:.4g}"
    more = [ready] if ready and white == 1 else []
    return InputError(f"{fact}: which of them is white?", at=name, then=[*then, *more])


def _say(fact: str, name: str) -> None:
    warn(PictureWarning(f"a picture is not read as it is: {fact}", at=name))
