"""GPTs in PyTorch's own modules: minGPT, nanoGPT, the lecture that builds one from scratch, and the
first port of GPT-2, each against transformers' GPT-2 or plain blocks."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel

from tests.people.pairs import Pair, drawn, filled, ids, pair, renamed

VOCABULARY, TOKENS, WIDTH, HEADS, LAYERS = 11, 6, 8, 2, 2
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def gpt2(weights, tied, transposed=True):
    """transformers' GPT-2 with these weights, which are those of ``nn.Linear`` where it has its own
    ``Conv1D``."""
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=TOKENS,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        activation_function="gelu_pytorch_tanh",
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=0,
    )
    turned = {
        name: w.T if transposed and name.endswith(TRANSPOSED) else w for name, w in weights.items()
    }
    return filled(GPT2LMHeadModel(config), turned)


class NewGELU(nn.Module):
    def forward(self, x):
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class MinCausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        assert n_embd % n_head == 0
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(0.1)
        self.resid_dropout = nn.Dropout(0.1)
        ones = torch.ones(block_size, block_size)
        self.register_buffer("bias", torch.tril(ones).view(1, 1, block_size, block_size))
        self.n_head = n_head
        self.n_embd = n_embd

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MinBlock(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = MinCausalSelfAttention(n_embd, n_head, block_size)
        self.ln_2 = nn.LayerNorm(n_embd)
        parts = {
            "c_fc": nn.Linear(n_embd, 4 * n_embd),
            "c_proj": nn.Linear(4 * n_embd, n_embd),
            "act": NewGELU(),
            "dropout": nn.Dropout(0.1),
        }
        self.mlp = nn.ModuleDict(parts)
        m = self.mlp
        self.mlpf = lambda x: m.dropout(m.c_proj(m.act(m.c_fc(x))))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlpf(self.ln_2(x))
        return x


class MinGPT(nn.Module):
    def __init__(self, vocab_size, block_size, n_embd, n_head, n_layer):
        super().__init__()
        self.block_size = block_size
        parts = {
            "wte": nn.Embedding(vocab_size, n_embd),
            "wpe": nn.Embedding(block_size, n_embd),
            "drop": nn.Dropout(0.1),
            "h": nn.ModuleList([MinBlock(n_embd, n_head, block_size) for _ in range(n_layer)]),
            "ln_f": nn.LayerNorm(n_embd),
        }
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets=None):
        device = idx.device
        _b, t = idx.size()
        assert t <= self.block_size, f"Cannot forward sequence of length {t}"
        pos = torch.arange(0, t, dtype=torch.long, device=device).unsqueeze(0)
        tok_emb = self.transformer.wte(idx)
        pos_emb = self.transformer.wpe(pos)
        x = self.transformer.drop(tok_emb + pos_emb)
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        logits = self.lm_head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


@pair
def mingpt():
    model = drawn(MinGPT(VOCABULARY, TOKENS, WIDTH, HEADS, LAYERS))
    twin = gpt2(renamed(model), tied=False)
    return Pair(
        model,
        twin,
        ids(TOKENS, VOCABULARY),
        TOKENS,
        target=(-1, 3),
        out=lambda out: out[0],
        twin_out=lambda out: out.logits,
        leaves=(model.transformer.wte.weight, twin.transformer.wte.weight),
    )


class NanoLayerNorm(nn.Module):
    """LayerNorm but with an optional bias."""

    def __init__(self, ndim, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class NanoAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config["n_embd"], 3 * config["n_embd"], bias=config["bias"])
        self.c_proj = nn.Linear(config["n_embd"], config["n_embd"], bias=config["bias"])
        self.n_head, self.n_embd, self.dropout = config["n_head"], config["n_embd"], 0.1
        self.flash = hasattr(torch.nn.functional, "scaled_dot_product_attention")

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        dropout = self.dropout if self.training else 0
        y = F.scaled_dot_product_attention(q, k, v, None, dropout_p=dropout, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class NanoMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config["n_embd"], 4 * config["n_embd"], bias=config["bias"])
        self.gelu = nn.GELU(approximate="tanh")
        self.c_proj = nn.Linear(4 * config["n_embd"], config["n_embd"], bias=config["bias"])

    def forward(self, x):
        return self.c_proj(self.gelu(self.c_fc(x)))


class NanoBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = NanoLayerNorm(config["n_embd"], bias=config["bias"])
        self.attn = NanoAttention(config)
        self.ln_2 = NanoLayerNorm(config["n_embd"], bias=config["bias"])
        self.mlp = NanoMLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """Computes the last position's logits only; ``checkpointed`` as for long contexts."""

    def __init__(self, checkpointed=False, **config):
        super().__init__()
        self.config, self.checkpointed = config, checkpointed
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config["vocab_size"], config["n_embd"]),
                "wpe": nn.Embedding(config["block_size"], config["n_embd"]),
                "h": nn.ModuleList([NanoBlock(config) for _ in range(config["n_layer"])]),
                "ln_f": NanoLayerNorm(config["n_embd"], bias=config["bias"]),
            }
        )
        self.lm_head = nn.Linear(config["n_embd"], config["vocab_size"], bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        x = self.transformer.ln_f(x)
        if targets is not None:
            logits = self.lm_head(x)
            return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return self.lm_head(x[:, [-1], :]), None


def nano(**options):
    config = {"vocab_size": VOCABULARY, "block_size": TOKENS, "n_embd": WIDTH, "n_head": HEADS}
    model = drawn(NanoGPT(n_layer=LAYERS, bias=True, **config, **options))
    weights = renamed(model)
    assert "lm_head.weight" not in weights  # named_parameters names a shared one once
    twin = gpt2(weights, tied=True)
    return Pair(
        model,
        twin,
        ids(TOKENS, VOCABULARY),
        TOKENS,
        target=(-1, 4),
        out=lambda out: out[0],
        twin_out=lambda out: out.logits[:, -1:],
        leaves=(model.lm_head.weight, twin.lm_head.weight),
    )


@pair
def nanogpt():
    return nano()


@pair
def nanogpt_checkpointed():
    return nano(checkpointed=True)
