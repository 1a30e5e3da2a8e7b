"""T5's encoder from memory: buckets of relative positions, no scaling, norms without a mean.
Against plain blocks whose bias is looked up in a table of distances."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.people import plain
from tests.people.pairs import Pair, drawn, filled, ids, pair

VOCABULARY, TOKENS, DIM, HEADS, DEPTH, CLASSES = 11, 6, 8, 2, 2, 3
SIZE = DIM // HEADS


class T5Attention(nn.Module):
    """No scaling and no biases; the first layer's position bias is handed to the others."""

    def __init__(self, buckets=8, max_distance=4):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.buckets, self.max_distance = buckets, max_distance

    @staticmethod
    def _relative_position_bucket(relative_position, num_buckets, max_distance):
        num_buckets //= 2
        relative_buckets = (relative_position > 0).to(torch.long) * num_buckets
        relative_position = torch.abs(relative_position)
        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        relative_position_if_large = max_exact + (
            torch.log(relative_position.float() / max_exact)
            / math.log(max_distance / max_exact)
            * (num_buckets - max_exact)
        ).to(torch.long)
        relative_position_if_large = torch.min(
            relative_position_if_large,
            torch.full_like(relative_position_if_large, num_buckets - 1),
        )
        return relative_buckets + torch.where(
            is_small, relative_position, relative_position_if_large
        )

    def compute_bias(self, table, length):
        context_position = torch.arange(length, dtype=torch.long)[:, None]
        memory_position = torch.arange(length, dtype=torch.long)[None, :]
        relative_position = memory_position - context_position
        bucket = self._relative_position_bucket(relative_position, self.buckets, self.max_distance)
        values = table(bucket)
        return values.permute([2, 0, 1]).unsqueeze(0)

    def forward(self, hidden_states, position_bias):
        batch_size = hidden_states.shape[0]

        def shape(states):
            return states.view(batch_size, -1, HEADS, SIZE).transpose(1, 2)

        query, key, value = map(shape, (m(hidden_states) for m in (self.q, self.k, self.v)))
        scores = torch.matmul(query, key.transpose(3, 2))
        scores += position_bias
        attn_weights = F.softmax(scores, dim=-1).type_as(scores)
        attn_output = torch.matmul(attn_weights, value)
        attn_output = attn_output.transpose(1, 2).contiguous().view(batch_size, -1, DIM)
        return self.o(attn_output)


class T5LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, hidden_states):
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + 1e-6)
        return self.weight * hidden_states


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Embedding(VOCABULARY, DIM)
        self.relative_attention_bias = nn.Embedding(8, HEADS)
        self.attention = nn.ModuleList(T5Attention() for _ in range(DEPTH))
        self.wi = nn.ModuleList(nn.Linear(DIM, 12, bias=False) for _ in range(DEPTH))
        self.wo = nn.ModuleList(nn.Linear(12, DIM, bias=False) for _ in range(DEPTH))
        self.norms = nn.ModuleList(T5LayerNorm() for _ in range(2 * DEPTH + 1))
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, input_ids):
        x = self.shared(input_ids)
        bias = self.attention[0].compute_bias(self.relative_attention_bias, x.shape[1])
        for i, attention in enumerate(self.attention):
            x = x + attention(self.norms[2 * i](x), bias)
            x = x + self.wo[i](F.relu(self.wi[i](self.norms[2 * i + 1](x))))
        return self.head(self.norms[-1](x).mean(1))


class T5Twin(plain.Language):
    """Unscaled scores; the bias is a table per head and distance, as a mask that is added."""

    def __init__(self):
        def block():
            attention = UnscaledAttention(DIM, HEADS, bias=False, out_bias=False)
            mlp = plain.Mlp(DIM, 12, F.relu, bias=False)
            return plain.Block(attention, mlp, lambda: nn.RMSNorm(DIM, 1e-6))

        super().__init__(
            VOCABULARY,
            None,
            DIM,
            [block() for _ in range(DEPTH)],
            lambda: nn.RMSNorm(DIM, 1e-6),
            classes=CLASSES,
            read=lambda x: x.mean(1),
            mask=lambda ids: self.bias[:, self.bucket],
        )
        self.bias = nn.Parameter(torch.zeros(HEADS, 8))
        near = [[j - i for j in range(TOKENS)] for i in range(TOKENS)]
        # 8 buckets: up to one step exactly, then two and three steps, then further, on both sides
        self.register_buffer("bucket", torch.tensor([[bucket_of(d) for d in row] for row in near]))


def bucket_of(distance):
    return (4 if distance > 0 else 0) + min(abs(distance), 2 if abs(distance) < 3 else 3)


class UnscaledAttention(plain.Attention):
    def forward(self, x, mask):
        q, k, v = (plain.heads_apart(m(x), self.heads) for m in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
        return self.out(plain.heads_together(mixed))


@pair
def t5():
    model = drawn(T5())
    weights = {"embed.weight": model.shared.weight, "norm.weight": model.norms[-1].weight}
    weights |= {"bias": model.relative_attention_bias.weight.T}
    weights |= {f"head.{n}": p for n, p in model.head.named_parameters()}
    for i, attention in enumerate(model.attention):
        block = f"blocks.{i}"
        for old, new in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "out")):
            weights[f"{block}.attention.{new}.weight"] = getattr(attention, old).weight
        weights[f"{block}.mlp.up.weight"] = model.wi[i].weight
        weights[f"{block}.mlp.down.weight"] = model.wo[i].weight
        weights[f"{block}.norm1.weight"] = model.norms[2 * i].weight
        weights[f"{block}.norm2.weight"] = model.norms[2 * i + 1].weight
    twin = filled(T5Twin(), weights)
    leaves = (model.shared.weight, twin.embed.weight)
    return Pair(model, twin, ids(TOKENS, VOCABULARY), TOKENS, leaves=leaves)
