"""Small transformers of every shape a residual stream takes, each a few lines of ``torch.nn``, to
be rolled up by hand in ``test_structures.py``."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, TOKENS = 8, 2, 5


def split(x, heads=HEADS):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merged(x):
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Self-attention with separate projections through the fused function."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        return self.out(
            merged(
                F.scaled_dot_product_attention(split(self.q(x)), split(self.k(x)), split(self.v(x)))
            )
        )


class Fused(Attention):
    """The same with one matrix for queries, keys and values."""

    def forward(self, x):
        weight, bias = (
            torch.cat([getattr(m, n) for m in (self.q, self.k, self.v)]) for n in ("weight", "bias")
        )
        q, k, v = F.linear(x, weight, bias).chunk(3, -1)
        return self.out(merged(F.scaled_dot_product_attention(split(q), split(k), split(v))))


class FusedParameter(nn.Module):
    """A fused projection as timm writes it: reshape to (3, heads, ...) and unbind."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (
            self.qkv(x)
            .reshape(len(x), -1, 3, HEADS, WIDTH // HEADS)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        return self.out(merged(F.scaled_dot_product_attention(q, k, v)))


class Einsum(Attention):
    def forward(self, x):
        q, k, v = (m(x).unflatten(-1, (HEADS, -1)) for m in (self.q, self.k, self.v))
        attention = torch.einsum("bqhd,bkhd->bhqk", q, k).div(2).softmax(-1)
        return self.out(torch.einsum("bhqk,bkhd->bqhd", attention, v).flatten(2))


class ValuesFirst(Attention):
    """Vᵀ·Aᵀ: the attention map is the right operand, its queries are columns."""

    def forward(self, x):
        q, k, v = (split(m(x)) for m in (self.q, self.k, self.v))
        attention = (q @ k.mT / 2).softmax(-1)
        return self.out(merged((v.mT @ attention.mT).mT))


class TalkingHeads(Attention):
    """A linear map over heads before and after the softmax."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Linear(HEADS, HEADS), nn.Linear(HEADS, HEADS)

    def forward(self, x):
        q, k, v = (split(m(x)) for m in (self.q, self.k, self.v))
        attention = self.before((q @ k.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(-1)
        return self.out(merged(self.after(attention.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) @ v))


class Grouped(nn.Module):
    """Four query heads over two heads of keys and values, which are repeated by ``repeat``."""

    def __init__(self, repeat):
        super().__init__()
        self.q, self.out, self.kv = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.repeat = repeat

    def forward(self, x):
        q, (k, v) = split(self.q(x), 4), (split(part, 2) for part in self.kv(x).chunk(2, -1))
        if self.repeat == "fused":
            return self.out(merged(F.scaled_dot_product_attention(q, k, v, enable_gqa=True)))
        k, v = (self.wide(t) for t in (k, v))
        return self.out(merged((q @ k.mT).softmax(-1) @ v))

    def wide(self, t):
        if self.repeat == "interleave":
            return t.repeat_interleave(2, 1)
        return t[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2)


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


class Rms(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Block(nn.Module):
    """One block: ``join(block, x)`` says how its parts meet."""

    def __init__(self, join, attention=Attention, norm=lambda: nn.LayerNorm(WIDTH)):
        super().__init__()
        self.attention, self.second, self.mlp = attention(), Attention(), Mlp()
        self.norm1, self.norm2 = norm(), norm()
        self.shortcut, self.gate, self.wide = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(2 * WIDTH, WIDTH),
        )
        self.wider = nn.Linear(3 * WIDTH, WIDTH)
        self.scale1, self.scale2 = (nn.Parameter(torch.rand(WIDTH) + 0.1) for _ in range(2))
        self.join = join

    def forward(self, x):
        return self.join(self, x)


class Stack(nn.Module):
    """Blocks between an embedding of each position and a head that reads what ``pool`` leaves."""

    def __init__(self, *blocks, pool=lambda x: x[:, :3].mean(1), prefix=False):
        super().__init__()
        self.embed, self.position = (
            nn.Linear(3, WIDTH),
            nn.Parameter(torch.randn(1, TOKENS, WIDTH) / 4),
        )
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head, self.pool = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4), pool
        self.prefix = nn.Parameter(torch.randn(1, 1, WIDTH)) if prefix else None

    def forward(self, x):
        x = self.embed(x) + self.position
        if self.prefix is not None:
            x = torch.cat([self.prefix.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.pool(self.norm(x)))
