"""The layers that recipes are put together of: each takes a recipe and its stream, and returns the
stream that comes after."""

from __future__ import annotations

from collections.abc import Callable

from tools.rollup_graphs.recipes import Recipe

Layer = Callable[[Recipe, int], int]
LAYERS: dict[str, Layer] = {}


def layer(made: Layer) -> Layer:
    """Add a layer to those that are drawn."""
    LAYERS[made.__name__.replace("_", " ")] = made
    return made


def drawn(r: Recipe, *made: Callable[[], int]) -> int:
    """One of several things to make."""
    return r.pick.choice(made)()


# -- parts


def mlp(r: Recipe, x: int) -> int:
    """Two linear layers."""
    return r.linear(r.act(r.linear(x, r.width(x) + 2), "gelu"), r.width(x))


def branch(r: Recipe, x: int, depth: int = 2) -> int:
    """What may stand beside a skip connection: with attention or without, nested."""
    return drawn(
        r,
        lambda: r.attention(x),
        lambda: r.attention(r.add("norm", x)),
        lambda: mlp(r, r.add("norm", x)),
        lambda: r.linear(x),
        lambda: convolution(r, x),
        lambda: r.attention(r.attention(x)),
        lambda: r.attention(convolution(r, x)),
        *(
            [
                lambda: r.linear(r.sum(y := r.linear(x), branch(r, y, depth - 1))),
                lambda: r.linear(r.sum(branch(r, x, depth - 1), branch(r, x, depth - 1))),
                lambda: gated(r, x, branch(r, x, depth - 1)),
                lambda: r.linear(branch(r, x, depth - 1)),
            ]
            if depth
            else []
        ),
    )


def convolution(r: Recipe, x: int) -> int:
    """A convolution over tokens that keeps them all; some pad before it."""
    if r.pick.random() < 0.2:
        return r.windows(r.move(x, "pad", 1, 1), "convolution", 3)
    return r.windows(x, "convolution", 3, 1, 1)


def gated(r: Recipe, x: int, y: int) -> int:
    """y by a gate of x, on either side."""
    gate = r.act(r.linear(x, r.width(y)))
    return r.add("multiply", *r.pick.sample([gate, y], 2))


def cut(r: Recipe, x: int, widths: list[int]) -> list[int]:
    """Features cut in pieces."""
    ends = [sum(widths[: k + 1]) for k in range(len(widths))]
    return [
        r.add("features", x, how=(e - w, e), width=w) for w, e in zip(widths, ends, strict=True)
    ]


# -- sums


@layer
def residual(r: Recipe, x: int) -> int:
    """x + f(x), with the norm before, after, or nowhere, and with a factor or none."""
    f = branch(r, x)
    f = r.add("scale", f, how=0.5) if r.pick.random() < 0.3 else f
    made = r.sum(x, f)
    return r.add("norm", made) if r.pick.random() < 0.3 else made


@layer
def block(r: Recipe, x: int) -> int:
    """A block of a transformer."""
    y = r.sum(x, r.attention(r.add("norm", x)))
    return r.sum(y, mlp(r, r.add("norm", y)))


@layer
def parallel(r: Recipe, x: int) -> int:
    """Attention, an MLP and more side by side, in any order."""
    n = r.add("norm", x)
    more = [branch(r, n, 1)] if r.pick.random() < 0.4 else []
    return r.sum(x, r.attention(n), mlp(r, n), *more)


@layer
def added_modules(r: Recipe, x: int) -> int:
    """Several attentions added."""
    return r.sum(x, *(r.linear(r.attention(x)) for _ in range(r.pick.choice([2, 2, 3]))))


@layer
def projected_shortcut(r: Recipe, x: int) -> int:
    """No skip connection but a linear layer."""
    more = [mlp(r, x)] if r.pick.random() < 0.5 else []
    return r.sum(r.linear(x), r.attention(x), *more)


@layer
def two_stages(r: Recipe, x: int) -> int:
    """A branch with a skip connection of its own, within one or without."""
    y = r.linear(x) if r.pick.random() < 0.7 else x
    inner = r.linear(r.sum(y, branch(r, y, 1)))
    return r.sum(x, inner) if r.pick.random() < 0.7 else inner


@layer
def without_skip(r: Recipe, x: int) -> int:
    """A branch alone, or what does without any of its input."""
    y = branch(r, x, 1)
    return drawn(r, lambda: y, lambda: r.sum(y, r.linear(y)), lambda: r.sum(y, branch(r, y, 0)))


@layer
def re_injected(r: Recipe, x: int) -> int:
    """An earlier stream added again, scaled or through a layer."""
    early = r.pick.choice([s for s in r.stages if r.tokens(s) == r.tokens(x)] or [x])
    early = r.add("scale", early, how=0.7) if r.pick.random() < 0.5 else r.linear(early)
    return r.sum(r.add("scale", x, how=0.3), early)


