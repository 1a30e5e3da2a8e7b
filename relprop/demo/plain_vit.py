"""The shipped digit model written out in PyTorch alone, for where timm is not installed: the same
parameters by the same names, the same numbers."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Self-attention with queries, keys and values from one linear layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) → the same."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and MLP, each after a norm and beside a skip connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, eps=1e-6), Attention(width, heads)
        first, second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(OrderedDict(fc1=first, act=nn.GELU(), fc2=second))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) → the same."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PlainViT(nn.Module):
    """A vision transformer with a class token, read by a linear head."""

    def __init__(
        self, *, size: int, patch: int, classes: int, width: int, depth: int, heads: int
    ) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        cut = nn.Conv2d(1, width, patch, patch)
        self.patch_embed = nn.Sequential(OrderedDict(proj=cut, flatten=nn.Flatten(2)))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images (batch, 1, size, size) → logits (batch, classes)."""
        x = self.patch_embed(images).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])
