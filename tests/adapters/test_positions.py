"""Where tokens came from, against what autograd says a stem's outputs depend on: strides, padding,
pools, folded patches, gates, shuffles."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import relprop
from tests.common.rows import only


class Classifier(nn.Module):
    """A stem that makes (batch, channels, *places), attention over the places, a mean and a
    head."""

    def __init__(self, stem: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.stem, self.attention, self.head = (
            stem,
            nn.MultiheadAttention(width, 2, batch_first=True),
            nn.Linear(width, 3),
        )

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head((x + self.attention(x, x, x)[0]).mean(1))


def reached(stem: nn.Module, x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """(places, axes, 2): which input positions each place of the stem's output depends on, by
    autograd through positive weights."""
    with torch.no_grad():
        for p in stem.parameters():
            p.copy_(p.abs() + 0.1)
    x = torch.rand_like(x).add(1).requires_grad_()
    places = stem(x).flatten(2).sum(1)[0]
    found = []
    for place in places:
        gradient = torch.autograd.grad(place, x, retain_graph=True)[0][0].abs() > 1e-12
        hit = [
            gradient.any(dim=tuple(i for i in range(gradient.dim()) if i != axis - 1)).nonzero()
            for axis in axes
        ]
        found.append([[int(h.min()), int(h.max()) + 1] for h in hit])
    return torch.tensor(found, dtype=torch.float64)


def spans_of(stem: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The spans of the explanation, inside the input."""
    e = relprop.explain(Classifier(stem).double().eval(), x, 1)
    length = torch.tensor(e.streams[e.stream].extent, dtype=torch.float64)
    return e.spans.clamp(min=0).minimum(length[:, None])


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2)),
        min_size=1,
        max_size=3,
    ),
    st.integers(20, 40),
)
@settings(max_examples=settings.default.max_examples // 5)
def test_spans_of_convolutions_are_their_receptive_fields(layers, length):
    sizes, size = [], length
    for kernel, stride, padding, dilation in layers:
        assume(padding <= (kernel - 1) // 2 and (padding == 0 or dilation == 1))
        assume(
            stride <= kernel
        )  # where pixels are passed over, padding is counted in steps of them
        size = (size + 2 * padding - (kernel - 1) * dilation - 1) // stride + 1
        sizes.append(size)
    assume(min(sizes) >= 2)
    channels = [2] + [8] * len(layers)
    stem = nn.Sequential(
        *(
            nn.Conv1d(a, b, *layer)
            for a, b, layer in zip(channels, channels[1:], layers, strict=False)
        )
    ).double()
    x = torch.randn(1, 2, length, dtype=torch.float64)
    torch.testing.assert_close(spans_of(stem, x), reached(stem, x, (2,)))


class Folded(nn.Module):
    """Patches by reshaping, in rows or in columns."""

    def __init__(self, columns: bool) -> None:
        super().__init__()
        self.columns, self.embed = columns, nn.Linear(3 * 16, 8)

    def forward(self, x):
        b, c, h, w = x.shape
        x = x.reshape(b, c, h // 4, 4, w // 4, 4)
        x = x.permute(0, 4, 2, 1, 3, 5) if self.columns else x.permute(0, 2, 4, 1, 3, 5)
        return self.embed(x.flatten(3)).permute(0, 3, 1, 2)


class Gated(nn.Module):
    """A gate made from the whole image beside patches of it."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.gate = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 8)

    def forward(self, x):
        x = self.patches(x)
        return x * self.gate(x.mean((2, 3))).sigmoid()[:, :, None, None]


class Beside(nn.Module):
    """Patches plus a convolution over them that adds where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.where = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 5, 1, 2, groups=8)

    def forward(self, x):
        x = self.patches(x)
        return x + self.where(x)


class Residual(nn.Module):
    """Two ways of the same stride, one wider than the other."""

    def __init__(self) -> None:
        super().__init__()
        self.short, self.long = (
            nn.Conv2d(3, 8, 1, 4),
            nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1)),
        )

    def forward(self, x):
        return self.short(x) + self.long(x)


