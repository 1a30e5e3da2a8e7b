"""What sums carry: the same whatever the order in which terms are added; one identity, whether a
skip or a projection brings it."""

from itertools import permutations

import pytest
import torch

from tests.common.rows import marked
from tests.rollup.hand import SAMPLES, agree, compare, explained, eye, normal
from tests.rollup.structures import HEADS, TOKENS, WIDTH, Block, Stack
from tests.rollup.test_structures import READ

ONE = eye(TOKENS).double()
PARTS = {
    "x": lambda b, x: x,
    "attention": lambda b, x: b.attention(b.norm1(x)),
    "second": lambda b, x: b.second(b.norm2(x)),
    "mlp": lambda b, x: b.mlp(b.norm2(x)),
    "shortcut": lambda b, x: b.shortcut(x),
}


def summed(tree):
    """A block that adds the parts that ``tree``, nested pairs of names, names."""

    def join(b, x, tree=tree):
        return (
            PARTS[tree](b, x)
            if isinstance(tree, str)
            else join(b, x, tree[0]) + join(b, x, tree[1])
        )

    return join


def trees(names):
    """Every order and nesting of a sum of ``names``, but for the sides of each sum."""
    if len(names) == 1:
        return [names[0]]
    first, *rest = names
    return [
        (a, b)
        for k in range(2 ** len(rest) - 1)
        for a in trees([first, *(r for i, r in enumerate(rest) if k >> i & 1)])
        for b in trees([r for i, r in enumerate(rest) if not k >> i & 1])
    ]


def test_there_are_as_many_trees_as_there_should_be():
    assert [len(trees(list("abcd"[:n]))) for n in (1, 2, 3, 4)] == [1, 1, 3, 15]


@pytest.mark.parametrize(
    "names",
    marked(
        [
            ["shortcut", "attention", "mlp"],
            ["x", "attention", "mlp"],
            ["x", "attention", "second"],
            ["shortcut", "attention", "second"],
        ],
        ("shortcut+attention+mlp", "x+attention+second"),
        "+".join,
    ),
)
def test_the_order_of_three_terms_makes_no_difference(names):
    """I + A, with the identity from x, or once from the shortcut and the MLP together. Two modules
    that are added count whole, I + A + B; where they are one site with the heads of both, A + B is
    twice the mean over all of these."""
    x, modules = normal(SAMPLES, TOKENS, 3), 1 + ("second" in names)
    for tree in trees(names):
        e = explained(Stack(Block(summed(tree))), x)
        compare(e, whole(modules), READ, heads=all_heads(e))
        assert sum(b.gradient[0].numel() for b in e.blocks) == modules * HEADS * TOKENS**2


def whole(modules):
    """I and so many modules that are added, as a site each or as one."""
    return lambda *m: ONE + modules * sum(m) / len(m)


def all_heads(e):
    """The axes of each site's maps that are neither samples nor queries and keys."""
    return [tuple(range(1, b.gradient.dim() - 2)) for b in e.blocks]


def test_the_order_of_four_terms_makes_no_difference():
    block = Block(None)
    model, x = Stack(block), normal(SAMPLES, TOKENS, 3)
    found = []
    for tree in trees(["shortcut", "attention", "mlp", "second"])[::3]:
        block.join = summed(tree)
        e = explained(model, x)
        compare(e, whole(2), READ, heads=all_heads(e))
        found.append(e.scores)
    for other in found[1:]:
        agree(other, found[0])


def test_the_sides_of_a_sum_make_no_difference():
    x = normal(SAMPLES, TOKENS, 3)
    for a, b, c in permutations(["shortcut", "attention", "mlp"]):
        compare(explained(Stack(Block(summed(((a, b), c)))), x), lambda m: ONE + m, READ)


