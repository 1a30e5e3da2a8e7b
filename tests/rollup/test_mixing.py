"""Tokens that meet other than by softmax attention: linear attention, mixing matrices, pooling,
convolution, resampling, experts, padding."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import relprop
from tests.common.rows import marked
from tests.rollup.hand import (
    SAMPLES,
    Attention,
    Layer,
    agree,
    compare,
    explained,
    eye,
    matrices,
    normal,
)
from tests.rollup.structures import WIDTH, Mlp
from tests.rollup.test_attention_forms import MEAN, ONE, AttentionPool, N, Sequence, tokens


class Mixer(nn.Module):
    """An MLP-Mixer layer: tokens are mixed by two matrices, then channels."""

    def __init__(self, skip=True):
        super().__init__()
        self.norm1, self.norm2, self.inner, self.outer, self.mlp, self.skip = (
            nn.LayerNorm(WIDTH),
            nn.LayerNorm(WIDTH),
            nn.Linear(N, 6),
            nn.Linear(6, N),
            Mlp(),
            skip,
        )

    def forward(self, x):
        y = self.outer(F.gelu(self.inner(self.norm1(x).mT))).mT
        x = x + y if self.skip else y
        return x + self.mlp(self.norm2(x))


def test_a_mixer_layer_between_attentions_keeps_its_skip():
    """Mixing by a learned matrix is no attention: beside a skip it carries nothing, as an MLP
    does."""
    e = explained(Sequence(Layer(), Mixer(), Layer(), pool=lambda x: x[:, 1]), tokens())
    compare(e, lambda a, b: (ONE + b) @ (ONE + a), ONE[1])


def test_a_learned_mixing_without_a_skip_hands_on_in_the_shares_of_its_weights():
    """``inner`` and ``outer`` are linear maps over tokens, as ``matrix @ x`` is: each hands on
    |w_ok| / Σ_k |w_ok|, the steps between them token by token."""
    mixer = Mixer(skip=False)
    e = explained(Sequence(Layer(), mixer, pool=lambda x: x[:, 1]), tokens())
    inner, outer = (
        w / w.sum(1, keepdim=True)
        for w in (m.weight.detach().abs() for m in (mixer.inner, mixer.outer))
    )
    compare(e, lambda a: ONE + a, (outer @ inner)[1])


class Constant(nn.Module):
    """Tokens mixed by a matrix that depends on nothing."""

    def __init__(self, matrix):
        super().__init__()
        self.register_buffer("matrix", matrix)

    def forward(self, x):
        return self.matrix @ x


def test_a_constant_matrix_hands_on_in_the_shares_of_its_entries():
    """|m_qk| / Σ_k |m_qk|: a coarser sequence by weights, negative ones too."""
    matrix = normal(3, N)
    matrix[0, 2] = 0
    e = explained(Sequence(Layer(), Constant(matrix), Layer(), pool=lambda x: x[:, 0]), tokens())
    p = matrix.abs() / matrix.abs().sum(1, keepdim=True)
    compare(e, lambda a, b: (eye(3) + b) @ p @ (ONE + a), eye(3)[0])


class Linear(Attention):
    """Linear attention: φ(q)·(φ(k)ᵀ·v), no softmax; ``masked``: keys of padding are set to 0."""

    def forward(self, x, mask=None):
        q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
        if mask is not None:
            k = k * mask[..., None]
        return self.out(q @ (k.mT @ v) / (q @ k.sum(1, keepdim=True).mT))


class LinearThenSoftmax(nn.Module):
    """A layer of linear attention without a skip, then softmax attention."""

    def __init__(self, skip):
        super().__init__()
        self.embed, self.linear, self.layer, self.head, self.skip = (
            nn.Linear(3, WIDTH),
            Linear(),
            Layer(),
            nn.Linear(WIDTH, 4),
            skip,
        )

    def forward(self, x, mask):
        x = self.embed(x)
        y = self.linear(x, mask)
        return self.head(
            self.layer(x + y if self.skip else y, attn_mask=mask[:, None, None].bool())[:, 0]
        )


MASK = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 0]])


def test_linear_attention_shares_sum_to_one_and_padding_is_zero():
    """Without a skip the state kᵀv is all that brings tokens on: shares of each position sum to 1,
    and masked keys have exactly none."""
    e = explained(LinearThenSoftmax(False), {"x": tokens(), "mask": MASK})
    m = matrices(e)[0]
    agree(e.row.sum(-1), (1 + m[:, 0].sum(-1)))
    agree(e.identity.sum(-1), torch.ones(SAMPLES).double())
    assert (e.row[MASK == 0] == 0).all() and (e.row[MASK == 1] > 0).all()


def test_linear_attention_beside_a_skip_carries_nothing():
    e = explained(LinearThenSoftmax(True), {"x": tokens(), "mask": MASK})
    compare(e, lambda m: ONE + m, ONE[0])


def line(n, out, kernel, stride, padding=0):
    """The merging matrix of windows on a line: even shares of the positions inside."""
    p = torch.zeros(out, n).double()
    for r in range(out):
        inside = [
            k for k in range(r * stride - padding, r * stride - padding + kernel) if 0 <= k < n
        ]
        p[r, inside] = 1 / len(inside)
    return p


def nearest(n, out):
    return eye(n).double()[torch.arange(out) * n // out]


def interpolation(mode, n, out):
    """What F.interpolate does to each unit vector, (out, n)."""
    return F.interpolate(eye(n).double()[None], size=out, mode=mode)[0].T


HALVES = line(N, 4, 2, 2)
RESIZED = {
    "avg_pool1d": (lambda: nn.AvgPool1d(2), HALVES),
    "avg_pool1d, padded": (
        lambda: nn.AvgPool1d(3, 2, 1, count_include_pad=False),
        line(N, 4, 3, 2, 1),
    ),
    "adaptive": (lambda: nn.AdaptiveAvgPool1d(4), HALVES),
    "adaptive, uneven": (
        lambda: nn.AdaptiveAvgPool1d(3),
        torch.tensor(
            [
                [3, 3, 3, 0, 0, 0, 0, 0],
                [0, 0, 2.25, 2.25, 2.25, 2.25, 0, 0],
                [0, 0, 0, 0, 0, 3, 3, 3],
            ]
        ).double()
        / 9,
    ),
    "conv1d with a stride": (lambda: nn.Conv1d(WIDTH, WIDTH, 3, 2, 1), line(N, 4, 3, 2, 1)),
    "depthwise": (lambda: nn.Conv1d(WIDTH, WIDTH, 2, 2, groups=WIDTH), HALVES),
    "transposed": (lambda: nn.ConvTranspose1d(WIDTH, WIDTH, 2, 2), nearest(N, 2 * N)),
    "nearest": (lambda: nn.Upsample(scale_factor=2), nearest(N, 2 * N)),
    "linear": (
        lambda: nn.Upsample(scale_factor=2, mode="linear"),
        interpolation("linear", N, 2 * N),
    ),
    "Whisper's front": (
        lambda: nn.Sequential(
            nn.Conv1d(WIDTH, WIDTH, 3, 1, 1), nn.GELU(), nn.Conv1d(WIDTH, WIDTH, 3, 2, 1), nn.GELU()
        ),
        line(N, 4, 3, 2, 1) @ line(N, N, 3, 1, 1),
    ),
}


class Along(nn.Module):
    """What convolves or pools channels first, on tokens."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return self.what(x.mT).mT


