"""Tokens of which a router drops some, or sends some through a block: however they are picked, put
back, added or masked, it is one function and has one map."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop
from tests.common.rows import marked

WIDTH, HEADS, TOKENS, KEPT = 24, 4, 8, 4
METHODS = ["transformer_attribution", "gae", "rollout", "attnlrp", "lrp"]


class Block(nn.Module):
    """A pre-norm block; ``branch`` is what it adds."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def attended(self, x, hidden):
        parts = self.qkv(self.before(x)).view(*x.shape[:2], 3, HEADS, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if hidden is not None:
            scores = scores.masked_fill(hidden[:, None, None], -math.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))

    def mlp(self, x):
        return self.narrow(F.gelu(self.wide(self.between(x))))

    def branch(self, x, hidden=None):
        attended = self.attended(x, hidden)
        return attended + self.mlp(x + attended)

    def forward(self, x, hidden=None):
        x = x + self.attended(x, hidden)
        return x + self.mlp(x)


class Routed(nn.Module):
    """Three blocks, of which ``route`` says who goes through the second and what comes of it."""

    def __init__(self, route):
        super().__init__()
        self.route = route
        self.enter, self.head = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 5)
        self.place = nn.Parameter(torch.randn(1, TOKENS, WIDTH) * 0.3)
        self.first, self.block, self.last = Block(), Block(), Block()
        self.router, self.norm = nn.Linear(WIDTH, 1), nn.LayerNorm(WIDTH)

    def kept(self, x):
        best = self.router(x[:, 1:]).squeeze(-1).topk(KEPT - 1, -1).indices + 1
        return torch.cat([torch.zeros(len(x), 1, dtype=torch.long), best], 1)

    def hidden(self, x):
        return torch.ones(x.shape[:2], dtype=torch.bool).scatter(1, self.kept(x), False)

    def forward(self, x):
        x = self.first(self.enter(x) + self.place)
        return self.head(self.norm(self.route(self, x))[:, 0])


