"""Tokens on a grid: shifted windows, patch merging, keys reduced or pooled before they are attended
to, chunks and bands of keys."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.rollup.hand import SAMPLES, Layer, compare, explained, eye, normal
from tests.rollup.structures import HEADS, WIDTH, Mlp, merged, split

GRID, WINDOW = 4, 2


def cells(side, window=WINDOW, shift=0):
    """The flat positions of each window of a ``side`` × ``side`` grid that was rolled by −shift,
    (windows, positions)."""
    grid = torch.arange(side * side).reshape(side, side).roll((-shift, -shift), (0, 1))
    return (
        grid.reshape(side // window, window, side // window, window)
        .transpose(1, 2)
        .reshape(-1, window * window)
    )


def scattered(m, queries, keys, size):
    """Σ of windows' matrices, each at its positions: m (batch, windows, q, k), queries and keys
    (windows, positions)."""
    whole = torch.zeros(len(m), size[0], size[1], dtype=m.dtype)
    for w in range(len(queries)):
        for a, q in enumerate(queries[w].tolist()):
            for b, k in enumerate(keys[w].tolist()):
                whole[:, q, k] += m[:, w, a, b]
    return whole


def merging(side, k=2):
    """Each token of the smaller grid is 1/k² of the k × k it was made of."""
    out = side // k
    whole = torch.zeros(out * out, side * side, dtype=torch.float64)
    for r in range(side):
        for c in range(side):
            whole[r // k * out + c // k, r * side + c] = 1 / k**2
    return whole


class WindowAttention(nn.Module):
    """Swin's: relative position bias, a mask between regions that the cyclic shift brought
    together."""

    def __init__(self, width, side, shift):
        super().__init__()
        self.qkv, self.out, self.side, self.shift = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            side,
            shift,
        )
        self.table = nn.Parameter(torch.randn((2 * WINDOW - 1) ** 2, HEADS))
        y, x = torch.meshgrid(torch.arange(WINDOW), torch.arange(WINDOW), indexing="ij")
        at = torch.stack([y.flatten(), x.flatten()])
        relative = at[:, :, None] - at[:, None] + WINDOW - 1
        self.register_buffer("index", relative[0] * (2 * WINDOW - 1) + relative[1])
        region = torch.zeros(side, side)
        for count, (rows, columns) in enumerate((r, c) for r in self.parts() for c in self.parts()):
            region[rows, columns] = count
        region = region.reshape(-1)[cells(side)]
        self.register_buffer(
            "mask",
            torch.where(region[:, None] != region[:, :, None], -100.0, 0.0) if shift else None,
        )

    def parts(self):
        return slice(0, -WINDOW), slice(-WINDOW, -1), slice(-1, None)

    def forward(self, x):
        b, c, s = len(x), x.shape[-1], self.side // WINDOW
        x = x.reshape(b, self.side, self.side, c)
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        x = (
            x.view(b, s, WINDOW, s, WINDOW, c)
            .permute(0, 1, 3, 2, 4, 5)
            .contiguous()
            .view(-1, WINDOW * WINDOW, c)
        )
        q, k, v = self.qkv(x).reshape(len(x), WINDOW * WINDOW, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT + self.table[self.index.reshape(-1)].view(
            WINDOW**2, WINDOW**2, -1
        ).permute(2, 0, 1).unsqueeze(0)
        if self.shift:
            scores = (
                scores.view(b, -1, HEADS, WINDOW**2, WINDOW**2) + self.mask[None, :, None]
            ).view(-1, HEADS, WINDOW**2, WINDOW**2)
        x = self.out(merged(scores.softmax(-1) @ v))
        x = (
            x.view(b, s, s, WINDOW, WINDOW, c)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(b, self.side, self.side, c)
        )
        if self.shift:
            x = torch.roll(x, (self.shift, self.shift), (1, 2))
        return x.reshape(b, -1, c)


class SwinLayer(nn.Module):
    def __init__(self, width, side, shift, post):
        super().__init__()
        self.attention, self.norm1, self.norm2, self.post = (
            WindowAttention(width, side, shift),
            nn.LayerNorm(width),
            nn.LayerNorm(width),
            post,
        )
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x):
        if self.post:
            x = x + self.norm1(self.attention(x))
            return x + self.norm2(self.mlp(x))
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    def __init__(self, width, side, form):
        super().__init__()
        self.norm, self.reduce, self.side, self.form = (
            nn.LayerNorm(4 * width),
            nn.Linear(4 * width, 2 * width, bias=False),
            side,
            form,
        )

    def forward(self, x):
        b, s, c = len(x), self.side, x.shape[-1]
        x = x.view(b, s, s, c)
        if self.form == "slices":
            x = torch.cat([x[:, i::2, j::2] for j in range(2) for i in range(2)], -1).view(
                b, -1, 4 * c
            )
        elif self.form == "reshape":
            x = (
                x.reshape(b, s // 2, 2, s // 2, 2, c)
                .permute(0, 1, 3, 4, 2, 5)
                .flatten(3)
                .flatten(1, 2)
            )
        else:
            x = F.unfold(x.permute(0, 3, 1, 2), 2, stride=2).mT
        return self.reduce(self.norm(x))


class Swin(nn.Module):
    def __init__(self, form="slices", post=False):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 2, 2)
        self.stages = nn.Sequential(
            SwinLayer(WIDTH, GRID, 0, post),
            SwinLayer(WIDTH, GRID, 1, post),
            PatchMerging(WIDTH, GRID, form),
            SwinLayer(2 * WIDTH, GRID // 2, 0, post),
            SwinLayer(2 * WIDTH, GRID // 2, 0, post),
        )
        self.norm, self.head = nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, 4)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(
            F.adaptive_avg_pool1d(self.norm(self.stages(x)).transpose(1, 2), 1).flatten(1)
        )


def windowed(m, side, shift):
    """I + the windows' matrices at their places."""
    at = cells(side, shift=shift)
    return eye(side * side).double() + scattered(m, at, at, (side * side,) * 2)