@pytest.mark.parametrize(
    "name",
    marked(RESIZED, ("avg_pool1d, padded", "adaptive, uneven", "transposed", "Whisper's front")),
)
def test_a_sequence_made_shorter_or_longer(name):
    make, p = RESIZED[name]
    e = explained(Sequence(Layer(), Along(make()), Layer(), pool=lambda x: x[:, 1]), tokens())
    i = eye(len(p)).double()
    compare(e, lambda a, b: (i + b) @ p @ (ONE + a), i[1])


class Moved(nn.Module):
    """A function of the tokens without parameters."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return self.what(x)


def by_index(reduce):
    """Byte tokens to patches, as BLT makes them."""

    def function(x):
        patch = (torch.arange(N) // 2)[None, :, None].expand_as(x)
        return torch.zeros_like(x[:, : N // 2]).scatter_reduce(
            1, patch, x, reduce, include_self=False
        )

    return Moved(function)


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_maxima_by_index_go_where_the_largest_was_found(reduce):
    windows = Moved(lambda x: getattr(x.unflatten(1, (-1, 2)), reduce)(2))
    model = Sequence(Layer(), by_index(reduce), Layer(), pool=lambda x: x[:, 1]).double().eval()
    x = tokens()
    found = relprop.explain(model, x, 1, method="rollout").scores
    model.layers[1] = windows
    plain = relprop.explain(model, x, 1, method="rollout").scores
    torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-12)


def test_products_by_index_are_refused():
    model = Sequence(Layer(), by_index("prod"), Layer(), pool=lambda x: x[:, 1]).double().eval()
    with pytest.raises(relprop.errors.RollUpError, match=r"cannot pass aten\.scatter_reduce"):
        relprop.explain(model, tokens(), 1, method="rollout")


MOVES = {
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), nearest(N, 2 * N)),
    "expand": (lambda x: x[:, :, None].expand(-1, -1, 2, -1).flatten(1, 2), nearest(N, 2 * N)),
    "index, with repeats": (lambda x: x[:, torch.tensor([3, 1, 3])], ONE[[3, 1, 3]]),
    "gather": (
        lambda x: x.gather(1, torch.tensor([3, 1, 3])[None, :, None].expand(len(x), -1, WIDTH)),
        ONE[[3, 1, 3]],
    ),
    "running sum": (
        lambda x: x.cumsum(1),
        torch.ones(N, N).tril().double() / torch.arange(1, N + 1)[:, None],
    ),
    "the mean put first": (
        lambda x: torch.cat([x.mean(1, keepdim=True), x], 1),
        torch.cat([MEAN[None], ONE]),
    ),
}


@pytest.mark.parametrize("name", marked(MOVES, ("expand", "gather", "running sum")))
def test_tokens_that_change_place(name):
    function, p = MOVES[name]
    e = explained(Sequence(Layer(), Moved(function), Layer(), pool=lambda x: x[:, 1]), tokens())
    i = eye(len(p)).double()
    compare(e, lambda a, b: (i + b) @ p @ (ONE + a), i[1])


ORDERS = {
    "cut and joined": (
        lambda x: torch.cat([x[:, 4:], x[:, :4].flip(1)], 1),
        [4, 5, 6, 7, 3, 2, 1, 0],
    ),
    "flip": (lambda x: x.flip(1), [7, 6, 5, 4, 3, 2, 1, 0]),
    "roll": (lambda x: x.roll(3, 1), [5, 6, 7, 0, 1, 2, 3, 4]),
    "index": (lambda x: x[:, torch.tensor([3, 1, 7, 0, 5, 2, 6, 4])], [3, 1, 7, 0, 5, 2, 6, 4]),
}


@pytest.mark.parametrize("name", marked(ORDERS, ("cut and joined",)))
def test_tokens_in_another_order_are_the_tokens_as_they_were(name):
    function, order = ORDERS[name]
    torch.manual_seed(0)
    e = explained(Sequence(Layer(), Moved(function), Layer(), pool=lambda x: x[:, 1]), tokens())
    compare(e, lambda a, b: (ONE + b) @ (ONE + a), ONE[order[1]])
    torch.manual_seed(0)
    plain = explained(Sequence(Layer(), Layer(), pool=lambda x: x[:, order[1]]), tokens())
    assert torch.allclose(e.scores, plain.scores, rtol=1e-9, atol=0)


class OnGrid(nn.Module):
    """What works on a 2 × 4 grid of the tokens."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return self.what(x.mT.unflatten(-1, (2, 4))).flatten(2).mT


