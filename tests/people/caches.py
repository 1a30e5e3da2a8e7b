"""GPTs that keep keys and values in lists: the prompt, then a step; or token by token."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.people import plain
from tests.people.pairs import Pair, drawn, filled, ids, pair, renamed

VOCABULARY, TOKENS, DIM, HEADS, DEPTH = 11, 5, 8, 2, 2


class CachedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x, layer_past=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.reshape(B, T, HEADS, C // HEADS).transpose(1, 2) for t in (q, k, v))
        if layer_past is not None:
            past_key, past_value = layer_past
            k = torch.cat((past_key, k), dim=-2)
            v = torch.cat((past_value, v), dim=-2)
        present = (k, v)
        att = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        ahead = torch.ones(T, k.size(-2), dtype=torch.bool).triu(k.size(-2) - T + 1)
        att = att.masked_fill(ahead, -torch.inf).softmax(dim=-1)
        y = (att @ v).transpose(1, 2).reshape(B, T, C)
        return self.proj(y), present


class CachedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(DIM), CachedAttention(), nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 12), nn.GELU(), nn.Linear(12, DIM))

    def forward(self, x, layer_past=None):
        a, present = self.attn(self.ln_1(x), layer_past)
        x = x + a
        x = x + self.mlp(self.ln_2(x))
        return x, present


class CachedGPT(nn.Module):
    """Returns logits and what to give it next time."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, DIM), nn.Embedding(TOKENS, DIM)
        self.blocks = nn.ModuleList([CachedBlock() for _ in range(DEPTH)])
        self.ln_f, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCABULARY, bias=False)

    def step(self, idx, past=None):
        past_length = 0 if past is None else past[0][0].size(-2)
        pos = torch.arange(past_length, past_length + idx.size(1), device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        presents = []
        for block, layer_past in zip(self.blocks, past or [None] * DEPTH, strict=True):
            x, present = block(x, layer_past)
            presents.append(present)
        return self.head(self.ln_f(x)), presents


class PromptThenStep(CachedGPT):
    def forward(self, idx):
        _, past = self.step(idx[:, :-1])
        logits, _ = self.step(idx[:, -1:], past)
        return logits[:, -1]


class TokenByToken(CachedGPT):
    def forward(self, idx):
        past, logits = None, []
        for t in range(idx.size(1)):
            out, past = self.step(idx[:, t : t + 1], past)
            logits.append(out)
        return torch.cat(logits, dim=1)[:, -1]


def cached(model):
    """Against plain blocks over the whole text at once."""
    model = drawn(model)

    def block():
        attention = plain.Attention(DIM, HEADS, causal=True)
        return plain.Block(attention, plain.Mlp(DIM, 12, F.gelu), lambda: nn.LayerNorm(DIM))

    twin = plain.Language(
        VOCABULARY,
        TOKENS,
        DIM,
        [block() for _ in range(DEPTH)],
        head_bias=False,
        read=lambda x: x[:, -1],
    )
    weights = renamed(
        model,
        ("wte", "embed"),
        ("wpe", "position"),
        ("ln_f", "norm"),
        ("ln_", "norm"),
        ("attn.proj", "attention.out"),
        ("attn.", "attention."),
        ("mlp.0", "mlp.up"),
        ("mlp.2", "mlp.down"),
    )
    filled(twin, plain.thirds(weights, "qkv", ("q", "k", "v")))
    leaves = (model.wte.weight, twin.embed.weight)
    return Pair(model, twin, ids(TOKENS, VOCABULARY), TOKENS, target=3, leaves=leaves)


@pair
def cache_prompt_then_step():
    return cached(PromptThenStep())


@pair
def cache_token_by_token():
    return cached(TokenByToken())