@layer
def reversible(r: Recipe, x: int) -> int:
    """Two streams, each of which is changed by the other."""
    a = r.sum(x, r.attention(x))
    b = r.sum(x, mlp(r, a))
    return drawn(r, lambda: r.sum(a, b), lambda: r.cat(a, b), lambda: r.sum(a, r.attention(b)))


@layer
def larger(r: Recipe, x: int) -> int:
    """The larger of two numbers."""
    return r.add("larger", x, branch(r, x, 1))


@layer
def token_wise(r: Recipe, x: int) -> int:
    """An MLP over tokens, alone or beside a skip connection."""
    mixed = r.add("mix", x, tokens=r.tokens(x))
    return mixed if r.pick.random() < 0.5 else r.sum(x, mixed)


# -- gates


@layer
def gate(r: Recipe, x: int) -> int:
    """Products of two activations."""
    return drawn(
        r,
        lambda: r.sum(x, gated(r, x, r.attention(x))),
        lambda: r.add("multiply", x, r.act(branch(r, x, 1))),
        lambda: r.add("multiply", r.attention(x), r.act(r.attention(x))),
        lambda: gated(r, x, x),
        lambda: gated(r, x, r.sum(r.linear(x), r.attention(x))),
        lambda: glu(r, x),
        lambda: highway(r, x),
        lambda: recurrent(r, x),
    )


def glu(r: Recipe, x: int) -> int:
    """One layer's halves, one the gate of the other."""
    source = x if r.pick.random() < 0.5 else r.attention(x)
    value, gate = cut(r, r.linear(source, 2 * r.width(x)), [r.width(x)] * 2)
    return r.linear(r.add("multiply", value, r.act(gate)))


def highway(r: Recipe, x: int) -> int:
    """g ⊙ f(x) + (1 − g) ⊙ x."""
    g = r.act(r.linear(x))
    carried = r.add("multiply", r.act(g, "1 -"), x)
    return r.sum(r.add("multiply", g, r.attention(x)), carried)


def recurrent(r: Recipe, x: int) -> int:
    """A GRU cell: the stream is its state, attention its input."""
    y = r.attention(x)
    z, reset = (r.act(r.sum(r.linear(y), r.linear(x))) for _ in "zr")
    new = r.act(r.sum(r.linear(y), r.linear(r.add("multiply", reset, x))), "tanh")
    return r.sum(r.add("multiply", r.act(z, "1 -"), x), r.add("multiply", z, new))


@layer
def pooled_factor(r: Recipe, x: int) -> int:
    """Squeeze and excite; a pooled condition that is added."""
    pooled = r.windows(x, "mean")
    factor = r.act(mlp(r, pooled))
    return drawn(
        r,
        lambda: r.add("multiply", x, factor),
        lambda: r.sum(x, r.add("multiply", r.attention(x), factor)),
        lambda: r.sum(x, r.linear(pooled)),
        lambda: r.add("multiply", factor, r.attention(x)),
    )


# -- side by side


@layer
def features_side_by_side(r: Recipe, x: int) -> int:
    """Concatenated along features: x, attention, more; the same twice."""
    parts = [x, branch(r, x, 1), *([r.attention(x)] if r.pick.random() < 0.5 else [])]
    return r.cat(*r.pick.sample(parts, len(parts)))


@layer
def long_skip(r: Recipe, x: int) -> int:
    """A U-Net's or DenseNet's: earlier streams beside the last."""
    early = [s for s in r.stages if r.tokens(s) == r.tokens(x) and s != x] or [x]
    return r.cat(x, *r.pick.sample(early, r.pick.randint(1, len(early))))


@layer
def earlier_values(r: Recipe, x: int) -> int:
    """Values of an earlier attention added to those of a later one."""
    first = r.sum(x, r.attention(r.add("norm", x)))
    early = r.pick.choice([v for v in r.values if r.tokens(v) == r.tokens(x)])
    return r.sum(first, r.attention(first, values=r.sum(r.linear(first), early)))


