"""What recipes are put together of: each layer, by its name, is written in a few ways, each of
which takes a recipe and its stream, and returns the stream that comes after."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tools.rollup_graphs.recipes import Recipe

Layer = Callable[[Recipe, int], int]

# -- parts


def mlp(r: Recipe, x: int) -> int:
    """Two linear layers."""
    return r.linear(r.act(r.linear(x, r.width(x) + 2), "gelu"), r.width(x))


def convolution(r: Recipe, x: int) -> int:
    """A convolution over tokens that keeps them all; some pad before it."""
    if r.pick.random() < 0.2:
        return r.windows(r.move(x, "pad", 1, 1), "convolution", 3)
    return r.windows(x, "convolution", 3, 1, 1)


def attended(r: Recipe, x: int) -> int:
    """Attention and a skip connection."""
    return r.sum(x, r.attention(x))


def gated(r: Recipe, x: int, y: int) -> int:
    """y by a gate of x, on either side."""
    return r.add("mul", *r.pick.sample([r.act(r.linear(x, r.width(y))), y], 2))


def cut(r: Recipe, x: int, widths: Sequence[int]) -> list[int]:
    """Features cut in pieces."""
    ends = [sum(widths[: k + 1]) for k in range(len(widths))]
    spans = [(end - width, end) for width, end in zip(widths, ends, strict=True)]
    return [r.add("features", x, how=span, width=span[1] - span[0]) for span in spans]


def branch(r: Recipe, x: int, depth: int = 2) -> int:
    """What may stand beside a skip connection: with attention or without, nested."""

    def inner(x: int) -> int:
        return branch(r, x, depth - 1)

    plain: list[Callable[[], int]] = [
        lambda: r.attention(x),
        lambda: r.attention(r.norm(x)),
        lambda: mlp(r, r.norm(x)),
        lambda: r.linear(x),
        lambda: convolution(r, x),
        lambda: r.attention(r.attention(x)),
        lambda: r.attention(convolution(r, x)),
    ]
    nested: list[Callable[[], int]] = [
        lambda: r.linear(r.sum(y := r.linear(x), inner(y))),
        lambda: r.linear(r.sum(inner(x), inner(x))),
        lambda: gated(r, x, inner(x)),
        lambda: r.linear(inner(x)),
    ]
    return r.pick.choice(plain + nested * (depth > 0))()


def early(r: Recipe, x: int) -> int:
    """An earlier stream of as many tokens."""
    return r.pick.choice([s for s in r.stages if r.tokens(s) == r.tokens(x)] or [x])


def first(r: Recipe, x: int) -> int:
    """The first token."""
    return r.move(x, "slice", 0, 1, 1)


def others(r: Recipe, x: int) -> int:
    """All others."""
    return r.move(x, "slice", 1, r.tokens(x), 1)


def learned(r: Recipe, x: int, tokens: int) -> int:
    """Learned tokens."""
    return r.add("learned", tokens=tokens, width=r.width(x))


def pairs(r: Recipe, x: int) -> list[int]:
    """The first of each two tokens, and the second."""
    even = r.tokens(x) // 2 * 2
    return [r.move(x, "slice", k, even, 2) for k in (0, 1)]


def shifted(r: Recipe, x: int) -> int:
    """Before each token, the last or padding before the first."""
    return r.move(x, "pad", 1, -1) if r.pick.random() < 0.7 else r.move(x, "roll", 1)


# -- layers of several operations


def highway(r: Recipe, x: int) -> int:
    """g ⊙ f(x) + (1 − g) ⊙ x."""
    g = r.act(r.linear(x))
    return r.sum(r.add("mul", g, r.attention(x)), r.add("mul", r.act(g, "1 -"), x))


def recurrent(r: Recipe, x: int) -> int:
    """A GRU cell: the stream is its state, attention its input."""
    y = r.attention(x)
    z, reset = (r.act(r.sum(r.linear(y), r.linear(x))) for _ in "zr")
    new = r.act(r.sum(r.linear(y), r.linear(r.add("mul", reset, x))), "tanh")
    return r.sum(r.add("mul", r.act(z, "1 -"), x), r.add("mul", z, new))


def glu(r: Recipe, x: int) -> int:
    """One layer's halves, one the gate of the other."""
    value, gate = cut(r, r.linear(x, 2 * r.width(x)), [r.width(x)] * 2)
    return r.linear(r.add("mul", value, r.act(gate)))


def streams(r: Recipe, x: int) -> tuple[int, int]:
    """Two reversible streams, each of which is changed by the other."""
    a = attended(r, x)
    return a, r.sum(x, mlp(r, a))


