"""Safe division, signs and thresholds, element by element."""

import math

import numpy as np
import pytest
import torch

from relprop.numerics import just_below, per_count, safe_divide, sign, smallest

FLOATS = (torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_smaller_than_the_smallest_counts_as_zero(dtype):
    least = smallest(dtype)
    below = just_below(least, dtype)
    b = torch.tensor([0.0, -0.0, below, -below, least, -least, 2.0, math.nan], dtype=dtype)
    found = safe_divide(torch.ones_like(b), b)
    assert found[:4].eq(0).all()
    assert torch.equal(found[4:7], 1 / b[4:7]) and found[7].isnan()


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_next_number_below(dtype):
    kind = np.dtype(str(dtype).removeprefix("torch.")).type
    for value in (smallest(dtype), 1.0, -1.0, 1.5, -torch.finfo(dtype).max / 4, 2.0**-40):
        assert just_below(value, dtype) == float(np.nextafter(kind(value), kind(-math.inf)))


def test_signs_and_counts():
    x = torch.tensor([-2.0, -0.0, 0.0, 3.0])
    assert sign(x).tolist() == [-1, 1, 1, 1]
    found = per_count(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0]))
    assert found.tolist() == [0.0, 0.5]
