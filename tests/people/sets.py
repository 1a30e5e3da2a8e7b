"""Set Transformer with its heads folded into the batch, and Perceiver with a latent array; against
plain attention of latents to sets."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.people import plain
from tests.people.pairs import BATCH, Pair, drawn, filled, normal, pair, renamed

SIZE, FEATURES, DIM, HEADS, INDUCING, SEEDS, LATENTS, CLASSES = 6, 3, 8, 2, 3, 2, 4, 3


class MAB(nn.Module):
    def __init__(self, dim_Q, dim_K, dim_V, num_heads, ln=False):
        super().__init__()
        self.dim_V = dim_V
        self.num_heads = num_heads
        self.fc_q = nn.Linear(dim_Q, dim_V)
        self.fc_k = nn.Linear(dim_K, dim_V)
        self.fc_v = nn.Linear(dim_K, dim_V)
        if ln:
            self.ln0 = nn.LayerNorm(dim_V)
            self.ln1 = nn.LayerNorm(dim_V)
        self.fc_o = nn.Linear(dim_V, dim_V)

    def forward(self, Q, K):
        Q = self.fc_q(Q)
        K, V = self.fc_k(K), self.fc_v(K)
        dim_split = self.dim_V // self.num_heads
        Q_ = torch.cat(Q.split(dim_split, 2), 0)
        K_ = torch.cat(K.split(dim_split, 2), 0)
        V_ = torch.cat(V.split(dim_split, 2), 0)
        A = torch.softmax(Q_.bmm(K_.transpose(1, 2)) / math.sqrt(self.dim_V), 2)
        O = torch.cat((Q_ + A.bmm(V_)).split(Q.size(0), 0), 2)  # noqa: E741
        O = O if getattr(self, "ln0", None) is None else self.ln0(O)  # noqa: E741
        O = O + F.relu(self.fc_o(O))  # noqa: E741
        O = O if getattr(self, "ln1", None) is None else self.ln1(O)  # noqa: E741
        return O


class SAB(nn.Module):
    def __init__(self, dim_in, dim_out, num_heads, ln=False):
        super().__init__()
        self.mab = MAB(dim_in, dim_in, dim_out, num_heads, ln=ln)

    def forward(self, X):
        return self.mab(X, X)


class ISAB(nn.Module):
    def __init__(self, dim_in, dim_out, num_heads, num_inds, ln=False):
        super().__init__()
        self.I = nn.Parameter(torch.zeros(1, num_inds, dim_out))
        self.mab0 = MAB(dim_out, dim_in, dim_out, num_heads, ln=ln)
        self.mab1 = MAB(dim_in, dim_out, dim_out, num_heads, ln=ln)

    def forward(self, X):
        H = self.mab0(self.I.repeat(X.size(0), 1, 1), X)
        return self.mab1(X, H)


class PMA(nn.Module):
    def __init__(self, dim, num_heads, num_seeds, ln=False):
        super().__init__()
        self.S = nn.Parameter(torch.zeros(1, num_seeds, dim))
        self.mab = MAB(dim, dim, dim, num_heads, ln=ln)

    def forward(self, X):
        return self.mab(self.S.repeat(X.size(0), 1, 1), X)


class SetTransformer(nn.Module):
    """``first``: the encoder's blocks; the decoder is pooling, a block and a linear map."""

    def __init__(self, first):
        super().__init__()
        self.enc = nn.Sequential(*first)
        self.dec = nn.Sequential(
            PMA(DIM, HEADS, SEEDS, ln=True),
            SAB(DIM, DIM, HEADS, ln=True),
            nn.Linear(DIM, CLASSES),
        )

    def forward(self, X):
        return self.dec(self.enc(X)).mean(-2)