class Sliced(nn.Module):
    """Every second row and column to channels, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(12, 8, 1), nn.Conv2d(32, 8, 1)

    def forward(self, x):
        for layer in (self.first, self.second):
            x = layer(
                torch.cat(
                    [
                        x[:, :, ::2, ::2],
                        x[:, :, 1::2, ::2],
                        x[:, :, ::2, 1::2],
                        x[:, :, 1::2, 1::2],
                    ],
                    1,
                )
            )
        return x


class Unfolded(nn.Module):
    """Overlapping windows by ``nn.Unfold``."""

    def __init__(self) -> None:
        super().__init__()
        self.windows, self.embed = nn.Unfold(4, padding=1, stride=3), nn.Linear(48, 8)

    def forward(self, x):
        return self.embed(self.windows(x).transpose(1, 2)).transpose(1, 2)


class Cut(nn.Module):
    """``Tensor.unfold`` along both axes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(48, 8)

    def forward(self, x):
        return self.embed(
            x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3)
        ).permute(0, 3, 1, 2)


STEMS = {
    "patches": (lambda: nn.Conv2d(3, 8, 4, 4), None),
    "overlapping patches": (lambda: nn.Conv2d(3, 8, 7, 4, 3), None),
    "padded to a multiple": (
        lambda: nn.Sequential(nn.ZeroPad2d((0, 2, 0, 1)), nn.Conv2d(3, 8, 4, 4)),
        None,
    ),
    "cropped": (lambda: nn.Sequential(nn.ZeroPad2d(-2), nn.Conv2d(3, 8, 4, 4)), None),
    "pools": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2)),
        nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(2)),
    ),
    "adaptive pool": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.AdaptiveAvgPool2d((3, 5))),
        None,
    ),
    "norms and activations": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.GELU(), nn.GroupNorm(2, 8)
        ),
        nn.Conv2d(3, 8, 4, 4),
    ),
    "folded": (lambda: Folded(False), None),
    "folded in columns": (lambda: Folded(True), None),
    "gate from everything": (Gated, nn.Conv2d(3, 8, 4, 4)),
    "convolution beside": (Beside, nn.Conv2d(3, 8, 4, 4)),
    "residual": (Residual, None),
    "slices to channels": (Sliced, None),
    "nn.Unfold": (Unfolded, None),
    "Tensor.unfold": (Cut, None),
    "pixel_unshuffle": (lambda: nn.Sequential(nn.PixelUnshuffle(4), nn.Conv2d(48, 8, 1)), None),
}


@pytest.mark.parametrize("name", only(list(STEMS)[1::2], STEMS))
def test_spans_and_grid_of_image_stems(name):
    make, alike = STEMS[name]
    torch.manual_seed(1)
    stem, x = make().double(), torch.randn(1, 3, 20, 24, dtype=torch.float64)
    alike = stem if alike is None else alike.double()
    e = relprop.explain(Classifier(stem).double().eval(), x, 1)
    expected = reached(alike, x, (2, 3))
    inside = e.spans.clamp(min=0).minimum(torch.tensor([[20.0], [24.0]], dtype=torch.float64))
    torch.testing.assert_close(inside, expected)
    rows, columns = (expected[:, k, 0].unique() for k in (0, 1))
    assert e.grid == (len(rows), len(columns)) and e.image == (20, 24)
    places = [
        int((rows == a).nonzero()) * len(columns) + int((columns == b).nonzero())
        for a, b in expected[:, :, 0].tolist()
    ]
    assert e.source.tolist() == places


@pytest.mark.parametrize(
    ("size", "grid"), [((4, 24), (1, 6)), ((20, 4), (5, 1))], ids=["one row", "one column"]
)
def test_images_of_one_row_or_column_are_images(size, grid):
    stem = nn.Conv2d(3, 8, 4, 4)
    e = relprop.explain(
        Classifier(stem).double().eval(), torch.randn(2, 3, *size, dtype=torch.float64), 1
    )
    assert (e.grid, e.image) == (grid, size) and e.heatmap().shape == (2, *size)
    assert e.spans[-1].tolist() == [[size[0] - 4, size[0]], [size[1] - 4, size[1]]]


