"""The roll-up against its definition: the worked cases of its page, and residual graphs drawn by
chance, ``tools.rollup_graphs``, whose oracle multiplies its own recipe by hand
(``tests/tools/test_rollup_graphs.py``)."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop
from tests.common.rows import marked, only
from tests.rollup import structures
from tests.rollup.structures import merged, split
from tests.rollup.worked import OF_TWO, WORKED, recipe_of, rows_of
from tools.rollup_graphs.drawing import drawn
from tools.rollup_graphs.modules import Written
from tools.rollup_graphs.recording import recorded

DRAWS, EACH = 300, 20  # the later, the larger
WIDTH, HEADS, TOKENS = 16, 8, 5


@pytest.mark.parametrize("first", marked(range(0, DRAWS, EACH), ("0", "200")))
def test_every_row_is_the_definitions(first):
    for number in range(first, first + EACH):
        trial = drawn(number, seed=0)
        with recorded():
            _, wrong = trial.compared()
        assert not wrong, (
            f"python -m tools.rollup_graphs --show {number}: {wrong}\n"
            f"{', '.join(trial.kinds)}\n{trial.recipe.described()}"
        )


# -- what the definition's page works out


def of_every_place(model, inputs, tokens):
    """Of each input scores and identity of every token of the model's result: of as many samples,
    each one's own token, by the sample."""
    target = [(place, 1) for place in range(tokens)]
    with recorded():
        e = relprop.explain(model, inputs, target, method="rollout")
    return [(s.scores.numpy(), s.identity.numpy()) for s in e.streams.values()]


def agree(found, products):
    """``products``: of each input its rows by hand, of every sample, and the same without a map."""
    for (scores, identity), (row, without) in zip(found, products, strict=True):
        own = np.arange(len(scores))
        row, without = (
            np.broadcast_to(m, (len(own), *m.shape[-2:]))[own, own] for m in (row, without)
        )
        for one, other in ((scores, row - without), (identity, without)):
            assert one.shape == other.shape
            assert abs(one - other).max() <= 1e-12 * abs(row).max(), f"{one}, by hand {other}"


@pytest.mark.parametrize("name", [*WORKED, *OF_TWO])
def test_worked(name):
    torch.manual_seed(0)
    recipe, x = recipe_of(name)
    recipe.reads, recipe.form = [(x, 0)], "feature"
    leaves = [recipe.tokens(i) for i in recipe.of_kind("input")]
    model = Written(recipe).double().eval()
    inputs = tuple(torch.randn(recipe.tokens(x), n, 3).double() for n in leaves)
    maps, _ = model.mixing(*inputs)
    used = [maps[recipe.nodes[u].of[0]] for u in recipe.of_kind("use")]
    agree(of_every_place(model, inputs, recipe.tokens(x)), rows_of(name, *used))


