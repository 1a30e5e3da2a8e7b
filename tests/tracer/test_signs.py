"""Similarities and gates by other formulas: the same scores, whichever way they are written."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop

METHODS = ("transformer_attribution", "attnlrp", "lrp", "cp_lrp", "gradient_x_input")


class Small(nn.Module):
    """Attention, then ``way`` of each token and a matrix, added to the token."""

    def __init__(self, way):
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        for name, shape in (("a", (8, 8)), ("w", (8, 8)), ("c", (4, 8)), ("o", (8, 4))):
            value = torch.randn(shape, generator=draw, dtype=torch.float64)
            setattr(self, name, nn.Parameter(value))
        self.way = way

    def forward(self, x):
        x = x + (x @ self.a @ x.mT).softmax(-1) @ x
        return (x + self.way(self, x)).mean(1)


def _cosine(way):
    return lambda at, x: F.linear(way(x, at.c), at.o)


COSINES = (
    _cosine(lambda x, c: F.normalize(x, dim=-1) @ F.normalize(c, dim=-1).T),
    _cosine(lambda x, c: F.cosine_similarity(x[:, :, None], c, dim=-1)),
    _cosine(lambda x, c: F.cosine_similarity(x[:, :, None], c[None, None], dim=3)),
    _cosine(lambda x, c: torch.stack([F.cosine_similarity(x, row, dim=-1) for row in c], -1)),
)
GATES = (
    lambda at, x: x * torch.sigmoid(F.linear(x, at.w)),
    lambda at, x: x / (1 + torch.exp(-F.linear(x, at.w))),
    lambda at, x: x * (1 + torch.exp(-F.linear(x, at.w))).reciprocal(),
)
SIGNS = (
    lambda at, x: F.linear(F.gelu(x), -at.w),
    lambda at, x: F.linear(-F.gelu(x), at.w),
    lambda at, x: -F.linear(F.gelu(x), at.w),
    lambda at, x: -2 * F.linear(F.gelu(x) / 2, at.w),
)


@pytest.mark.parametrize("ways", [COSINES, GATES, SIGNS], ids=["cosines", "gates", "signs"])
def test_one_function_one_map(ways):
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted, *found = (
        relprop.compare(Small(way).eval(), x, METHODS, target=1).explanations for way in ways
    )
    for method in METHODS:
        scale = wanted[method].scores.abs().max()
        for other in found:
            gap = (other[method].scores - wanted[method].scores).abs().max()
            assert gap <= 1e-9 * scale, method


def test_a_difference_has_the_sign_of_the_weight():
    """x − Wx and x + (−W)x."""
    ways = (lambda at, x: x - x @ at.w, lambda at, x: x + x @ -at.w)
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, two = (relprop.explain(Small(w).eval(), x, 1, method="lrp").scores for w in ways)
    assert torch.allclose(one, two, rtol=0, atol=1e-9 * float(one.abs().max()))
