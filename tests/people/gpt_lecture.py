"""The GPT of the lecture that spells one out, with a module per head, and the first port of GPT-2
to PyTorch, with ``addmm`` and a mask that is multiplied and subtracted."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.people import plain
from tests.people.gpt import HEADS, LAYERS, TOKENS, VOCABULARY, WIDTH, gpt2
from tests.people.pairs import Pair, drawn, filled, ids, pair, renamed

n_embd, n_head, n_layer, block_size, dropout = WIDTH, HEADS, LAYERS, TOKENS, 0.2


class Head(nn.Module):
    """one head of self-attention"""

    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        _B, T, _C = x.shape
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        v = self.value(x)
        return wei @ v


class MultiHeadAttention(nn.Module):
    """multiple heads of self-attention in parallel"""

    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList([Head(head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(head_size * num_heads, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.dropout(self.proj(out))


class FeedForward(nn.Module):
    """a simple linear layer followed by a non-linearity"""

    def __init__(self, n_embd):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.ReLU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return self.net(x)


class Block(nn.Module):
    """Transformer block: communication followed by computation"""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.sa = MultiHeadAttention(n_head, n_embd // n_head)
        self.ffwd = FeedForward(n_embd)
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        x = x + self.ffwd(self.ln2(x))
        return x


class GPTLanguageModel(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab_size, n_embd)
        self.position_embedding_table = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block(n_embd, n_head=n_head) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets=None):
        _B, T = idx.shape
        tok_emb = self.token_embedding_table(idx)
        pos_emb = self.position_embedding_table(torch.arange(T, device=idx.device))
        x = tok_emb + pos_emb
        x = self.blocks(x)
        x = self.ln_f(x)
        logits = self.lm_head(x)
        if targets is None:
            loss = None
        else:
            B, T, C = logits.shape
            loss = F.cross_entropy(logits.view(B * T, C), targets.view(B * T))
        return logits, loss


def one_projection(weights):
    """The projections of separate heads, head after head, as one of all heads."""
    joined = {n: w for n, w in weights.items() if ".heads." not in n}
    for i in range(n_layer):
        for old, new in (("query", "q"), ("key", "k"), ("value", "v")):
            parts = [weights[f"blocks.{i}.sa.heads.{h}.{old}.weight"] for h in range(n_head)]
            joined[f"blocks.{i}.sa.{new}.weight"] = torch.cat(parts)
    return joined


@pair
def lecture_gpt():
    model = drawn(GPTLanguageModel(VOCABULARY))

    def block():
        attention = plain.Attention(WIDTH, HEADS, bias=False, causal=True)
        mlp = plain.Mlp(WIDTH, 4 * WIDTH, F.relu)
        return plain.Block(attention, mlp, lambda: nn.LayerNorm(WIDTH))

    twin = plain.Language(VOCABULARY, TOKENS, WIDTH, [block() for _ in range(LAYERS)])
    weights = renamed(
        model,
        ("token_embedding_table", "embed"),
        ("position_embedding_table", "position"),
        ("ln_f", "norm"),
        ("ln", "norm"),
        ("lm_head", "head"),
        ("sa.proj", "sa.out"),
        ("ffwd.net.0", "mlp.up"),
        ("ffwd.net.2", "mlp.down"),
    )
    weights = {name.replace("sa.", "attention."): w for name, w in one_projection(weights).items()}
    filled(twin, weights)
    return Pair(
        model,
        twin,
        ids(TOKENS, VOCABULARY),
        TOKENS,
        target=(-1, 3),
        out=lambda out: out[0],
        twin_out=lambda out: out,
        leaves=(model.token_embedding_table.weight, twin.embed.weight),
    )


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


class PortedNorm(nn.Module):
    """A layernorm module in the TF style (epsilon inside the square root)."""

    def __init__(self, hidden_size, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x):
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.variance_epsilon)
        return self.weight * x + self.bias


class Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.empty(nx, nf).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        size_out = x.size()[:-1] + (self.nf,)
        x = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return x.view(*size_out)


class PortedAttention(nn.Module):
    def __init__(self, nx, n_ctx, n_head):
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(n_ctx, n_ctx)).view(1, 1, n_ctx, n_ctx))
        self.n_head, self.split_size = n_head, nx
        self.c_attn, self.c_proj = Conv1D(nx * 3, nx), Conv1D(nx, nx)

    def _attn(self, q, k, v):
        w = torch.matmul(q, k)
        w = w / math.sqrt(v.size(-1))
        nd, ns = w.size(-2), w.size(-1)
        b = self.bias[:, :, ns - nd : ns, :ns]
        w = w * b - 1e4 * (1 - b)
        w = nn.Softmax(dim=-1)(w)
        return torch.matmul(w, v)

    def merge_heads(self, x):
        x = x.permute(0, 2, 1, 3).contiguous()
        return x.view(*(x.size()[:-2] + (x.size(-2) * x.size(-1),)))

    def split_heads(self, x, k=False):
        x = x.view(*(x.size()[:-1] + (self.n_head, x.size(-1) // self.n_head)))
        return x.permute(0, 2, 3, 1) if k else x.permute(0, 2, 1, 3)

    def forward(self, x):
        query, key, value = self.c_attn(x).split(self.split_size, dim=2)
        query, key, value = (
            self.split_heads(query),
            self.split_heads(key, k=True),
            self.split_heads(value),
        )
        return self.c_proj(self.merge_heads(self._attn(query, key, value)))


class PortedMLP(nn.Module):
    def __init__(self, n_state, nx):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(n_state, nx), Conv1D(nx, n_state)

    def forward(self, x):
        return self.c_proj(gelu(self.c_fc(x)))


class PortedBlock(nn.Module):
    def __init__(self, nx, n_ctx, n_head):
        super().__init__()
        self.ln_1, self.ln_2 = PortedNorm(nx), PortedNorm(nx)
        self.attn, self.mlp = PortedAttention(nx, n_ctx, n_head), PortedMLP(4 * nx, nx)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class PortedGPT2(nn.Module):
    """The head is the embedding, by ``F.linear``."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.h = nn.ModuleList([PortedBlock(WIDTH, TOKENS, HEADS) for _ in range(LAYERS)])
        self.ln_f = PortedNorm(WIDTH)

    def forward(self, input_ids, position_ids=None):
        if position_ids is None:
            position_ids = torch.arange(input_ids.size(-1), device=input_ids.device)
            position_ids = position_ids.unsqueeze(0).expand_as(input_ids)
        input_shape = input_ids.size()
        input_ids = input_ids.view(-1, input_ids.size(-1))
        hidden_states = self.wte(input_ids) + self.wpe(position_ids.view(-1, input_ids.size(-1)))
        for block in self.h:
            hidden_states = block(hidden_states)
        hidden_states = self.ln_f(hidden_states)
        hidden_states = hidden_states.view(*input_shape, hidden_states.size(-1))
        return F.linear(hidden_states, self.wte.weight)


@pair
def ported_gpt2():
    model = drawn(PortedGPT2())
    weights = {f"transformer.{name}": w for name, w in renamed(model).items()}
    twin = gpt2(weights, tied=True, transposed=False)
    return Pair(
        model,
        twin,
        ids(TOKENS, VOCABULARY),
        TOKENS,
        target=(-1, 3),
        twin_out=lambda out: out.logits,
        leaves=(model.wte.weight, twin.lm_head.weight),
    )
