"""The oracle of ``tools.rollup_graphs`` says what the definition's page works out: without relprop,
on maps drawn by chance."""

from random import Random

import numpy as np
import pytest

from tools.rollup_graphs.by_hand import READINGS, ByHand
from tools.rollup_graphs.layers import convolution, cut, highway, mlp, recurrent
from tools.rollup_graphs.recipes import Recipe

TOKENS = 4
ONE = np.eye(TOKENS)
EVEN = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]])
EVEN = EVEN / EVEN.sum(1, keepdims=True)  # a convolution of three
NEIGHBOURS = np.array([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
BEFORE = (ONE + np.eye(TOKENS, k=-1)) / np.array([[1], [2], [2], [2]])
PAIRED = [0.5, 1 / 6, 1 / 6, 1 / 6]  # the first token beside the mean of the others


def twice(r, x, between=lambda r, y: y):
    """One map in two layers."""
    made = r.map(r.linear(x), r.linear(x), 2)
    y = between(r, r.sum(x, r.linear(r.use(made, r.linear(x)))))
    return r.sum(y, r.linear(r.use(made, r.linear(y))))


def gate_and_value(r, x):
    made = r.map(r.linear(x), r.linear(x), 2)
    value, gate = (r.use(made, r.linear(x)) for _ in "vg")
    return r.sum(x, r.add("multiply", value, r.act(gate)))


def pieces(*counts, beside=False, one_weight=False):
    """Heads cut in pieces of so many, with or without a convolution of the values."""

    def made(r, x):
        total = 2 * sum(counts)
        q, k, v = (cut(r, r.linear(x, total), [2 * c for c in counts]) for _ in "qkv")
        weight, parts = r.add("weight", how=0, tokens=r.width(x), width=total), []
        for c, *qkv in zip(counts, q, k, v, strict=True):
            part = used = r.use(r.map(*qkv[:2], c), qkv[2])
            part = r.sum(part, convolution(r, qkv[2])) if beside else part
            how = {"how": (0, 2), "tokens": TOKENS, "width": r.width(x)}
            part = r.add("columns", part, weight, **how) if one_weight else part
            r.pieces[part] = used, c / sum(counts)
            parts.append(part)
        return r.sum(x, r.sum(*parts) if one_weight else r.cat(*parts))

    return made, lambda i, *m: i + sum(c * e for c, e in zip(counts, m, strict=True)) / sum(counts)


def attended(r, x):
    return r.sum(x, r.attention(x))


def dense(r, x):
    y = attended(r, x)
    z = r.attention(r.cat(x, y))
    return r.cat(x, y, z)


def reversible(r, x):
    a = r.sum(x, r.attention(x))
    b = r.sum(x, mlp(r, a))
    c = r.sum(a, r.attention(b))
    return r.sum(c, r.sum(b, mlp(r, c)))


def first_and_mean(r, x):
    first, others = r.move(x, "slice", 0, 1, 1), r.move(x, "slice", 1, TOKENS, 1)
    return r.cat(first, r.windows(others, "mean"))


def values(r, x):
    v = r.linear(x)
    y = r.sum(x, r.attention(x, values=v))
    return r.sum(y, r.attention(y, values=r.sum(r.linear(y), v)))


def u_net(r, x):
    late = attended(r, early := attended(r, x))
    return r.cat(attended(r, late), early)


WORKED = {
    "x + attn(x)": (attended, lambda i, e: i + e),
    "y + MLP(y)": (lambda r, x: r.sum(y := attended(r, x), mlp(r, y)), lambda i, e: i + e),
    "x + attn(x) + MLP(x)": (
        lambda r, x: r.sum(x, r.attention(x), mlp(r, x)),
        lambda i, e: i + e,
    ),
    "P x + attn(x)": (lambda r, x: r.sum(r.linear(x), r.attention(x)), lambda i, e: i + e),
    "y - proj(y)": (lambda r, x: r.sum(y := r.attention(x), r.linear(y)), lambda i, e: e),
    "GRU": (recurrent, lambda i, e: i + e),
    "highway": (highway, lambda i, e: i + e),
    "a x + b x0": (
        lambda r, x: attended(r, r.sum(r.add("scale", attended(r, x), how=2.0), x)),
        lambda i, e, f: (i + f) @ (i + e),
    ),
    "U-Net": (u_net, lambda i, e, f, g: (i + g) @ (i + f) @ (i + e)),
    "reversible": (reversible, lambda i, e, f: (i + f) @ (i + e)),
    "DenseNet": (dense, lambda i, e, f: (i + f) @ (i + e)),
    "v + v0": (values, lambda i, e, f: (i + f) @ (i + e)),
    "one map in two layers": (twice, lambda i, e, _: (i + e) @ (i + e)),
    "one map in two layers, an MLP between": (
        lambda r, x: twice(r, x, lambda r, y: r.sum(y, mlp(r, y))),
        lambda i, e, _: (i + e) @ (i + e),
    ),
    "gate and value": (gate_and_value, lambda i, e, _: i + e),
    "x + a(x) + b(x)": (
        lambda r, x: r.sum(x, r.attention(x), r.attention(x)),
        lambda i, a, b: i + a + b,
    ),
    "heads 4 + 4": pieces(4, 4),
    "heads 2 + 6, a convolution": pieces(2, 6, beside=True),
    "heads 1 + 1 + 2, one weight": pieces(1, 1, 2, one_weight=True),
    "patch merging": (
        lambda r, x: r.cat(
            r.move(y := attended(r, x), "slice", 0, 4, 2), r.move(y, "slice", 1, 4, 2)
        ),
        lambda i, e: NEIGHBOURS @ (i + e),
    ),
    "cat(x[0], mean(x[1:]))": (
        lambda r, x: first_and_mean(r, attended(r, x)),
        lambda i, e: np.array([PAIRED]) @ (i + e),
    ),
    "no skip": (lambda r, x: r.attention(r.attention(x)), lambda i, e, f: f @ e),
    "pooled by a learned query": (
        lambda r, x: r.attention(r.add("learned", tokens=1, width=4), attended(r, x)),
        lambda i, e, f: f @ (i + e),
    ),
    "a(x) ⊙ b(x)": (
        lambda r, x: r.add("multiply", r.attention(x), r.attention(x)),
        lambda i, a, b: a + b,
    ),
    "x ⊙ σ(attn(x))": (
        lambda r, x: r.add("multiply", x, r.act(r.attention(x))),
        lambda i, a: i + a,
    ),
    "x ⊙ σ(conv(x))": (
        lambda r, x: r.add("multiply", y := attended(r, x), r.act(convolution(r, y))),
        lambda i, a: (i + EVEN) @ (i + a) / 2,
    ),
    "W pool(x) + MBConv(x)": (
        lambda r, x: r.sum(
            r.linear(r.windows(y := attended(r, x), "average", 2, 2)),
            r.windows(y, "convolution", 2, 2),
        ),
        lambda i, a: NEIGHBOURS @ (i + a),
    ),
    "token shift by padding": (
        lambda r, x: r.sum(y := attended(r, x), r.move(y, "pad", 1, -1)),
        lambda i, a: BEFORE @ (i + a),
    ),
    "a branch with its own skip": (
        lambda r, x: r.sum(x, r.linear(attended(r, r.linear(x)))),
        lambda i, a: i + a,
    ),
    "a gate inside a branch": (
        lambda r, x: r.add("multiply", r.act(r.linear(x)), r.attention(attended(r, x))),
        lambda i, m, n: i + n @ (i + m),
    ),
    "the first token added to all": (
        lambda r, x: r.sum(y := attended(r, x), r.move(y, "slice", 0, 1, 1)),
        lambda i, a: (i + ONE[0]) / 2 @ (i + a),
    ),
    "the same twice": (
        lambda r, x: r.cat(y := attended(r, x), r.add("norm", y)),
        lambda i, a: i + a,
    ),
    "class attention": (
        lambda r, x: r.sum(
            x,
            r.join(
                r.attention(r.move(n := r.add("norm", x), "slice", 0, 1, 1), n),
                r.move(n, "slice", 1, 4, 1),
            ),
        ),
        lambda i, a: i + ONE[:, :1] @ a,
    ),
    "squeeze and excite": (
        lambda r, x: r.add("multiply", y := attended(r, x), r.act(r.windows(y, "mean"))),
        lambda i, a: i + a,
    ),
}


def made(layer, seed):
    recipe = Recipe(Random(seed))
    recipe.pick.random = lambda: 0.5  # no layer pads by itself
    x = recipe.linear(recipe.add("input", how=0, tokens=TOKENS, width=3), 4)
    return recipe, layer(recipe, x)


@pytest.mark.parametrize("reading", ["", *READINGS])
@pytest.mark.parametrize("name", WORKED)
def test_worked_by_hand(name, reading):
    layer, product = WORKED[name]
    recipe, x = made(layer, name)
    for place in range(recipe.tokens(x)):
        recipe.__dict__.pop("live", None)
        recipe.reads = [(x, place)]
        chance = np.random.default_rng(0)
        maps = {
            i: (m := chance.random((2, recipe.tokens(i), recipe.tokens(recipe.nodes[i].of[1]))))
            / m.sum(-1, keepdims=True)
            for i in recipe.of_kind("map")
        }
        e = [maps[recipe.nodes[u].of[0]] for u in recipe.of_kind("use")]
        ((scores, identity),) = ByHand(recipe, maps, {}, reading).rows()
        without = product(ONE, *(0 * m for m in e))[..., place, :]
        assert abs(identity - without).max() < 1e-14
        assert abs(scores + identity - product(ONE, *e)[..., place, :]).max() < 1e-14


def of_two(join):
    """Rows of two inputs of 4 and 2 tokens, (scores, identity) each, and the maps."""
    recipe = Recipe(Random(0))
    leaves = [recipe.add("input", how=k, tokens=n, width=3) for k, n in enumerate((4, 2))]
    recipe.reads = [(join(recipe, *(recipe.linear(leaf, 4) for leaf in leaves)), 0)]
    chance = np.random.default_rng(0)
    maps = {
        i: chance.random((1, recipe.tokens(i), recipe.tokens(recipe.nodes[i].of[1])))
        for i in recipe.of_kind("map")
    }
    return ByHand(recipe, maps, {}).rows(), list(maps.values())


def test_two_inputs_joined_share_a_mean():
    (one, other), (e,) = of_two(lambda r, x, y: r.windows(attended(r, r.join(x, y)), "mean"))
    assert abs(one[1] - 1 / 6).max() < 1e-15 and abs(other[1] - 1 / 6).max() < 1e-15
    assert (one[1].sum(), other[1].sum()) == pytest.approx((4 / 6, 2 / 6))
    assert abs(np.concatenate([one[0], other[0]], 1) - e.mean(1)).max() < 1e-15


def test_a_decoder_reaches_the_other_input_through_each_cross_attention_once():
    def decoder(r, x, y):
        y = attended(r, y)
        for _ in range(2):
            x = attended(r, x)
            x = r.sum(x, r.attention(x, y))
        return x

    (own, other), (memory, a, c, b, d) = of_two(decoder)
    i, j = np.eye(4), np.eye(2)
    assert abs(own[0] + own[1] - ((i + b) @ (i + a))[:, 0]).max() < 1e-14
    through = (c + d + b @ c) @ (j + memory)
    assert abs(other[0] + other[1] - through[:, 0]).max() < 1e-14
