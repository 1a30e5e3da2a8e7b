"""Attention computed by hand: heads in loops with writes into a buffer, by vmap, queries in chunks,
samples one by one, keys in blocks with a running softmax, flex_attention. The rest is plain."""

import math
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from tests.people import plain
from tests.people.pairs import Pair, drawn, filled, ids, pair

VOCABULARY, TOKENS, DIM, HEADS, DEPTH, CLASSES = 11, 6, 8, 2, 2, 3


def attend(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return torch.softmax(scores, dim=-1) @ v


def head_by_head(q, k, v):
    out = torch.zeros_like(q)
    for h in range(q.shape[1]):
        out[:, h] = attend(q[:, h], k[:, h], v[:, h])
    return out


def head_after_head(q, k, v):
    heads = zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True)
    return torch.stack([attend(*qkv) for qkv in heads], dim=1)


def sample_by_sample(q, k, v):
    return torch.stack([attend(q[i], k[i], v[i]) for i in range(q.shape[0])])


def queries_in_chunks(q, k, v, chunk_size=4):
    return torch.cat([attend(part, k, v) for part in q.split(chunk_size, dim=2)], dim=2)


def query_by_query(q, k, v):
    out = torch.empty_like(q)
    for t in range(q.size(2)):
        out[:, :, t : t + 1] = attend(q[:, :, t : t + 1], k, v)
    return out


def softmax_from_scratch(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    weights = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights @ v


def normalised_at_the_end(q, k, v):
    weights = torch.exp(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)))
    return (weights @ v) / weights.sum(dim=-1, keepdim=True)


def by_log_sum_exp(q, k, v):
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.size(-1) ** -0.5
    weights = (scores - torch.logsumexp(scores, dim=-1, keepdim=True)).exp()
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def flash_attention(q, k, v, block=2):
    """A running maximum and a running sum over blocks of keys (Dao et al. 2022, Algorithm 1)."""
    scale = 1 / math.sqrt(q.size(-1))
    o = torch.zeros_like(q)
    l = torch.zeros_like(q[..., :1])  # noqa: E741
    m = torch.full_like(q[..., :1], float("-inf"))
    for j in range(0, k.size(2), block):
        kj, vj = k[:, :, j : j + block], v[:, :, j : j + block]
        s = q @ kj.transpose(-2, -1) * scale
        m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
        p = torch.exp(s - m_new)
        correction = torch.exp(m - m_new)
        l = correction * l + p.sum(dim=-1, keepdim=True)  # noqa: E741
        o = correction * o + p @ vj
        m = m_new
    return o / l


def tiled_flash_attention(q, k, v, rows=3, columns=2):
    """Blocks of queries, too, each written to its place, with the output normalised all along."""
    out = torch.zeros_like(q)
    for i in range(0, q.size(2), rows):
        qi = q[:, :, i : i + rows] / math.sqrt(q.size(-1))
        m = torch.full(qi.shape[:-1] + (1,), -torch.inf, dtype=q.dtype)
        l, o = torch.zeros_like(m), torch.zeros_like(qi)  # noqa: E741
        for kj, vj in zip(k.split(columns, dim=2), v.split(columns, dim=2), strict=True):
            s = torch.matmul(qi, kj.mT)
            m_ij = s.max(dim=-1, keepdim=True)[0]
            p = torch.exp(s - m_ij)
            m_new = torch.maximum(m, m_ij)
            a, b = torch.exp(m - m_new), torch.exp(m_ij - m_new)
            l_new = a * l + b * p.sum(dim=-1, keepdim=True)
            o = (l * a * o + b * torch.matmul(p, vj)) / l_new
            m, l = m_new, l_new  # noqa: E741
        out[:, :, i : i + rows] = o
    return out


def by_vmap(q, k, v):
    return torch.vmap(torch.vmap(attend))(q, k, v)


def causal(score, b, h, q_idx, kv_idx):
    return torch.where(q_idx >= kv_idx, score, -float("inf"))


def by_flex(q, k, v):
    return flex_attention(q, k, v, score_mod=causal)


def by_flex_with_bias(q, k, v):
    slopes = torch.exp2(-((torch.arange(HEADS, dtype=q.dtype) + 1) * 8.0 / HEADS))

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    return flex_attention(q, k, v, score_mod=alibi)