class PlainMAB(MAB):
    """Heads as an axis; what is asked is added to the answer before the norm."""

    def forward(self, asked, told):
        q, k, v = self.fc_q(asked), self.fc_k(told), self.fc_v(told)
        heads = (plain.heads_apart(t, self.num_heads) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(*heads, scale=self.dim_V**-0.5)
        x = q + plain.heads_together(mixed)
        x = self.ln0(x) if hasattr(self, "ln0") else x
        x = x + F.relu(self.fc_o(x))
        return self.ln1(x) if hasattr(self, "ln1") else x


def plainly(model):
    """The same modules with plain attention."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is MAB:
                sizes = (child.fc_q.in_features, child.fc_k.in_features, child.dim_V)
                setattr(module, name, PlainMAB(*sizes, child.num_heads, hasattr(child, "ln0")))
    return model


def set_transformer_of(blocks, target, silent=()):
    model = drawn(SetTransformer(blocks()))
    twin = filled(plainly(SetTransformer(blocks())), dict(model.named_parameters()))
    inputs = normal(BATCH, SIZE, FEATURES)
    return Pair(
        model,
        twin,
        inputs,
        SIZE,
        target=target,
        silent=silent,
        refused={"attention_norm": "no linear map takes the heads' results"},
    )


@pair
def set_transformer():
    return set_transformer_of(
        lambda: [SAB(FEATURES, DIM, HEADS, ln=True), SAB(DIM, DIM, HEADS, ln=True)], target=1
    )


@pair
def set_transformer_inducing():
    """AttCAT passes over attention to other tokens, and here no token attends to its own."""
    return set_transformer_of(
        lambda: [
            ISAB(FEATURES, DIM, HEADS, INDUCING, ln=True),
            ISAB(DIM, DIM, HEADS, INDUCING, ln=True),
        ],
        target=0,
        silent=("attcat",),
    )


def fourier_encode(x, max_freq=6.0, num_bands=2):
    x = x.unsqueeze(-1)
    scales = torch.linspace(1.0, max_freq / 2, num_bands, dtype=x.dtype)
    x = x * scales * math.pi
    return torch.cat([x.sin(), x.cos()], dim=-1)


class PerceiverAttention(nn.Module):
    def __init__(self, query_dim, context_dim=None):
        super().__init__()
        context_dim = query_dim if context_dim is None else context_dim
        self.scale, self.heads = (DIM // HEADS) ** -0.5, HEADS
        self.to_q = nn.Linear(query_dim, DIM, bias=False)
        self.to_kv = nn.Linear(context_dim, DIM * 2, bias=False)
        self.to_out = nn.Linear(DIM, query_dim)

    def forward(self, x, context=None):
        h = self.heads
        q = self.to_q(x)
        context = x if context is None else context
        k, v = self.to_kv(context).chunk(2, dim=-1)
        # b n (h d) -> (b h) n d
        q, k, v = (
            t.reshape(t.shape[0], t.shape[1], h, -1).permute(0, 2, 1, 3).flatten(0, 1)
            for t in (q, k, v)
        )
        sim = torch.einsum("b i d, b j d -> b i j", q, k) * self.scale
        attn = sim.softmax(dim=-1)
        out = torch.einsum("b i j, b j d -> b i d", attn, v)
        # (b h) n d -> b n (h d)
        out = out.unflatten(0, (-1, h)).permute(0, 2, 1, 3).flatten(2)
        return self.to_out(out)


class GEGLU(nn.Module):
    def forward(self, x):
        x, gates = x.chunk(2, dim=-1)
        return x * F.gelu(gates)


class Perceiver(nn.Module):
    """The same weights look at the data twice."""

    def __init__(self):
        super().__init__()
        context = FEATURES + 4
        self.latents = nn.Parameter(torch.zeros(LATENTS, DIM))
        self.cross_attn, self.latent_attn = (
            PerceiverAttention(DIM, context),
            PerceiverAttention(DIM),
        )
        self.norm_latents, self.norm_context = nn.LayerNorm(DIM), nn.LayerNorm(context)
        self.norm_self, self.norm_ff, self.norm_last = (nn.LayerNorm(DIM) for _ in range(3))
        self.ff = nn.Sequential(nn.Linear(DIM, 20), GEGLU(), nn.Linear(10, DIM))
        self.to_logits = nn.Linear(DIM, CLASSES)

    def forward(self, data):
        b, n = data.shape[:2]
        pos = torch.linspace(-1.0, 1.0, steps=n, dtype=data.dtype)
        enc_pos = fourier_encode(pos)[None].expand(b, -1, -1)
        data = torch.cat((data, enc_pos), dim=-1)
        x = self.latents[None].repeat(b, 1, 1)
        for _ in range(2):
            x = self.cross_attn(self.norm_latents(x), context=self.norm_context(data)) + x
            x = self.latent_attn(self.norm_self(x)) + x
            x = self.ff(self.norm_ff(x)) + x
        return self.to_logits(self.norm_last(x.mean(dim=-2)))


class Cross(nn.Module):
    """Plain attention to a memory of another width."""

    def __init__(self, memory):
        super().__init__()
        self.q, self.out = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM)
        self.k, self.v = nn.Linear(memory, DIM, bias=False), nn.Linear(memory, DIM, bias=False)

    def forward(self, x, memory):
        q, k, v = (plain.heads_apart(t, HEADS) for t in (self.q(x), self.k(memory), self.v(memory)))
        return self.out(plain.heads_together(F.scaled_dot_product_attention(q, k, v)))


class PerceiverTwin(Perceiver):
    def __init__(self):
        super().__init__()
        self.cross_attn, self.latent_attn = Cross(FEATURES + 4), Cross(DIM)
        self.up, self.gate, self.down = nn.Linear(DIM, 10), nn.Linear(DIM, 10), nn.Linear(10, DIM)
        del self.ff

    def forward(self, data):
        places = fourier_encode(torch.linspace(-1.0, 1.0, SIZE, dtype=data.dtype))
        memory = self.norm_context(torch.cat([data, places.expand(len(data), -1, -1)], -1))
        x = self.latents.expand(len(data), -1, -1)
        for _ in range(2):
            x = x + self.cross_attn(self.norm_latents(x), memory)
            asked = self.norm_self(x)
            x = x + self.latent_attn(asked, asked)
            asked = self.norm_ff(x)
            x = x + self.down(self.up(asked) * F.gelu(self.gate(asked)))
        return self.to_logits(self.norm_last(x.mean(1)))


@pair
def perceiver():
    """AttCAT passes over attention to other tokens, and here no token attends to its own."""
    model = drawn(Perceiver())
    changes = (("to_out", "out"), ("to_q", "q"), ("ff.2", "down"))
    weights = renamed(model, *changes)
    for name in [n for n in weights if "to_kv" in n or n.startswith("ff.0")]:
        halves = weights.pop(name).chunk(2)
        parts = ("k", "v") if "to_kv" in name else ("up", "gate")
        for part, half in zip(parts, halves, strict=True):
            weights[name.replace("to_kv", part).replace("ff.0", part)] = half
    twin = filled(PerceiverTwin(), weights)
    return Pair(model, twin, normal(BATCH, SIZE, FEATURES), SIZE, silent=("attcat",))
