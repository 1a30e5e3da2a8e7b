"""Where tokens and features lie as published models have them: inputs read as they are, copies over
positions, pieces of unequal width, windows of a picture. Rolled out by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop
from tests.rollup.hand import agree, normal

WIDTH, N = 8, 6


def rolled(model, x, by_hand):
    """``by_hand`` of each site's A, meaned over heads, is the row beyond the identity's."""
    e = relprop.explain(model.double().eval(), x, 1, method="rollout", keep="blocks")
    agree(e.scores, by_hand(*(b.attention.detach().mean(1) for b in e.blocks)))
    return e


class Raw(nn.Module):
    """Nothing but PyTorch's encoder over the features as they are given."""

    def __init__(self, norm_first, read):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, 2, 16, batch_first=True, norm_first=norm_first, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.read = read

    def forward(self, x):
        return self.read(self.encoder(x))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("read", [lambda x: x.mean(1), lambda x: x[:, 2]], ids=["mean", "token"])
def test_features_that_are_read_as_they_are(norm_first, read):
    one = torch.eye(N).double()
    e = rolled(
        Raw(norm_first, read),
        normal(2, N, WIDTH),
        lambda a, b: read((one + b) @ (one + a) - one),
    )
    agree(e.identity, read(one.expand(2, N, N)))


class Values(nn.Module):
    """Attention without a skip over values that are made of the input in some way."""

    def __init__(self, make, entering):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.some, self.others = nn.Linear(3, WIDTH), nn.Linear(WIDTH - 3, WIDTH)
        self.make, self.entering, self.head = make, entering, nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = self.entering(x)
        attention = (self.q(x) @ self.k(x).mT).softmax(-1)
        return self.head(attention @ self.make(self, x)).mean(1)


MADE = {
    "some features once more": lambda m, x: m.v(x) + m.some(x[..., :3]),
    "features by two layers": lambda m, x: m.some(x[..., :3]) + m.others(x[..., 3:]),
    "a gate of two parts": lambda m, x: m.some(x[..., :3]) * m.others(x[..., 3:]).sigmoid(),
}


@pytest.mark.parametrize("make", MADE.values(), ids=list(MADE))
@pytest.mark.parametrize(
    "entering",
    [lambda x: x, F.relu, lambda x: F.layer_norm(x, (WIDTH,))],
    ids=["as is", "relu", "norm"],
)
def test_ways_from_some_features_add_up(make, entering):
    rolled(Values(make, entering), normal(2, N, WIDTH), lambda a: a.mean(1))


class Pyramid(nn.Module):
    """Attention over a coarse grid, laid over a fine one (FPN, Conformer)."""

    def __init__(self, finer, beside):
        super().__init__()
        self.enter, self.coarse, self.fine = (
            nn.Conv2d(3, WIDTH, 1),
            nn.Conv2d(WIDTH, WIDTH, 2, 2),
            nn.Conv2d(WIDTH, WIDTH, 1),
        )
        self.q, self.k, self.v, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.finer, self.beside = finer, beside

    def forward(self, x):
        x = self.enter(x)
        t = self.coarse(x).flatten(2).mT
        t = (self.q(t) @ self.k(t).mT).softmax(-1) @ self.v(t)
        grid = self.finer(t.mT.reshape(len(x), WIDTH, 2, 2))
        return self.head(self.beside(self.fine(x), grid).mean((2, 3)))


FINER = {
    "nearest": lambda g: F.interpolate(g, scale_factor=2, mode="nearest"),
    "repeated": lambda g: g.repeat_interleave(2, 2).repeat_interleave(2, 3),
    "expanded": lambda g: (
        g[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2).reshape(len(g), -1, 4, 4)
    ),
}


@pytest.mark.parametrize("finer", FINER.values(), ids=list(FINER))
@pytest.mark.parametrize(
    "beside", [lambda a, b: a + b, lambda a, b: b + a], ids=["lateral first", "lateral last"]
)
def test_a_coarse_map_beside_a_fine_one_counts_whole(finer, beside):
    pooled = F.unfold(torch.eye(16).view(16, 1, 4, 4).double(), 2, stride=2).sum(1).T / 4
    rolled(Pyramid(finer, beside), normal(2, 3, 4, 4), lambda a: (a @ pooled).mean(1))


class Shifted(nn.Module):
    """Some channels of every token are those of the token before, zeros at the first (TSM)."""

    def __init__(self, count):
        super().__init__()
        self.enter, self.q, self.k, self.v, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(5))
        self.count = count

    def forward(self, x):
        x = self.enter(x)
        y = torch.cat([F.pad(x[:, :-1, : self.count], (0, 0, 1, 0)), x[..., self.count :]], -1)
        return self.head(x + (self.q(y) @ self.k(y).mT).softmax(-1) @ self.v(y)).mean(1)