def on_grid(function, size):
    """What ``function`` does to each unit vector on the grid, rows made to sum to 1: (positions
    out, N)."""
    p = function(eye(N).double().reshape(N, 1, 2, 4)).reshape(N, size).T
    return p / p.sum(1, keepdim=True)


PLANAR = {
    "avg_pool2d": (lambda: nn.AvgPool2d(2), on_grid(lambda g: F.avg_pool2d(g, 2), 2)),
    "adaptive": (
        lambda: nn.AdaptiveAvgPool2d((1, 2)),
        on_grid(lambda g: F.adaptive_avg_pool2d(g, (1, 2)), 2),
    ),
    "bilinear": (
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        on_grid(lambda g: F.interpolate(g, scale_factor=2, mode="bilinear"), 32),
    ),
    "nearest": (
        lambda: nn.Upsample(scale_factor=2),
        on_grid(lambda g: F.interpolate(g, scale_factor=2), 32),
    ),
    "pixel unshuffle": (
        lambda: nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(4 * WIDTH, WIDTH, 1)),
        on_grid(lambda g: F.avg_pool2d(g, 2), 2),
    ),
    "pixel shuffle": (
        lambda: nn.Sequential(nn.Conv2d(WIDTH, 4 * WIDTH, 1), nn.PixelShuffle(2)),
        on_grid(lambda g: F.interpolate(g, scale_factor=2), 32),
    ),
    "conv2d": (
        lambda: nn.Conv2d(WIDTH, WIDTH, 3, 1, 1),
        on_grid(lambda g: F.conv2d(g, torch.ones(1, 1, 3, 3).double(), padding=1), 8),
    ),
}


