"""Parts of language models that stand otherwise in people's repositories: each says the same as its
plain twin."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop

WORDS, TOKENS, WIDTH, HEADS, SIZE, HIDDEN, EXPERTS = 11, 6, 16, 4, 4, 12, 4
METHODS = ("transformer_attribution", "rollout", "attcat", "lrp", "attnlrp", "gradient_x_input")
ANGLES = torch.arange(TOKENS).double()[:, None] * torch.tensor([1.0, 0.1]).double()


class Decoder(nn.Module):
    """Two blocks, of which some functions are written in a way of their own."""

    def __init__(self, ways):
        super().__init__()
        self.ways = ways
        self.embed = nn.Embedding(WORDS, WIDTH)

        def draw(*shape):
            return nn.Parameter(0.4 * torch.randn(2, *shape))

        self.q, self.k, self.v, self.o = (draw(WIDTH, WIDTH) for _ in range(4))
        self.router, self.forget = draw(EXPERTS, WIDTH), draw(HEADS, WIDTH)
        self.wide, self.narrow = draw(EXPERTS, HIDDEN, WIDTH), draw(EXPERTS, WIDTH, HIDDEN)
        self.smear, self.head = draw(1, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        for i in range(2):
            if "smear" in self.ways:
                x = self.ways["smear"](x, lambda y, i=i: torch.sigmoid(F.linear(y, self.smear[i])))
            y = F.rms_norm(x, (WIDTH,))
            projected = (F.linear(y, w[i]) for w in (self.q, self.k, self.v))
            q, k, v = (p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in projected)
            attend = self.ways.get("attend", plainly)
            gates = F.logsigmoid(F.linear(y, self.forget[i])).mT.cumsum(-1)
            x = x + F.linear(attend(q, k, v, gates).transpose(1, 2).flatten(2), self.o[i])
            y = F.rms_norm(x, (WIDTH,))
            mix = self.ways.get("mix", dense)
            x = x + mix(y, self.router[i], self.wide[i], self.narrow[i])
        logits = self.head(F.rms_norm(x, (WIDTH,)))[:, -1]
        return self.ways["cap"](logits) if "cap" in self.ways else logits


def ahead():
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)


def scores(q, k):
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(ahead(), -torch.inf)


def plainly(q, k, v, _):
    return scores(q, k).softmax(-1) @ v


# Rotary positions of half of the features.


def turned(x, angles):
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def rotary(turn):
    return lambda q, k, v, _: plainly(turn(q), turn(k), v, _)


def some_of_the_features(x):
    return torch.cat([turned(x[..., :2], ANGLES[:, :1]), x[..., 2:]], -1)


def half_and_minus_half(x):
    y, angles = x[..., :2], torch.cat([ANGLES[:, :1]] * 2, -1)
    other = torch.cat([-y[..., 1:], y[..., :1]], -1)
    return torch.cat([y * angles.cos() + other * angles.sin(), x[..., 2:]], -1)


def turned_in_place(x):
    x = x.clone()
    x[..., :2] = turned(x[..., :2], ANGLES[:, :1])
    return x


# Gates that forget, as differences of running sums.


def forgetting(q, k, v, gates):
    return (scores(q, k) + gates[..., None] - gates[..., None, :]).softmax(-1) @ v


def forgetting_in_the_mask(q, k, v, gates):
    mask = (gates[..., None] - gates[..., None, :]).masked_fill(ahead(), -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# Experts.


def shares(x, router):
    top, chosen = F.linear(x, router).softmax(-1).topk(2, -1)
    return top / top.sum(-1, keepdim=True), chosen


def spread(top, chosen):
    return torch.zeros(*top.shape[:-1], EXPERTS).to(top).scatter(-1, chosen, top)


def expert(x, wide, narrow):
    return F.linear(F.silu(F.linear(x, wide)), narrow)


def dense(x, router, wide, narrow):
    weights = spread(*shares(x, router))
    return sum(weights[..., e, None] * expert(x, wide[e], narrow[e]) for e in range(EXPERTS))


def rows_repeated(x, router, wide, narrow):
    rows = x.flatten(0, 1)
    weights = spread(*shares(rows, router))
    laid = rows.repeat(EXPERTS, 1).view(EXPERTS, -1, WIDTH)
    out = torch.bmm(F.silu(torch.bmm(laid, wide.mT)), narrow.mT)
    return (out * weights.T[..., None]).sum(0).view(x.shape)


def dense_and_shared(x, router, wide, narrow):
    return dense(x, router, wide, narrow) + expert(x, wide[0] + wide[1], narrow[0] - narrow[1])


def routed_and_shared(x, router, wide, narrow):
    rows, shared = x.reshape(-1, WIDTH), (wide[0] + wide[1], narrow[0] - narrow[1])
    top, chosen = shares(rows, router)
    found = torch.zeros_like(rows)
    for e in range(EXPERTS):
        token, place = torch.where(chosen == e)
        found[token] += expert(rows[token], wide[e], narrow[e]) * top[token, place, None]
    return (found + expert(rows, *shared)).view(x.shape)


# What a token gets of the one before it.


def shifted(x, gate):
    return x + gate(x) * F.pad(x, (0, 0, 1, -1))


def added_to_the_others(x, gate):
    return torch.cat([x[:, :1], x[:, 1:] + gate(x[:, 1:]) * x[:, :-1]], 1)


# Logits that are capped.


def capped(x):
    return 30 * torch.tanh(x / 30)


def capped_by_a_sigmoid(x):
    return 60 * torch.sigmoid(x / 15) - 30


SAME = {
    "attend": [
        (rotary(some_of_the_features), rotary(half_and_minus_half)),
        (rotary(some_of_the_features), rotary(turned_in_place)),
        (forgetting, forgetting_in_the_mask),
    ],
    "mix": [(dense, rows_repeated), (dense_and_shared, routed_and_shared)],
    "smear": [(shifted, added_to_the_others)],
    "cap": [(capped, capped_by_a_sigmoid)],
}
QUICK = (forgetting_in_the_mask, rows_repeated, added_to_the_others)
PAIRS = [(part, *ways) for part, pairs in SAME.items() for ways in pairs]


def explained(part, way):
    torch.manual_seed(0)
    model = Decoder({part: way}).double().eval()
    ids = torch.randint(WORDS, (2, TOKENS))
    found = relprop.compare(model, ids, METHODS, target=[3, 5]).explanations
    return model(ids).detach(), {m: e.scores for m, e in found.items()}


@pytest.mark.parametrize(
    ("part", "plain", "other"),
    [pytest.param(*pair, marks=() if pair[2] in QUICK else pytest.mark.slow) for pair in PAIRS],
)
def test_one_map(part, plain, other):
    (output, wanted), (same, found) = explained(part, plain), explained(part, other)
    torch.testing.assert_close(same, output, rtol=0, atol=1e-12)
    for m in METHODS:
        size = float(wanted[m].abs().max())
        torch.testing.assert_close(found[m], wanted[m], rtol=0, atol=1e-9 * size, msg=m)