def earlier_values(r: Recipe, x: int) -> int:
    """Values of an earlier attention added to those of a later one."""
    y = attended(r, x)
    v = r.pick.choice([v for v in r.values if r.tokens(v) == r.tokens(x)])
    return r.sum(y, r.attention(y, values=r.sum(r.linear(y), v)))


def pieces(r: Recipe, x: int, counts: Sequence[int], beside: str, one_weight: bool) -> int:
    """One attention, so many of its heads at a time, laid side by side or each by its columns of
    ``one_weight`` and added; the values or a convolution of them, or a gate, ``beside`` each."""
    widths = [2 * heads for heads in counts]
    q, k, v = (cut(r, r.linear(x, sum(widths)), widths) for _ in "qkv")
    weight = r.add("weight", tokens=r.width(x), width=sum(widths))
    parts, end = list[int](), 0
    for query, key, value, heads in zip(q, k, v, counts, strict=True):
        used = part = r.use(r.map(query, key, heads, r.pick.random() < 0.4), value)
        if beside == "gate":
            part = gated(r, x, part)
        elif beside:
            part = r.sum(part, convolution(r, value) if beside == "convolution" else value)
        end += 2 * heads
        if one_weight:
            how = (end - 2 * heads, end)
            part = r.add("columns", part, weight, how=how, tokens=r.tokens(x), width=r.width(x))
        r.pieces[part] = used, heads / sum(counts)
        parts.append(part)
    return r.sum(*parts) if one_weight else r.cat(*parts, width=r.width(x))


def in_pieces(r: Recipe, x: int) -> int:
    """Heads cut by chance."""
    counts = [r.pick.choice([1, 2, 3]) for _ in range(r.pick.choice([2, 2, 3]))]
    beside = r.pick.choice(["", "", "gate", "convolution", "values"])
    return pieces(r, x, counts, beside, r.pick.random() < 0.3)


def one_map(r: Recipe, x: int) -> Callable[[int], int]:
    """Attention by one map, that of x, to whatever it is given."""
    made = r.map(r.linear(x), r.linear(x), r.pick.choice([1, 2]))
    return lambda y: r.linear(r.use(made, r.linear(y)))