@pytest.mark.parametrize("name", marked(PLANAR, ("bilinear", "pixel unshuffle")))
def test_a_grid_made_smaller_or_larger(name):
    make, p = PLANAR[name]
    e = explained(Sequence(Layer(), OnGrid(make()), Layer(), pool=lambda x: x[:, 1]), tokens())
    i = eye(len(p)).double()
    compare(e, lambda a, b: (i + b) @ p @ (ONE + a), i[1])


class Pyramid(nn.Module):
    """SegFormer's decoder: two stages of tokens, each projected, the smaller one resized to the
    larger, concatenated, mixed."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(), Layer()
        self.down, self.one, self.two, self.mix = (
            nn.Conv2d(WIDTH, WIDTH, 2, 2),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Conv2d(2 * WIDTH, WIDTH, 1),
        )

    def forward(self, x):
        x = self.first(x)
        small = self.down(x.mT.unflatten(-1, (2, 4)))
        y = self.second(small.flatten(2).mT)
        y = F.interpolate(self.two(y).mT.unflatten(-1, (1, 2)), size=(2, 4), mode="bilinear")
        return self.mix(torch.cat([y, self.one(x).mT.unflatten(-1, (2, 4))], 1)).flatten(2).mT


def test_stages_joined_on_the_finest_grid():
    """The attention counts whole; the identity once, half by the coarse tokens and half by the
    projection of x: C = I/2 + U(I/2 + M)P."""
    e = explained(Sequence(Pyramid(), pool=lambda x: x[:, 5]), tokens())
    p = on_grid(lambda g: F.avg_pool2d(g, 2), 2)
    u = (
        F.interpolate(eye(2).double().reshape(2, 1, 1, 2), size=(2, 4), mode="bilinear")
        .reshape(2, N)
        .T
    )
    compare(e, lambda a, b: (ONE / 2 + u @ (eye(2) / 2 + b) @ p) @ (ONE + a), ONE[5])


class Experts(nn.Module):
    """A mixture of experts: tokens routed to their best expert, gathered, computed, added back by
    index with the router's weight."""

    def __init__(self, form, shared=False):
        super().__init__()
        self.router, self.experts, self.form = (
            nn.Linear(WIDTH, 2),
            nn.ModuleList(Mlp() for _ in range(2)),
            form,
        )
        self.shared = Mlp() if shared else None

    def forward(self, x):
        flat = x.reshape(-1, WIDTH)
        weights = self.router(flat).softmax(-1)
        if self.form == "dense":
            y = sum(weights[:, k : k + 1] * expert(flat) for k, expert in enumerate(self.experts))
        else:  # each expert takes its four best tokens
            y = torch.zeros_like(flat)
            for k, expert in enumerate(self.experts):
                best, at = weights[:, k].topk(4)
                if self.form == "index_add":
                    y = y.index_add(0, at, expert(flat[at]) * best[:, None])
                else:
                    wide = at[:, None].expand(-1, WIDTH)
                    y = y.scatter_add(0, wide, expert(flat.gather(0, wide)) * best[:, None])
        if self.shared is not None:
            y = y + self.shared(flat)
        return y.reshape(x.shape)


