"""Hypothesis strategies for tensors and shapes: signs, exact zeros, denormals, cancelling and huge
values.

Ordinary values are small multiples of 1/4, so sums and products of a few are exact in any order: a
denominator that cancels is exactly zero for a rule and for its oracle alike, and one that does not
is never mere rounding noise.
"""

import torch
from hypothesis import strategies as st

GRID = [k / 4 for k in range(-8, 9)]
TINY = {
    torch.float64: [5e-324, -5e-324, 1e-310, -1e-300],
    torch.float32: [1e-45, -1e-45, 1e-40, -1e-38],
}
HUGE = {torch.float64: [1e140, -1e140, 3e139], torch.float32: [1e16, -1e16, 3e15]}


def elements(kind="grid", dtype=torch.float64):
    """One value. ``grid``: ordinary; ``tiny`` and ``huge``: with those among them; ``negative``:
    all below zero."""
    extra = {"tiny": TINY[dtype], "huge": HUGE[dtype]}.get(kind, [])
    values = [v for v in GRID if v < 0] if kind == "negative" else [*GRID, 0.0, -0.0, *extra]
    return st.sampled_from(values)


KINDS = ("grid", "grid", "tiny", "negative")


@st.composite
def tensors(draw, shape, kind="grid", dtype=torch.float64):
    """A tensor of this shape."""
    count = torch.Size(shape).numel()
    values = draw(st.lists(elements(kind, dtype), min_size=count, max_size=count))
    return torch.tensor(values, dtype=dtype).reshape(shape)


@st.composite
def filled(draw, spec, kinds=KINDS, dtype=torch.float64, batch=None):
    """Tensors for the holes of a ``Spec``, each of its own kind; with ``batch``, activations get
    that many samples in front."""
    result = []
    for hole, role in zip(spec.holes, spec.hole_roles, strict=True):
        shape = (batch, *hole.shape) if batch and role == "a" else hole.shape
        x = draw(tensors(shape, draw(st.sampled_from(kinds)), dtype))
        result.append(torch.where(x.abs() < 0.1, 1.0, x) if hole.nonzero else x)
    return result


def sizes(low=1, high=3):
    return st.integers(low, high)


def shapes(low=1, high=3, longest=3):
    """A shape of ``low`` to ``high`` dimensions."""
    return st.lists(sizes(1, longest), min_size=low, max_size=high).map(tuple)


@st.composite
def broadcastable(draw, count=2):
    """``count`` shapes that broadcast together, the first of the full number of dimensions."""
    full = draw(shapes(1, 3))
    result = []
    for i in range(count):
        shape = tuple(1 if draw(st.booleans()) and draw(st.booleans()) else n for n in full)
        result.append(shape if i == 0 else shape[draw(st.integers(0, len(full) - 1)) :])
    return result
