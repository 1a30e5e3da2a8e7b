"""Meta's Llama with complex rotary positions, and gpt-fast's with a static cache, against
transformers' Llama, whose rotary positions are the same behind a permutation of rows."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tests.people.pairs import Pair, drawn, filled, ids, pair, renamed

VOCABULARY, TOKENS, DIM, HEADS, KV_HEADS, LAYERS, HIDDEN, EPS = 11, 6, 16, 4, 2, 2, 12, 1e-5


class RMSNorm(torch.nn.Module):
    def __init__(self, dim: int, eps: float = EPS):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x).type_as(x)
        return output * self.weight


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].double() / dim))
    t = torch.arange(end, device=freqs.device)
    freqs = torch.outer(t, freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


def reshape_for_broadcast(freqs_cis: torch.Tensor, x: torch.Tensor):
    ndim = x.ndim
    assert 0 <= 1 < ndim
    assert freqs_cis.shape == (x.shape[1], x.shape[-1])
    shape = [d if i == 1 or i == ndim - 1 else 1 for i, d in enumerate(x.shape)]
    return freqs_cis.view(*shape)


def apply_rotary_emb(xq, xk, freqs_cis):
    xq_ = torch.view_as_complex(xq.reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = reshape_for_broadcast(freqs_cis, xq_)
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)


def repeat_kv(x: torch.Tensor, n_rep: int) -> torch.Tensor:
    """torch.repeat_interleave(x, dim=2, repeats=n_rep)"""
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return (
        x[:, :, :, None, :]
        .expand(bs, slen, n_kv_heads, n_rep, head_dim)
        .reshape(bs, slen, n_kv_heads * n_rep, head_dim)
    )


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_rep = HEADS // KV_HEADS
        self.head_dim = DIM // HEADS
        self.wq = nn.Linear(DIM, HEADS * self.head_dim, bias=False)
        self.wk = nn.Linear(DIM, KV_HEADS * self.head_dim, bias=False)
        self.wv = nn.Linear(DIM, KV_HEADS * self.head_dim, bias=False)
        self.wo = nn.Linear(HEADS * self.head_dim, DIM, bias=False)

    def forward(self, x, freqs_cis, mask):
        bsz, seqlen, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(bsz, seqlen, HEADS, self.head_dim)
        xk = xk.view(bsz, seqlen, KV_HEADS, self.head_dim)
        xv = xv.view(bsz, seqlen, KV_HEADS, self.head_dim)
        xq, xk = apply_rotary_emb(xq, xk, freqs_cis=freqs_cis)
        keys, values = repeat_kv(xk, self.n_rep), repeat_kv(xv, self.n_rep)
        xq, keys, values = xq.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + mask
        scores = F.softmax(scores, dim=-1).type_as(xq)
        output = torch.matmul(scores, values)
        output = output.transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.wo(output)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(DIM, HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, DIM, bias=False)
        self.w3 = nn.Linear(DIM, HIDDEN, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = RMSNorm(DIM), RMSNorm(DIM)

    def forward(self, x, freqs_cis, mask):
        h = x + self.attention(self.attention_norm(x), freqs_cis, mask)
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, DIM)
        self.layers = torch.nn.ModuleList()
        for _layer_id in range(LAYERS):
            self.layers.append(TransformerBlock())
        self.norm = RMSNorm(DIM)
        self.output = nn.Linear(DIM, VOCABULARY, bias=False)
        self.freqs_cis = precompute_freqs_cis(DIM // HEADS, TOKENS * 2)

    def forward(self, tokens: torch.Tensor, start_pos: int = 0):
        _bsz, seqlen = tokens.shape
        h = self.tok_embeddings(tokens)
        self.freqs_cis = self.freqs_cis.to(h.device)
        freqs_cis = self.freqs_cis[start_pos : start_pos + seqlen]
        mask = None
        if seqlen > 1:
            mask = torch.full((seqlen, seqlen), float("-inf"), device=tokens.device)
            mask = torch.triu(mask, diagonal=1)
            mask = torch.hstack([torch.zeros((seqlen, start_pos)), mask]).type_as(h)
        for layer in self.layers:
            h = layer(h, freqs_cis, mask)
        h = self.norm(h)
        return self.output(h)


class Rotary(nn.Module):
    """Cosines and sines in float64, where transformers' own are float32."""

    def forward(self, x, position_ids):
        size = DIM // HEADS
        speeds = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles = position_ids[..., None] * torch.cat([speeds, speeds])
        return angles.cos(), angles.sin()


def half_split(weight, heads):
    """Rows in pairs of neighbours as rows in pairs of halves, head by head."""
    return weight.view(heads, DIM // HEADS // 2, 2, -1).transpose(1, 2).reshape(weight.shape)


def twin_of(weights):
    """transformers' Llama, its norms and rotary positions by modules that stay in float64."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=DIM,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=TOKENS * 2,
        pad_token_id=None,
        bos_token_id=1,
        eos_token_id=2,
    )
    twin = LlamaForCausalLM(config)
    twin.model.rotary_emb = Rotary()
    twin.model.norm = nn.RMSNorm(DIM, EPS)
    for layer in twin.model.layers:
        layer.input_layernorm = nn.RMSNorm(DIM, EPS)
        layer.post_attention_layernorm = nn.RMSNorm(DIM, EPS)
    turned = {
        name: half_split(w, HEADS if "q_proj" in name else KV_HEADS)
        if "q_proj" in name or "k_proj" in name
        else w
        for name, w in weights.items()
    }
    return filled(twin, turned)


@pair
def llama():
    model = drawn(Transformer())
    weights = renamed(
        model,
        ("layers.", "model.layers."),
        ("tok_embeddings", "model.embed_tokens"),
        ("attention_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attention.wq", "self_attn.q_proj"),
        ("attention.wk", "self_attn.k_proj"),
        ("attention.wv", "self_attn.v_proj"),
        ("attention.wo", "self_attn.o_proj"),
        ("feed_forward.w1", "mlp.gate_proj"),
        ("feed_forward.w2", "mlp.down_proj"),
        ("feed_forward.w3", "mlp.up_proj"),
        ("output.weight", "lm_head.weight"),
    )
    weights["model.norm.weight"] = weights.pop("norm.weight")
    twin = twin_of(weights)
    return Pair(
        model,
        twin,
        ids(TOKENS, VOCABULARY),
        TOKENS,
        target=(-1, 3),
        twin_out=lambda out: out.logits,
        leaves=(model.tok_embeddings.weight, twin.model.embed_tokens.weight),
    )
