"""Attention as models write it: class attention, grouped queries, sinks, bands and chunks, weighted
sums, sampled values, learned queries."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.common.rows import marked
from tests.rollup.hand import SAMPLES, Attention, Layer, agree, compare, explained, eye, normal
from tests.rollup.structures import HEADS, WIDTH, Grouped, Mlp, TalkingHeads, merged, split

N, BAND = 8, 2
ONE = eye(N).double()


class Sequence(nn.Module):
    """Tokens of three features, layers, and what ``pool`` leaves of them."""

    def __init__(self, *layers, pool=lambda x: x.mean(1), tokens=N):
        super().__init__()
        self.embed, self.position = (
            nn.Linear(3, WIDTH),
            nn.Parameter(torch.randn(1, tokens, WIDTH) / 4),
        )
        self.layers, self.norm, self.head, self.pool = (
            nn.Sequential(*layers),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4),
            pool,
        )

    def forward(self, x):
        return self.head(self.pool(self.norm(self.layers(self.embed(x) + self.position))))


def tokens(n=N):
    return normal(SAMPLES, n, 3)


MEAN = torch.ones(N).double() / N


class ClassAttention(nn.Module):
    """CaiT: a class token is put before the tokens; only it asks, and only it is updated."""

    def __init__(self):
        super().__init__()
        self.token, self.norm1, self.norm2, self.attention, self.mlp = (
            nn.Parameter(torch.randn(1, 1, WIDTH)),
            nn.LayerNorm(WIDTH),
            nn.LayerNorm(WIDTH),
            Attention(),
            Mlp(),
        )

    def forward(self, x):
        token = self.token.expand(len(x), -1, -1)
        for _ in range(2):
            both = self.norm1(torch.cat([token, x], 1))
            token = token + self.attention(both[:, :1], both)
            token = token + self.mlp(self.norm2(token))
        return torch.cat([token, x], 1)


def test_class_attention_after_self_attention():
    """The class token is no input token: scores are over the tokens, what attention puts on the
    token itself stays there."""
    e = explained(Sequence(Layer(), ClassAttention(), pool=lambda x: x[:, 0]), tokens())
    wide = eye(N + 1).double()

    def product(m, first, second):
        c = torch.zeros(SAMPLES, N + 1, N + 1).double()
        steps = [
            torch.cat([f, torch.zeros(SAMPLES, N, N + 1).double()], 1) for f in (first, second)
        ]
        c[:] = (wide + steps[1]) @ (wide + steps[0])
        return c[..., 1:] @ (ONE + m)

    compare(e, product, wide[0])


@pytest.mark.parametrize(
    "attention",
    [TalkingHeads, lambda: Grouped("fused"), lambda: Grouped("interleave")],
    ids=["talking heads", "grouped", "grouped, interleaved"],
)
def test_three_layers(attention):
    e = explained(Sequence(*(Layer(attention) for _ in range(3))), tokens())
    compare(e, lambda a, b, c: (ONE + c) @ (ONE + b) @ (ONE + a), MEAN)


class Sink(Attention):
    """gpt-oss: grouped queries, a learned logit per head beside the keys' own, cut off after the
    softmax; a causal sliding window."""

    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(HEADS))

    def forward(self, x):
        q, k, v = (split(m(x)) for m in (self.q, self.k, self.v))
        at = torch.arange(x.shape[1])
        seen = (at[:, None] >= at) & (at[:, None] - at < 3)
        scores = torch.where(seen, q @ k.mT, -torch.inf)
        scores = torch.cat(
            [scores, self.sinks.reshape(1, -1, 1, 1).expand(len(x), -1, x.shape[1], 1)], -1
        )
        scores = scores - scores.max(-1, keepdim=True).values
        return self.out(merged(scores.softmax(-1)[..., :-1] @ v))


def test_a_sink_and_a_sliding_window():
    """Two windows of three reach five tokens; what is out of reach receives exactly nothing."""
    e = explained(Sequence(Layer(Sink), Layer(Sink), pool=lambda x: x[:, -1]), tokens())
    compare(e, lambda a, b: (ONE + b) @ (ONE + a), ONE[-1])
    assert (e.row[:, : N - 5] == 0).all() and (e.scores[:, N - 5 : -1] > 0).any()


class Local(Attention):
    """Keys at −BAND … BAND of each query, as ``form`` cuts them out."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, x):
        q, k, v = (split(m(x)) for m in (self.q, self.k, self.v))
        n = x.shape[1]
        at = torch.arange(n)[:, None] + torch.arange(-BAND, BAND + 1)
        inside = (at >= 0) & (at < n)
        if self.form == "unfold":
            k, v = (
                F.pad(t, (0, 0, BAND, BAND)).unfold(2, 2 * BAND + 1, 1) for t in (k, v)
            )  # (b, h, n, d, w)
        elif self.form == "index":
            k, v = (t[:, :, at.clamp(0, n - 1)].mT for t in (k, v))
        else:
            k, v = (F.pad(t, (0, 0, BAND, BAND)) for t in (k, v))
            b, h, m, d = k.shape
            k, v = (
                t.as_strided((b, h, n, d, 2 * BAND + 1), (h * m * d, m * d, d, 1, d))
                for t in (k, v)
            )
        a = (q[:, :, :, None] @ k).masked_fill(~inside[:, None], -torch.inf).softmax(-1)
        if self.form == "as_strided, einsum":
            return self.out(merged(torch.einsum("bhnw,bhndw->bhnd", a[:, :, :, 0], v)))
        if self.form == "as_strided, sum":
            return self.out(merged((a * v).sum(-1)))
        return self.out(merged((v @ a.mT)[..., 0]))


