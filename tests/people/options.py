"""Attention with the options that people switch on: talking heads, normalised queries and keys,
ALiBi, memory keys and values. Einsums over moved heads, against the plain spelling of each."""

import math

import torch
import torch.nn.functional as F
from torch import einsum, nn

from tests.people import plain
from tests.people.pairs import Pair, drawn, filled, ids, pair, renamed

VOCABULARY, TOKENS, DIM, HEADS, DEPTH, CLASSES = 11, 6, 8, 2, 2, 3


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


def l2norm(t):
    return t / t.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def max_neg_value(tensor):
    return -torch.finfo(tensor.dtype).max


class AlibiPositionalBias(nn.Module):
    def __init__(self, heads):
        super().__init__()
        slopes = torch.tensor(self._get_slopes(heads), dtype=torch.float64)
        self.register_buffer("slopes", slopes.reshape(-1, 1, 1), persistent=False)
        self.register_buffer("bias", None, persistent=False)

    @staticmethod
    def _get_slopes(heads):
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]

    def forward(self, i, j):
        if exists(self.bias) and self.bias.shape[-1] >= j and self.bias.shape[-2] >= i:
            return self.bias[..., -i:, -j:]
        i_arange = torch.arange(j - i, j)
        j_arange = torch.arange(j)
        bias = -torch.abs(j_arange[None, None, :] - i_arange[None, :, None])
        bias = bias * self.slopes
        self.register_buffer("bias", bias, persistent=False)
        return self.bias


class Attention(nn.Module):
    def __init__(
        self,
        dim,
        heads=HEADS,
        talking_heads=False,
        qk_norm=False,
        alibi=False,
        num_mem_kv=0,
        causal=False,
        keys_first=False,
    ):
        super().__init__()
        dim_head = dim // heads
        self.heads, self.causal, self.qk_norm = heads, causal, qk_norm
        self.scale = None if qk_norm else dim_head**-0.5
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.to_out = nn.Linear(dim, dim, bias=False)
        if qk_norm:
            self.qk_norm_q_scale = nn.Parameter(torch.ones(heads, 1, dim_head))
            self.qk_norm_k_scale = nn.Parameter(torch.ones(heads, 1, dim_head))
        self.talking_heads = talking_heads
        if talking_heads:
            self.pre_talking_heads = nn.Conv2d(heads, heads, 1, bias=False)
            self.post_talking_heads = nn.Conv2d(heads, heads, 1, bias=False)
        self.rel_pos = AlibiPositionalBias(heads) if alibi else None
        self.num_mem_kv = num_mem_kv
        if num_mem_kv > 0:
            self.mem_k = nn.Parameter(torch.randn(heads, num_mem_kv, dim_head))
            self.mem_v = nn.Parameter(torch.randn(heads, num_mem_kv, dim_head))
        self.keys_first = keys_first

    def forward(self, x):
        b, n, h = *x.shape[:2], self.heads
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        q, k, v = (t.reshape(b, n, h, -1).permute(0, 2, 1, 3) for t in (q, k, v))
        if self.num_mem_kv > 0:
            mem_k, mem_v = (t[None].expand(b, -1, -1, -1) for t in (self.mem_k, self.mem_v))
            k = torch.cat((mem_k, k), dim=-2)
            v = torch.cat((mem_v, v), dim=-2)
        if self.qk_norm:
            q, k = map(l2norm, (q, k))
            q, k = q * self.qk_norm_q_scale, k * self.qk_norm_k_scale
        dots = einsum("bhid,bhjd->bhij", q, k) * default(self.scale, 10)
        if self.talking_heads:
            dots = self.pre_talking_heads(dots)
        if exists(self.rel_pos):
            dots = dots + self.rel_pos(*dots.shape[-2:])
        if self.causal:
            i, j = dots.shape[-2:]
            causal_mask = torch.ones((i, j), dtype=torch.bool).triu(j - i + 1)
            dots = dots.masked_fill(causal_mask, max_neg_value(dots))
        attn = F.softmax(dots, dim=-1)
        if self.talking_heads:
            attn = self.post_talking_heads(attn)
        if self.keys_first:
            out = einsum("bhji,bhjd->bhid", attn.transpose(-1, -2), v)
        else:
            out = einsum("bhij,bhjd->bhid", attn, v)
        out = out.permute(0, 2, 1, 3).reshape(b, n, -1)
        return self.to_out(out)


class FeedForward(nn.Module):
    def __init__(self, dim, mult=2):
        super().__init__()
        self.ff = nn.Sequential(nn.Linear(dim, dim * mult), nn.GELU(), nn.Linear(dim * mult, dim))

    def forward(self, x):
        return self.ff(x)


class XTransformer(nn.Module):
    """Layers are triples of norm, block and residual, in a flat list of kinds, as there."""

    def __init__(self, **options):
        super().__init__()
        self.token_emb = nn.Embedding(VOCABULARY, DIM)
        self.pos_emb = nn.Embedding(TOKENS, DIM)
        self.layers = nn.ModuleList([])
        for layer_type in ("a", "f") * DEPTH:
            layer = Attention(DIM, **options) if layer_type == "a" else FeedForward(DIM)
            self.layers.append(nn.ModuleList([nn.LayerNorm(DIM), layer]))
        self.final_norm = nn.LayerNorm(DIM)
        self.to_logits = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = self.token_emb(x) + self.pos_emb(torch.arange(x.shape[1], device=x.device))[None]
        for norm, block in self.layers:
            residual = x
            x = block(norm(x)) + residual
        return self.to_logits(self.final_norm(x).mean(dim=1))