def test_a_video_has_a_grid_with_time():
    stem = nn.Conv3d(3, 8, (2, 4, 4), (2, 4, 4))
    e = relprop.explain(
        Classifier(stem).double().eval(), torch.randn(2, 3, 4, 8, 12, dtype=torch.float64), 1
    )
    assert (e.grid, e.image) == ((2, 2, 3), (4, 8, 12))
    assert e.spans[7].tolist() == [[2, 4], [0, 4], [4, 8]] and e.heatmap().shape == (2, 4, 8, 12)
    assert e.plot().axes[0].get_title().endswith("1 of 2")


def test_patches_of_nothing_but_padding_are_no_content():
    stem = nn.Sequential(nn.ZeroPad2d((0, 7, 0, 0)), nn.Conv2d(3, 8, 4, 4))
    e = relprop.explain(
        Classifier(stem).double().eval(), torch.randn(1, 3, 8, 9, dtype=torch.float64), 1
    )
    assert e.grid == (2, 4)
    assert e.content.reshape(2, 4).tolist() == [[True, True, True, False]] * 2


class Shuffled(nn.Module):
    """Patches in the order of their brightness."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.attention, self.head = (
            nn.Conv2d(3, 8, 4, 4),
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Linear(8, 3),
        )

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        order = F.avg_pool2d(image.mean(1), 4).flatten(1).argsort(1)
        x = x.gather(1, order[:, :, None].expand_as(x))
        return self.head((x + self.attention(x, x, x)[0]).mean(1))


class InOrder(Shuffled):
    """The same without the shuffling, which attention and mean do not see."""

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        return self.head((x + self.attention(x, x, x)[0]).mean(1))


@pytest.mark.parametrize("batch_size", [None, 1])
def test_tokens_that_are_shuffled_by_values_come_back_in_order(batch_size):
    """A layout cannot undo an order that differs from sample to sample: the token tensor is the one
    before the pick."""
    model, images = Shuffled().double().eval(), torch.randn(3, 3, 8, 12, dtype=torch.float64)
    straight = InOrder().double().eval()
    straight.load_state_dict(model.state_dict())
    mine = relprop.explain(model, images, 1, batch_size=batch_size)
    expected = relprop.explain(straight, images, 1)
    assert mine.grid == (2, 3) and mine.source.tolist() == list(range(6))
    torch.testing.assert_close(mine.scores, expected.scores, rtol=1e-9, atol=1e-12)


def test_what_no_op_explains_is_numbered_as_it_comes():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mix = nn.Conv1d(2, 8, 4, 4), nn.Parameter(torch.randn(6, 5))

        def forward(self, x):
            return (self.mix @ self.embed(x).transpose(1, 2)).transpose(1, 2)

    e = relprop.explain(
        Classifier(Mixed()).double().eval(), torch.randn(1, 2, 20, dtype=torch.float64), 1
    )
    assert e.spans is None and e.source.tolist() == list(range(6)) and e.content.all()


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(4, 4, 0), (7, 4, 3), (3, 4, 1), (5, 2, 2)]
)
def test_a_patch_is_brightest_on_the_heat_map_where_its_pixels_are(kernel, stride, padding):
    """The middle of what a patch was made from, wherever strides and padding put it."""
    import dataclasses

    stem = nn.Conv2d(3, 8, kernel, stride, padding)
    e = relprop.explain(
        Classifier(stem).double().eval(), torch.randn(1, 3, 24, 32, dtype=torch.float64), 1
    )
    for token in (0, e.grid[1] + 1, math.prod(e.grid) - 1):
        scores = torch.zeros_like(e.scores)
        scores[:, token] = 1
        heat = dataclasses.replace(
            e, streams={e.stream: dataclasses.replace(e.streams[e.stream], scores=scores)}
        ).heatmap()[0]
        for axis, size in enumerate((24, 32)):
            middle = float(e.spans[token, axis].mean().clamp(0.5, size - 0.5))
            along = heat.sum(1 - axis)
            bright = (along >= along.max() - 1e-9).nonzero().flatten().double() + 0.5
            assert (bright - middle).abs().min() <= 0.5
