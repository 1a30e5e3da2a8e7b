"""Rolling up by hand: dense matrices over the joint state of all tokens, multiplied from the target
down, compared with what the walk found."""

import torch
from torch import nn
from torch.nn import functional as F

import relprop
from tests.rollup.structures import WIDTH, Mlp, merged, split

TOLERANCE = 1e-9
SAMPLES = 2
eye = torch.eye


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def explained(model, inputs, target=(1, 2), **options):
    return relprop.explain(
        model.double().eval(),
        inputs,
        target=list(target) if isinstance(target, tuple) else target,
        keep="blocks",
        **options,
    )


def matrices(e, heads=1):
    """E_h(∇A ⊙ R)⁺ of every site, (batch, ..., queries, keys), in forward order; heads are axis
    ``heads`` of each sample's map, or where a list says."""
    heads = heads if isinstance(heads, (list, tuple)) else [heads] * len(e.blocks)
    return [
        (b.gradient * b.relevance).clamp(min=0).mean(h)
        for b, h in zip(e.blocks, heads, strict=True)
    ]


def agree(found, by_hand, cancelled=0.0):
    """Equal to 1e-9 of the largest magnitude; a difference of ``cancelled``-sized numbers cannot be
    better than their last digits."""
    scale = float(by_hand.abs().max())
    assert scale > 0, "the case by hand is empty"
    assert found.shape == by_hand.shape
    assert float((found - by_hand).abs().max()) <= TOLERANCE * scale + 4e-15 * cancelled, (
        f"found {found}, by hand {by_hand}"
    )


def compare(e, product, read, heads=1):
    """``product(*m)`` is C by hand, (batch, positions read, all tokens of all streams in order);
    ``read`` the weights of the positions the head reads."""
    m = matrices(e, heads)
    assert all(float(one.max()) > 0 for one in m), "a site with an empty matrix tests nothing"
    c, skips = (
        read.double() @ product(*each) for each in (m, [torch.zeros_like(one) for one in m])
    )
    row, identity, scores = (
        torch.cat([getattr(t, name) for t in e.streams.values()], 1)
        for name in ("row", "identity", "scores")
    )
    agree(row, c)
    skips = skips.expand_as(identity)
    assert float((identity - skips).abs().max()) <= TOLERANCE, f"found {identity}, by hand {skips}"
    agree(scores, c - skips, cancelled=float(row.abs().max()))


def placed(m, size, rows, columns):
    """A matrix over the joint state that is ``m`` at (rows, columns) and 0 elsewhere."""
    whole = torch.zeros(*m.shape[:-2], size, size, dtype=m.dtype)
    whole[..., rows.start : rows.stop, columns.start : columns.stop] = m
    return whole


class Attention(nn.Module):
    """Self- or cross-attention through the fused function."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, memory=None, **options):
        memory = x if memory is None else memory
        return self.out(
            merged(
                F.scaled_dot_product_attention(
                    split(self.q(x)), split(self.k(memory)), split(self.v(memory)), **options
                )
            )
        )


class Layer(nn.Module):
    """A pre-norm layer: attention, then an MLP."""

    def __init__(self, attention=Attention):
        super().__init__()
        self.attention, self.mlp, self.norm1, self.norm2 = (
            attention(),
            Mlp(),
            nn.LayerNorm(WIDTH),
            nn.LayerNorm(WIDTH),
        )

    def forward(self, x, **options):
        x = x + self.attention(self.norm1(x), **options)
        return x + self.mlp(self.norm2(x))
