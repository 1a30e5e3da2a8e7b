"""FT-Transformer: numbers of a table as tokens, a vector per column; against plain blocks."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.people import plain
from tests.people.pairs import BATCH, Pair, drawn, filled, normal, pair, renamed

NUMBERS, DIM, HEADS, DEPTH, HIDDEN, CLASSES = 4, 8, 2, 2, 12, 3


class Tokenizer(nn.Module):
    def __init__(self, d_numerical, d_token):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d_numerical + 1, d_token))
        self.bias = nn.Parameter(torch.zeros(d_numerical, d_token))

    def forward(self, x_num):
        x_num = torch.cat([torch.ones(len(x_num), 1, device=x_num.device), x_num], dim=1)  # [CLS]
        x = self.weight[None] * x_num[:, :, None]
        bias = torch.cat([torch.zeros(1, self.bias.shape[1], device=x.device), self.bias])
        return x + bias[None]


class MultiheadAttention(nn.Module):
    def __init__(self, d, n_heads):
        super().__init__()
        self.W_q, self.W_k, self.W_v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.W_out = nn.Linear(d, d)
        self.n_heads = n_heads

    def _reshape(self, x):
        batch_size, n_tokens, d = x.shape
        d_head = d // self.n_heads
        return (
            x.reshape(batch_size, n_tokens, self.n_heads, d_head)
            .transpose(1, 2)
            .reshape(batch_size * self.n_heads, n_tokens, d_head)
        )

    def forward(self, x_q, x_kv):
        q, k, v = self.W_q(x_q), self.W_k(x_kv), self.W_v(x_kv)
        batch_size = len(q)
        d_head_key = k.shape[-1] // self.n_heads
        d_head_value = v.shape[-1] // self.n_heads
        n_q_tokens = q.shape[1]
        q, k = self._reshape(q), self._reshape(k)
        attention = F.softmax(q @ k.transpose(1, 2) / math.sqrt(d_head_key), dim=-1)
        x = attention @ self._reshape(v)
        x = (
            x.reshape(batch_size, self.n_heads, n_q_tokens, d_head_value)
            .transpose(1, 2)
            .reshape(batch_size, n_q_tokens, self.n_heads * d_head_value)
        )
        return self.W_out(x)


class FTTransformer(nn.Module):
    """The last layer's queries are the class token only; the first layer has no first norm."""

    def __init__(self):
        super().__init__()
        self.tokenizer = Tokenizer(NUMBERS, DIM)
        self.layers = nn.ModuleList([])
        for layer_idx in range(DEPTH):
            layer = {
                "attention": MultiheadAttention(DIM, HEADS),
                "linear0": nn.Linear(DIM, HIDDEN * 2),
                "linear1": nn.Linear(HIDDEN, DIM),
                "norm1": nn.LayerNorm(DIM),
            }
            if layer_idx:
                layer["norm0"] = nn.LayerNorm(DIM)
            self.layers.append(nn.ModuleDict(layer))
        self.last_normalization = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x_num):
        x = self.tokenizer(x_num)
        for layer_idx, layer in enumerate(self.layers):
            is_last_layer = layer_idx + 1 == len(self.layers)
            x_residual = layer["norm0"](x) if "norm0" in layer else x
            x_residual = layer["attention"](
                (x_residual[:, :1] if is_last_layer else x_residual), x_residual
            )
            if is_last_layer:
                x = x[:, : x_residual.shape[1]]
            x = x + x_residual
            x_residual = layer["linear0"](layer["norm1"](x))
            a, b = x_residual.chunk(2, dim=-1)
            x = x + layer["linear1"](a * F.relu(b))
        assert x.shape[1] == 1
        return self.head(F.relu(self.last_normalization(x[:, 0])))


class ReGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gate = nn.Linear(DIM, HIDDEN), nn.Linear(DIM, HIDDEN)
        self.down = nn.Linear(HIDDEN, DIM)

    def forward(self, x):
        return self.down(self.up(x) * F.relu(self.gate(x)))


class FromFirst(plain.Attention):
    """The first token's queries only."""

    def forward(self, x):
        return super().forward(x[:, :1], x)


class LastBlock(plain.Block):
    def forward(self, x):
        x = x[:, :1] + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class FTTwin(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.zeros(NUMBERS, DIM)) for _ in range(2))
        self.cls = nn.Parameter(torch.zeros(1, 1, DIM))

        kinds = ((plain.Block, plain.Attention), (LastBlock, FromFirst))
        self.blocks = nn.Sequential(
            *(
                block(attend(DIM, HEADS), ReGLU(), lambda: nn.LayerNorm(DIM))
                for block, attend in kinds
            )
        )
        self.blocks[0].norm1 = nn.Identity()
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = x[:, :, None] * self.weight + self.bias
        x = self.blocks(torch.cat([self.cls.expand(len(x), 1, DIM), x], 1))
        return self.head(F.relu(self.norm(x[:, 0])))


@pair
def ft_transformer():
    model = drawn(FTTransformer())
    weights = renamed(
        model,
        ("layers", "blocks"),
        ("norm1", "norm2"),
        ("norm0", "norm1"),
        ("linear1", "mlp.down"),
        ("last_normalization", "norm"),
        ("W_", ""),
        ("tokenizer.", ""),
    )
    for name in [n for n in weights if "linear0" in n]:
        halves = weights.pop(name).chunk(2)
        for part, half in zip(("up", "gate"), halves, strict=True):
            weights[name.replace("linear0", f"mlp.{part}")] = half
    weights["cls"], weights["weight"] = weights["weight"][None, :1], weights["weight"][1:]
    refused = {"value_zeroing": "the queries of the attention at .* are not the tokens"}
    return Pair(
        model, filled(FTTwin(), weights), normal(BATCH, NUMBERS), NUMBERS + 1, refused=refused
    )