class Attention(nn.Module):
    """Attention with a softmax of its own, of which a test takes the map."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.softmax = nn.Softmax(-1)

    def forward(self, x):
        q, k, v = (split(part(x), HEADS) for part in (self.q, self.k, self.v))
        return self.out(merged(self.softmax(q @ k.mT) @ v))


class Streams(nn.Module):
    """Hyper-connections: streams beside the samples, mixed by small matrices before each branch,
    which takes one mixture of them, and is added to all; constant matrices, or made of the streams
    themselves."""

    count = 3

    def __init__(self, dynamic):
        super().__init__()
        self.enter, self.dynamic = nn.Linear(3, WIDTH), dynamic
        self.branches = nn.ModuleList([Attention(), nn.Linear(WIDTH, WIDTH), Attention()])
        n, each = self.count, len(self.branches)
        self.alpha = nn.Parameter(torch.randn(each, n, n + 1))
        self.beta = nn.Parameter(torch.randn(each, n))
        self.to_alpha = nn.Parameter(torch.randn(each, WIDTH, n + 1) / WIDTH)
        self.to_beta = nn.Parameter(torch.randn(each, WIDTH) / WIDTH)

    def forward(self, x):
        x = self.enter(x).repeat_interleave(self.count, 0)
        for k, branch in enumerate(self.branches):
            x = x.unflatten(0, (-1, self.count)).permute(0, 2, 1, 3)
            alpha, beta = self.alpha[k], self.beta[k]
            if self.dynamic:
                normed = F.normalize(x, dim=-1)
                alpha = torch.tanh(normed @ self.to_alpha[k]) * 0.1 + alpha
                beta = torch.tanh(normed @ self.to_beta[k]) * 0.1 + beta
            else:
                alpha, beta = (w.expand(*x.shape[:2], *w.shape) for w in (alpha, beta))
            mixed = torch.einsum("bnst,bnsd->bntd", alpha, x)
            made, x = branch(mixed[:, :, 0]), mixed[:, :, 1:].permute(0, 2, 1, 3).flatten(0, 1)
            x = x + torch.einsum("bnd,bns->bsnd", made, beta).flatten(0, 1)
        return x.unflatten(0, (-1, self.count)).sum(1)


class Depths(nn.Module):
    """Mixture of depths: a router picks tokens, which alone attend to each other, and writes back
    what they bring, by its weight or as it is."""

    def __init__(self, weighted):
        super().__init__()
        self.enter, self.router, self.weighted = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 1), weighted
        self.branch = Attention()

    def forward(self, x):
        x = self.enter(x)
        weight, at = self.picked(x)
        at = at.unsqueeze(-1).expand(-1, -1, WIDTH)
        y = self.branch(x.gather(1, at))
        y = y * weight.sigmoid().unsqueeze(-1) if self.weighted else y
        return x.scatter_add(1, at, y)

    def picked(self, x):
        at = self.router(x).squeeze(-1).topk(3).indices.sort(-1).values
        return self.router(x).squeeze(-1).gather(1, at), at


class Pieces(nn.Module):
    """A block, and one whose eight heads are computed in pieces, side by side or each with its part
    of the output weight and added, with or without a convolution of its values."""

    def __init__(self, counts, added, beside):
        super().__init__()
        self.enter, self.first, self.second = nn.Linear(3, WIDTH), Attention(), Attention()
        self.kernel = nn.Parameter(torch.randn(WIDTH, 1, 3))
        self.counts, self.added, self.beside = counts, added, beside

    def forward(self, x):
        x = self.enter(x)
        x = x + self.first(x)
        made, each = self.second, WIDTH // HEADS
        widths = [each * n for n in self.counts]
        qkv = [part(x).split(widths, -1) for part in (made.q, made.k, made.v)]
        weights, parts = made.out.weight.split(widths, -1), []
        for n, weight, kernel, q, k, v in zip(
            self.counts, weights, self.kernel.split(widths), *qkv, strict=True
        ):
            heads = made.softmax(split(q, n) @ split(k, n).mT)
            part = merged(heads @ split(v, n))
            if self.beside:
                part = part + F.conv1d(v.mT, kernel, padding=1, groups=len(kernel)).mT
            parts.append(F.linear(part, weight) if self.added else part)
        if self.added:
            return x + (sum(parts) + made.out.bias)
        return x + made.out(torch.cat(parts, -1))


class Gated(nn.Module):
    """Two modules of one shape beside x, each by its own part of a gate, or laid side by side."""

    def __init__(self, how):
        super().__init__()
        self.enter, self.a, self.b = nn.Linear(3, WIDTH), Attention(), Attention()
        self.gate, self.last, self.how = nn.Linear(WIDTH, 2), nn.Linear(3 * WIDTH, WIDTH), how

    def forward(self, x):
        x = self.enter(x)
        return self.how(self, x, self.a(x), self.b(x), self.gate(x).sigmoid())


MODULES = {
    "gated": lambda m, x, a, b, g: x + g[..., :1] * a + g[..., 1:] * b,
    "a mixture": lambda m, x, a, b, g: x + (torch.stack([a, b], -1) @ g[..., None]).squeeze(-1),
    "their mean": lambda m, x, a, b, g: x + torch.stack([a, b]).mean(0),
    "side by side": lambda m, x, a, b, g: m.last(torch.cat([x, a, b], -1)),
    "side by side, after x": lambda m, x, a, b, g: x + m.last(torch.cat([a, b, a], -1)),
}


@pytest.mark.parametrize("how", marked(MODULES, ("gated", "side by side")))
def test_modules_that_meet_count_whole(how):
    model, x, _, (a, b) = written(Gated, MODULES[how])
    i = np.eye(TOKENS)
    agree(of_every_place(model, x, TOKENS), [(i + a.mean(1) + b.mean(1), i)])


def written(made, *how):
    """A module by hand in double precision, inputs, and the means over heads of its maps."""
    torch.manual_seed(0)
    model, maps = made(*how).double().eval(), []
    x = torch.randn(TOKENS, TOKENS, 3).double()
    hooks = [
        m.register_forward_hook(lambda *a: maps.append(a[2]))
        for m in model.modules()
        if isinstance(m, nn.Softmax)
    ]
    with torch.no_grad():
        out = model(x)
    for hook in hooks:
        hook.remove()
    return model, x, out, [m.numpy() for m in maps]


@pytest.mark.parametrize("dynamic", marked([False, True], ("True",)))
def test_hyper_connections(dynamic):
    model, x, _, maps = written(Streams, dynamic)
    i, (a, b) = np.eye(TOKENS), (m.mean(1) for m in maps)
    product = (i + b) @ (i + a)
    assert abs(product.sum(-1) - 4).max() < 1e-12
    agree(of_every_place(model, x, TOKENS), [(product, i)])


@pytest.mark.parametrize("weighted", marked([False, True], ("True",)))
def test_mixture_of_depths(weighted):
    model, x, _, (a,) = written(Depths, weighted)
    i = np.eye(TOKENS)
    s = i[model.picked(model.enter(x))[1].numpy()]  # (samples, picked, tokens)
    agree(of_every_place(model, x, TOKENS), [(i + s.mT @ a.mean(1) @ s, i)])


@pytest.mark.parametrize(("beside", "step"), only([(True, 5)], [(True, 5), (True, 1), (False, 1)]))
def test_heads_however_they_are_cut_are_one_row(beside, step):
    i, rows, outs = np.eye(TOKENS), [], []
    cuts = [(counts, added) for counts in ((8,), (4, 4), (2, 6), (1,) * 8) for added in (0, 1)]
    for counts, added in cuts[::step]:
        model, x, out, (first, *maps) = written(Pieces, counts, added, beside)
        found = of_every_place(model, x, TOKENS)
        a, b = first.mean(1), np.concatenate(maps, 1).mean(1)
        agree(found, [((i + b) @ (i + a), i)])
        rows.append(found[0][0])
        outs.append(out)
    for row, out in zip(rows, outs, strict=True):
        assert abs(row - rows[0]).max() <= 1e-12 * abs(rows[0]).max()
        assert abs(out - outs[0]).max() <= 1e-12 * abs(outs[0]).max()  # the same function


# -- what a report says where it is wrong


class Meeting(nn.Module):
    """Where what a wide token became meets the tokens that it was made of."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, made, tokens):
        return self.how(made, tokens)


