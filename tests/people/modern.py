"""Attention of recent language models: latent keys and values with a rotary part (DeepSeek), capped
scores in a sliding window with norms on both sides (Gemma 2), the difference of two maps; against
plain spellings."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.people import llama, plain
from tests.people.pairs import Pair, drawn, filled, ids, pair

VOCABULARY, TOKENS, DIM, HEADS, DEPTH, WINDOW, CAP = 11, 6, 8, 2, 2, 3, 5.0
LATENT, NOPE, ROPE, VALUE = 6, 4, 4, 5
SIZE = DIM // HEADS


def ahead(n):
    return torch.ones(n, n, dtype=torch.bool).triu(1)


class MLA(nn.Module):
    """Multi-headed latent attention: one latent per token, from which keys and values are made."""

    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(DIM, HEADS * (NOPE + ROPE), bias=False)
        self.wkv_a = nn.Linear(DIM, LATENT + ROPE, bias=False)
        self.kv_norm = llama.RMSNorm(LATENT)
        self.wkv_b = nn.Linear(LATENT, HEADS * (NOPE + VALUE), bias=False)
        self.wo = nn.Linear(HEADS * VALUE, DIM, bias=False)
        self.freqs_cis = llama.precompute_freqs_cis(ROPE, TOKENS)

    def rotated(self, x):
        x_ = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        freqs_cis = self.freqs_cis[: x.size(1)].view(1, x.size(1), 1, x_.size(-1))
        return torch.view_as_real(x_ * freqs_cis).flatten(3)

    def forward(self, x):
        bsz, seqlen, _ = x.size()
        q = self.wq(x).view(bsz, seqlen, HEADS, NOPE + ROPE)
        q_nope, q_pe = torch.split(q, [NOPE, ROPE], dim=-1)
        q = torch.cat([q_nope, self.rotated(q_pe)], dim=-1)
        kv, k_pe = torch.split(self.wkv_a(x), [LATENT, ROPE], dim=-1)
        k_pe = self.rotated(k_pe.unsqueeze(2))
        kv = self.wkv_b(self.kv_norm(kv)).view(bsz, seqlen, HEADS, NOPE + VALUE)
        k_nope, v = torch.split(kv, [NOPE, VALUE], dim=-1)
        k = torch.cat([k_nope, k_pe.expand(-1, -1, HEADS, -1)], dim=-1)
        scores = torch.einsum("bshd,bthd->bsht", q, k) * (NOPE + ROPE) ** -0.5
        mask = torch.full((seqlen, seqlen), float("-inf"), dtype=x.dtype).triu_(1)
        scores += mask.unsqueeze(1)
        scores = scores.softmax(dim=-1)
        x = torch.einsum("bsht,bthd->bshd", scores, v)
        return self.wo(x.flatten(2))


class MLATwin(MLA):
    """Projections apart; rotation by halves, by real numbers."""

    def __init__(self):
        super().__init__()
        self.kv_norm = nn.RMSNorm(LATENT, llama.EPS)

    def rotated(self, x):
        cos, sin = (part[:, None] for part in (self.freqs_cis.real, self.freqs_cis.imag))
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.cat([even * cos - odd * sin, odd * cos + even * sin], -1)

    def forward(self, x):
        plainly, turning = self.wq.weight.unflatten(0, (HEADS, -1)).split([NOPE, ROPE], 1)
        latent, shared = self.wkv_a.weight.split([LATENT, ROPE])
        keys, values = self.wkv_b.weight.unflatten(0, (HEADS, -1)).split([NOPE, VALUE], 1)
        known = self.kv_norm(F.linear(x, latent))
        q, q_turning, k, v = (
            F.linear(each, weight.flatten(0, 1)).unflatten(-1, (HEADS, -1))
            for each, weight in ((x, plainly), (x, turning), (known, keys), (known, values))
        )
        k_turning = self.rotated(F.linear(x, shared)[:, :, None]).expand(-1, -1, HEADS, -1)
        q = torch.cat([q, self.rotated(q_turning)], -1).transpose(1, 2)
        k = torch.cat([k, k_turning], -1).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        return self.wo(plain.heads_together(mixed))


class Gemma2RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(DIM))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def forward(self, x):
        return self._norm(x) * (1.0 + self.weight)


class Gemma2Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(DIM, DIM, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(DIM, SIZE, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        bsz, q_len, _ = x.size()
        query = self.q_proj(x).view(bsz, q_len, HEADS, SIZE).transpose(1, 2)
        key = self.k_proj(x).view(bsz, q_len, 1, SIZE).transpose(1, 2)
        value = self.v_proj(x).view(bsz, q_len, 1, SIZE).transpose(1, 2)
        key, value = (t.expand(-1, HEADS, -1, -1) for t in (key, value))
        attn_weights = torch.matmul(query, key.transpose(2, 3)) * SIZE**-0.5
        attn_weights = attn_weights / CAP
        attn_weights = torch.tanh(attn_weights)
        attn_weights = attn_weights * CAP
        min_dtype = torch.finfo(x.dtype).min
        causal_mask = torch.full((q_len, q_len), min_dtype, dtype=x.dtype).triu(1)
        sliding = torch.tril(torch.ones_like(causal_mask, dtype=torch.bool), diagonal=-WINDOW)
        causal_mask = torch.where(sliding, min_dtype, causal_mask)
        attn_weights = F.softmax(attn_weights + causal_mask, dim=-1)
        attn_output = torch.matmul(attn_weights, value).transpose(1, 2).contiguous()
        return self.o_proj(attn_output.view(bsz, q_len, -1))


class Gemma2Layer(nn.Module):
    def __init__(self, attention, norm):
        super().__init__()
        self.attention = attention()
        self.norms = nn.ModuleList(norm() for _ in range(4))
        self.gate_proj, self.up_proj = (nn.Linear(DIM, 12, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(12, DIM, bias=False)

    def forward(self, x):
        before, behind, before_mlp, behind_mlp = self.norms
        x = x + behind(self.attention(before(x)))
        y = before_mlp(x)
        y = self.down_proj(F.gelu(self.gate_proj(y), approximate="tanh") * self.up_proj(y))
        return x + behind_mlp(y)


class Gemma2Twin(Gemma2Attention):
    def forward(self, x):
        q = plain.heads_apart(self.q_proj(x), HEADS)
        k, v = self.k_proj(x)[:, None], self.v_proj(x)[:, None]
        scores = CAP * torch.tanh(q @ k.transpose(-2, -1) / (math.sqrt(SIZE) * CAP))
        at = torch.arange(TOKENS)
        far = (at > at[:, None]) | (at[:, None] - at >= WINDOW)
        attention = scores.masked_fill(far, float("-inf")).softmax(-1)
        return self.o_proj(plain.heads_together(attention @ v))


class DifferentialAttention(nn.Module):
    """Pairs of heads, of which the second map is subtracted from the first (Ye et al. 2024)."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(DIM, DIM, bias=False) for _ in range(4)
        )
        self.lambda_q1, self.lambda_k1 = (nn.Parameter(torch.zeros(SIZE)) for _ in range(2))

    def amount(self):
        return torch.exp(torch.sum(self.lambda_q1 * self.lambda_k1, dim=-1)) - 0.2

    def forward(self, x):
        bsz, n, _ = x.size()
        half = SIZE // 2
        q = self.q_proj(x).view(bsz, n, 2 * HEADS, half).transpose(1, 2)
        k = self.k_proj(x).view(bsz, n, 2 * HEADS, half).transpose(1, 2)
        v = self.v_proj(x).view(bsz, n, HEADS, SIZE).transpose(1, 2)
        q *= half**-0.5
        attn_weights = torch.matmul(q, k.transpose(-1, -2))
        attn_mask = torch.triu(torch.zeros([n, n]).fill_(float("-inf")).type_as(x), 1)
        attn_weights += attn_mask
        attn_weights = F.softmax(attn_weights, dim=-1)
        attn_weights = attn_weights.view(bsz, HEADS, 2, n, n)
        attn_weights = attn_weights[:, :, 0] - self.amount() * attn_weights[:, :, 1]
        attn = torch.matmul(attn_weights, v).transpose(1, 2).reshape(bsz, n, DIM)
        return self.out_proj(attn)