class Twin(plain.Attention):
    """Plain attention with its softmax written out, so that subclasses can change a step."""

    def __init__(self):
        super().__init__(DIM, HEADS, bias=False, out_bias=False)

    def forward(self, x):
        q, k, v = (plain.heads_apart(m(x), HEADS) for m in (self.q, self.k, self.v))
        attention = self.after(F.softmax(self.scores(q, k), dim=-1))
        return self.out(plain.heads_together(attention @ v))

    def scores(self, q, k):
        return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])

    def after(self, attention):
        return attention


class TalkingTwin(Twin):
    """Linear maps over the heads."""

    def __init__(self):
        super().__init__()
        self.before, self.behind = (nn.Linear(HEADS, HEADS, bias=False) for _ in range(2))

    def scores(self, q, k):
        return self.over_heads(self.before, super().scores(q, k))

    def after(self, attention):
        return self.over_heads(self.behind, attention)

    def over_heads(self, linear, x):
        return linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NormedTwin(Twin):
    def __init__(self):
        super().__init__()
        self.q_scale, self.k_scale = (
            nn.Parameter(torch.ones(HEADS, 1, DIM // HEADS)) for _ in range(2)
        )

    def scores(self, q, k):
        q, k = F.normalize(q, dim=-1) * self.q_scale, F.normalize(k, dim=-1) * self.k_scale
        return q @ k.transpose(-2, -1) * 10


class AlibiTwin(Twin):
    def scores(self, q, k):
        at = torch.arange(TOKENS)
        slopes = torch.tensor([1 / 16, 1 / 256], dtype=q.dtype)[:, None, None]
        distance = (at[:, None] - at).abs()
        seen = super().scores(q, k) - distance * slopes
        return seen.masked_fill(at > at[:, None], float("-inf"))


class MemoryTwin(nn.Module):
    """PyTorch's own attention, which puts the learned key and value behind those of the tokens."""

    def __init__(self):
        super().__init__()
        self.mha = nn.MultiheadAttention(DIM, HEADS, bias=False, add_bias_kv=True, batch_first=True)

    def forward(self, x):
        return self.mha(x, x, x, need_weights=False)[0]


def twin_weights(model):
    changes = [("token_emb", "embed"), ("pos_emb", "position"), ("final_norm", "norm")]
    changes += [("to_logits", "head"), ("to_out", "out"), ("to_", ""), ("ff.0", "up")]
    changes += [("ff.2", "down"), ("qk_norm_", "")]
    changes += [("pre_talking_heads", "before"), ("post_talking_heads", "behind")]
    for i in range(DEPTH):
        parts = ((2 * i, "norm1", "attention"), (2 * i + 1, "norm2", "mlp"))
        for at, norm, part in parts:
            changes += [(f"layers.{at}.0", f"blocks.{i}.{norm}")]
            changes += [(f"layers.{at}.1", f"blocks.{i}.{part}")]
    weights = renamed(model, *changes)
    return {n: w[..., 0, 0] if w.dim() == 4 else w for n, w in weights.items()}


def packed(weights):
    """The weights of the parts of attention as ``nn.MultiheadAttention`` names them."""
    new = {n: w for n, w in weights.items() if ".attention." not in n}
    for i in range(DEPTH):
        old, mha = f"blocks.{i}.attention", f"blocks.{i}.attention.mha"
        whole = [weights[f"{old}.{part}.weight"] for part in "qkv"]
        new[f"{mha}.in_proj_weight"] = torch.cat(whole)
        new[f"{mha}.out_proj.weight"] = weights[f"{old}.out.weight"]
        for part in "kv":
            new[f"{mha}.bias_{part}"] = weights[f"{old}.mem_{part}"].reshape(1, 1, DIM)
    return new


def option(attention, change=lambda weights: weights, **options):
    """A model with options of its attention; the twin's attention."""
    model = drawn(XTransformer(**options))

    def block():
        return plain.Block(attention(), plain.Mlp(DIM, 2 * DIM), lambda: nn.LayerNorm(DIM))

    blocks = [block() for _ in range(DEPTH)]
    twin = plain.Language(
        VOCABULARY, TOKENS, DIM, blocks, classes=CLASSES, read=lambda x: x.mean(1)
    )
    filled(twin, change(twin_weights(model)))
    leaves = (model.token_emb.weight, twin.embed.weight)
    return Pair(model, twin, ids(TOKENS, VOCABULARY), TOKENS, leaves=leaves)


@pair
def x_plain():
    return option(Twin, keys_first=True)


@pair
def x_talking_heads():
    return option(TalkingTwin, talking_heads=True)


@pair
def x_qk_norm():
    return option(NormedTwin, qk_norm=True)


@pair
def x_alibi():
    return option(AlibiTwin, alibi=True, causal=True)


@pair
def x_memory_key_values():
    return option(MemoryTwin, packed, num_mem_kv=1)
