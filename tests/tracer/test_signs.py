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


@pytest.mark.parametrize("ways", [COSINES, GATES], ids=["cosines", "gates"])
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
