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
        response = _ImpulseResponse(extract, count, noise)
        early, late = response(response.first), response(response.last)
        if not (early.isfinite().all() and late.isfinite().all() and early.any() and late.any()):
            continue
        for axis in range(1, early.dim()):
            steps = _peak(late, axis) - _peak(early, axis)
            if steps >= 2 and (hop := _hop(response, early, axis, steps)) is not None:
                return axis, hop / rate
    return None


def _hop(response: _ImpulseResponse, early: Tensor, axis: int, steps: int) -> int | None:
    """How many samples of the recording one step of the features is, if two clicks are ``steps``
    steps apart: that after which a click looks most like the early one."""
    likely = (response.last - response.first) / steps
    wide = math.ceil(2 * likely / steps)
    around = range(max(round(likely) - wide, 1), round(likely) + wide + 1)
    hops = [hop for hop in around if response.first + steps * hop < len(response.quiet)][:64]
    unlike = []
    for hop in hops:
        moved = response(response.first + steps * hop).roll(-steps, axis)
        unlike.append(float((moved - early).abs().sum() / early.sum()))
    if not unlike or min(unlike) >= UNLIKE:
        return None
    return hops[unlike.index(min(unlike))]


class _ImpulseResponse:
    """What a click at a sample changes in the features of a quiet recording of ``count`` samples.
    ``first``, ``last``: two samples far apart."""

    def __init__(self, extract: Callable[[np.ndarray], Tensor], count: int, noise: float) -> None:
        self.extract = extract
        self.quiet = noise * np.random.default_rng(0).standard_normal(count).astype(np.float32)
        self.first, self.last = count // 8, count - count // 8
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
