"""Attention in windows of a picture, however they are cut and put back."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop
from tests.common.rows import marked
from tests.rollup.test_sums_written_otherwise import METHODS, WIDTH, Half

SIDE, WINDOW = 4, 2
#: The positions of each window, one window after the other.
PLACES = torch.arange(16).view(2, 2, 2, 2).transpose(1, 2).flatten()


class Windows(nn.Module):
    """Two blocks in windows, the second of which are shifted."""

    def __init__(self, cut, put_back):
        super().__init__()
        self.cut, self.put_back = cut, put_back
        self.enter = nn.Conv2d(3, WIDTH, 2, 2)
        self.blocks, self.head = nn.ModuleList([Half(), Half()]), nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = self.enter(x).flatten(2).mT
        for block, shift in zip(self.blocks, (0, 1), strict=True):
            grid = x.unflatten(1, (SIDE, SIDE)).roll((-shift, -shift), (1, 2))
            y = self.put_back(block.attention(self.cut(grid)), len(x))
            x = x + y.unflatten(1, (SIDE, SIDE)).roll((shift, shift), (1, 2)).flatten(1, 2)
            x = x + block.mlp(x)
        return self.head(x.mean(1))


def by_axes(g):
    return g.unflatten(2, (2, 2)).unflatten(1, (2, 2)).transpose(2, 3).reshape(-1, 4, WIDTH)


def by_slices(g):
    parts = [g[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2] for i in (0, 1) for j in (0, 1)]
    return torch.stack([p.flatten(1, 2) for p in parts], 1).flatten(0, 1)


def by_columns(g):
    columns = F.unfold(g.permute(0, 3, 1, 2), 2, stride=2).view(len(g), WIDTH, 4, 4)
    return columns.permute(0, 3, 2, 1).flatten(0, 1)


def back_by_axes(y, n):
    return y.view(n, 2, 2, 2, 2, WIDTH).transpose(2, 3).reshape(n, 16, WIDTH)


def back_by_joining(y, n):
    y = y.view(n, 2, 2, 2, 2, WIDTH)
    rows = [torch.cat([y[:, i, 0], y[:, i, 1]], 2) for i in (0, 1)]
    return torch.cat(rows, 1).flatten(1, 2)


def back_by_scattering(y, n):
    whole = torch.zeros(n, 16, WIDTH, dtype=y.dtype)
    return whole.scatter(1, PLACES[:, None].expand(n, 16, WIDTH), y.reshape(n, 16, WIDTH))


WAYS = [
    (by_slices, back_by_joining),
    (by_axes, back_by_scattering),
    (by_slices, back_by_scattering),
    (by_columns, back_by_joining),
]


def explained(cut, put_back):
    torch.manual_seed(0)
    model = Windows(cut, put_back).double().eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    comparison = relprop.compare(model, x, METHODS, target=1)
    return {m: comparison[m].scores for m in METHODS}


@pytest.fixture(scope="module")
def usual():
    return explained(by_axes, back_by_axes)


@pytest.mark.parametrize(
    "way",
    marked(
        WAYS,
        ("by_slices-back_by_scattering", "by_columns-back_by_joining"),
        lambda way: "-".join(part.__name__ for part in way),
    ),
)
def test_the_windows_are_the_same(way, usual):
    for method, found in explained(*way).items():
        wanted = usual[method]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9 * float(wanted.abs().max()))