@layer
def heads_in_pieces(r: Recipe, x: int) -> int:
    """One attention, its heads computed in pieces: side by side, or cut out of one weight."""
    size = 2
    counts = [r.pick.choice([1, 2, 3]) for _ in range(r.pick.choice([2, 2, 3]))]
    total = size * sum(counts)
    q, k, v = (cut(r, r.linear(x, total), [size * c for c in counts]) for _ in "qkv")
    added, beside = r.pick.random() < 0.3, r.pick.choice(["", "convolution", "values"])
    weight = r.add("weight", how=total, tokens=r.width(x), width=total) if added else -1
    parts, at = [], 0
    for query, key, value, heads in zip(q, k, v, counts, strict=True):
        used = part = r.use(r.map(query, key, heads, r.pick.random() < 0.4), value)
        if beside:
            part = r.sum(part, convolution(r, value) if beside == "convolution" else value)
        elif r.pick.random() < 0.2:
            part = gated(r, x, part)
        if added:
            how = (at, at + size * heads)
            part = r.add("columns", part, weight, how=how, tokens=r.tokens(x), width=r.width(x))
        at += size * heads
        parts.append(part)
        r.pieces[part] = used, heads / sum(counts)
    whole = r.sum(*parts) if added else r.add("cat", *parts, width=total)
    whole = whole if added else r.linear(whole, r.width(x))
    return r.sum(x, whole) if r.pick.random() < 0.8 else whole


@layer
def one_map_again(r: Recipe, x: int) -> int:
    """One attention map in two layers, or with two values side by side."""
    made = r.map(r.linear(x), r.linear(x), r.pick.choice([1, 2]))

    def used(y: int) -> int:
        return r.linear(r.use(made, r.linear(y)))

    if r.pick.random() < 0.5:
        y = r.sum(x, used(x))
        y = r.sum(y, mlp(r, y)) if r.pick.random() < 0.5 else y
        return r.sum(y, used(y))
    return drawn(
        r,
        lambda: r.sum(x, r.add("multiply", used(x), r.act(used(x)))),
        lambda: r.cat(used(x), used(x)),
        lambda: r.sum(x, used(x), used(x)),
    )


# -- tokens


@layer
def learned_token(r: Recipe, x: int) -> int:
    """A learned token in front, or at the end."""
    token = r.add("learned", tokens=1, width=r.width(x))
    return r.join(token, x) if r.pick.random() < 0.8 else r.join(x, token)


@layer
def merging(r: Recipe, x: int) -> int:
    """Neighbours become one."""
    even = r.tokens(x) // 2 * 2
    if even < 4:
        return x
    return drawn(
        r,
        lambda: r.cat(r.move(x, "slice", 0, even, 2), r.move(x, "slice", 1, even, 2)),
        lambda: r.sum(r.move(x, "slice", 0, even, 2), r.move(x, "slice", 1, even, 2)),
        lambda: r.windows(x, "convolution", 2, 2),
        lambda: r.windows(x, "convolution", 3, 2, 1),
        lambda: r.windows(x, "average", 2, 2),
    )


@layer
def shifted(r: Recipe, x: int) -> int:
    """Every token beside the one before it, in a sum, a layer, or some of the features."""
    before = r.move(x, "pad", 1, -1) if r.pick.random() < 0.7 else r.move(x, "roll", 1)
    half = r.width(x) // 2

    def halves() -> int:
        first, second = (cut(r, t, [half, r.width(x) - half]) for t in (before, x))
        return r.cat(first[0], second[1])

    return drawn(r, lambda: r.sum(x, before), lambda: r.cat(x, before), halves)


@layer
def moved(r: Recipe, x: int) -> int:
    """Tokens in another order, or some of them."""
    n = r.tokens(x)
    last = [lambda: r.move(x, "slice", 1, n, 1), lambda: r.move(x, "slice", 0, n - 1, 1)]
    return drawn(
        r,
        lambda: r.move(x, "roll", 1),
        lambda: r.move(x, "flip"),
        lambda: r.move(x, "pick", tuple(r.pick.sample(range(n), n))),
        *(last if n > 2 else []),
    )


@layer
def first_token_again(r: Recipe, x: int) -> int:
    """The first token added to all."""
    first = r.move(x, "slice", 0, 1, 1)
    return r.sum(x, first)


@layer
def one_token_attends(r: Recipe, x: int) -> int:
    """Class attention: the first token reads, the others stay."""
    first, others = r.move(x, "slice", 0, 1, 1), r.move(x, "slice", 1, r.tokens(x), 1)
    if r.pick.random() < 0.5:
        return r.join(r.sum(first, r.attention(first, x)), others)
    n = r.add("norm", x)
    first, others = r.move(n, "slice", 0, 1, 1), r.move(n, "slice", 1, r.tokens(x), 1)
    return r.sum(x, r.join(r.attention(first, n), others))


@layer
def learned_queries(r: Recipe, x: int) -> int:
    """Attention of learned tokens to the stream."""
    queries = r.add("learned", tokens=r.pick.choice([2, 3]), width=r.width(x))
    made = r.attention(queries, x)
    return r.sum(queries, made) if r.pick.random() < 0.5 else made


@layer
def cross_attention(r: Recipe, x: int) -> int:
    """Cross-attention to another input, or to the first stream."""
    other = r.stages[0] if r.memory is None else r.memory
    return r.sum(x, r.attention(x, other))