@pytest.mark.parametrize(
    ("form", "post"),
    [
        ("slices", True),
        ("reshape", False),
        pytest.param("slices", False, marks=pytest.mark.slow),
        pytest.param("unfold", False, marks=pytest.mark.slow),
    ],
)
def test_shifted_windows_and_patch_merging(form, post):
    e = explained(Swin(form, post), normal(SAMPLES, 3, 2 * GRID, 2 * GRID))
    assert e.grid == (GRID, GRID)
    small = (GRID // 2) ** 2

    def product(m1, m2, m3, m4):
        first = windowed(m2, GRID, 1) @ windowed(m1, GRID, 0)
        last = windowed(m4.reshape(SAMPLES, 1, small, small), GRID // 2, 0) @ windowed(
            m3.reshape(SAMPLES, 1, small, small), GRID // 2, 0
        )
        return last @ merging(GRID) @ first

    compare(
        e,
        product,
        torch.ones(small) / small,
        heads=[2 if e.blocks[0].attention.dim() == 5 else 1] * 2
        + [e.blocks[2].attention.dim() - 3] * 2,
    )


class Reduced(nn.Module):
    """PVT: keys and values of a grid made smaller by ``reduce``, before or after the projection."""

    def __init__(self, reduce):
        super().__init__()
        self.q, self.kv, self.out, self.norm, self.reduce = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.LayerNorm(WIDTH),
            reduce,
        )

    def forward(self, x):
        grid = x.mT.reshape(len(x), WIDTH, GRID, GRID)
        small = self.norm(self.reduce(grid).reshape(len(x), WIDTH, -1).mT)
        k, v = self.kv(small).reshape(len(x), -1, 2, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        return self.out(merged((split(self.q(x)) @ k.mT).softmax(-1) @ v))


class Grid(nn.Module):
    """Patches of an image, layers on them, their mean."""

    def __init__(self, *layers):
        super().__init__()
        self.patches, self.layers, self.norm, self.head = (
            nn.Conv2d(3, WIDTH, 2, 2),
            nn.Sequential(*layers),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4),
        )

    def forward(self, x):
        return self.head(self.norm(self.layers(self.patches(x).flatten(2).mT)).mean(1))


