"""Methods at the input that compare with a baseline: by hiding a few positions at a time, or all of
it at once, difference by difference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from relprop.errors import OptionError, message, warn
from relprop.methods.base import InputValues
from relprop.methods.inputs import baselines, by_input, sums

ROUNDING = 0.01


def occlusion(
    at: InputValues, *, window: Any = None, stride: Any = None, baseline: Any = None
) -> Mapping[str, Tensor]:
    """y_t(x) − y_t(x with a window of positions replaced by the baseline), the mean over the
    windows that hide a position (Zeiler & Fergus 2014).

    ``window`` is a size, one per position axis, or a dict of these by input name; ``None``: one
    token or time step at a time; of pixels the patch that the model's first convolution cuts them
    into, if its patches do not overlap, else 8 × 8; of a raw signal 8 samples. ``stride`` likewise,
    ``None``: the window. All features of a position are hidden together and share its score evenly.
    ``baseline`` as in ``integrated_gradients``. Signed. One forward pass per window, no gradient;
    equal to Captum's ``Occlusion`` on the model itself (tests), which computes in float32.
    """
    sizes = {name: _sizes(at, name, "window", window, at.window[name]) for name in at.values}
    steps = {name: _sizes(at, name, "stride", stride, sizes[name]) for name in at.values}
    for name, value in at.values.items():
        places = tuple(value.shape[i] for i in at.positions[name])
        if any(w > n for w, n in zip(sizes[name], places, strict=True)):
            raise OptionError(
                f"window={sizes[name]} for {name!r}, which has "
                f"{' × '.join(map(str, places))} positions"
            )
        if any(s > w and w < n for s, w, n in zip(steps[name], sizes[name], places, strict=True)):
            raise OptionError(
                f"stride={steps[name]} for {name!r} is larger than window={sizes[name]}: "
                "some positions would never be hidden"
            )
    start, values = dict(zip(at.values, baselines(at, baseline), strict=True)), dict(at.values)
    y, found = at.forward(*values.values()), {}
    for name, value in at.values.items():
        total = torch.zeros_like(value, dtype=y.dtype)
        times = torch.zeros(value.shape[1:], dtype=y.dtype, device=value.device)
        for hidden in _windows(value, at.positions[name], sizes[name], steps[name]):
            without = value.clone()
            without[hidden] = start[name][hidden]
            change = y - at.forward(*(values | {name: without}).values())
            total[hidden] += change.reshape(-1, *[1] * (value.dim() - 1))
            times[hidden[1:]] += 1
        found[name] = total / times / _features(at, name)
    return found


def _windows(
    value: Tensor, axes: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]
) -> Iterator[tuple[slice, ...]]:
    """Every window as an index of ``value``; the last along an axis is cut off at its end."""
    along = {
        i: range(0, -(-(value.shape[i] - w) // s) * s + 1, s)
        for i, w, s in zip(axes, sizes, steps, strict=True)
    }
    for corner in itertools.product(*along.values()):
        spans = {
            i: slice(first, first + w) for i, first, w in zip(axes, corner, sizes, strict=True)
        }
        yield tuple(spans.get(i, slice(None)) for i in range(value.dim()))


def deeplift(at: InputValues, *, baseline: Any = None) -> Mapping[str, Tensor]:
    """m ⊙ (x − x′), m DeepLIFT's multipliers by the Rescale rule (Shrikumar et al. 2017,
    3.5.1–3.5.2). Signed.

    Complete: it sums to y_t(x) − y_t(x′), over all explained inputs together. Two forward passes
    and one backward pass per target. ``baseline`` as in ``integrated_gradients``. Products of two
    activations, and what is made of them (attention, norms), take the rules of
    ``relprop.methods.rescale``. A model with an operation that has no rule, and a callable target
    that is not linear, are refused (``OptionError``).
    """
    found, y, y0 = at.contributions(*baselines(at, baseline))
    _warn_of_rounding(found, y, y0)
    return dict(zip(at.values, found, strict=True))


def _warn_of_rounding(found: tuple[Tensor, ...], y: Tensor, y0: Tensor) -> None:
    """The rules are complete; what is missing is rounding, and said where it is more than that of
    y_t itself."""
    difference, own = (
        y.double() - y0.double(),
        16 * torch.finfo(y.dtype).eps * torch.maximum(y.abs(), y0.abs()),
    )
    summed, size = sums(found)
    gap = (summed - difference).abs()
    bad = (gap > ROUNDING * (size + difference.abs())) & (gap > own)
    if bool(bad.any()):
        worst = int((gap / (size + difference.abs())).nan_to_num().argmax())
        warn(
            message(
                f"deeplift of {int(bad.sum())} of {len(gap)} samples is off by rounding: "
                f"that of sample {worst} sums to "
                f"{float(summed[worst]):.4g}, where y_t changes by "
                f"{float(difference[worst]):.4g} from the baseline",
                then=["precision='float64'"],
            )
        )


def _sizes(
    at: InputValues, name: str, option: str, given: Any, default: tuple[int, ...]
) -> tuple[int, ...]:
    """One positive integer per position axis of an input."""
    given = by_input(at, option, given).get(name)
    if given is None:
        return default
    axes = len(at.positions[name])
    sizes = tuple(given) if isinstance(given, (tuple, list)) else (given,) * axes
    if len(sizes) != axes or not all(
        isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes
    ):
        raise OptionError(
            f"{option}={given!r} for {name!r}: a positive integer, or {axes} of them, "
            "one per axis of positions, or a dict of these by input name"
        )
    return sizes


def _features(at: InputValues, name: str) -> int:
    return math.prod(
        n for i, n in enumerate(at.values[name].shape) if i and i not in at.positions[name]
    )