@pytest.mark.parametrize("count", [2, 4, 6])
def test_shifted_channels_of_any_width_are_there_where_they_are(count):
    moved = (torch.eye(N) + torch.diag(torch.ones(N - 1), -1)).double() / 2
    moved[0, 0] = 1
    rolled(Shifted(count), normal(2, N, WIDTH), lambda a: (a @ moved).mean(1))


class Unfolded(nn.Module):
    """Attention of two heads over the neighbours of every place (QnA, outlook attention)."""

    def __init__(self, way):
        super().__init__()
        self.enter, self.a, self.v = nn.Linear(3, 8), nn.Linear(8, 2), nn.Linear(8, 8)
        self.out, self.head, self.way = nn.Linear(8, 8), nn.Linear(8, 3), way

    def forward(self, x):
        x = self.enter(x)
        batch, height, width, _ = x.shape
        grid = F.pad(self.a(x).movedim(-1, 1), (1, 1, 1, 1), value=-1e9)
        a = F.unfold(grid, 3).view(batch, 2, 9, -1).softmax(2)
        v = F.unfold(self.v(x).movedim(-1, 1), 3, padding=1).view(batch, 2, 4, 9, -1)
        self.weights = a.detach()
        made = self.way(a, v).reshape(batch, height * width, 8)
        return self.head((x.flatten(1, 2) + self.out(made)).mean(1))


@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize(
    "way",
    [
        lambda a, v: torch.einsum("bhkn,bhckn->bnhc", a, v),
        lambda a, v: (a[:, :, None] * v).sum(3).permute(0, 3, 1, 2),
    ],
    ids=["einsum", "sum"],
)
def test_heads_over_unfolded_neighbours(way, size):
    model, x = Unfolded(way), normal(2, size, size, 3)
    near = F.unfold(torch.eye(size**2).view(-1, 1, size, size).double(), 3, padding=1)
    e = relprop.explain(model.double().eval(), x, 1, method="rollout")
    model(x)
    agree(e.scores, torch.einsum("bhkn,skn->bns", model.weights, near).mean(1) / 2)


class Pooled(nn.Module):
    """A softmax over tokens times their values times something else, added."""

    def __init__(self, way):
        super().__init__()
        self.enter, self.key, self.head = nn.Linear(3, 4), nn.Linear(3, 1), nn.Linear(4, 2)
        self.way = way

    def forward(self, x, mask):
        a = self.key(x).masked_fill(mask[..., None] == 0, -1e9).softmax(1)
        self.weights = a.detach()[..., 0]
        return self.head(self.way(a, self.enter(x), mask[..., None]).sum(1))


POOLED = {
    "softmax, values, mask": (lambda a, e, m: a * e * m, 1),
    "values, mask, softmax": (lambda a, e, m: e * m * a, 1),
    "softmax, mask, values": (lambda a, e, m: a * m * e, 1),
    "a gate of the values": (lambda a, e, m: a * e * e.sigmoid(), 1),
    "a number behind": (lambda a, e, m: a * e * 0.5, 0.5),
    "a number before": (lambda a, e, m: 0.5 * a * e * m, 0.5),
}


@pytest.mark.parametrize(("way", "share"), POOLED.values(), ids=list(POOLED))
def test_a_pool_of_three_factors_is_attention(way, share):
    model, mask = Pooled(way), (torch.arange(N) < torch.tensor([[4], [N]])).double()
    inputs = {"x": normal(2, N, 3), "mask": mask}
    e = relprop.explain(model.double().eval(), inputs, 1, method="rollout", explain_inputs=["x"])
    model(**inputs)
    assert e["x"].scores.shape == (2, N)
    agree(e["x"].scores, share * model.weights)


class OfTimes(nn.Module):
    """Attention whose queries and keys are made of time stamps alone (mTAND)."""

    def __init__(self):
        super().__init__()
        self.enter, self.times = nn.Linear(3, WIDTH), nn.Linear(1, WIDTH)
        self.q, self.k, self.v, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, times):
        x, t = self.enter(x), self.times(times[..., None]).sin()
        return self.head((x + (self.q(t) @ self.k(t).mT).softmax(-1) @ self.v(x)).mean(1))


def test_a_map_of_another_input_is_attention():
    inputs = {"x": normal(2, N, 3), "times": normal(2, N)}
    e = rolled(OfTimes(), inputs, lambda a: a.mean(1))
    assert list(e.streams) == ["x"] and "times" in e.facts["constant_inputs"]


