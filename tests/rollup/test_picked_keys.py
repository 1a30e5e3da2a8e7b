"""Attention over some keys, picked for each query and head: by their scores, before or after the
softmax, and put back, or by fixed neighbours: it is attention over all keys, those that were not
picked hidden."""

import math

import pytest
import torch
from torch import nn

import relprop

WIDTH, HEADS, TOKENS, KEPT = 24, 4, 7, 3
METHODS = ["transformer_attribution", "gae", "rollout", "attention_grad", "attnlrp", "lrp"]
#: By head, each query's neighbours: every head's at another distance.
NEAR = torch.stack(
    [(torch.arange(TOKENS)[:, None] + torch.arange(KEPT) * (h + 1)) % TOKENS for h in range(HEADS)]
)


class Attending(nn.Module):
    """Two pre-norm blocks whose attention is a function of queries, keys and values; the first
    token is read."""

    def __init__(self, attend):
        super().__init__()
        self.attend = attend
        self.enter, self.head = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 5)
        self.place = nn.Parameter(torch.randn(1, TOKENS, WIDTH) * 0.3)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        x = self.enter(x) + self.place
        for norm, qkv, out in zip(self.norms, self.qkv, self.out, strict=True):
            parts = qkv(norm(x)).view(len(x), TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            x = x + out(self.attend(*parts).transpose(1, 2).reshape(x.shape))
        return self.head(x[:, 0])


def scores(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def gathered(v, where):
    wide = v.unsqueeze(2).expand(-1, -1, where.shape[2], -1, -1)
    return wide.gather(3, where.unsqueeze(-1).expand(-1, -1, -1, -1, v.shape[-1]))


def indexed(v, where):
    samples, heads = torch.arange(len(v))[:, None, None, None], torch.arange(HEADS)[:, None, None]
    return v[samples, heads, where]


def flattened(v, where):
    first = torch.arange(len(v) * HEADS).view(len(v), HEADS, 1, 1) * TOKENS
    return v.reshape(-1, v.shape[-1])[where + first]


def taken_along(v, where):
    return torch.take_along_dim(v.unsqueeze(2), where.unsqueeze(-1), 3)


def largest_hidden(q, k, v):
    s = scores(q, k)
    return s.masked_fill(s < s.topk(KEPT, -1).values[..., -1:], -math.inf).softmax(-1) @ v


def put_back(q, k, v):
    s = scores(q, k)
    found = s.topk(KEPT, -1)
    return torch.zeros_like(s).scatter(-1, found.indices, found.values.softmax(-1)) @ v


def of_map_hidden(q, k, v):
    a = scores(q, k).softmax(-1)
    return (a * (a >= a.topk(KEPT, -1).values[..., -1:])) @ v


def of_map_put_back(q, k, v):
    a = scores(q, k).softmax(-1)
    found = a.topk(KEPT, -1)
    return torch.zeros_like(a).scatter(-1, found.indices, found.values) @ v


def near_hidden(q, k, v):
    seen = torch.zeros(HEADS, TOKENS, TOKENS, dtype=torch.bool).scatter(-1, NEAR, True)
    return scores(q, k).masked_fill(~seen, -math.inf).softmax(-1) @ v


def near(way):
    def attend(q, k, v):
        where = NEAR.expand(len(q), -1, -1, -1)
        s = (q.unsqueeze(3) * way(k, where)).sum(-1) / math.sqrt(q.shape[-1])
        return (s.softmax(-1).unsqueeze(-1) * way(v, where)).sum(3)

    return attend


def explained(attend, methods, made=Attending):
    torch.manual_seed(0)
    model, x = made(attend).double().eval(), torch.randn(2, TOKENS, 6, dtype=torch.float64)
    comparison = relprop.compare(model, x, methods, target=1)
    return {m: comparison[m].scores for m in methods}


@pytest.fixture(scope="module")
def hidden():
    """By reference, what is said of it."""
    return {f: explained(f, METHODS) for f in (largest_hidden, of_map_hidden, near_hidden)}


PAIRS = [(put_back, largest_hidden), (of_map_put_back, of_map_hidden)]


@pytest.mark.parametrize(("attend", "reference"), PAIRS, ids=[f.__name__ for f, _ in PAIRS])
def test_picked_by_what_the_model_computes(attend, reference, hidden):
    for method, found in explained(attend, METHODS).items():
        torch.testing.assert_close(found, hidden[reference][method], rtol=0, atol=1e-10)


@pytest.mark.parametrize("way", [gathered, indexed, flattened, taken_along])
def test_fixed_neighbours_of_each_head(way, hidden):
    """A head that does not read a token counts, with nothing, in the mean over heads. Gradients at
    weights that there are not are no part of a map that has fewer."""
    methods = [m for m in METHODS if m != "attention_grad"]
    for method, found in explained(near(way), methods).items():
        torch.testing.assert_close(found, hidden[near_hidden][method], rtol=0, atol=1e-10)


def rows(x, where, dim):
    """The rows that are picked for each sample, of every head."""
    wide = where.reshape(len(where), *[1] * (dim - 1), KEPT, *[1] * (x.dim() - dim - 1))
    return x.gather(dim, wide.expand(*x.shape[:dim], KEPT, *x.shape[dim + 1 :]))


def of_maps(q, k, v, where):
    return rows(scores(q, k).softmax(-1), where, 2) @ v


def of_queries(q, k, v, where):
    return scores(rows(q, where, 2), k).softmax(-1) @ v


class Sampling(Attending):
    """Keeps the rows of the largest tokens, whose number is less: adaptive token sampling (Fayyaz
    et al., ECCV 2022, in vit-pytorch)."""

    def forward(self, x):
        x = self.enter(x) + self.place
        where = x.norm(dim=-1).topk(KEPT).indices
        parts = self.qkv[0](self.norms[0](x)).view(len(x), TOKENS, 3, HEADS, -1)
        mixed = self.attend(*parts.permute(2, 0, 3, 1, 4), where).transpose(1, 2).flatten(2)
        return self.head((rows(x, where, 1) + self.out[0](mixed)).mean(1))


def test_whole_rows_of_a_map_picked_by_what_the_model_computes():
    found, reference = (explained(way, METHODS, Sampling) for way in (of_maps, of_queries))
    for method in METHODS:
        assert reference[method].any()
        torch.testing.assert_close(found[method], reference[method], rtol=0, atol=1e-10)