# one merge though something lies between the sums; and what is another merge
SUMS = {
    "scaled between": (
        lambda b, x: (b.shortcut(x) + b.attention(x)) / 2**0.5 + b.mlp(x),
        lambda i, m: i + m,
    ),
    "moved between": (
        lambda b, x: (b.shortcut(x).mT + b.attention(x).mT).mT + b.mlp(x),
        lambda i, m: i + m,
    ),
    "normed between": (
        lambda b, x: b.norm1(b.shortcut(x) + b.attention(x)) + b.mlp(x),
        lambda i, m: i + m,
    ),
    "minus": (lambda b, x: b.mlp(x) - (b.shortcut(x) - b.attention(x)), lambda i, m: i + m),
    "two merges": (
        lambda b, x: (y := b.shortcut(x) + b.attention(x)) + b.mlp(y),
        lambda i, m: i + m,
    ),
    "two merges, both projected": (
        lambda b, x: b.gate(y := b.shortcut(x) + b.attention(x)) + b.mlp(y),
        lambda i, m: i + m,
    ),
    "a skip inside a branch, added outside": (
        lambda b, x: x + ((y := b.shortcut(x)) + b.attention(y)),
        lambda i, m: i + m,
    ),
    "a projected branch of a projected shortcut": (
        lambda b, x: b.shortcut(x) + b.gate(b.mlp(x) + b.attention(x)),
        lambda i, m: i + m,
    ),
    "a projected branch of a skip": (
        lambda b, x: x + b.gate(b.mlp(x) + b.attention(x)),
        lambda i, m: i + m,
    ),
    "a branch with its own skip": (
        lambda b, x: x + b.gate((y := b.shortcut(x)) + b.attention(y)),
        lambda i, m: i + m,
    ),
    "cat of a projection": (
        lambda b, x: b.wide(torch.cat([b.shortcut(x), b.attention(x)], -1)),
        lambda i, m: i + m,
    ),
    "a gate inside a branch is a way of x": (
        lambda b, x: b.gate(x).sigmoid() * b.second(b.norm1(b.shortcut(x) + b.attention(x))),
        lambda i, m, n: i + n @ (i + m),
    ),
    "a gate around a projected shortcut": (
        lambda b, x: b.gate(x).sigmoid() * (b.shortcut(x) + b.attention(x)),
        lambda i, m: i + m,
    ),
    "tokens joined again": (
        lambda b, x: torch.cat([x[:, :1], (b.shortcut(x) + b.attention(x))[:, 1:]], 1),
        lambda i, m: i + (torch.arange(TOKENS) > 0)[:, None] * m,
    ),
}


@pytest.mark.parametrize(
    "name",
    marked(
        SUMS,
        (
            "scaled between",
            "two merges, both projected",
            "a branch with its own skip",
            "tokens joined again",
        ),
    ),
)
def test_what_is_one_merge(name):
    join, by_hand = SUMS[name]
    order = (
        (lambda m, n: by_hand(ONE, m, n))
        if by_hand.__code__.co_argcount == 3
        else (lambda m: by_hand(ONE, m))
    )
    compare(explained(Stack(Block(join)), normal(SAMPLES, TOKENS, 3)), order, READ)


def rows(*pairs):
    """A merging matrix from (row, column, weight)."""
    p = torch.zeros(1 + max(r for r, _, _ in pairs), TOKENS).double()
    for r, c, w in pairs:
        p[r, c] += w
    return p


PAIRS = rows((0, 0, 0.5), (0, 1, 0.5), (1, 2, 0.5), (1, 3, 0.5))
NEXT = rows(*((r, c % TOKENS, 0.5) for r in range(TOKENS) for c in (r, r + 1)))
MERGINGS = {
    "cat of every second": (lambda b, x: b.wide(torch.cat([x[:, :4:2], x[:, 1:4:2]], -1)), PAIRS),
    "cat of every second, normed": (
        lambda b, x: b.wide(torch.cat([b.norm1(x[:, :4:2]), b.norm1(x[:, 1:4:2])], -1)),
        PAIRS,
    ),
    "sum of every second": (lambda b, x: x[:, :4:2] + x[:, 1:4:2], PAIRS),
    "stack of every second": (
        lambda b, x: torch.stack([x[:, :4:2], x[:, 1:4:2]], -1).sum(-1),
        PAIRS,
    ),
    "reshape": (lambda b, x: b.wide(x[:, :4].reshape(len(x), 2, 2 * WIDTH)), PAIRS),
    "unfold": (lambda b, x: b.wide(x.unfold(1, 2, 2).mT.flatten(2)), PAIRS),
    "the token after it": (lambda b, x: b.wide(torch.cat([x, x.roll(-1, 1)], -1)), NEXT),
    "the mean with the token after it": (lambda b, x: (x + x.roll(-1, 1)) / 2, NEXT),
    "the first token added to all": (lambda b, x: x + x[:, :1], (ONE + ONE[0]) / 2),
    "the same place twice": (lambda b, x: b.wide(torch.cat([x, b.norm1(x)], -1)), ONE),
}


