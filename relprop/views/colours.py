"""The one scale that every picture uses, and readable text on it. Made here, so that a terminal or
a web page needs no plotting library.

White is nothing; orange speaks for the target, blue against it. Each half is a path through OKLab
(Björn Ottosson, 2020), a space in which equal distances look equally different, walked at even
steps: *perceptually uniform* by construction. Lightness alone orders each half, so it keeps its
meaning for the colour-blind and in print; orange and blue are told apart by every common kind of
colour blindness.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

STEPS = 256  # of each half
FOR, AGAINST = (
    ((0.985, 0.0, 55.0), (0.82, 0.13, 60.0), (0.62, 0.19, 42.0)),
    ((0.985, 0.0, 250.0), (0.78, 0.11, 245.0), (0.55, 0.17, 260.0)),
)  # OKLab lightness, chroma, hue

DARK_FOR, DARK_AGAINST = (
    ((0.225, 0.0, 55.0), (0.5, 0.13, 48.0), (0.8, 0.15, 62.0)),
    ((0.225, 0.0, 250.0), (0.48, 0.13, 260.0), (0.78, 0.12, 245.0)),
)  # the same hues where nothing is black

Anchors = tuple[tuple[float, float, float], ...]
Colour = tuple[int, int, int]


@lru_cache(maxsize=1)
def table() -> np.ndarray:
    """The scale's colours, (512, 3), sRGB in [0, 1]: from most against (blue) over 0 (white) to
    most for (orange)."""
    return np.concatenate([_even(AGAINST, STEPS)[::-1], _even(FOR, STEPS)])


def ramps() -> dict[str, str]:
    """The scale for a page that follows its reader's light or dark theme: 511 colours of each,
    ``rrggbb`` one after another, 0 in the middle."""

    def written(above: Anchors, below: Anchors) -> str:
        whole = np.concatenate([_even(below, STEPS)[::-1], _even(above, STEPS)[1:]])
        return np.round(255 * whole).astype(np.uint8).tobytes().hex()

    return {"light": written(FOR, AGAINST), "dark": written(DARK_FOR, DARK_AGAINST)}


def colours(values: np.ndarray) -> np.ndarray:
    """sRGB of ``values``, uint8, shape (..., 3): of shares of the strongest, in [−1, 1]. Beyond,
    the last colour."""
    place = (np.nan_to_num(np.asarray(values, dtype=np.float64)).clip(-1, 1) + 1) / 2
    index = np.round(place * (2 * STEPS - 1)).astype(int)
    return np.round(255 * table()[index]).astype(np.uint8)


def shade(value: float) -> Colour:
    """The background of a word whose score is ``value`` of the strongest, in [−1, 1]: white at 0,
    orange for the target, blue against it."""
    red, green, blue = (int(c) for c in colours(np.array(value)))
    return red, green, blue


def ink(background: Colour) -> Colour:
    """Black or white, whichever has the larger contrast to ``background`` (WCAG 2.2's ratio; at
    least 4.5 for every colour there is)."""
    light = luminance(background) + 0.05
    return (0, 0, 0) if light / 0.05 >= 1.05 / light else (255, 255, 255)


def luminance(colour: Colour) -> float:
    """Relative luminance of an sRGB colour, in [0, 1] (WCAG 2.2)."""
    return float(_linear(np.array(colour) / 255) @ np.array([0.2126, 0.7152, 0.0722]))


def hexadecimal(colour: Colour) -> str:
    """``#rrggbb``."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def oklab(rgb: np.ndarray) -> np.ndarray:
    """OKLab of sRGB colours in [0, 1], both (..., 3)."""
    return np.cbrt(_linear(rgb) @ _TO_CONES.T) @ _TO_LAB.T


_TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def _even(anchors: Anchors, count: int) -> np.ndarray:
    """``count`` colours at even distances along the path through ``anchors``; what no screen shows
    is brought to the nearest it does."""
    at, fine = np.linspace(0, 1, len(anchors)), np.linspace(0, 1, 4001)
    light, chroma = (np.interp(fine, at, [a[i] for a in anchors]) for i in range(2))
    hue = np.interp(fine, at, np.rad2deg(np.unwrap(np.deg2rad([a[2] for a in anchors]))))
    lab = np.stack([light, chroma * np.cos(np.deg2rad(hue)), chroma * np.sin(np.deg2rad(hue))], -1)
    linear = (lab @ np.linalg.inv(_TO_LAB).T) ** 3 @ np.linalg.inv(_TO_CONES).T
    rgb = _gamma(linear.clip(0, 1))
    walked = np.concatenate([[0.0], np.linalg.norm(np.diff(oklab(rgb), axis=0), axis=1).cumsum()])
    steps = np.linspace(0, walked[-1], count)
    return np.stack([np.interp(steps, walked, rgb[:, i]) for i in range(3)], -1)


def _linear(rgb: np.ndarray) -> np.ndarray:
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def _gamma(linear: np.ndarray) -> np.ndarray:
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
