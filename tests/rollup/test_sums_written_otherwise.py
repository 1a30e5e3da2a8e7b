"""Sums of what blocks and chunks give, however they are written: texts read chunk by chunk, all
layers added or averaged, a number in front of each term."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop

WIDTH, HEADS, TOKENS = 12, 2, 6
METHODS = ["transformer_attribution", "gae", "rollout", "attcat", "attnlrp", "lrp"]


class Half(nn.Module):
    """Attention, and an MLP, without their skip connections."""

    def __init__(self):
        super().__init__()
        self.norm, self.again = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.back = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def attention(self, x):
        parts = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))

    def mlp(self, x):
        return self.back(F.gelu(self.wide(self.again(x))))

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.mlp(x)


class Whole(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way, self.enter = way, nn.Linear(4, WIDTH)
        self.blocks, self.head = nn.ModuleList([Half(), Half()]), nn.Linear(WIDTH, 3)
        self.both = nn.Linear(2 * WIDTH, 3)
        self.place = nn.Parameter(torch.randn(1, TOKENS, WIDTH) / 3)

    def forward(self, x):
        return self.way(self, self.enter(x) + self.place)

    def read(self, x):
        """What a chunk gives."""
        return self.blocks[1](self.blocks[0](x)).mean(1)


def chunks_folded(m, x):
    return m.head(m.read(x.reshape(-1, 2, WIDTH)).unflatten(0, (-1, 3)).mean(1))


def chunks_averaged(m, x):
    return m.head(torch.stack([m.read(c) for c in x.chunk(3, 1)]).mean(0))


def chunks_unfolded(m, x):
    return m.head(m.read(x.unfold(1, 2, 2).mT.flatten(0, 1)).unflatten(0, (-1, 3)).sum(1) / 3)


def halves_folded(m, x):
    return m.both(m.read(x.reshape(-1, 3, WIDTH)).unflatten(0, (-1, 2)).flatten(1))


def halves_joined(m, x):
    return m.both(torch.cat([m.read(x[:, :3]), m.read(x[:, 3:])], -1))


def halves_apart(m, x):
    one, other = m.both.weight.chunk(2, 1)
    return F.linear(m.read(x[:, :3]), one, m.both.bias) + F.linear(m.read(x[:, 3:]), other)


def side_by_side(added):
    """Attention without a bias and an MLP with one that read the same, and are ``added``."""

    def way(m, x):
        b = m.blocks[0]
        heads = F.scaled_dot_product_attention(*[b.norm(x)[:, None]] * 3)[:, 0]
        return m.head(added(x, heads @ b.out.weight.mT, b.back, F.gelu(b.wide(b.again(x))))[:, 0])

    return way


by_layer = side_by_side(lambda x, heads, back, h: heads + back(h) + x)
SIDES = {
    "the bias last": lambda x, heads, back, h: x + (heads + (h @ back.weight.mT + back.bias)),
    "the bias first": lambda x, heads, back, h: heads + (back.bias + h @ back.weight.mT) + x,
    "a bias of two parts": lambda x, heads, back, h: (
        (h @ back.weight.mT + (F.pad(back.bias[:5], (0, WIDTH - 5)) + F.pad(back.bias[5:], (5, 0))))
        + heads
        + x
    ),
    "laid flat": lambda x, heads, back, h: (
        (torch.addmm(back.bias, h.flatten(0, 1), back.weight.mT).view_as(x) + heads) + x
    ),
}


def layers(mean, total):
    """Each block reads the mean of all before it; the head reads their sum."""

    def way(m, x):
        found = [x]
        for block in m.blocks:
            found.append(block.attention(mean(found)) + block.mlp(found[-1]))
        return m.head(total(found)[:, 0])

    return way


def mixed(mix):
    """The stream and what it began with, each times a parameter, before each block."""

    def way(m, x):
        begun = x
        for i, block in enumerate(m.blocks):
            x = block(mix(m.place[0, i, 0] * x, m.place[0, i, 1] * begun))
        return m.head(x[:, 0])

    return way


mixed_plainly = mixed(lambda a, b: a + b)
MIXED = {
    "by lerp": lambda a, b: torch.lerp(a, b, 0.5) * 2,
    "by halves": lambda a, b: 2 * (a / 2 + b / 2),
    "by a mean": lambda a, b: torch.stack([a, b]).mean(0) * 2,
}


def maps(both):
    """Two results by the attention of a sum of scores."""

    def way(m, x):
        q, k, v = m.blocks[0].qkv(x).chunk(3, -1)
        one, other = both(q @ k.mT, x @ m.blocks[1].out(x).mT / 5)
        x = x + m.blocks[0].out(torch.cat([one @ v[..., :6], other @ v[..., 6:]], -1))
        return m.head(m.blocks[1](x)[:, 0])

    return way


def made_once(a, b):
    scores = (a + b).softmax(-1)
    return scores, scores


once = maps(made_once)
TWICE = {
    "made twice": lambda a, b: ((a + b).softmax(-1), (a + b).softmax(-1)),
    "in another order": lambda a, b: ((a + b).softmax(-1), (b + a).softmax(-1)),
    "of scaled scores": lambda a, b: ((a + 1 * b).softmax(-1), (b + a / 1).softmax(-1)),
    "stacked": lambda a, b: (made_once(a, b)[0], torch.stack([b, a]).sum(0).softmax(-1)),
}


def weights(found):
    return torch.full((len(found),), 1 / len(found), dtype=found[0].dtype)


layers_added = layers(lambda found: sum(found) / len(found), sum)
LAYERS = {
    "stacked": layers(lambda found: torch.stack(found).mean(0), lambda f: torch.stack(f).sum(0)),
    "joined": layers(
        lambda f: torch.cat([x[None] for x in f]).mean(0), lambda f: torch.stack(f, -1).sum(-1)
    ),
    "each weighed": layers(lambda found: sum(x / len(found) for x in found), sum),
    "weighed by einsum": layers(
        lambda f: torch.einsum("l,lbnd->bnd", weights(f), torch.stack(f)), sum
    ),
    "weighed by a product": layers(
        lambda f: torch.stack(f, -1) @ weights(f), lambda f: torch.stack(f).sum(0)
    ),
}


def shares(m, found):
    """A share for each layer, of parameters."""
    return m.place[0, : len(found), 0].softmax(0)


def all_layers(mix):
    """The head reads all layers' results, each by its share."""

    def way(m, x):
        found = [x]
        for block in m.blocks:
            found.append(block(found[-1]))
        return m.head(mix(found, shares(m, found))[:, 0])

    return way


