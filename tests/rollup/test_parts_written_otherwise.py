"""Parts of a sequence, or of what one layer gives, that are made by themselves, however they are
cut and put back: windows by index, biases of queries and values alone, tokens that are joined in
another order, keys and values of one layer."""

import pytest
import torch
from torch.nn import functional as F

import relprop
from tests.common.rows import marked
from tests.rollup.test_sums_written_otherwise import TOKENS, WIDTH, Whole, explained

HEADS = 2
#: Which tokens each window holds.
WINDOWS = ([4, 1], [0, 5], [3, 2])


def heads(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(-3, -2)


def attend(q, k, v):
    return F.scaled_dot_product_attention(heads(q), heads(k), heads(v)).transpose(1, 2).flatten(2)


def through(attention):
    """Both blocks with another attention, then the mean of all tokens."""

    def way(m, x):
        for block in m.blocks:
            x = x + attention(block, m.blocks, block.norm(x))
            x = x + block.mlp(x)
        return m.head(x.mean(1))

    return way


def alone(block, x):
    return block.out(attend(*block.qkv(x).chunk(3, -1)))


def windows_at_once(block, _, x):
    places = torch.tensor(WINDOWS)
    y = alone(block, x[:, places].flatten(0, 1)).reshape(len(x), TOKENS, WIDTH)
    return y[:, places.flatten().argsort()]


def windows_joined(block, _, x):
    y = torch.cat([alone(block, x[:, w]) for w in WINDOWS], 1)
    return y[:, torch.tensor(WINDOWS).flatten().argsort()]


def bias_inside(block, _, x):
    own = torch.cat([block.qkv.bias[:WIDTH], x.new_zeros(WIDTH), block.qkv.bias[2 * WIDTH :]])
    return block.out(attend(*F.linear(x, block.qkv.weight, own).chunk(3, -1)))


def bias_of_parts(block, _, x):
    q, k, v = F.linear(x, block.qkv.weight).chunk(3, -1)
    return block.out(attend(q + block.qkv.bias[:WIDTH], k, v + block.qkv.bias[2 * WIDTH :]))


def bias_of_heads(block, _, x):
    q, k, v = map(heads, F.linear(x, block.qkv.weight).chunk(3, -1))
    own = block.qkv.bias.view(3, HEADS, 1, -1)
    y = F.scaled_dot_product_attention(q + own[0], k, v + own[2])
    return block.out(y.transpose(1, 2).flatten(2))


def bias_behind_an_order(block, _, x):
    order = torch.tensor(WINDOWS).flatten()
    y = F.linear(x[:, order].unflatten(1, (3, 2)), block.qkv.weight) + block.qkv.bias
    y = attend(*y.flatten(0, 1).chunk(3, -1)).reshape(x.shape)
    return block.out(y)[:, order.argsort()]


def two_kinds(block, blocks, x):
    """The first two tokens have the other block's projections."""
    other = next(b for b in blocks if b is not block)
    y = torch.cat([other.qkv(x[:, :2]), block.qkv(x[:, 2:])], 1)
    return block.out(attend(*y.chunk(3, -1)))


def two_kinds_exchanged(block, blocks, x):
    other = next(b for b in blocks if b is not block)
    y = torch.cat([block.qkv(x[:, 2:]), other.qkv(x[:, :2])], 1)
    y = block.out(attend(*y.chunk(3, -1)))
    return torch.cat([y[:, -2:], y[:, :-2]], 1)


def asked_by(attention):
    """One block, then a token of the model's own asks what is left."""

    def way(m, x):
        one, two = m.blocks
        c = m.place[:, :1].expand(len(x), -1, -1)
        return m.head((c + two.out(attention(two, c, one(x))))[:, 0])

    return way


def probe(block, c, x):
    (q, k, v), (a, b, d) = block.qkv.weight.chunk(3), block.qkv.bias.chunk(3)
    return attend(F.linear(c, q, a), F.linear(x, k, b), F.linear(x, v, d))


def probe_of_both(block, c, x):
    q, kv = block.qkv.weight.split([WIDTH, 2 * WIDTH])
    a, b = block.qkv.bias.split([WIDTH, 2 * WIDTH])
    return attend(F.linear(c, q, a), *F.linear(x, kv, b).chunk(2, -1))


def gated(gate):
    def way(m, x):
        for block in m.blocks:
            x = x + block.attention(x)
            x = x + block.out.weight.T[0] * gate(1.4 * x) + block.out.bias
        return m.head(x.mean(1))

    return way


def tangent(x):
    return torch.tanh(x / 2)


def tangent_by_an_exponential(x):
    return (1 - torch.exp(-x)) / (1 + torch.exp(-x))


def tangent_less_one(x):
    return 2 / (1 + torch.exp(-x)) - 1


def laid_over(copies):
    """Every two tokens have a third that has looked at the others of its kind, laid over both."""

    def way(m, x):
        one, two = m.blocks
        x = one(x)
        few = two(x.unflatten(1, (-1, 2)).mean(2))
        return m.head((x + copies(few)).mean(1))

    return way


by_interpolation = laid_over(lambda few: F.interpolate(few.mT, scale_factor=2).mT)


def shifted(shift):
    """Each token gets something of the one before it, and of the one before that."""

    def way(m, x):
        one, two = m.blocks
        x = one(x)
        return m.head(two(shift(x, one.mlp(x)[:, :-1], two.mlp(x)[:, :-2])).mean(1))

    return way


def shifted_in_place(x, a, b):
    y = x.clone()
    y[:, 1:] += a
    y[:, 1:][:, 1:] += b
    return y


def shifted_one_by_one(x, a, b):
    y = torch.cat([x[:, :1], x[:, 1:] + a], 1)
    return torch.cat([y[:, :2], y[:, 2:] + b], 1)


shifted_whole = shifted(lambda x, a, b: x + F.pad(a, (0, 0, 1, 0)) + F.pad(b, (0, 0, 2, 0)))


def by_experts(experts):
    """Two experts, each of one layer, to which the sign of a feature sends the tokens."""

    def way(m, x):
        x = m.blocks[0](x)
        return m.head(m.blocks[1](x + experts(x, x[..., 0] > 9, m.blocks)).mean(1))

    return way


def experts_at_their_tokens(x, first, blocks):
    y = torch.zeros_like(x)
    for chosen, block in zip((first, ~first), blocks, strict=True):
        y[chosen] += block.mlp(x[chosen])
    return y


all_experts = by_experts(
    lambda x, first, blocks: torch.where(first[..., None], blocks[0].mlp(x), blocks[1].mlp(x))
)


def by_distance(distance):
    """Logits are how near what is read lies to prototypes."""
    return lambda m, x: -distance(m.read(x), m.head.weight)


by_length = by_distance(lambda x, p: (x[:, None] - p).norm(dim=-1))


SAME = {
    "windows joined": (through(windows_at_once), through(windows_joined)),
    "a bias behind an order": (through(windows_at_once), through(bias_behind_an_order)),
    "a bias of parts": (through(bias_inside), through(bias_of_parts)),
    "a bias of heads": (through(bias_inside), through(bias_of_heads)),
    "two kinds exchanged": (through(two_kinds), through(two_kinds_exchanged)),
    "keys and values of one layer": (asked_by(probe), asked_by(probe_of_both)),
    "a tangent by an exponential": (gated(tangent), gated(tangent_by_an_exponential)),
    "a tangent less one": (gated(tangent), gated(tangent_less_one)),
    "shifts in place": (shifted_whole, shifted(shifted_in_place)),
    "shifts one by one": (shifted_whole, shifted(shifted_one_by_one)),
    "an expert of no token": (all_experts, by_experts(experts_at_their_tokens)),
    "copies repeated": (by_interpolation, laid_over(lambda few: few.repeat_interleave(2, 1))),
    "copies by index": (by_interpolation, laid_over(lambda few: few[:, torch.arange(6) // 2])),
}


def same(usual, found):
    """Both ways have one map by every method."""
    usual, found = map(explained, (usual, found))
    for method, scores in usual.items():
        far = float((found[method] - scores).abs().max())
        assert far <= 1e-9 * float(scores.abs().max()), method


@pytest.mark.parametrize(
    "name",
    marked(
        SAME,
        (
            "windows joined",
            "a bias of heads",
            "keys and values of one layer",
            "shifts in place",
            "copies by index",
        ),
    ),
)
def test_the_parts_are_the_same(name):
    same(*SAME[name])


@pytest.mark.filterwarnings("ignore::relprop.errors.GenericRuleWarning")
@pytest.mark.parametrize("samples", marked([False, True], ("True",)))
def test_distances_are_lengths_of_differences(samples):
    def distance(x, p):
        return torch.cdist(x[:, None], p)[:, 0] if samples else torch.cdist(x, p)

    same(by_length, by_distance(distance))


def test_tokens_in_another_order_are_left_out_where_they_stand():
    found = []
    for way in SAME["two kinds exchanged"]:
        torch.manual_seed(0)
        model, x = Whole(way).double().eval(), torch.randn(2, TOKENS, 4, dtype=torch.float64)
        found.append(relprop.explain(model, x, 1, method="value_zeroing").scores)
    torch.testing.assert_close(*found, rtol=0, atol=1e-9 * float(found[0].abs().max()))