REDUCTIONS = {
    "strided convolution": lambda: nn.Conv2d(WIDTH, WIDTH, 2, 2),
    "depthwise": lambda: nn.Conv2d(WIDTH, WIDTH, 2, 2, groups=WIDTH),
    "average": lambda: nn.AvgPool2d(2),
    "adaptive": lambda: nn.Sequential(
        nn.AdaptiveAvgPool2d(2), nn.Conv2d(WIDTH, WIDTH, 1), nn.GELU()
    ),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_keys_reduced_in_space(name):
    """Ā is I + M·P: the (16, 4) map times the (4, 16) matrix that merges 2 × 2 tokens."""
    e = explained(
        Grid(*(Layer(lambda: Reduced(REDUCTIONS[name]())) for _ in range(2))),
        normal(SAMPLES, 3, 8, 8),
    )
    i, p = eye(GRID**2).double(), merging(GRID)
    compare(e, lambda m1, m2: (i + m2 @ p) @ (i + m1 @ p), torch.ones(GRID**2) / GRID**2)


def test_keys_reduced_by_overlapping_windows():
    """A 3 × 3 convolution with stride 2 and padding: each key is the mean of the positions that lie
    inside the grid."""
    e = explained(
        Grid(Layer(lambda: Reduced(nn.Conv2d(WIDTH, WIDTH, 3, 2, 1))), Layer()),
        normal(SAMPLES, 3, 8, 8),
    )
    p = torch.zeros(4, 4, 4, 4).double()
    for r in range(2):
        for c in range(2):
            rows, columns = (
                [k for k in range(2 * r - 1, 2 * r + 2) if k >= 0],
                [k for k in range(2 * c - 1, 2 * c + 2) if k >= 0],
            )
            for y in rows:
                for x in columns:
                    p[r, c, y, x] = 1 / (len(rows) * len(columns))
    p, i = p[:2, :2].reshape(4, 16), eye(16).double()
    compare(e, lambda m1, m2: (i + m2) @ (i + m1 @ p), torch.ones(16) / 16)


class Pooling(nn.Module):
    """MViT: q, k and v pooled after the projection by a depthwise convolution; the skip by max
    pooling; q added to what is attended."""

    def __init__(self, side, residual, skip):
        super().__init__()
        self.side, self.residual, self.skip = side, residual, skip
        self.qkv, self.out, self.norm = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.LayerNorm(WIDTH),
        )
        self.pools = nn.ModuleList(
            nn.Conv2d(WIDTH // HEADS, WIDTH // HEADS, 2, 2, groups=WIDTH // HEADS, bias=False)
            for _ in range(3)
        )
        self.mlp = Mlp()

    def pool(self, x, pool):
        grid = x.reshape(-1, self.side, self.side, WIDTH // HEADS).permute(0, 3, 1, 2)
        grid = pool(grid)
        return grid.reshape(-1, HEADS, WIDTH // HEADS, (self.side // 2) ** 2).mT

    def forward(self, x):
        n = self.norm(x)
        q, k, v = (
            self.pool(t, p)
            for t, p in zip(
                self.qkv(n).reshape(len(x), -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4),
                self.pools,
                strict=True,
            )
        )
        y = F.scaled_dot_product_attention(q, k, v)
        if self.residual:
            y = y + q
        grid = x.mT.reshape(len(x), WIDTH, self.side, self.side)
        short = (F.max_pool2d if self.skip == "max" else F.avg_pool2d)(grid, 2).flatten(2).mT
        x = short + self.out(merged(y))
        return x + self.mlp(x)


@pytest.mark.parametrize("residual", [False, True])
def test_pooling_attention_with_a_pooled_skip(residual):
    """The skip is pooled evenly: Ā is P + M·P, whatever else is pooled; the pooled queries added
    inside the branch carry no second identity."""
    e = explained(
        Grid(Layer(), Pooling(GRID, residual, "average"), Layer()), normal(SAMPLES, 3, 8, 8)
    )
    p, small, big = merging(GRID), eye(4).double(), eye(16).double()
    compare(e, lambda m1, m2, m3: (small + m3) @ (p + m2 @ p) @ (big + m1), torch.ones(4) / 4)


def test_a_skip_pooled_by_its_maximum():
    """The identity of a channel stays with the position that won: the mean over channels of where
    each maximum was."""
    model, x = Grid(Layer(), Pooling(GRID, False, "max"), Layer()), normal(SAMPLES, 3, 8, 8)
    e = explained(model, x)
    with torch.no_grad():
        y = model.layers[0](model.patches(x).flatten(2).mT)
    _, at = F.max_pool2d(y.mT.reshape(SAMPLES, WIDTH, GRID, GRID), 2, return_indices=True)
    won = F.one_hot(at.flatten(2), 16).double().mean(1)
    p, small, big = merging(GRID), eye(4).double(), eye(16).double()
    compare(e, lambda m1, m2, m3: (small + m3) @ (won + m2 @ p) @ (big + m1), torch.ones(4) / 4)