class DifferentialTwin(DifferentialAttention):
    """The two maps by projections of their own."""

    def forward(self, x):
        def rows(linear):
            parts = linear.weight.unflatten(0, (HEADS, 2, -1)).unbind(1)
            return [plain.heads_apart(F.linear(x, w.flatten(0, 1)), HEADS) for w in parts]

        maps = []
        for q, k in zip(rows(self.q_proj), rows(self.k_proj), strict=True):
            scores = q @ k.transpose(-2, -1) / math.sqrt(SIZE // 2)
            maps.append(scores.masked_fill(ahead(TOKENS), float("-inf")).softmax(-1))
        v = plain.heads_apart(self.v_proj(x), HEADS)
        return self.out_proj(plain.heads_together((maps[0] - self.amount() * maps[1]) @ v))


def language(block):
    blocks = [block() for _ in range(DEPTH)]
    return plain.Language(
        VOCABULARY, None, DIM, blocks, lambda: nn.RMSNorm(DIM, 1e-6), head_bias=False
    )


def modern(block, twin_block, change=lambda weights: weights):
    model = drawn(language(block))
    twin = filled(language(twin_block), change(dict(model.named_parameters())))
    leaves = (model.embed.weight, twin.embed.weight)
    return Pair(model, twin, ids(TOKENS, VOCABULARY), TOKENS, target=(-1, 3), leaves=leaves)


def around(attention):
    return lambda: plain.Block(attention(), plain.Mlp(DIM, 12), lambda: nn.LayerNorm(DIM))


@pair
def latent_attention():
    return modern(around(MLA), around(MLATwin))


@pair
def gemma2():
    def above_one(weights):
        return {n: 1 + w if ".norms." in n else w for n, w in weights.items()}

    return modern(
        lambda: Gemma2Layer(Gemma2Attention, Gemma2RMSNorm),
        lambda: Gemma2Layer(Gemma2Twin, lambda: nn.RMSNorm(DIM, 1e-6)),
        above_one,
    )


@pair
def differential():
    return modern(around(DifferentialAttention), around(DifferentialTwin))
