"""What experts make of the tokens that a router sends them, brought back with its shares: however
the tokens are sent and brought back, it is the sum of all experts, each times its share."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop
from tests.common.rows import marked

WIDTH, TOKENS, HIDDEN, EXPERTS, PICKED, CLASSES = 8, 6, 12, 4, 2, 5
METHODS = ("transformer_attribution", "partial_lrp", "attnlrp")


class Routed(nn.Module):
    """A block of attention and experts, which are run by ``way``, and one more of attention."""

    def __init__(self, way, picked=PICKED):
        super().__init__()
        self.way, self.picked = way, picked
        self.attention = nn.ModuleList(
            nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.wide = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH))
        self.wide_bias = nn.Parameter(torch.randn(EXPERTS, HIDDEN))
        self.narrow = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN))
        self.narrow_bias = nn.Parameter(torch.randn(EXPERTS, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = x + self.attention[0](x, x, x, need_weights=False)[0]
        y = self.norm(x)
        shares, experts = self.router(y).softmax(-1).topk(self.picked, -1)
        x = x + self.way(self, y, shares / shares.sum(-1, keepdim=True), experts)
        x = x + self.attention[1](x, x, x, need_weights=False)[0]
        return self.head(x.mean(1))

    def expert(self, e, rows):
        hidden = F.gelu(F.linear(rows, self.wide[e], self.wide_bias[e]))
        return F.linear(hidden, self.narrow[e], self.narrow_bias[e])

    def experts(self, rows, e):
        """Of each row its own."""
        hidden = F.gelu((self.wide[e] @ rows[..., None])[..., 0] + self.wide_bias[e])
        return (self.narrow[e] @ hidden[..., None])[..., 0] + self.narrow_bias[e]


def all_of_them(m, y, shares, experts):
    masks = [(experts == e).to(y.dtype) for e in range(EXPERTS)]
    return sum((k * shares).sum(-1, keepdim=True) * m.expert(e, y) for e, k in enumerate(masks))


def added_by_index(m, y, shares, experts):
    rows, found = y.flatten(0, 1), torch.zeros_like(y).flatten(0, 1)
    for e in range(EXPERTS):
        token, place = torch.where(experts.flatten(0, 1) == e)
        share = shares.flatten(0, 1)[token, place, None]
        found.index_add_(0, token, m.expert(e, rows[token]) * share)
    return found.view_as(y)


def read_and_written_back(m, y, shares, experts):
    rows, found = y.flatten(0, 1), torch.zeros_like(y).flatten(0, 1)
    for e in range(EXPERTS):
        token, place = torch.where(experts.flatten(0, 1) == e)
        found[token] += shares.flatten(0, 1)[token, place, None] * m.expert(e, rows[token])
    return found.view_as(y)


def at_samples_and_tokens(m, y, shares, experts):
    found = torch.zeros_like(y)
    for e in range(EXPERTS):
        sample, token, place = torch.where(experts == e)
        share = shares[sample, token, place].unsqueeze(-1)
        found[sample, token] = found[sample, token] + m.expert(e, y[sample, token]) * share
    return found


def by_masks(m, y, shares, experts):
    found = torch.zeros_like(y)
    for e in range(EXPERTS):
        mine = experts == e
        share = (shares * mine).sum(-1)
        mask = mine.any(-1)
        found[mask] += share[mask][:, None] * m.expert(e, y[mask])
    return found


def in_order_of_experts(m, y, shares, experts):
    order = experts.flatten().argsort(stable=True)
    token = order // experts.shape[-1]
    found = m.experts(y.flatten(0, 1)[token], experts.flatten()[order])
    found = found * shares.flatten()[order, None]
    return torch.zeros_like(y).flatten(0, 1).index_add(0, token, found).view_as(y)


def scattered(m, y, shares, experts):
    order = experts.flatten().argsort(stable=True)
    token = order // experts.shape[-1]
    found = m.experts(y.flatten(0, 1)[token], experts.flatten()[order])
    found = found * shares.flatten()[order, None]
    zeros = torch.zeros_like(y).flatten(0, 1)
    return zeros.scatter_add(0, token[:, None].expand_as(found), found).view_as(y)


def put_back_in_order(m, y, shares, experts):
    order = experts.flatten().argsort(stable=True)
    rows = y.flatten(0, 1)[order // experts.shape[-1]]
    found = m.experts(rows, experts.flatten()[order])[order.argsort()]
    return (found.view(*shares.shape, WIDTH) * shares[..., None]).sum(2)


WAYS = [
    added_by_index,
    read_and_written_back,
    at_samples_and_tokens,
    by_masks,
    in_order_of_experts,
    scattered,
    put_back_in_order,
]


def explained(way, picked):
    torch.manual_seed(0)
    model = Routed(way, picked).double().eval()
    x = torch.randn(3, TOKENS, WIDTH, generator=torch.Generator().manual_seed(3)).double()
    comparison = relprop.compare(model, x, METHODS, target=1)
    return {m: comparison[m].scores for m in METHODS}


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.slow), PICKED])
def usual(request):
    return request.param, explained(all_of_them, request.param)


@pytest.mark.parametrize(
    "way",
    marked(WAYS, ("added_by_index", "in_order_of_experts", "scattered"), lambda f: f.__name__),
)
def test_the_experts_are_the_same(way, usual):
    picked, wanted = usual
    for method, found in explained(way, picked).items():
        scale = float(wanted[method].abs().max())
        assert scale > 0
        torch.testing.assert_close(found, wanted[method], rtol=0, atol=1e-9 * scale)