@pytest.mark.parametrize(
    "name",
    marked(MERGINGS, ("cat of every second, normed", "unfold", "the first token added to all")),
)
def test_parts_that_bring_different_tokens_share(name):
    """1/k each where k tokens become one, by slices as by a reshape; a token that comes twice
    counts once."""
    join, p = MERGINGS[name]
    blocks = (
        Block(lambda b, x: x + b.attention(x)),
        Block(join),
        Block(lambda b, x: x + b.attention(x)),
    )
    e = explained(Stack(*blocks, pool=lambda x: x[:, 0]), normal(SAMPLES, TOKENS, 3))
    i = eye(len(p)).double()
    compare(e, lambda m1, m2: (i + m2) @ p @ (ONE + m1), i[0])


FIRST, REST, FOURTH = (
    ONE[0].double(),
    (ONE.sum(0) - ONE[0]).double() / (TOKENS - 1),
    ONE[3].double(),
)
PICKED = {
    "two added": (lambda b, x: x[:, 0] + x[:, 3], (FIRST + FOURTH) / 2),
    "two picked, summed": (lambda b, x: x[:, [0, 3]].sum(1), (FIRST + FOURTH) / 2),
    "two in slices": (lambda b, x: x[:, :1].add(x[:, 3:4])[:, 0], (FIRST + FOURTH) / 2),
    "two side by side": (
        lambda b, x: b.wide(torch.cat([x[:, 0], x[:, 3]], -1)),
        (FIRST + FOURTH) / 2,
    ),
    "two stacked, flattened": (
        lambda b, x: b.wide(torch.stack([x[:, 3], x[:, 0]], 1).flatten(1)),
        (FIRST + FOURTH) / 2,
    ),
    "two by their own weights": (
        lambda b, x: torch.einsum("bnd,ond->bo", x[:, [0, 3]], b.wide.weight.unflatten(1, (2, -1))),
        (FIRST + FOURTH) / 2,
    ),
    "first and mean of the rest": (lambda b, x: x[:, 0] + x[:, 1:].mean(1), (FIRST + REST) / 2),
    "first beside mean of the rest": (
        lambda b, x: b.wide(torch.cat([x[:, 0], x[:, 1:].mean(1)], -1)),
        (FIRST + REST) / 2,
    ),
    "mean of the rest on the first": (
        lambda b, x: torch.stack([x[:, 1:].mean(1), x[:, 0]]).sum(0),
        (FIRST + REST) / 2,
    ),
    "first, and a layer of the mean": (
        lambda b, x: x[:, 0] + torch.tanh(b.mlp(x[:, 1:].mean(1))),
        (FIRST + REST) / 2,
    ),
    "first, and a layer of it": (lambda b, x: x[:, 0] + b.mlp(x[:, 0]), FIRST),
    "first, and of a layer the first": (lambda b, x: x[:, 0] + b.mlp(x)[:, 0], FIRST),
    "two, and how they differ": (
        lambda b, x: (
            torch.cat([x[:, 0], x[:, 3], (x[:, 0] - x[:, 3]).abs()], -1)
            .unflatten(-1, (3, -1))
            .sum(-2)
        ),
        (FIRST + FOURTH) / 2,
    ),
}


@pytest.mark.parametrize(
    "name",
    marked(
        PICKED,
        (
            "two by their own weights",
            "first beside mean of the rest",
            "first, and a layer of it",
            "two, and how they differ",
        ),
    ),
)
def test_what_a_head_picks_it_shares(name):
    """Equal parts for positions that a head picks, and for means beside them, however they are
    put together; a layer of what is there already brings nothing new."""
    pool, read = PICKED[name]
    block, last = Block(lambda b, x: x + b.attention(x)), Block(pool)
    e = explained(Stack(block, pool=last), normal(SAMPLES, TOKENS, 3))
    compare(e, lambda m: ONE + m, read)


