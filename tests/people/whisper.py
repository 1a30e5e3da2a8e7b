"""Whisper as it was published, against transformers': a spectrogram through convolutions, a decoder
that attends to it, each of query and key scaled by a fourth root."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import WhisperConfig, WhisperForConditionalGeneration

from tests.people.pairs import BATCH, Pair, drawn, filled, ids, normal, pair, renamed

MELS, FRAMES, CONTEXT, STATE, HEADS, LAYERS, VOCABULARY = 3, 10, 4, 8, 2, 1, 11


def sinusoids(length, channels, max_timescale=10000):
    """Returns sinusoids for positional embedding"""
    assert channels % 2 == 0
    log_timescale_increment = np.log(max_timescale) / (channels // 2 - 1)
    inv_timescales = torch.exp(-log_timescale_increment * torch.arange(channels // 2))
    scaled_time = torch.arange(length)[:, np.newaxis] * inv_timescales[np.newaxis, :]
    return torch.cat([torch.sin(scaled_time), torch.cos(scaled_time)], dim=1)


class MultiHeadAttention(nn.Module):
    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x: Tensor, xa: Tensor | None = None, mask: Tensor | None = None):
        q = self.query(x)
        k = self.key(x if xa is None else xa)
        v = self.value(x if xa is None else xa)
        wv, qk = self.qkv_attention(q, k, v, mask)
        return self.out(wv), qk

    def qkv_attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None):
        _n_batch, n_ctx, n_state = q.shape
        scale = (n_state // self.n_head) ** -0.25
        q = q.view(*q.shape[:2], self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(*k.shape[:2], self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(*v.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)
        qk = q @ k
        if mask is not None:
            qk = qk + mask[:n_ctx, :n_ctx]
        w = F.softmax(qk, dim=-1).to(q.dtype)
        return (w @ v).permute(0, 2, 1, 3).flatten(start_dim=2), qk.detach()


class ResidualAttentionBlock(nn.Module):
    def __init__(self, n_state: int, n_head: int, cross_attention: bool = False):
        super().__init__()
        self.attn = MultiHeadAttention(n_state, n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = MultiHeadAttention(n_state, n_head) if cross_attention else None
        self.cross_attn_ln = nn.LayerNorm(n_state) if cross_attention else None
        n_mlp = n_state * 2
        self.mlp = nn.Sequential(nn.Linear(n_state, n_mlp), nn.GELU(), nn.Linear(n_mlp, n_state))
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x: Tensor, xa: Tensor | None = None, mask: Tensor | None = None):
        x = x + self.attn(self.attn_ln(x), mask=mask)[0]
        if self.cross_attn:
            x = x + self.cross_attn(self.cross_attn_ln(x), xa)[0]
        x = x + self.mlp(self.mlp_ln(x))
        return x


class AudioEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(MELS, STATE, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(STATE, STATE, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positional_embedding", sinusoids(FRAMES // 2, STATE))
        self.blocks = nn.ModuleList([ResidualAttentionBlock(STATE, HEADS) for _ in range(LAYERS)])
        self.ln_post = nn.LayerNorm(STATE)

    def forward(self, x: Tensor):
        x = F.gelu(self.conv1(x))
        x = F.gelu(self.conv2(x))
        x = x.permute(0, 2, 1)
        assert x.shape[1:] == self.positional_embedding.shape, "incorrect audio shape"
        x = (x + self.positional_embedding).to(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x)


class TextDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_embedding = nn.Embedding(VOCABULARY, STATE)
        self.positional_embedding = nn.Parameter(torch.zeros(CONTEXT, STATE))
        self.blocks = nn.ModuleList(
            [ResidualAttentionBlock(STATE, HEADS, cross_attention=True) for _ in range(LAYERS)]
        )
        self.ln = nn.LayerNorm(STATE)
        mask = torch.empty(CONTEXT, CONTEXT).fill_(-np.inf).triu_(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor, xa: Tensor):
        x = self.token_embedding(x) + self.positional_embedding[: x.shape[-1]]
        x = x.to(xa.dtype)
        for block in self.blocks:
            x = block(x, xa, mask=self.mask)
        x = self.ln(x)
        return x @ torch.transpose(self.token_embedding.weight.to(x.dtype), 0, 1)


class Whisper(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = AudioEncoder(), TextDecoder()

    def forward(self, mel: Tensor, tokens: Tensor):
        return self.decoder(tokens, self.encoder(mel))


def twin_of(model):
    config = WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=MELS,
        d_model=STATE,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=2 * STATE,
        decoder_ffn_dim=2 * STATE,
        max_source_positions=FRAMES // 2,
        max_target_positions=CONTEXT,
        pad_token_id=None,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
    )
    weights = renamed(
        model,
        ("encoder.", "model.encoder."),
        ("decoder.", "model.decoder."),
        ("blocks", "layers"),
        ("ln_post", "layer_norm"),
        ("decoder.ln.", "decoder.layer_norm."),
        ("token_embedding", "embed_tokens"),
        ("positional_embedding", "embed_positions.weight"),
        ("cross_attn_ln", "encoder_attn_layer_norm"),
        ("attn_ln", "self_attn_layer_norm"),
        ("cross_attn", "encoder_attn"),
        (".attn.", ".self_attn."),
        ("mlp_ln", "final_layer_norm"),
        ("mlp.0", "fc1"),
        ("mlp.2", "fc2"),
        ("attn.query", "attn.q_proj"),
        ("attn.key", "attn.k_proj"),
        ("attn.value", "attn.v_proj"),
        ("attn.out.", "attn.out_proj."),
    )
    places = model.encoder.positional_embedding.double()
    return filled(
        WhisperForConditionalGeneration(config),
        weights | {"model.encoder.embed_positions.weight": places},
    )


@pair
def whisper():
    model = drawn(Whisper())
    twin = twin_of(model)
    mel, tokens = normal(BATCH, MELS, FRAMES), ids(CONTEXT, VOCABULARY)
    table = twin.model.decoder.embed_tokens.weight
    return Pair(
        model,
        twin,
        (mel, tokens),
        (FRAMES // 2, CONTEXT),
        target=(-1, 3),
        twin_inputs={"input_features": mel, "decoder_input_ids": tokens},
        twin_out=lambda out: out.logits,
        leaves=(model.decoder.token_embedding.weight, table),
    )
