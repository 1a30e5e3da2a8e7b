"""How long one step of an audio model's input is: found by sending clicks through the feature
extractor, whatever that does."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
from torch import Tensor

NOISES = (0.0, 1e-2)  # some extractors divide by what varies
LENGTHS = (8.0, 2.0, 0.5)  # seconds; some keep only the first few
UNLIKE = 0.8  # of two clicks, as a part of one; of clicks that have nothing in common it is 1 to 2


def measured_clock(extract: Callable[[np.ndarray], Tensor], rate: int) -> tuple[int, float] | None:
    """Which axis of the extracted features is time, and the seconds one step of it is; ``None`` if
    a click cannot be followed in them.

    ``extract`` makes features (batch first, of 1) from a recording at ``rate`` samples per second.
    Two clicks that are a whole number of steps apart look the same, as many steps apart.
    """
    for noise, seconds in product(NOISES, LENGTHS):
        count = int(rate * seconds)
        heard = _Heard(extract, count, noise)
        first, last = count // 8, count - count // 8
        early, late = heard(first), heard(last)
        if not (early.isfinite().all() and late.isfinite().all() and early.any() and late.any()):
            continue
        for axis in range(1, early.dim()):
            steps = _peak(late, axis) - _peak(early, axis)
            if steps < 2:
                continue
            likely = (last - first) / steps
            wide = math.ceil(2 * likely / steps)
            hops = [
                hop
                for hop in range(max(round(likely) - wide, 1), round(likely) + wide + 1)
                if first + steps * hop < count
            ]
            unlike = [
                float(
                    (heard(first + steps * hop).roll(-steps, axis) - early).abs().sum()
                    / early.sum()
                )
                for hop in hops[:64]
            ]
            if unlike and min(unlike) < UNLIKE:
                return axis, hops[unlike.index(min(unlike))] / rate
    return None


class _Heard:
    """What a click changes in the features of a quiet recording."""

    def __init__(self, extract: Callable[[np.ndarray], Tensor], count: int, noise: float) -> None:
        self.extract, self.quiet = (
            extract,
            noise * np.random.default_rng(0).standard_normal(count).astype(np.float32),
        )
        self.silence = self._features(self.quiet)

    def __call__(self, at: int) -> Tensor:
        sound = self.quiet.copy()
        sound[at] += 1.0
        return (self._features(sound) - self.silence).abs().double()

    def _features(self, sound: np.ndarray) -> Tensor:
        with np.errstate(all="ignore"):  # silence has no variance to divide by
            return self.extract(sound)


def _peak(seen: Tensor, axis: int) -> int:
    return int(seen.sum([i for i in range(seen.dim()) if i != axis]).argmax())
