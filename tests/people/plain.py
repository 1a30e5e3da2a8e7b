"""The plainest spelling of the usual parts: what most twins are made of."""

import torch
from torch import nn
from torch.nn import functional as F


def heads_apart(x, heads):
    """(batch, tokens, width) to (batch, heads, tokens, width of a head)."""
    return x.view(*x.shape[:-1], heads, -1).transpose(-3, -2)


def heads_together(x):
    return x.transpose(-3, -2).flatten(-2)


class Attention(nn.Module):
    """Multi-head attention of a sequence to itself or to a memory; a mask says what is seen."""

    def __init__(self, width, heads, bias=True, out_bias=True, causal=False, inner=None):
        super().__init__()
        inner = inner or width
        self.heads, self.causal = heads, causal
        self.q, self.k, self.v = (nn.Linear(width, inner, bias=bias) for _ in range(3))
        self.out = nn.Linear(inner, width, bias=out_bias)

    def forward(self, x, memory=None, mask=None):
        memory = x if memory is None else memory
        q, k, v = self.q(x), self.k(memory), self.v(memory)
        q, k, v = (heads_apart(each, self.heads) for each in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(heads_together(mixed))


class Mlp(nn.Module):
    def __init__(self, width, hidden, activation=F.gelu, bias=True):
        super().__init__()
        self.activation = activation
        self.up, self.down = nn.Linear(width, hidden, bias), nn.Linear(hidden, width, bias)

    def forward(self, x):
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    """Attention and an MLP beside skip connections, each behind its norm."""

    def __init__(self, attention, mlp, norm):
        super().__init__()
        self.attention, self.mlp, self.norm1, self.norm2 = attention, mlp, norm(), norm()

    def forward(self, x, **options):
        x = x + self.attention(self.norm1(x), **options)
        return x + self.mlp(self.norm2(x))


class PostBlock(Block):
    """The same with each norm behind the sum."""

    def forward(self, x, **options):
        x = self.norm1(x + self.attention(x, **options))
        return self.norm2(x + self.mlp(x))


class Language(nn.Module):
    """Embedded ids, positions, blocks, a norm and a head over what ``read`` takes of the tokens;
    ``mask`` says which keys are seen, from the ids."""

    def __init__(
        self,
        vocabulary,
        tokens,
        width,
        blocks,
        norm=None,
        head_bias=True,
        classes=None,
        read=lambda x: x,
        mask=None,
    ):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(tokens, width) if tokens else None
        self.blocks = nn.ModuleList(blocks)
        self.norm = (norm or (lambda: nn.LayerNorm(width)))()
        self.head = nn.Linear(width, classes or vocabulary, bias=head_bias)
        self.read, self.mask = read, mask

    def forward(self, ids):
        x = self.embed(ids)
        if self.position is not None:
            x = x + self.position(torch.arange(ids.shape[1]))
        options = {} if self.mask is None else {"mask": self.mask(ids)}
        for block in self.blocks:
            x = block(x, **options)
        return self.head(self.read(self.norm(x)))


def thirds(weights, fused, parts, where="", dim=0):
    """Weights in which every parameter whose name has ``fused`` is cut in three, with the names of
    ``parts`` instead; only under names that have ``where``."""
    cut = {}
    for name, value in weights.items():
        if fused in name and where in name:
            pieces = value.chunk(3, dim)
            cut |= {name.replace(fused, p): v for p, v in zip(parts, pieces, strict=True)}
        else:
            cut[name] = value
    return cut
