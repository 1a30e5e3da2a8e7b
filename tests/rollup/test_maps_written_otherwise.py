"""One attention map, however it is put together: a triangle renormalised, pooled weights that are
divided late."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop
from tests.rollup.test_picked_keys import HEADS, TOKENS, Attending, scores

METHODS = ["transformer_attribution", "gae", "rollout", "attcat", "attnlrp", "lrp"]
SHARE = 0.3


class Written(Attending):
    """``attend`` is given a number for each head, too; ``pool`` reads the last tensor."""

    def __init__(self, attend, pool):
        super().__init__(lambda q, k, v: attend(q, k, v, self.beside))
        self.beside = nn.Parameter(torch.randn(HEADS, 1, 1))
        self.weigh, self.pool = nn.Linear(self.place.shape[-1], 1), pool

    def forward(self, x):
        x = self.enter(x) + self.place
        for norm, qkv, out in zip(self.norms, self.qkv, self.out, strict=True):
            parts = qkv(norm(x)).view(len(x), TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            x = x + out(self.attend(*parts).transpose(1, 2).reshape(x.shape))
        return self.head(self.pool(x, self.weigh(x)))


def first(x, _):
    return x[:, 0]


def plain(q, k, v, _):
    return scores(q, k).softmax(-1) @ v


def triangle_hidden(q, k, v, _):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def triangle_renormalised(q, k, v, _):
    a = scores(q, k).softmax(-1).tril()
    return (a / a.sum(-1, keepdim=True)) @ v


def triangle_normalised(q, k, v, _):
    return F.normalize(torch.tril(scores(q, k).softmax(-1)), p=1, dim=-1) @ v


def upper_triangle_taken_away(q, k, v, _):
    e = scores(q, k).exp()
    e = e - e.triu(1)
    return (e @ v) / e.sum(-1, keepdim=True)


def pooled(x, w):
    return (w.softmax(1) * x).sum(1)


def pooled_by_a_product(x, w):
    return (w.softmax(1).mT @ x)[:, 0]


def pooled_divided_late(x, w):
    e = w.exp()
    return (e * x).sum(1) / e.sum(1)


def pooled_product_divided_late(x, w):
    e = w[..., 0].exp()
    return torch.einsum("bn,bnd->bd", e, x) / e.sum(1, keepdim=True)


def shared_keys(k):
    """The keys' first halves, and the second halves of the first head, which all heads share."""
    one, other = k.chunk(2, -1)
    return one, other[:, :1]


def parts_joined(q, k, v, _):
    one, other = shared_keys(k)
    keys = torch.cat([one, other.expand_as(one)], -1)
    return (SHARE * (q @ keys.mT)).softmax(-1) @ v


def parts_added(q, k, v, _):
    (a, b), (one, other) = q.chunk(2, -1), shared_keys(k)
    return (SHARE * (a @ one.mT + b @ other.mT)).softmax(-1) @ v


def parts_by_letters(q, k, v, _):
    (a, b), (one, other) = q.chunk(2, -1), shared_keys(k)
    return ((a @ one.mT + torch.einsum("bhid,bjd->bhij", b, other[:, 0])) * SHARE).softmax(-1) @ v


def one_part_as_a_mask(q, k, v, _):
    (a, b), (one, other) = q.chunk(2, -1), shared_keys(k)
    return F.scaled_dot_product_attention(a, one, v, SHARE * b @ other.mT, scale=SHARE)


def cosines(q, k, v, _):
    return (5 * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1) @ v


def cosines_by_a_matrix_of_lengths(q, k, v, _):
    lengths = q.norm(dim=-1, keepdim=True) @ k.norm(dim=-1, keepdim=True).mT
    return (5 * (q @ k.mT) / lengths).softmax(-1) @ v


#: Of learned values, which depend on no input.
MEMORY = torch.linspace(-1, 1, HEADS * TOKENS * 6).cos().view(HEADS, TOKENS, 6).double()


def memory(q, k, _, beside):
    return scores(q, k).softmax(-1) @ (beside * MEMORY)


def memory_divided_late(q, k, _, beside):
    e = (scores(q, k) - scores(q, k).amax(-1, keepdim=True)).exp()
    return (e @ (beside * MEMORY)) / e.sum(-1, keepdim=True)


SAME = {
    (triangle_hidden, first): [
        (triangle_renormalised, first),
        (triangle_normalised, first),
        (upper_triangle_taken_away, first),
    ],
    (parts_joined, first): [
        (parts_added, first),
        (parts_by_letters, first),
        (one_part_as_a_mask, first),
    ],
    (memory, first): [(memory_divided_late, first)],
    (cosines, first): [(cosines_by_a_matrix_of_lengths, first)],
    (plain, pooled): [
        (plain, pooled_by_a_product),
        (plain, pooled_divided_late),
        (plain, pooled_product_divided_late),
    ],
}


def explained(attend, pool):
    torch.manual_seed(0)
    model = Written(attend, pool).double().eval()
    x = torch.randn(2, TOKENS, 6, dtype=torch.float64)
    comparison = relprop.compare(model, x, METHODS, target=1)
    return {m: e.scores for m, e in comparison.explanations.items()}


@pytest.fixture(scope="module")
def usual():
    """What is said of each way that the others are held to."""
    return {way: explained(*way) for way in SAME}


PAIRS = [
    pytest.param(
        way,
        reference,
        id=" ".join(f.__name__ for f in way),
        marks=pytest.mark.slow if place else (),
    )
    for reference, ways in SAME.items()
    for place, way in enumerate(ways)
]


@pytest.mark.parametrize(("way", "reference"), PAIRS)
def test_the_map_is_the_same(way, reference, usual):
    for method, found in explained(*way).items():
        wanted = usual[reference][method]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9 * float(wanted.abs().max()))


def test_a_share_of_a_row_is_no_norm_to_attnlrp():
    """What takes shares of whole rows without being a softmax is a factor for each number: the
    books are balanced, and the gradient form gives the same."""

    def shares(q, k, v, beside):
        s = scores(q, k)
        return (F.softplus(s) / (s.abs().sum(-1, keepdim=True) + beside.exp())) @ v

    torch.manual_seed(0)
    model = Written(shares, first).double().eval()
    x = torch.randn(2, TOKENS, 6, dtype=torch.float64)
    walked = relprop.explain(model, x, 1, method="attnlrp", ledger=True)
    quick = relprop.explain(model, x, 1, method="attnlrp")
    torch.testing.assert_close(quick.scores, walked.scores, rtol=0, atol=1e-6)