def band(m):
    """(batch, queries, BAND·2 + 1) → the (queries, keys) matrix."""
    whole = torch.zeros(SAMPLES, N, N).double()
    for q in range(N):
        for w in range(2 * BAND + 1):
            if 0 <= q + w - BAND < N:
                whole[:, q, q + w - BAND] = m[:, q, w]
    return whole


@pytest.mark.parametrize(
    "form",
    marked(
        ["unfold", "index", "as_strided", "as_strided, einsum", "as_strided, sum"],
        ("index", "as_strided, einsum"),
    ),
)
def test_local_attention(form):
    e = explained(
        Sequence(*(Layer(lambda: Local(form)) for _ in range(2)), pool=lambda x: x[:, 3]), tokens()
    )
    m = [
        (b.gradient * b.relevance).clamp(min=0).reshape(SAMPLES, HEADS, N, -1).mean(1)
        for b in e.blocks
    ]
    agree(e.row, ONE[3] @ ((ONE + band(m[1])) @ (ONE + band(m[0]))))
    agree(e.identity, ONE[3].expand(SAMPLES, -1))


class Sheared(Attention):
    """Longformer: chunks of keys, the band sheared out of the chunks' products by padding and
    reshaping, put back the same way."""

    def chunks(self, x, size, step):
        return x.unfold(1, size, step).transpose(-1, -2)

    def forward(self, x):
        b, n, w = len(x), x.shape[1], BAND
        q, k, v = (split(m(x)).flatten(0, 1) for m in (self.q, self.k, self.v))
        c = n // w - 1
        q, k = (self.chunks(t, 2 * w, w) for t in (q, k))
        scores = torch.einsum("bcxd,bcyd->bcxy", q, k)
        scores = F.pad(scores, (0, 0, 0, 1)).view(b * HEADS, c, 2 * w, 2 * w + 1)
        band = scores.new_zeros((b * HEADS, c + 1, w, 2 * w + 1))
        band[:, :-1, :, w:] = scores[:, :, :w, : w + 1]
        band[:, -1, :, w:] = scores[:, -1, w:, : w + 1]
        band[:, 1:, :, :w] = scores[:, :, -w - 1 : -1, w + 1 :]
        band[:, 0, 1:w, 1:w] = scores[:, 0, : w - 1, 1 - w :]
        band = band.reshape(b * HEADS, n, 2 * w + 1)
        at = torch.arange(n)[:, None] + torch.arange(-w, w + 1)
        a = band.masked_fill((at < 0) | (at >= n), -torch.inf).softmax(-1)
        a = a.reshape(b * HEADS, n // w, w, 2 * w + 1)
        a = (
            F.pad(a, (0, w + 1))
            .view(b * HEADS, n // w, -1)[:, :, :-w]
            .view(b * HEADS, n // w, w, 3 * w + 1)[..., :-1]
        )
        v = self.chunks(F.pad(v, (0, 0, w, w), value=-1.0), 3 * w, w)
        y = torch.einsum("bcwd,bcdh->bcwh", a, v).reshape(b, HEADS, n, -1)
        return self.out(merged(y))


def chunked(m):
    """(batch, chunks, w, 3w): query c·w + r sees keys (c − 1)·w + k."""
    whole = torch.zeros(SAMPLES, N, N).double()
    for c in range(N // BAND):
        for k in range(3 * BAND):
            if 0 <= (c - 1) * BAND + k < N:
                whole[:, c * BAND : (c + 1) * BAND, (c - 1) * BAND + k] = m[:, c, :, k]
    return whole


def test_a_band_sheared_out_of_chunks():
    e = explained(Sequence(Layer(Sheared), Layer(Sheared), pool=lambda x: x[:, 3]), tokens())
    m = [
        chunked(
            (b.gradient * b.relevance)
            .clamp(min=0)
            .reshape(SAMPLES, HEADS, N // BAND, BAND, -1)
            .mean(1)
        )
        for b in e.blocks
    ]
    assert all(float(one.max()) > 0 for one in m)
    agree(e.row, ONE[3] @ ((ONE + m[1]) @ (ONE + m[0])))
    agree(e.identity, ONE[3].expand(SAMPLES, -1))


class Separable(nn.Module):
    """MobileViTv2: one weight per token, a context that is the weighted sum of keys, broadcast to
    all; written ``(softmax * k).sum``."""

    def __init__(self):
        super().__init__()
        self.weight, self.key, self.value, self.out = (
            nn.Linear(WIDTH, 1),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x):
        context = (self.weight(x).softmax(1) * self.key(x)).sum(1, keepdim=True)
        return self.out(self.value(x).relu() * context)


def test_attention_written_as_a_weighted_sum():
    """Every position reads the one context: Ā is I + 1·mᵀ."""
    e = explained(Sequence(Layer(), Layer(Separable), pool=lambda x: x[:, 2]), tokens())
    first, second = (
        m.reshape(SAMPLES, -1, N)
        for m in (
            (b.gradient * b.relevance).clamp(min=0).mean(1)
            if b.attention.dim() == 4
            else (b.gradient * b.relevance).clamp(min=0)
            for b in e.blocks
        )
    )
    assert second.shape[1] == 1
    agree(e.row, ONE[2] @ ((ONE + second.expand(-1, N, -1)) @ (ONE + first)))


class Deformable(nn.Module):
    """Deformable attention on a line of tokens laid out as a grid: values sampled bilinearly at P
    points of each query, weighted by a softmax."""

    def __init__(self, points=3):
        super().__init__()
        self.points = points
        self.offset, self.weight, self.value, self.out = (
            nn.Linear(WIDTH, k) for k in (HEADS * points * 2, HEADS * points, WIDTH, WIDTH)
        )

    def grid(self, x):
        y, z = torch.meshgrid(
            torch.linspace(-0.7, 0.7, 2).double(),
            torch.linspace(-0.7, 0.7, 4).double(),
            indexing="ij",
        )
        at = torch.stack([z.flatten(), y.flatten()], -1)[None, :, None, None]
        return (
            (at + 0.1 * self.offset(x).unflatten(-1, (HEADS, self.points, 2)).tanh())
            .permute(0, 2, 1, 3, 4)
            .flatten(0, 1)
        )

    def forward(self, x):
        v = (
            self.value(x)
            .unflatten(-1, (HEADS, -1))
            .permute(0, 2, 3, 1)
            .reshape(-1, WIDTH // HEADS, 2, 4)
        )
        sampled = F.grid_sample(
            v, self.grid(x), padding_mode="zeros", align_corners=False
        )  # (b·h, d, n, p)
        a = (
            self.weight(x)
            .unflatten(-1, (HEADS, self.points))
            .transpose(1, 2)
            .softmax(-1)
            .flatten(0, 1)[:, None]
        )
        return self.out((sampled * a).sum(-1).view(len(x), WIDTH, -1).mT)


def test_sampled_values_hand_on_by_the_weights_of_interpolation():
    """Key p of query q is Σ_k w_qpk v_k: Ā is I + E_h Σ_p M_qp w_qpk."""
    model, x = Sequence(Layer(Deformable), Layer(), pool=lambda x: x[:, 5]), tokens()
    e = explained(model, x)
    with torch.no_grad():
        grid = model.layers[0].attention.grid(
            model.layers[0].norm1(model.embed(x) + model.position)
        )
    places = eye(N).double().reshape(1, N, 2, 4).expand(len(grid), -1, -1, -1)
    weights = F.grid_sample(places, grid, padding_mode="zeros", align_corners=False).reshape(
        SAMPLES, HEADS, N, N, 3
    )  # (b, h, k, q, p)
    first, second = e.blocks
    m = (first.gradient * first.relevance).clamp(min=0).reshape(SAMPLES, HEADS, N, 3)
    weights = weights / weights.sum(2, keepdim=True)
    sampled = torch.einsum("bhqp,bhkqp->bqk", m, weights) / HEADS
    m2 = (second.gradient * second.relevance).clamp(min=0).mean(1)
    agree(e.row, ONE[5] @ ((ONE + m2) @ (ONE + sampled)))


class MapPool(nn.Module):
    """SigLIP's head: a learned query asks over the tokens, with an MLP and its own skip; its row is
    all that is read."""

    def __init__(self, skip):
        super().__init__()
        self.probe, self.attention, self.norm, self.mlp, self.skip = (
            nn.Parameter(torch.randn(1, 2, WIDTH)),
            Attention(),
            nn.LayerNorm(WIDTH),
            Mlp(),
            skip,
        )

    def forward(self, x):
        y = self.attention(self.probe.expand(len(x), -1, -1), x)
        if self.skip:
            y = y + self.probe
        return (y + self.mlp(self.norm(y)))[:, 0]


@pytest.mark.parametrize("skip", [False, True])
def test_a_learned_query_pools(skip):
    """No identity: the row is M of the learned query, through the layers below."""
    e = explained(Sequence(Layer(), pool=MapPool(skip)), tokens())
    compare(e, lambda m, pool: pool @ (ONE + m), eye(2)[0])
    assert (e.identity == 0).all()


class AttentionPool(nn.Module):
    """CLIP's ResNet: the mean token is put first and asks over all, itself included."""

    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x):
        both = torch.cat([x.mean(1, keepdim=True), x], 1)
        return self.attention(both[:, :1], both)[:, 0]


def test_a_mean_that_asks():
    e = explained(Sequence(Layer(), pool=AttentionPool()), tokens())
    compare(e, lambda m, pool: (pool[..., 1:] + pool[..., :1] / N) @ (ONE + m), eye(1)[0])
