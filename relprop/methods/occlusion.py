"""Methods at the input that hide a few positions at a time behind a baseline."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from relprop.errors import OptionError
from relprop.methods.inputs import Baseline, baselines, by_input
from relprop.progress import with_progress
from relprop.runner.input_study import InputStudy

#: How many positions, or as many for each axis of positions; a dict: by input.
Size = int | Sequence[int] | Mapping[str, int | Sequence[int]] | None


def occlusion(
    at: InputStudy, *, window: Size = None, stride: Size = None, baseline: Baseline = None
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
                f"window={sizes[name]} is larger than {name!r}, which has "
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
        windows = list(_windows(value, at.positions[name], sizes[name], steps[name]))
        for hidden in with_progress(windows, "window", len(windows)):
            without = value.clone()
            without[hidden] = start[name][hidden]
            change = y - at.forward(*(values | {name: without}).values())
            total[hidden] += change.reshape(-1, *[1] * (value.dim() - 1))
            times[hidden[1:]] += 1
        features = value[0].numel() // math.prod(value.shape[i] for i in at.positions[name])
        found[name] = total / times / features
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


def _sizes(
    at: InputStudy, name: str, option: str, given: object, default: tuple[int, ...]
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