def picked(x, where):
    return x.gather(1, where.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def beside(x):
    return torch.arange(len(x))[:, None]


# -- those that are not kept are dropped


def dropped_hidden(m, x):
    hidden = m.hidden(x)
    return m.last(m.block(x, hidden), hidden)


def dropped_gathered(m, x):
    return m.last(m.block(picked(x, m.kept(x))))


def dropped_indexed(m, x):
    return m.last(m.block(x[beside(x), m.kept(x)]))


def dropped_in_order(m, x):
    return m.last(m.block(picked(x, m.kept(x).sort(1).values)))


def dropped_by_product(m, x):
    return m.last(m.block(F.one_hot(m.kept(x), TOKENS).to(x.dtype) @ x))


# -- those that are not kept pass the block by


def passed_chosen(m, x):
    hidden = m.hidden(x)
    return m.last(torch.where(hidden[..., None], x, m.block(x, hidden)))


def passed_weighed(m, x):
    hidden = m.hidden(x)
    through = (~hidden).to(x.dtype)[..., None]
    return m.last(x * (1 - through) + m.block(x, hidden) * through)


def passed_multiplied(m, x):
    hidden = m.hidden(x)[..., None]
    return m.last(x * hidden + m.block(x, hidden[..., 0]) * ~hidden)


def passed_filled(m, x):
    hidden = m.hidden(x)[..., None]
    made = m.block(x, hidden[..., 0])
    return m.last(x.masked_fill(~hidden, 0) + made.masked_fill(hidden, 0))


def passed_lerp(m, x):
    hidden = m.hidden(x)
    through = (~hidden).to(x.dtype)[..., None].expand_as(x)
    return m.last(torch.lerp(x, m.block(x, hidden), through))


def passed_difference(m, x):
    hidden = m.hidden(x)
    return m.last(x + (~hidden).to(x.dtype)[..., None] * (m.block(x, hidden) - x))


def passed_branch_filled(m, x):
    hidden = m.hidden(x)
    return m.last(x + m.block.branch(x, hidden).masked_fill(hidden[..., None], 0))


def passed_branch_weighed(m, x):
    hidden = m.hidden(x)
    return m.last(x + m.block.branch(x, hidden) * (~hidden)[..., None].to(x.dtype))


def passed_scattered(m, x):
    where = m.kept(x)
    made = m.block(picked(x, where))
    return m.last(x.scatter(1, where.unsqueeze(-1).expand_as(made), made))


def passed_put(m, x):
    where, made = m.kept(x), x.clone()
    made[beside(x), where] = m.block(picked(x, where))
    return m.last(made)


def passed_added(m, x):
    where = m.kept(x)
    branch = m.block.branch(picked(x, where))
    return m.last(x.scatter_add(1, where.unsqueeze(-1).expand_as(branch), branch))


def passed_added_by_index(m, x):
    where = m.kept(x)
    branch = m.block.branch(x[beside(x), where])
    return m.last(x.index_put((beside(x), where), branch, accumulate=True))


def passed_added_in_place(m, x):
    where, made = m.kept(x), x.clone()
    made[beside(x), where] += m.block.branch(x[beside(x), where])
    return m.last(made)


def passed_difference_added(m, x):
    where = m.kept(x)
    before = picked(x, where)
    change = m.block(before) - before
    return m.last(x.scatter_add(1, where.unsqueeze(-1).expand_as(change), change))


# -- no router: what a block adds, added outside of it


def plain(m, x):
    return m.last(m.block(x))


def plain_branch(m, x):
    return m.last(x + m.block.branch(x))


def plain_difference(m, x):
    return m.last(x + (m.block(x) - x))


# -- one token picked several times; some features of the picked tokens changed


def best(m, x):
    return m.router(x).squeeze(-1).argmax(1, keepdim=True).unsqueeze(-1)


def repeated_joined(m, x):
    one = x.gather(1, best(m, x).expand(-1, 1, WIDTH))
    return m.last(torch.cat([x[:, :1], one, one, one], 1))


def repeated_expanded(m, x):
    return m.last(torch.cat([x[:, :1], x.gather(1, best(m, x).expand(-1, 3, WIDTH))], 1))


def half(m, x):
    return m.block.mlp(x)[..., : WIDTH // 2]


def halved_chosen(m, x):
    changed = x[..., : WIDTH // 2] + half(m, x).masked_fill(m.hidden(x)[..., None], 0)
    return m.last(torch.cat([changed, x[..., WIDTH // 2 :]], -1))


def halved_added(m, x):
    where = m.kept(x)
    index = where.unsqueeze(-1).expand(-1, -1, WIDTH // 2)
    return m.last(x.scatter_add(1, index, half(m, picked(x, where))))


BASES = {
    "dropped": dropped_hidden,
    "passed": passed_chosen,
    "plain": plain,
    "repeated": repeated_joined,
    "halved": halved_chosen,
}
WRITTEN = [
    function
    for name, function in list(globals().items())
    if name.split("_")[0] in BASES and function not in BASES.values()
]


def explained(route):
    torch.manual_seed(1)
    model = Routed(route).double().eval()
    x = torch.randn(2, TOKENS, 6, dtype=torch.float64)
    comparison = relprop.compare(model, x, METHODS, target=1)
    return {m: comparison[m].scores for m in METHODS}


@pytest.fixture(scope="module")
def base():
    """What is said of each base."""
    return {name: explained(route) for name, route in BASES.items()}


#: Of these the fast suite has one of every base, and every way to put tokens back.
QUICK = """
    dropped_gathered passed_scattered passed_lerp passed_added_by_index passed_branch_filled
    plain_difference repeated_expanded halved_added
""".split()


@pytest.mark.parametrize("route", marked(WRITTEN, QUICK, lambda f: f.__name__))
def test_one_map_however_tokens_are_routed(route, base):
    wanted = base[route.__name__.split("_")[0]]
    for method, found in explained(route).items():
        torch.testing.assert_close(found, wanted[method], rtol=0, atol=1e-10, msg=method)


class Skipping(nn.Module):
    """Two blocks whose results a layer reads beside each other, and a head that reads the first
    token beside the mean of the others."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts
        self.enter, self.first, self.second = nn.Linear(6, WIDTH), Block(), Block()
        self.join, self.head = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(2 * WIDTH, 5)

    def map(self, layer, x, y):
        if not self.parts:
            return layer(torch.cat([x, y], -1))
        left, right = layer.weight[:, :WIDTH], layer.weight[:, WIDTH:]
        return F.linear(x, left, layer.bias) + F.linear(y, right)

    def forward(self, x):
        x = self.first(self.enter(x))
        x = self.map(self.join, self.second(x), x)
        return self.map(self.head, x[:, 0], x[:, 1:].mean(1))


def test_columns_of_one_matrix_are_one_layer():
    x = torch.randn(2, TOKENS, 6, dtype=torch.float64)
    found = []
    for parts in (False, True):
        torch.manual_seed(1)
        model = Skipping(parts).double().eval()
        comparison = relprop.compare(model, x, METHODS, target=1)
        found.append({m: comparison[m].scores for m in METHODS})
    for method, scores in found[0].items():
        torch.testing.assert_close(scores, found[1][method], rtol=0, atol=1e-10, msg=method)