class Counted(nn.Module):
    """Exponentials times a mask that is given as whole numbers, over their sum (news recommenders);
    the numbers may count, too."""

    def __init__(self, rest):
        super().__init__()
        self.enter, self.key, self.head = nn.Linear(3, 4), nn.Linear(3, 1), nn.Linear(4, 2)
        self.rest = rest

    def forward(self, x, mask):
        a = self.key(x).squeeze(-1).exp() * mask
        a = a / (a.sum(1, keepdim=True) + self.rest)
        self.weights = a.detach()
        return self.head((a[..., None] * self.enter(x)).sum(1))


@pytest.mark.parametrize("rest", [0, 1e-13])
@pytest.mark.parametrize(
    "mask", [[[1] * N, [1] * 4 + [0] * 2], [[1, 2, 3, 0, 1, 1], [0, 1, 0, 5, 0, 2]]], ids=str
)
def test_exponentials_times_whole_numbers_are_a_softmax(rest, mask):
    model = Counted(rest).double().eval()
    inputs = {"x": normal(2, N, 3), "mask": torch.tensor(mask)}
    assert len(relprop.trace(model, inputs).sites) == 1
    e = relprop.explain(model, inputs, 1, method="rollout")
    model(**inputs)
    assert float((e.scores - model.weights).abs().max()) <= max(1e-9, rest)


def test_products_of_other_kinds_are_left_alone():
    """A joined factor, and a product that is read twice."""

    class Twice(Pooled):
        def forward(self, x, mask):
            a, e = self.key(x).softmax(1), self.enter(x)
            p = a * e * mask[..., None]
            q = (torch.cat([e, e], -1) * mask[..., None] * 0.5).sum(1)
            return self.head(p.amax(1) + p.sum(1)) + q[:, :2]

    inputs = {"x": normal(2, N, 3), "mask": torch.ones(2, N).double()}
    model = Twice(None).double().eval()
    e = relprop.explain(model, inputs, 1, method="attnlrp", explain_inputs=["x"])
    assert e["x"].scores.shape == (2, N)


def test_padding_is_none_of_each_heads_mixing_matrix():
    """Tokens mixed by a matrix of each head's own."""

    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.mix, self.head = nn.Parameter(torch.randn(2, 3, N + 1)), nn.Linear(WIDTH, 3)

        def forward(self, x):
            x = self.enter(x)
            x = x + (self.q(x) @ self.k(x).mT).softmax(-1) @ self.v(x)
            heads = F.pad(x, (0, 0, 0, 1)).unflatten(-1, (2, -1))
            return self.head(torch.einsum("hok,bkhd->bohd", self.mix, heads).flatten(2)[:, 0])

    model, one = Mixing(), torch.eye(N).double()
    shares = model.mix.detach().double().abs()[:, 0, :N]
    shares = (shares / shares.sum(-1, keepdim=True)).mean(0)
    e = rolled(model, normal(2, N, WIDTH), lambda a: shares @ a)
    agree(e.identity, (shares @ one).expand(2, N))


def test_a_piece_of_what_was_joined_is_tokens_again():
    """A state that holds flattened tokens and other numbers, cut apart again."""

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.head = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 3)
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x):
            x = self.enter(x)
            packed = torch.cat([x.flatten(1), x.new_ones(len(x), 2)], 1).tanh()
            x = packed[:, : N * WIDTH].view(len(x), N, WIDTH)
            return self.head((self.q(x) @ self.k(x).mT).softmax(-1) @ self.v(x)).mean(1)

    rolled(Packed(), normal(2, N, 3), lambda a: a.mean(1))


class Projector(nn.Module):
    """Attention over time beside a convolution that takes the time steps for channels
    (Non-stationary Transformer)."""

    def __init__(self):
        super().__init__()
        self.enter, self.scale = nn.Linear(3, WIDTH), nn.Conv1d(N, 1, 3, padding=1)
        self.q, self.k, self.v, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        scale, x = self.scale(x).mean((1, 2)).exp(), self.enter(x)
        scores = self.q(x) @ self.k(x).mT * scale[:, None, None]
        return self.head((x + scores.softmax(-1) @ self.v(x)).mean(1))


def test_methods_at_the_input_score_the_tokens_of_attention():
    model, x = Projector().double().eval(), normal(2, N, 3)
    for method in ("rollout", "gradient_x_input", "attnlrp"):
        assert relprop.explain(model, x, 1, method=method).scores.shape == (2, N)
