"""gpt-fast: a fused projection, rotary positions as a stack of real pairs, a static cache that is
written at positions, a mask that is looked up; and RoFormer's rotation of every two."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.people import llama
from tests.people.llama import DIM, HEADS, KV_HEADS, LAYERS, TOKENS, VOCABULARY
from tests.people.pairs import Pair, drawn, ids, pair, renamed

HEAD_DIM, BLOCK_SIZE = DIM // HEADS, TOKENS + 2


class KVCache(nn.Module):
    def __init__(self, max_seq_length, n_heads, head_dim):
        super().__init__()
        cache_shape = (1, n_heads, max_seq_length, head_dim)
        self.register_buffer("k_cache", torch.zeros(cache_shape))
        self.register_buffer("v_cache", torch.zeros(cache_shape))

    def update(self, input_pos, k_val, v_val):
        # input_pos: [S], k_val: [B, H, S, D]
        assert input_pos.shape[0] == k_val.shape[2]
        k_out = self.k_cache.repeat(len(k_val), 1, 1, 1)
        v_out = self.v_cache.repeat(len(v_val), 1, 1, 1)
        k_out[:, :, input_pos] = k_val
        v_out[:, :, input_pos] = v_val
        return k_out, v_out


def stacked(x: Tensor, freqs_cis: Tensor) -> Tensor:
    xshaped = x.reshape(*x.shape[:-1], -1, 2)
    freqs_cis = freqs_cis.view(1, xshaped.size(1), 1, xshaped.size(3), 2)
    x_out2 = torch.stack(
        [
            xshaped[..., 0] * freqs_cis[..., 0] - xshaped[..., 1] * freqs_cis[..., 1],
            xshaped[..., 1] * freqs_cis[..., 0] + xshaped[..., 0] * freqs_cis[..., 1],
        ],
        -1,
    )
    x_out2 = x_out2.flatten(3)
    return x_out2.type_as(x)


def every_two(x: Tensor, freqs_cis: Tensor) -> Tensor:
    cos = freqs_cis[..., 0].repeat_interleave(2, dim=-1)[None, :, None, :]
    sin = freqs_cis[..., 1].repeat_interleave(2, dim=-1)[None, :, None, :]
    rotated = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).reshape_as(x)
    return x * cos + rotated * sin


def in_place(x: Tensor, freqs_cis: Tensor) -> Tensor:
    cos, sin = freqs_cis[None, :, None].unbind(-1)
    out = torch.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


class Attention(nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.rotary = rotary
        self.wqkv = nn.Linear(DIM, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.wo = nn.Linear(DIM, DIM, bias=False)
        self.kv_cache = KVCache(BLOCK_SIZE, KV_HEADS, HEAD_DIM)

    def forward(self, x: Tensor, freqs_cis: Tensor, mask: Tensor, input_pos: Tensor) -> Tensor:
        bsz, seqlen, _ = x.shape
        kv_size = KV_HEADS * HEAD_DIM
        q, k, v = self.wqkv(x).split([DIM, kv_size, kv_size], dim=-1)
        q = q.view(bsz, seqlen, HEADS, HEAD_DIM)
        k = k.view(bsz, seqlen, KV_HEADS, HEAD_DIM)
        v = v.view(bsz, seqlen, KV_HEADS, HEAD_DIM)
        q = self.rotary(q, freqs_cis)
        k = self.rotary(k, freqs_cis)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        k, v = self.kv_cache.update(input_pos, k, v)
        k = k.repeat_interleave(HEADS // KV_HEADS, dim=1)
        v = v.repeat_interleave(HEADS // KV_HEADS, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0)
        y = y.transpose(1, 2).contiguous().view(bsz, seqlen, DIM)
        return self.wo(y)


class TransformerBlock(nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.attention = Attention(rotary)
        self.feed_forward = llama.FeedForward()
        self.ffn_norm = llama.RMSNorm(DIM)
        self.attention_norm = llama.RMSNorm(DIM)

    def forward(self, x, input_pos, freqs_cis, mask):
        h = x + self.attention(self.attention_norm(x), freqs_cis, mask, input_pos)
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, DIM)
        self.layers = nn.ModuleList(TransformerBlock(rotary) for _ in range(LAYERS))
        self.norm = llama.RMSNorm(DIM)
        self.output = nn.Linear(DIM, VOCABULARY, bias=False)
        cis = llama.precompute_freqs_cis(HEAD_DIM, BLOCK_SIZE)
        self.register_buffer("freqs_cis", torch.stack([cis.real, cis.imag], dim=-1))
        causal = torch.tril(torch.ones(BLOCK_SIZE, BLOCK_SIZE, dtype=torch.bool))
        self.register_buffer("causal_mask", causal)

    def forward(self, idx: Tensor, input_pos: Tensor | None = None) -> Tensor:
        if input_pos is None:
            input_pos = torch.arange(idx.shape[1], device=idx.device)
        mask = self.causal_mask[None, None, input_pos]
        freqs_cis = self.freqs_cis[input_pos]
        x = self.tok_embeddings(idx)
        for layer in self.layers:
            x = layer(x, input_pos, freqs_cis, mask)
        return self.output(self.norm(x))


def fast(rotary):
    """The cache is longer than the text: its last places are masked, and hold nothing."""
    model = drawn(Transformer(rotary))
    weights = renamed(
        model,
        ("layers.", "model.layers."),
        ("tok_embeddings", "model.embed_tokens"),
        ("attention_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attention.wo.", "self_attn.o_proj."),
        ("feed_forward.w1", "mlp.gate_proj"),
        ("feed_forward.w2", "mlp.down_proj"),
        ("feed_forward.w3", "mlp.up_proj"),
        ("output.weight", "lm_head.weight"),
    )
    weights["model.norm.weight"] = weights.pop("norm.weight")
    for i in range(LAYERS):
        fused = weights.pop(f"model.layers.{i}.attention.wqkv.weight")
        parts = fused.split([DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM])
        for name, part in zip("qkv", parts, strict=True):
            weights[f"model.layers.{i}.self_attn.{name}_proj.weight"] = part
    twin = llama.twin_of(weights)
    return Pair(
        model,
        twin,
        ids(TOKENS, VOCABULARY),
        TOKENS,
        target=(-1, 3),
        twin_out=lambda out: out.logits,
        leaves=(model.tok_embeddings.weight, twin.model.embed_tokens.weight),
    )


@pair
def llama_fast():
    return fast(stacked)


@pair
def llama_every_two():
    return fast(every_two)


@pair
def llama_rotated_in_place():
    return fast(in_place)