layers_shared = all_layers(lambda f, w: sum(a * x for a, x in zip(w, f, strict=True)))
SHARED = {
    "stacked": lambda f, w: (torch.stack(f) * w[:, None, None, None]).sum(0),
    "stacked last": lambda f, w: torch.stack(f, -1) @ w,
    "by einsum": lambda f, w: torch.einsum("lbnd,l->bnd", torch.stack(f), w),
    "flat": lambda f, w: (w[:, None] * torch.stack(f).flatten(1)).sum(0).view_as(f[0]),
    "flat samples": lambda f, w: (w @ torch.stack(f, 1).flatten(2)).view_as(f[0]),
    "by a layer": lambda f, w: F.linear(torch.stack(f, -1), w[None]).squeeze(-1),
}


def by_feature(mix):
    """Attention and the stream, a parameter for each feature of both."""

    def way(m, x):
        for block in m.blocks:
            x = mix(x, block.attention(x), block.norm.weight, block.again.weight)
        return m.head(block.mlp(x)[:, 0])

    return way


scaled_apart = by_feature(lambda x, y, a, b: x * a + y * b)
SCALED = {
    "stacked": lambda x, y, a, b: (torch.stack([x, y], -1) * torch.stack([a, b], -1)).sum(-1),
    "by einsum": lambda x, y, a, b: torch.einsum(
        "btdk,dk->btd", torch.stack([x, y], -1), torch.stack([a, b], -1)
    ),
}
SAME = {
    chunks_folded: {f.__name__: f for f in (chunks_averaged, chunks_unfolded)},
    halves_folded: {f.__name__: f for f in (halves_joined, halves_apart)},
    mixed_plainly: {f"mixed {name}": mixed(mix) for name, mix in MIXED.items()},
    once: {f"attention {name}": maps(both) for name, both in TWICE.items()},
    by_layer: {name: side_by_side(added) for name, added in SIDES.items()},
    layers_added: {f"layers {name}": way for name, way in LAYERS.items()},
    layers_shared: {f"shares {name}": all_layers(mix) for name, mix in SHARED.items()},
    scaled_apart: {f"scaled {name}": by_feature(mix) for name, mix in SCALED.items()},
}


def explained(way):
    torch.manual_seed(0)
    model = Whole(way).double().eval()
    x = torch.randn(2, TOKENS, 4, dtype=torch.float64)
    comparison = relprop.compare(model, x, METHODS, target=1)
    return {m: comparison[m].scores for m in METHODS}


@pytest.fixture(scope="module")
def usual():
    return {way: explained(way) for way in SAME}


@pytest.mark.parametrize(
    ("way", "reference"),
    [
        pytest.param(way, r, id=name, marks=pytest.mark.slow if place else ())
        for r, ways in SAME.items()
        for place, (name, way) in enumerate(ways.items())
    ],
)
def test_the_sum_is_the_same(way, reference, usual):
    for method, found in explained(way).items():
        wanted = usual[reference][method]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9 * float(wanted.abs().max()))


def test_parts_that_read_other_tokens_share():
    """Two halves of the tokens, each read by layers of its own: equal parts of one."""

    class Own(Whole):
        def __init__(self):
            super().__init__(None)

        def forward(self, x):
            x = self.enter(x) + self.place
            halves = x[:, :4], x[:, 4:]
            return self.head(sum(b(h).mean(1) for b, h in zip(self.blocks, halves, strict=True)))

    torch.manual_seed(0)
    x = torch.randn(1, TOKENS, 4, dtype=torch.float64)
    found = relprop.explain(Own().double().eval(), x, 1, method="rollout")
    identity = torch.tensor([1 / 8] * 4 + [1 / 4] * 2, dtype=torch.float64)
    torch.testing.assert_close(found.identity[0], identity)