def half_shifted(r: Recipe, x: int) -> int:
    """Half of the features of the token before each."""
    width = r.width(x)
    halves = [width // 2, width - width // 2]
    return r.cat(cut(r, shifted(r, x), halves)[0], cut(r, x, halves)[1], width=width)


# -- all of them

LAYERS: dict[str, list[Layer]] = {
    "residual": [
        lambda r, x: r.sum(x, branch(r, x)),
        lambda r, x: r.norm(r.sum(x, branch(r, x))),
        lambda r, x: r.sum(x, r.add("scale", branch(r, x), how=0.5)),
    ],
    "block": [lambda r, x: r.sum(y := r.sum(x, r.attention(r.norm(x))), mlp(r, r.norm(y)))],
    "parallel": [
        lambda r, x: r.sum(x, r.attention(n := r.norm(x)), mlp(r, n)),
        lambda r, x: r.sum(x, r.attention(n := r.norm(x)), mlp(r, n), branch(r, n, 1)),
    ],
    "added modules": [
        lambda r, x: r.sum(x, *(r.linear(r.attention(x)) for _ in "ab")),
        lambda r, x: r.sum(x, *(r.linear(r.attention(x)) for _ in "abc")),
    ],
    "projected shortcut": [
        lambda r, x: r.sum(r.linear(x), r.attention(x)),
        lambda r, x: r.sum(r.linear(x), r.attention(x), mlp(r, x)),
    ],
    "two stages": [
        lambda r, x: r.sum(x, r.linear(r.sum(y := r.linear(x), branch(r, y, 1)))),
        lambda r, x: r.sum(x, r.linear(r.sum(x, branch(r, x, 1)))),
        lambda r, x: r.linear(r.sum(x, branch(r, x, 1))),
    ],
    "without skip": [
        lambda r, x: branch(r, x, 1),
        lambda r, x: r.sum(y := branch(r, x, 1), r.linear(y)),
        lambda r, x: r.sum(y := branch(r, x, 1), branch(r, y, 0)),
    ],
    "re injected": [
        lambda r, x: r.sum(r.add("scale", x, how=0.3), r.add("scale", early(r, x), how=0.7)),
        lambda r, x: r.sum(r.add("scale", x, how=0.3), r.linear(early(r, x))),
    ],
    "reversible": [
        lambda r, x: r.sum(*streams(r, x)),
        lambda r, x: r.cat(*streams(r, x)),
        lambda r, x: r.sum((ab := streams(r, x))[0], r.attention(ab[1])),
    ],
    "larger": [lambda r, x: r.add("maximum", x, branch(r, x, 1))],
    "token wise": [lambda r, x: r.add("mix", x), lambda r, x: r.sum(x, r.add("mix", x))],
    "gate": [
        lambda r, x: r.sum(x, gated(r, x, r.attention(x))),
        lambda r, x: r.add("mul", x, r.act(branch(r, x, 1))),
        lambda r, x: r.add("mul", r.attention(x), r.act(r.attention(x))),
        lambda r, x: gated(r, x, x),
        lambda r, x: gated(r, x, r.sum(r.linear(x), r.attention(x))),
        lambda r, x: glu(r, x),
        lambda r, x: glu(r, r.attention(x)),
        highway,
        recurrent,
    ],
    "pooled factor": [
        lambda r, x: r.add("mul", x, r.act(mlp(r, r.windows(x, "mean")))),
        lambda r, x: r.sum(x, r.add("mul", r.attention(x), r.act(r.windows(x, "mean")))),
        lambda r, x: r.sum(x, r.linear(r.windows(x, "mean"))),
        lambda r, x: r.add("mul", r.act(r.windows(x, "mean")), r.attention(x)),
    ],
    "features side by side": [
        lambda r, x: r.cat(*r.pick.sample([x, branch(r, x, 1)], 2)),
        lambda r, x: r.cat(*r.pick.sample([x, branch(r, x, 1), r.attention(x)], 3)),
    ],
    "long skip": [
        lambda r, x: r.cat(x, early(r, x)),
        lambda r, x: r.cat(x, early(r, x), early(r, x)),
    ],
    "earlier values": [earlier_values],
    "heads in pieces": [in_pieces, lambda r, x: r.sum(x, in_pieces(r, x))],
    "one map again": [
        lambda r, x: r.sum(y := r.sum(x, (used := one_map(r, x))(x)), used(y)),
        lambda r, x: r.sum(
            z := r.sum(y := r.sum(x, (used := one_map(r, x))(x)), mlp(r, y)), used(z)
        ),
        lambda r, x: r.sum(x, r.add("mul", (used := one_map(r, x))(x), r.act(used(x)))),
        lambda r, x: r.cat((used := one_map(r, x))(x), used(x)),
        lambda r, x: r.sum(x, (used := one_map(r, x))(x), used(x)),
    ],
    "learned token": [
        lambda r, x: r.join(learned(r, x, 1), x),
        lambda r, x: r.join(x, learned(r, x, 1)),
    ],
    "merging": [
        lambda r, x: r.cat(*pairs(r, x)),
        lambda r, x: r.sum(*pairs(r, x)),
        lambda r, x: r.windows(x, "convolution", 2, 2),
        lambda r, x: r.windows(x, "convolution", 3, 2, 1),
        lambda r, x: r.windows(x, "average", 2, 2),
        lambda r, x: r.sum(r.windows(x, "average", 2, 2), r.windows(x, "convolution", 2, 2)),
    ],
    "shifted": [
        lambda r, x: r.sum(x, shifted(r, x)),
        lambda r, x: r.cat(x, shifted(r, x)),
        half_shifted,
    ],
    "moved": [
        lambda r, x: r.move(x, "roll", 1),
        lambda r, x: r.move(x, "flip"),
        lambda r, x: r.move(x, "pick", tuple(r.pick.sample(range(r.tokens(x)), r.tokens(x)))),
        others,
    ],
    "first token again": [lambda r, x: r.sum(x, first(r, x))],
    "one token attends": [
        lambda r, x: r.join(r.sum(f := first(r, x), r.attention(f, x)), others(r, x)),
        lambda r, x: r.sum(x, r.join(r.attention(first(r, n := r.norm(x)), n), others(r, n))),
    ],
    "learned queries": [
        lambda r, x: r.attention(learned(r, x, 2), x),
        lambda r, x: r.sum(q := learned(r, x, 3), r.attention(q, x)),
    ],
    "cross attention": [
        lambda r, x: r.sum(x, r.attention(x, r.stages[0] if r.memory is None else r.memory))
    ],
}
#: Targets that the module itself makes one token of.
READ: dict[str, Layer] = {
    "token": lambda r, x: r.move(x, "slice", at := r.pick.randrange(r.tokens(x)), at + 1, 1),
    "mean": lambda r, x: r.windows(x, "mean"),
    "beside": lambda r, x: r.cat(first(r, x), r.windows(others(r, x), "mean")),
    "query": lambda r, x: r.attention(learned(r, x, 1), x),
    "sum": lambda r, x: r.sum(first(r, x), r.move(x, "slice", 1, 2, 1)),
}