class WideToken(nn.Module):
    """A learned class token two tokens wide that one layer reads whole, and a head that reads the
    mean of both: the layer's result is taken for features (JumboViT)."""

    def __init__(self, how, after):
        super().__init__()
        self.enter, self.attention = nn.Linear(3, structures.WIDTH), structures.Attention()
        self.learned = nn.Parameter(torch.randn(1, 2 * structures.WIDTH))
        self.wide, self.head = (
            nn.Linear(2 * structures.WIDTH, 2 * structures.WIDTH),
            nn.Linear(structures.WIDTH, 3),
        )
        self.meeting, self.after = Meeting(how), after

    def forward(self, x):
        learned = self.learned.unflatten(1, (2, structures.WIDTH)).expand(len(x), -1, -1)
        x = torch.cat([learned, self.enter(x)], 1)
        first = (x + self.attention(x))[:, :2]
        made = self.wide(first.flatten(1)).unflatten(1, (2, structures.WIDTH))
        return self.head(self.after(self.meeting(made, first)).mT.mean(-1))


@pytest.mark.parametrize(
    ("how", "op", "after", "memory"),
    [
        (lambda made, tokens: made + tokens, "aten.add.Tensor", nn.Identity(), None),
        (lambda made, tokens: made.sigmoid() * tokens, "aten.mul.Tensor", nn.Tanh(), None),
        (torch.maximum, "aten.maximum.default", nn.LayerNorm(structures.WIDTH), 0),
    ],
)
def test_an_identity_of_more_than_1_is_said(how, op, after, memory):
    model = WideToken(how, after).eval()
    with pytest.warns(relprop.errors.RollUpWarning, match="sums to 2, at most 1") as said:
        relprop.explain(model, torch.randn(2, 5, 3), 1, method="rollout", memory=memory)
    (text,) = (str(w.message) for w in said if w.category is relprop.errors.RollUpWarning)
    assert f"taken for features, first by {op}\n  at    meeting " in text
