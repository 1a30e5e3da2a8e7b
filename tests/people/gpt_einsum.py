"""GPT-2 as interpretability courses write it: a weight per head, einsums, looked-up embeddings."""

import torch
from torch import nn

from tests.people.gpt import HEADS, LAYERS, TOKENS, VOCABULARY, WIDTH, NewGELU, gpt2
from tests.people.pairs import Pair, drawn, ids, pair

D_HEAD, D_MLP = WIDTH // HEADS, 4 * WIDTH


class LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(WIDTH))
        self.b = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, residual):
        residual_mean = residual.mean(dim=-1, keepdim=True)
        residual_std = (residual.var(dim=-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        residual = (residual - residual_mean) / residual_std
        return residual * self.w + self.b


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.W_E = nn.Parameter(torch.zeros(VOCABULARY, WIDTH))

    def forward(self, tokens):
        return self.W_E[tokens]


class PosEmbed(nn.Module):
    def __init__(self):
        super().__init__()
        self.W_pos = nn.Parameter(torch.zeros(TOKENS, WIDTH))

    def forward(self, tokens):
        batch, seq_len = tokens.shape
        return self.W_pos[:seq_len].unsqueeze(0).repeat(batch, 1, 1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.W_Q = nn.Parameter(torch.zeros(HEADS, WIDTH, D_HEAD))
        self.W_K = nn.Parameter(torch.zeros(HEADS, WIDTH, D_HEAD))
        self.W_V = nn.Parameter(torch.zeros(HEADS, WIDTH, D_HEAD))
        self.W_O = nn.Parameter(torch.zeros(HEADS, D_HEAD, WIDTH))
        self.b_Q = nn.Parameter(torch.zeros(HEADS, D_HEAD))
        self.b_K = nn.Parameter(torch.zeros(HEADS, D_HEAD))
        self.b_V = nn.Parameter(torch.zeros(HEADS, D_HEAD))
        self.b_O = nn.Parameter(torch.zeros(WIDTH))
        self.register_buffer("IGNORE", torch.tensor(float("-inf")))

    def forward(self, normalized_resid_pre):
        q = torch.einsum("bpd,ndh->bpnh", normalized_resid_pre, self.W_Q) + self.b_Q
        k = torch.einsum("bpd,ndh->bpnh", normalized_resid_pre, self.W_K) + self.b_K
        v = torch.einsum("bpd,ndh->bpnh", normalized_resid_pre, self.W_V) + self.b_V
        attn_scores = torch.einsum("bqnh,bknh->bnqk", q, k)
        attn_scores_masked = self.apply_causal_mask(attn_scores / D_HEAD**0.5)
        attn_pattern = attn_scores_masked.softmax(-1)
        z = torch.einsum("bknh,bnqk->bqnh", v, attn_pattern)
        return torch.einsum("bqnh,nhd->bqd", z, self.W_O) + self.b_O

    def apply_causal_mask(self, attn_scores):
        all_ones = torch.ones(attn_scores.size(-2), attn_scores.size(-1))
        mask = torch.triu(all_ones, diagonal=1).bool()
        attn_scores.masked_fill_(mask, self.IGNORE)
        return attn_scores


class SummedAttention(Attention):
    """With the results of the heads apart, as hooks on them need it."""

    def forward(self, normalized_resid_pre):
        x = normalized_resid_pre[:, :, None, :, None]
        q = (x * self.W_Q).sum(-2) + self.b_Q
        k = (x * self.W_K).sum(-2) + self.b_K
        v = (x * self.W_V).sum(-2) + self.b_V
        attn_scores = torch.einsum("bqnh,bknh->bnqk", q, k) / D_HEAD**0.5
        attn_pattern = self.apply_causal_mask(attn_scores).softmax(-1)
        z = torch.einsum("bknh,bnqk->bqnh", v, attn_pattern)
        result = torch.einsum("bqnh,nhd->bqnd", z, self.W_O)
        return result.sum(dim=2) + self.b_O


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.W_in = nn.Parameter(torch.zeros(WIDTH, D_MLP))
        self.W_out = nn.Parameter(torch.zeros(D_MLP, WIDTH))
        self.b_in = nn.Parameter(torch.zeros(D_MLP))
        self.b_out = nn.Parameter(torch.zeros(WIDTH))
        self.gelu = NewGELU()

    def forward(self, normalized_resid_mid):
        pre = torch.einsum("bpd,dm->bpm", normalized_resid_mid, self.W_in) + self.b_in
        post = self.gelu(pre)
        return torch.einsum("bpm,md->bpd", post, self.W_out) + self.b_out


class TransformerBlock(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.ln1, self.attn, self.ln2, self.mlp = LayerNorm(), attention(), LayerNorm(), MLP()

    def forward(self, resid_pre):
        resid_mid = self.attn(self.ln1(resid_pre)) + resid_pre
        return self.mlp(self.ln2(resid_mid)) + resid_mid


class Unembed(nn.Module):
    def __init__(self):
        super().__init__()
        self.W_U = nn.Parameter(torch.zeros(WIDTH, VOCABULARY))

    def forward(self, x):
        return x @ self.W_U


class DemoTransformer(nn.Module):
    def __init__(self, attention=Attention):
        super().__init__()
        self.embed, self.pos_embed = Embed(), PosEmbed()
        self.blocks = nn.ModuleList([TransformerBlock(attention) for _ in range(LAYERS)])
        self.ln_final, self.unembed = LayerNorm(), Unembed()

    def forward(self, tokens):
        residual = self.embed(tokens) + self.pos_embed(tokens)
        for block in self.blocks:
            residual = block(residual)
        return self.unembed(self.ln_final(residual))


def norm(ln, name):
    return {f"{name}.weight": ln.w, f"{name}.bias": ln.b}


def projections(attention):
    """Weights (inputs, outputs) and biases of all heads as GPT-2 has them."""
    whole = [w.permute(1, 0, 2).reshape(WIDTH, WIDTH) for w in qkv(attention, "W")]
    return {
        "attn.c_attn.weight": torch.cat(whole, 1),
        "attn.c_attn.bias": torch.cat([b.flatten() for b in qkv(attention, "b")]),
        "attn.c_proj.weight": attention.W_O.reshape(WIDTH, WIDTH),
        "attn.c_proj.bias": attention.b_O,
    }


def qkv(attention, kind):
    return [getattr(attention, f"{kind}_{which}") for which in "QKV"]


def block_weights(block):
    weights = {**norm(block.ln1, "ln_1"), **norm(block.ln2, "ln_2"), **projections(block.attn)}
    mlp = block.mlp
    weights |= {"mlp.c_fc.weight": mlp.W_in, "mlp.c_fc.bias": mlp.b_in}
    return weights | {"mlp.c_proj.weight": mlp.W_out, "mlp.c_proj.bias": mlp.b_out}


def einsum_gpt(attention):
    model = drawn(DemoTransformer(attention))
    weights = {
        "transformer.wte.weight": model.embed.W_E,
        "transformer.wpe.weight": model.pos_embed.W_pos,
        "lm_head.weight": model.unembed.W_U.T,
        **norm(model.ln_final, "transformer.ln_f"),
    }
    for i, block in enumerate(model.blocks):
        weights |= {f"transformer.h.{i}.{n}": w for n, w in block_weights(block).items()}
    twin = gpt2(weights, tied=False, transposed=False)
    return Pair(
        model,
        twin,
        ids(TOKENS, VOCABULARY),
        TOKENS,
        target=(-1, 3),
        twin_out=lambda out: out.logits,
        leaves=(model.embed.W_E, twin.transformer.wte.weight),
    )


@pair
def einsum_gpt2():
    return einsum_gpt(Attention)


@pair
def einsum_gpt2_with_results():
    return einsum_gpt(SummedAttention)