LANES = {
    "expand": lambda x: x.unsqueeze(2).expand(-1, -1, 3, -1),
    "stack": lambda x: torch.stack([x, x, x], 2),
    "repeat_interleave": lambda x: x.unsqueeze(2).repeat_interleave(3, 2),
}


@pytest.mark.parametrize("lanes", LANES.values(), ids=LANES)
def test_lanes_that_hold_one_thing_are_one_token(lanes):
    def join(b, x):
        wide = lanes(x)
        return (wide + b.attention(wide[:, :, 0]).unsqueeze(2)).sum(2)

    compare(explained(Stack(Block(join)), normal(SAMPLES, TOKENS, 3)), lambda m: ONE + m, READ)


def test_tokens_that_were_rolled_and_two_of_which_are_read():
    model = Stack(Block(lambda b, x: x + b.attention(x)), pool=lambda x: x.roll(1, 1))
    read = (ONE[2] + ONE[3]).double() / 2
    e = explained(model, normal(SAMPLES, TOKENS, 3), lambda out: out[0, 3, 1] + out[0, 4, 2])
    compare(e, lambda m: ONE + m, read)


def test_layer_norms_without_eps_side_by_side():
    def join(b, x):
        normed = (torch.layer_norm(x, [WIDTH], w) for w in (b.scale1, b.scale2))
        return x + b.attention(next(normed)) + b.second(next(normed))

    e = explained(Stack(Block(join)), normal(SAMPLES, TOKENS, 3))
    compare(e, whole(2), READ, heads=all_heads(e))


def test_a_target_that_reads_one_of_two_results_side_by_side():
    """Logits that are joined: the one that is explained, and its opposite beside it."""

    def pool(x):
        logit = x[:, 0, :1]
        return torch.cat([logit, -logit], -1)

    model = Stack(Block(lambda b, x: x + b.attention(x)), pool=pool)
    model.head = torch.nn.Identity()
    e = explained(model, normal(SAMPLES, TOKENS, 3), (1, 1))
    compare(e, lambda m: ONE + m, ONE[0])


def test_a_target_that_reads_the_deeper_of_two_results_side_by_side():
    """Of a map that leads to it alone nothing is shared with what the target does not read."""

    def pool(x):
        return torch.cat([x[:, 0, :2], last(x).mean(1)], 1)

    last = Block(lambda b, x: x + b.attention(x)).double()
    model = Stack(Block(lambda b, x: x + b.attention(x)), pool=pool)
    model.add_module("last", last)
    model.head = torch.nn.Identity()
    e = explained(model, normal(SAMPLES, TOKENS, 3), (3, 3))
    compare(e, lambda a, b: (ONE + b) @ (ONE + a), ONE.mean(0))


@pytest.mark.parametrize(
    "target", [lambda out: out[0, 0] + out[0, 1], lambda out: out[0, 1:WIDTH].sum()]
)
def test_features_of_one_token_in_a_flat_result_are_that_token(target):
    model = Stack(Block(lambda b, x: x + b.attention(x)), pool=lambda x: x.flatten(1))
    model.head = torch.nn.Identity()
    e = explained(model, normal(SAMPLES, TOKENS, 3), target)
    compare(e, lambda m: ONE + m, ONE[0])


def test_padding_folded_into_channels_is_convolved():
    class Folded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.block = (
                torch.nn.Linear(3, WIDTH),
                Block(lambda b, x: x + b.attention(x)),
            )
            self.conv, self.head = torch.nn.Conv2d(4 * WIDTH, 4, 3, 1, 1), torch.nn.Linear(4, 2)

        def forward(self, x):
            grid = self.block(self.enter(x)).mT.unflatten(2, (6, 6))
            padded = torch.nn.functional.pad(grid, (1, 1, 1, 1))
            return self.head(self.conv(torch.nn.functional.pixel_unshuffle(padded, 2)).mean((2, 3)))

    e = explained(Folded(), normal(SAMPLES, 36, 3), (1, 1), method="rollout")
    assert (e.scores > 0).all() and (e.identity.sum(1) <= 1 + 1e-12).all()
