"""The shares of experts of which a router picks two for each token, however they are written: a
softmax over all that is divided by the sum of those picked is a softmax of those."""

import math

import pytest
import torch
from torch.nn import functional as F

from tests.common.rows import marked
from tests.rollup.test_sums_written_otherwise import WIDTH, explained

EXPERTS = 3


def experts(shares):
    """Both blocks' layers and one that they share, each token by two of the three."""

    def way(m, x):
        for block in m.blocks:
            x = x + block.attention(x)
            y = block.again(x)
            layers = [F.gelu(y @ block.wide.weight[6 * i : 6 * i + WIDTH].mT) for i in range(3)]
            g = shares(F.linear(y, block.back.weight[:EXPERTS, :WIDTH]))
            x = x + block.out(sum(g[..., i, None] * f for i, f in enumerate(layers)))
        return m.head(x[:, 0])

    return way


def placed(shares, where):
    zeros = torch.zeros(*shares.shape[:-1], EXPERTS, dtype=shares.dtype)
    return zeros.scatter(-1, where, shares)


def divided(z):
    shares, where = z.softmax(-1).topk(2, -1)
    return placed(shares / shares.sum(-1, keepdim=True), where)


def of_the_picked(z):
    picked, where = z.topk(2, -1)
    return placed(picked.softmax(-1), where)


def hidden(z):
    least = z.topk(2, -1).values[..., -1:]
    return z.masked_fill(z < least, -math.inf).softmax(-1)


def put_onto_nothing(z):
    picked, where = z.topk(2, -1)
    return torch.full_like(z, -math.inf).scatter(-1, where, picked).softmax(-1)


def masked_and_divided(z):
    p = z.softmax(-1)
    p = p * (p >= p.topk(2, -1).values[..., -1:])
    return p / p.sum(-1, keepdim=True)


def one_hot(z):
    shares, where = z.softmax(-1).topk(2, -1)
    shares = F.normalize(shares, p=1, dim=-1)
    return (F.one_hot(where, EXPERTS) * shares[..., None]).sum(-2)


WAYS = [of_the_picked, hidden, put_onto_nothing, masked_and_divided, one_hot]


@pytest.fixture(scope="module")
def usual():
    return explained(experts(divided))


@pytest.mark.parametrize(
    "shares", marked(WAYS, ("of_the_picked", "masked_and_divided"), lambda f: f.__name__)
)
def test_the_shares_are_the_same(shares, usual):
    for method, found in explained(experts(shares)).items():
        wanted = usual[method]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9 * float(wanted.abs().max()))
