"""Attention that is cheaper than all pairs: Linformer (keys and values mixed to a few), efficient
attention (a softmax over features and one over tokens), and linear attention, which has no softmax:
methods over attention must say so, the others explain it."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.people import plain
from tests.people.pairs import Pair, drawn, filled, ids, over_attention, pair

VOCABULARY, TOKENS, DIM, HEADS, DEPTH, KEPT, CLASSES = 11, 6, 8, 2, 2, 3, 3
SIZE = DIM // HEADS


class Projections(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.to_out = nn.Linear(DIM, DIM)

    def heads(self, x):
        return (plain.heads_apart(m(x), HEADS) for m in (self.to_q, self.to_k, self.to_v))


class LinformerSelfAttention(Projections):
    """Keys and values of the few are mixtures of those of all tokens."""

    def __init__(self):
        super().__init__()
        self.proj_k, self.proj_v = (nn.Parameter(torch.zeros(TOKENS, KEPT)) for _ in range(2))

    def forward(self, x):
        b, n, d = x.shape
        queries = self.to_q(x)
        keys, values = self.to_k(x), self.to_v(x)
        kv_projs = (self.proj_k, self.proj_v)
        keys, values = (
            torch.einsum("bnd,nk->bkd", t, proj)
            for t, proj in zip((keys, values), kv_projs, strict=True)
        )
        queries = queries.reshape(b, n, HEADS, -1).transpose(1, 2)
        keys, values = (
            t.reshape(b, KEPT, -1, SIZE).transpose(1, 2).expand(-1, HEADS, -1, -1)
            for t in (keys, values)
        )
        dots = torch.einsum("bhnd,bhkd->bhnk", queries, keys) * (SIZE**-0.5)
        attn = dots.softmax(dim=-1)
        out = torch.einsum("bhnk,bhkd->bhnd", attn, values)
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))


class LinformerTwin(LinformerSelfAttention):
    """Mixing along the tokens by ``F.linear`` of the transposed."""

    def forward(self, x):
        q, k, v = self.heads(x)
        k = F.linear(k.transpose(-2, -1), self.proj_k.T).transpose(-2, -1)
        v = F.linear(v.transpose(-2, -1), self.proj_v.T).transpose(-2, -1)
        return self.to_out(plain.heads_together(F.scaled_dot_product_attention(q, k, v)))


class EfficientAttention(Projections):
    """Queries are a distribution over features, keys one over tokens (Shen et al. 2018)."""

    def forward(self, x):
        n, c = x.shape[1:]
        keys = self.to_k(x).transpose(1, 2)
        queries = self.to_q(x).transpose(1, 2)
        values = self.to_v(x).transpose(1, 2)
        attended_values = []
        for i in range(HEADS):
            key = F.softmax(keys[:, i * SIZE : (i + 1) * SIZE, :], dim=2)
            query = F.softmax(queries[:, i * SIZE : (i + 1) * SIZE, :], dim=1)
            value = values[:, i * SIZE : (i + 1) * SIZE, :]
            context = key @ value.transpose(1, 2)
            attended_value = (context.transpose(1, 2) @ query).reshape(-1, SIZE, n)
            attended_values.append(attended_value)
        aggregated_values = torch.cat(attended_values, dim=1)
        return self.to_out(aggregated_values.reshape(-1, c, n).transpose(1, 2))


class EfficientTwin(Projections):
    def forward(self, x):
        q, k, v = self.heads(x)
        context = k.softmax(-2).transpose(-2, -1) @ v
        return self.to_out(plain.heads_together(q.softmax(-1) @ context))


def elu_feature_map(x):
    return torch.nn.functional.elu(x) + 1


class LinearAttention(Projections):
    """Katharopoulos et al. 2020, as in their library."""

    def forward(self, x):
        n, length, _ = x.shape
        queries = self.to_q(x).view(n, length, HEADS, -1)
        keys = self.to_k(x).view(n, length, HEADS, -1)
        values = self.to_v(x).view(n, length, HEADS, -1)
        Q, K = elu_feature_map(queries), elu_feature_map(keys)
        KV = torch.einsum("nshd,nshm->nhmd", K, values)
        Z = 1 / torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1))
        V = torch.einsum("nlhd,nhmd,nlh->nlhm", Q, KV, Z)
        return self.to_out(V.contiguous().view(n, length, -1))


class LinearTwin(Projections):
    """The same products in the same order, by ``matmul``."""

    def forward(self, x):
        q, k, v = self.heads(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        mixed = q @ (k.transpose(-2, -1) @ v)
        scale = 1 / (q @ k.sum(-2, keepdim=True).transpose(-2, -1))
        return self.to_out(plain.heads_together(mixed * scale))


def transformer(attention):
    def block():
        return plain.Block(attention(), plain.Mlp(DIM, 12), lambda: nn.LayerNorm(DIM))

    blocks = [block() for _ in range(DEPTH)]
    return plain.Language(
        VOCABULARY, TOKENS, DIM, blocks, classes=CLASSES, read=lambda x: x.mean(1)
    )


def cheap(attention, twin_attention, **options):
    model = drawn(transformer(attention))
    twin = filled(transformer(twin_attention), dict(model.named_parameters()))
    leaves = (model.embed.weight, twin.embed.weight)
    return Pair(model, twin, ids(TOKENS, VOCABULARY), TOKENS, leaves=leaves, **options)


@pair
def linformer():
    return cheap(LinformerSelfAttention, LinformerTwin)


@pair
def efficient_attention():
    """Its queries are features, so there is no layer of tokens that attend to tokens."""
    refused = {
        "attcat": "no layer's output holds the tokens of its own attention",
        "attention_norm": "no linear map takes the heads' results",
        "value_zeroing": "the queries of the attention at .* are not the tokens",
    }
    return cheap(EfficientAttention, EfficientTwin, refused=refused)


@pair
def linear_attention():
    refused = over_attention("no softmax attention over tokens .*: it has no softmax")
    return cheap(LinearAttention, LinearTwin, refused=refused)
