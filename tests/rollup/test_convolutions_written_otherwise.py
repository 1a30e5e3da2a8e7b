"""A convolution over tokens, however it is written: windows, slices side by side."""

import pytest
import torch
from torch.nn import functional as F

from tests.rollup.test_sums_written_otherwise import TOKENS, WIDTH, explained


def kernels(m, *shape):
    """Some numbers of the model's, as kernels for three classes."""
    size = torch.Size(shape).numel()
    return m.both.weight.repeat(1, 3)[:, :size].reshape(3, *shape)


def convolved(m, x):
    return F.conv1d(m.blocks[0](x).mT, kernels(m, WIDTH, 3), m.head.bias).mean(-1)


def unfolded(m, x):
    windows = m.blocks[0](x).unfold(1, 3, 1).flatten(2)
    return F.linear(windows, kernels(m, WIDTH * 3), m.head.bias).mean(1)


def slices_joined(m, x):
    x, kernel = m.blocks[0](x), kernels(m, WIDTH, 3).permute(0, 2, 1).flatten(1)
    beside = torch.cat([x[:, i : TOKENS - 2 + i] for i in range(3)], -1)
    return F.linear(beside, kernel, m.head.bias).mean(1)


SAME = {
    convolved: [unfolded, slices_joined],
}
PAIRS = [(way, reference) for reference, ways in SAME.items() for way in ways]


@pytest.fixture(scope="module")
def usual():
    return {way: explained(way) for way in SAME}


@pytest.mark.parametrize(("way", "reference"), PAIRS, ids=[f.__name__ for f, _ in PAIRS])
def test_the_convolution_is_the_same(way, reference, usual):
    for method, found in explained(way).items():
        wanted = usual[reference][method]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9 * float(wanted.abs().max()))