class ExpertLayer(Layer):
    def __init__(self, *options):
        super().__init__()
        self.mlp = Experts(*options)


@pytest.mark.parametrize(
    "options",
    marked(
        [("dense",), ("index_add",), ("scatter_add",), ("dense", True), ("index_add", True)],
        (str(("dense", True)), str(("index_add",))),
    ),
)
def test_experts_carry_no_second_identity(options):
    """Experts that take their best tokens take them from all samples of a batch: that is said, and
    each sample explained alone."""
    mixes = options[0] != "dense"
    with (
        pytest.warns(relprop.RelpropWarning, match="mixes the samples") if mixes else nullcontext()
    ):
        e = explained(
            Sequence(ExpertLayer(*options), ExpertLayer(*options), pool=lambda x: x[:, 1]), tokens()
        )
    compare(e, lambda a, b: (ONE + b) @ (ONE + a), ONE[1])
    agree(e.identity, ONE[1].expand(SAMPLES, -1))


class Padded(Sequence):
    """Keys of padding are masked, and the mean is over what is not."""

    def forward(self, x, mask):
        x, keys = self.embed(x) + self.position, mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, attn_mask=keys)
        return self.head((self.norm(x) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def test_padding_on_either_side_receives_exactly_nothing():
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]])
    e = explained(Padded(Layer(), Layer()), {"x": tokens(), "mask": mask})
    read = mask.double() / mask.sum(1, keepdim=True)
    a, b = matrices(e)
    agree(e.row, (read[:, None] @ (ONE + b) @ (ONE + a))[:, 0])
    agree(e.identity, read)
    assert (e.row[mask == 0] == 0).all() and (e.scores[mask == 0] == 0).all()


class Upsampled(Sequence):
    """Every token becomes two, side by side; a mask leaves some of them out of their mean (SEW)."""

    def __init__(self, masked):
        super().__init__(Layer(), Layer())
        self.up, self.masked = nn.Linear(WIDTH, 2 * WIDTH), masked

    def forward(self, x, mask):
        x = self.embed(x) + self.position
        for layer in self.layers:
            x = layer(x)
        x = self.masked(self.up(x).reshape(len(x), 2 * N, WIDTH), mask[..., None])
        return self.head(x.sum(1) / mask.sum(1, keepdim=True))


@pytest.mark.parametrize(
    "masked", [lambda x, m: x * m, lambda x, m: x.masked_fill(m == 0, 0.0)], ids=["times", "filled"]
)
def test_a_masked_mean_of_halves_of_tokens(masked):
    mask = torch.ones(SAMPLES, 2 * N, dtype=torch.long)
    mask[0, 9:], mask[1, :3] = 0, 0
    e = explained(Upsampled(masked), {"x": tokens(), "mask": mask})
    read = (mask.double() / mask.sum(1, keepdim=True)).unflatten(1, (N, 2)).sum(2)
    a, b = matrices(e)
    agree(e.identity, read)
    agree(e.row, (read[:, None] @ (ONE + b) @ (ONE + a))[:, 0])


