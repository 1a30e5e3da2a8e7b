"""The worked cases of the roll-up's definition as recipes of ``tools.rollup_graphs``, each with the
product of matrices that its rows are: ``i`` is the identity, the others are the maps in order."""

from random import Random

import numpy as np

from tools.rollup_graphs.layers import attended, convolution, highway, mlp, pieces, recurrent
from tools.rollup_graphs.recipes import Recipe

TOKENS = 4
ONE = np.eye(TOKENS)
EVEN = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]])
EVEN = EVEN / EVEN.sum(1, keepdims=True)  # a convolution of three
NEIGHBOURS = np.array([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
THIRDS = np.array([[1, 1, 1, 0], [0, 0, 1, 1]]) / np.array([[3], [2]])  # of three, one padded after
HALVES = np.array([[1, 1, 0, 0], [0, 1, 1, 1]]) / np.array([[2], [3]])  # of three, padded before
EVENS = np.array([[1, 0, 0, 0], [0, 0, 1, 0]])
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
    return r.sum(x, r.add("mul", value, r.act(gate)))


def bare(r, x, heads):
    """Attention without a projection of what comes."""
    return r.use(r.map(r.linear(x), r.linear(x), heads), r.linear(x))


def heads(*counts, beside="", one_weight=False):
    """Heads cut in pieces of so many."""

    def made(r, x):
        return r.sum(x, pieces(r, x, counts, beside, one_weight))

    return made, lambda i, *m: i + sum(c * e for c, e in zip(counts, m, strict=True)) / sum(counts)


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
    "heads 4 + 4": heads(4, 4),
    "heads 2 + 6, a convolution": heads(2, 6, beside="convolution"),
    "heads 1 + 1 + 2, one weight": heads(1, 1, 2, one_weight=True),
    "heads 2 + 1 + 2, one weight": heads(2, 1, 2, beside="values", one_weight=True),
    "modules side by side": (
        lambda r, x: r.cat(x, r.attention(x), r.attention(x)),
        lambda i, a, b: i + a + b,
    ),
    "heads side by side, and x": (
        lambda r, x: r.cat(bare(r, x, 4), x, bare(r, x, 4)),
        lambda i, a, b: i + (a + b) / 2,
    ),
    "heads 1 and 2 side by side, and x": (
        lambda r, x: r.cat(bare(r, x, 1), x, bare(r, x, 2)),
        lambda i, a, b: i + (a + 2 * b) / 3,
    ),
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
    "learned queries": (
        lambda r, x: attended(r, r.attention(r.add("learned", tokens=2, width=4), attended(r, x))),
        lambda i, e, f, g: (np.eye(2) + g) @ f @ (i + e),
    ),
    "a(x) ⊙ b(x)": (
        lambda r, x: r.add("mul", r.attention(x), r.attention(x)),
        lambda i, a, b: a + b,
    ),
    "x ⊙ σ(attn(x))": (
        lambda r, x: r.add("mul", x, r.act(r.attention(x))),
        lambda i, a: i + a,
    ),
    "x ⊙ σ(conv(x))": (
        lambda r, x: r.add("mul", y := attended(r, x), r.act(convolution(r, y))),
        lambda i, a: (i + EVEN) @ (i + a) / 2,
    ),
    "W pool(x) + MBConv(x)": (
        lambda r, x: r.sum(
            r.linear(r.windows(y := attended(r, x), "average", 2, 2)),
            r.windows(y, "convolution", 2, 2),
        ),
        lambda i, a: NEIGHBOURS @ (i + a),
    ),
    "W pool(x) + MBConv(x), padded before": (
        lambda r, x: r.sum(
            r.linear(r.windows(y := attended(r, x), "average", 2, 2)),
            mlp(r, r.windows(r.move(r.add("norm", y), "pad", 0, 1), "convolution", 3, 2)),
        ),
        lambda i, a: (NEIGHBOURS + THIRDS) @ (i + a) / 2,
    ),
    "a stage of a ResNet": (
        lambda r, x: r.sum(
            r.windows(y := attended(r, x), "convolution", 1, 2),
            r.windows(y, "convolution", 3, 2, 1),
        ),
        lambda i, a: (EVENS + HALVES) @ (i + a) / 2,
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
        lambda r, x: r.add("mul", r.act(r.linear(x)), r.attention(attended(r, x))),
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
        lambda r, x: r.add("mul", y := attended(r, x), r.act(r.windows(y, "mean"))),
        lambda i, a: i + a,
    ),
}


def decoder(r, x, y):
    y = attended(r, y)
    for _ in range(2):
        x = attended(r, x)
        x = r.sum(x, r.attention(x, y))
    return x


#: Of two inputs, 4 and 2 tokens: the rows of each.
OF_TWO = {
    "two inputs joined, their mean": (
        lambda r, x, y: r.windows(attended(r, r.join(x, y)), "mean"),
        lambda i, _, e: np.split((np.eye(6) + e).mean(-2, keepdims=True), [4], -1),
    ),
    "decoder": (
        decoder,
        lambda i, j, m, a, c, b, d: ((i + b) @ (i + a), (c + d + b @ c) @ (j + m)),
    ),
}


def recipe_of(name):
    """The recipe of a case and its last stream, of which a test says what is read."""
    recipe, two = Recipe(Random(name)), name in OF_TWO
    recipe.pick.random = lambda: 0.5  # no layer pads by itself
    leaves = [
        recipe.linear(recipe.add("input", how=k, tokens=n, width=3), 4)
        for k, n in enumerate((TOKENS, 2)[: 1 + two])
    ]
    return recipe, (OF_TWO if two else WORKED)[name][0](recipe, *leaves)


def rows_of(name, *maps):
    """Of each input what its rows are by hand, and without any map: the identity."""
    if name not in OF_TWO:
        product = WORKED[name][1]
        return [(product(ONE, *maps), product(ONE, *(0 * m for m in maps)))]
    product, own = OF_TWO[name][1], (ONE, np.eye(2))
    return list(zip(product(*own, *maps), product(*own, *(0 * m for m in maps)), strict=True))