class Attention(nn.Module):
    def __init__(self, core):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.core = core

    def forward(self, x):
        b, n, c = x.shape
        q = self.q(x).view(b, n, HEADS, c // HEADS).transpose(1, 2)
        k = self.k(x).view(b, n, HEADS, c // HEADS).transpose(1, 2)
        v = self.v(x).view(b, n, HEADS, c // HEADS).transpose(1, 2)
        y = self.core(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, n, c))


class BufferedAttention(nn.Module):
    """A slice of every projection per head; what comes out is written beside the last head's."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x):
        d = DIM // HEADS
        q, k, v = self.q(x), self.k(x), self.v(x)
        merged = x.new_zeros(x.shape)
        for h in range(HEADS):
            part = slice(h * d, (h + 1) * d)
            merged[:, :, part] = attend(q[..., part], k[..., part], v[..., part])
        return self.out(merged)


class AddedAttention(BufferedAttention):
    """The output projection head by head, its results added up in place."""

    def forward(self, x):
        d = DIM // HEADS
        total = torch.zeros_like(x)
        for h in range(HEADS):
            part = slice(h * d, (h + 1) * d)
            q, k, v = (F.linear(x, m.weight[part], m.bias[part]) for m in (self.q, self.k, self.v))
            total += attend(q, k, v) @ self.out.weight[:, part].T
        return total + self.out.bias


class VmappedAttention(BufferedAttention):
    """The weights of all heads, and a function of one head."""

    def forward(self, x):
        def one_head(wq, wk, wv, bq, bk, bv):
            return attend(x @ wq.T + bq, x @ wk.T + bk, x @ wv.T + bv)

        weights = [m.weight.unflatten(0, (HEADS, -1)) for m in (self.q, self.k, self.v)]
        biases = [m.bias.unflatten(0, (HEADS, -1)) for m in (self.q, self.k, self.v)]
        heads = torch.vmap(one_head)(*weights, *biases)
        return self.out(heads.permute(1, 2, 0, 3).flatten(2))


def transformer(attention):
    """A plain transformer around an attention; the last token is read."""

    def block():
        return plain.Block(attention(), plain.Mlp(DIM, 12), lambda: nn.LayerNorm(DIM))

    blocks = [block() for _ in range(DEPTH)]
    return plain.Language(VOCABULARY, TOKENS, DIM, blocks, classes=CLASSES, read=lambda x: x[:, -1])


class AlibiAttention(plain.Attention):
    """The biases of ``by_flex_with_bias`` as a mask that is added."""

    def forward(self, x):
        at = torch.arange(x.shape[1])
        slopes = torch.tensor([1 / 16, 1 / 256], dtype=x.dtype)[:, None, None]
        return super().forward(x, mask=slopes * (at - at[:, None]))


def core(attention, twin_attention=plain.Attention, **options):
    model = drawn(transformer(attention))
    twin = transformer(lambda: twin_attention(DIM, HEADS, **options))
    filled(twin, dict(model.named_parameters()))
    leaves = (model.embed.weight, twin.embed.weight)
    return Pair(model, twin, ids(TOKENS, VOCABULARY), TOKENS, leaves=leaves)


def frozen(pair):
    """Flex attention has no backward on a CPU: there it runs with frozen parameters only."""
    pair.model.requires_grad_(False)
    return replace(pair, leaves=None, differentiable=False)


@pair
def core_head_by_head():
    return core(lambda: Attention(head_by_head))


@pair
def core_head_after_head():
    return core(lambda: Attention(head_after_head))


@pair
def core_buffer():
    return core(BufferedAttention)


@pair
def core_added_heads():
    return core(AddedAttention)


@pair
def core_sample_by_sample():
    return core(lambda: Attention(sample_by_sample))


@pair
def core_queries_in_chunks():
    return core(lambda: Attention(queries_in_chunks))


@pair
def core_query_by_query():
    return core(lambda: Attention(query_by_query))


@pair
def core_softmax_from_scratch():
    return core(lambda: Attention(softmax_from_scratch))


@pair
def core_normalised_at_the_end():
    return core(lambda: Attention(normalised_at_the_end))


@pair
def core_log_sum_exp():
    return core(lambda: Attention(by_log_sum_exp))


@pair
def core_flash():
    return core(lambda: Attention(flash_attention))


@pair
def core_flash_tiled():
    return core(lambda: Attention(tiled_flash_attention))


@pair
def core_vmap():
    return core(lambda: Attention(by_vmap))


@pair
def core_vmap_of_weights():
    return core(VmappedAttention)


@pair
def core_flex():
    return frozen(core(lambda: Attention(by_flex), causal=True))


@pair
def core_flex_with_bias():
    return frozen(core(lambda: Attention(by_flex_with_bias), AlibiAttention))