class Merging(nn.Module):
    """Tokens are padded to a number that can be divided by three, and three are one (Swin)."""

    def __init__(self, how):
        super().__init__()
        self.how, self.down = how, nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        return self.how(F.pad(x, (0, 0, 0, -x.shape[1] % 3)), self.down)


MERGES = {
    "view": lambda x, down: down(x.unflatten(1, (-1, 3)).flatten(2)),
    "slices": lambda x, down: down(torch.cat([x[:, k::3] for k in range(3)], -1)),
    "slices of a view": lambda x, down: down(
        torch.cat(x.unflatten(1, (-1, 3)).unbind(2)[::-1], -1)
    ),
    "mean": lambda x, down: x.unflatten(1, (-1, 3)).mean(2),
    "sum": lambda x, down: x.unflatten(1, (-1, 3)).sum(2),
    "pool": lambda x, down: F.avg_pool1d(x.mT, 3).mT,
    "convolution": lambda x, down: F.conv1d(x.mT, down.weight.unflatten(1, (-1, 3)), stride=3).mT,
    "sum of slices": lambda x, down: x[:, ::3] + x[:, 1::3] + x[:, 2::3],
}


@pytest.mark.parametrize("how", marked(MERGES, ("slices of a view", "sum", "convolution")))
def test_padding_that_is_merged_with_tokens_is_none(how):
    how, merged = MERGES[how], -(-N // 3)
    p = torch.zeros(merged, N).double()
    for k in range(N):
        p[k // 3, k] = 1 / min(3, N - 3 * (k // 3))
    assert N % 3
    e = explained(Sequence(Layer(), Merging(how), Layer(), pool=lambda x: x.mean(1)), tokens())
    compare(e, lambda a, b: (eye(merged) + b) @ p @ (ONE + a), eye(merged).double().mean(0))


class PaddedMixer(nn.Module):
    """A token of zeros behind the others, then tokens are mixed by a learned matrix."""

    def __init__(self, how):
        super().__init__()
        self.how, self.mix = how, nn.Linear(N + 1, 3, bias=False)

    def forward(self, x):
        return self.how(F.pad(x, (0, 0, 0, 1)), self.mix)


@pytest.mark.parametrize(
    "how",
    [
        lambda x, mix: mix(x.mT).mT,
        pytest.param(lambda x, mix: mix.weight @ x, marks=pytest.mark.slow),
        pytest.param(lambda x, mix: mix.weight[:, :-1] @ x[:, :-1], marks=pytest.mark.slow),
        lambda x, mix: (
            mix(x.unflatten(-1, (2, -1)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2).flatten(2)
        ),
    ],
)
def test_padding_under_a_learned_matrix_is_none(how):
    padded = PaddedMixer(how)
    e = explained(Sequence(Layer(), padded, Layer(), pool=lambda x: x[:, 0]), tokens())
    p = padded.mix.weight.detach().abs()[:, :N]
    p = p / p.sum(1, keepdim=True)
    compare(e, lambda a, b: (eye(3) + b) @ p @ (ONE + a), eye(3)[0])


class Flat(nn.Module):
    """A head over all tokens side by side, with other features before, behind or between them
    (TabTransformer; recommenders that read a history)."""

    def __init__(self, join, width):
        super().__init__()
        self.join = join
        self.head = nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, WIDTH))

    def forward(self, x):
        return self.head(self.join(x, x.new_ones(len(x), 3)))


WIDE = N * WIDTH
FLAT = {
    "tokens alone": (lambda x, t: x.flatten(1), WIDE, None),
    "features behind": (lambda x, t: torch.cat([x.flatten(1), t], 1), WIDE + 3, None),
    "features before": (lambda x, t: torch.cat([t, x.flatten(1)], 1), WIDE + 3, None),
    "in two joins": (
        lambda x, t: torch.cat([torch.cat([x.flatten(1), t], 1), t], 1), WIDE + 6, None
    ),
    "features first": (lambda x, t: torch.cat([x.mT.flatten(1), t], 1), WIDE + 3, None),
    "two tokens beside all": (
        lambda x, t: torch.cat([x[:, :2].flatten(1), t, x.flatten(1)], 1),
        WIDE + 2 * WIDTH + 3,
        [0.25 + 0.5 / N] * 2 + [0.5 / N] * (N - 2),
    ),
    "normalised": (
        lambda x, t: F.layer_norm(torch.cat([x.flatten(1), t], 1), (WIDE + 3,)), WIDE + 3, None
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", marked(FLAT, ("in two joins", "two tokens beside all", "normalised"))
)
def test_tokens_side_by_side_with_other_features_count_once(name):
    join, width, read = FLAT[name]
    e = explained(Sequence(Layer(), Layer(), pool=Flat(join, width)), tokens())
    by_hand = torch.tensor(read or [1 / N] * N, dtype=torch.float64)
    compare(e, lambda a, b: (ONE + b) @ (ONE + a), by_hand)


BLOCKS = {
    "layer": Layer,
    "mixer": Mixer,
    "experts": lambda: ExpertLayer("dense"),
    "roll": lambda: Along(Roll()),
    "convolution": lambda: Along(nn.Conv1d(WIDTH, WIDTH, 3, 1, 1)),
    "smoothed": lambda: Along(nn.AvgPool1d(3, 1, 1, count_include_pad=False)),
}
READS = {
    "first": lambda x: x[:, 0],
    "mean": lambda x: x.mean(1),
    "sum": lambda x: x.sum(1),
    "maximum": lambda x: x.amax(1),
    "maxima": lambda x: x.max(1).values,
}


class Roll(nn.Module):
    def forward(self, x):
        return x.roll(2, -1)


@settings(max_examples=settings.default.max_examples // 5)
@given(
    st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=3),
    st.sampled_from(sorted(READS)),
)
def test_skips_alone_sum_to_one(names, read):
    """With every M = 0 the row sums to 1, whatever carries the identity on."""
    e = explained(Sequence(Layer(), *(BLOCKS[n]() for n in names), pool=READS[read]), tokens())
    agree(e.identity.sum(-1), torch.ones(SAMPLES).double())
    assert (e.identity >= 0).all() and (e.scores >= -1e-12).all()


def test_the_mean_that_asks_has_no_identity():
    """Only attention reads: with every M = 0 nothing arrives."""
    e = explained(Sequence(Layer(), pool=AttentionPool()), tokens())
    assert (e.identity == 0).all() and (e.scores @ MEAN > 0).all()


@pytest.mark.parametrize(
    "pool", [lambda y, g: (y * g).mean(1), lambda y, g: (y * g).flip(1).sum(1)]
)
def test_a_gate_summed_over_tokens_at_once_hands_out_by_the_size_of_its_terms(pool):
    """Σ_i y_i g_i is a product over tokens, as linear attention is: |y_i g_i| / Σ_i |y_i g_i| of
    each feature, the mean over features."""
    gate, x, kept = nn.Linear(WIDTH, WIDTH).double(), tokens(), []
    model = Sequence(Layer(), pool=lambda y: pool(y, gate(y).sigmoid()))
    model.gate = gate
    e = explained(model, x)
    model.norm.register_forward_hook(lambda *call: kept.append(call[2]))
    with torch.no_grad():
        model(x)
    sizes = (kept[0] * gate(kept[0]).sigmoid()).detach().abs()
    shares = (sizes / sizes.sum(1, keepdim=True)).mean(-1)
    (a,) = matrices(e)
    agree(e.identity, shares)
    agree(e.scores, (shares.unsqueeze(1) @ a.double()).squeeze(1))
