"""Gates on attention: Mega's moving average and gates, a gate beside a pair bias as folding models
have it, and the output gate of recent language models; against plain spellings."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.people import plain
from tests.people.pairs import BATCH, Pair, drawn, filled, ids, pair

VOCABULARY, TOKENS, DIM, HEADS, DEPTH, CLASSES, PAIRS = 11, 6, 8, 2, 2, 3, 3
SIZE = DIM // HEADS


class MegaLayer(nn.Module):
    """A single head over a moving average; reset and update gates (Ma et al. 2022). The average is
    a convolution with a kernel per feature."""

    def __init__(self):
        super().__init__()
        self.alpha, self.delta = (nn.Parameter(torch.zeros(DIM, 1)) for _ in range(2))
        self.beta, self.omega = nn.Parameter(torch.ones(DIM, 1)), nn.Parameter(torch.ones(DIM))
        self.v_proj = nn.Linear(DIM, DIM)
        self.mx_proj = nn.Linear(DIM, SIZE + 2 * DIM + DIM)
        self.h_proj = nn.Linear(DIM, DIM)
        self.gamma, self.shift = (
            nn.Parameter(torch.ones(2, SIZE)),
            nn.Parameter(torch.ones(2, SIZE)),
        )
        self.norm = nn.LayerNorm(DIM)

    def kernel(self, length):
        p = torch.sigmoid(self.delta)
        q = 1.0 - p * torch.sigmoid(self.alpha)
        vander = torch.arange(length).to(p).view(1, length) * torch.log(q)
        return p * self.beta * torch.exp(vander)

    def average(self, x):
        x = x.transpose(1, 2)
        k = self.kernel(x.shape[-1]).flip(-1).unsqueeze(1)
        return F.conv1d(F.pad(x, (x.shape[-1] - 1, 0)), k, groups=DIM).transpose(1, 2)

    def moved(self, x):
        return F.silu(self.average(x) + x * self.omega)

    def forward(self, x):
        residual = x
        v = F.silu(self.v_proj(x))
        mx = self.moved(x)
        base = self.mx_proj(mx)
        u, zr, hx = torch.split(base, [DIM, SIZE + DIM, DIM], dim=-1)
        u = torch.sigmoid(u)
        z, r = torch.split(F.silu(zr), [SIZE, DIM], dim=-1)
        z = z.unsqueeze(2) * self.gamma + self.shift
        q, k = torch.unbind(z, dim=2)
        qk = torch.bmm(q * SIZE**-0.5, k.transpose(1, 2))
        attn = F.softmax(qk, dim=-1)
        h = torch.bmm(attn, v)
        h = F.silu(hx + self.h_proj(h * r))
        out = torch.addcmul(residual, u, h - residual)
        return self.norm(out)


class MegaTwin(MegaLayer):
    """The average as a product with a matrix per feature; projections apart."""

    def average(self, x):
        n = x.shape[1]
        at = torch.arange(n)
        back = (at[:, None] - at).clamp(min=0)
        weights = self.kernel(n)[:, back].tril()
        return (weights @ x.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)

    def forward(self, x):
        moved = self.moved(x)
        cuts = [DIM, SIZE, DIM, DIM]
        parts = zip(self.mx_proj.weight.split(cuts), self.mx_proj.bias.split(cuts), strict=True)
        u, z, r, hx = (F.linear(moved, weight, bias) for weight, bias in parts)
        z = F.silu(z)
        q, k = (z * scale + shift for scale, shift in zip(self.gamma, self.shift, strict=True))
        attention = (q @ k.transpose(-2, -1) / math.sqrt(SIZE)).softmax(-1)
        h = attention @ F.silu(self.v_proj(x))
        h = F.silu(hx + self.h_proj(h * F.silu(r)))
        return self.norm(x + torch.sigmoid(u) * (h - x))


class GatedOutput(nn.Module):
    """The output of each head times a sigmoid of the input, which the query's projection makes,
    too."""

    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(DIM, 2 * DIM)
        self.k_proj, self.v_proj, self.o_proj = (nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x):
        b, n, _ = x.shape
        query, gate = self.q_proj(x).view(b, n, HEADS, 2 * SIZE).chunk(2, dim=-1)
        key, value = self.k_proj(x).view(b, n, HEADS, -1), self.v_proj(x).view(b, n, HEADS, -1)
        q, k, v = (t.transpose(1, 2) for t in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        out = out.reshape(b, n, -1).contiguous()
        return self.o_proj(out * torch.sigmoid(gate.reshape(b, n, -1)))


class GatedTwin(GatedOutput):
    def forward(self, x):
        per_head = (w.unflatten(0, (HEADS, 2, SIZE)) for w in self.q_proj.parameters())
        (weight_q, weight_g), (bias_q, bias_g) = (
            [half.flatten(0, 1) for half in p.unbind(1)] for p in per_head
        )
        q, k, v = F.linear(x, weight_q, bias_q), self.k_proj(x), self.v_proj(x)
        heads = (plain.heads_apart(t, HEADS) for t in (q, k, v))
        mixed = plain.heads_together(F.scaled_dot_product_attention(*heads, is_causal=True))
        return self.o_proj(mixed * torch.sigmoid(F.linear(x, weight_g, bias_g)))


def language(layers, tokens=TOKENS):
    return plain.Language(VOCABULARY, tokens, DIM, layers, classes=CLASSES, read=lambda x: x[:, -1])


def gated(layer, twin_layer, around=lambda layer: layer(), **options):
    model = drawn(language([around(layer) for _ in range(DEPTH)]))
    twin = language([around(twin_layer) for _ in range(DEPTH)])
    filled(twin, dict(model.named_parameters()))
    leaves = (model.embed.weight, twin.embed.weight)
    return Pair(model, twin, ids(TOKENS, VOCABULARY), TOKENS, leaves=leaves, **options)


@pair
def mega():
    """A gate comes between attention and its projection: f(x) is no linear map of one token."""
    refused = {"attention_norm": "no linear map takes the heads' results"}
    return gated(MegaLayer, MegaTwin, refused=refused)


@pair
def gated_output():
    def around(attention):
        return plain.Block(attention(), plain.Mlp(DIM, 12), lambda: nn.LayerNorm(DIM))

    refused = {"attention_norm": "no linear map takes the heads' results"}
    return gated(GatedOutput, GatedTwin, around, refused=refused)


class PairAttention(nn.Module):
    """AlphaFold's row attention: a bias from pairs, a gate, heads behind the features."""

    def __init__(self):
        super().__init__()
        self.layer_norm, self.layer_norm_z = nn.LayerNorm(DIM), nn.LayerNorm(PAIRS)
        self.linear_z = nn.Linear(PAIRS, HEADS, bias=False)
        self.linear_q, self.linear_k, self.linear_v = (
            nn.Linear(DIM, DIM, bias=False) for _ in range(3)
        )
        self.linear_g, self.linear_o = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, m, z):
        m = self.layer_norm(m)
        bias = self.linear_z(self.layer_norm_z(z)).permute(0, 3, 1, 2)
        q = self.linear_q(m)
        q = q.view(q.shape[:-1] + (HEADS, -1)).transpose(-2, -3)
        q /= math.sqrt(SIZE)
        k, v = self.linear_k(m), self.linear_v(m)
        k = k.view(k.shape[:-1] + (HEADS, -1)).transpose(-2, -3)
        v = v.view(v.shape[:-1] + (HEADS, -1)).transpose(-2, -3)
        a = torch.matmul(q, k.permute(0, 1, 3, 2))
        a += bias
        a = torch.nn.functional.softmax(a, -1)
        o = torch.matmul(a, v).transpose(-2, -3)
        g = torch.sigmoid(self.linear_g(m))
        o = o * g.view(g.shape[:-1] + (HEADS, -1))
        return self.linear_o(o.flatten(-2))


class PairAttentionTwin(PairAttention):
    def forward(self, m, z):
        m = self.layer_norm(m)
        bias = self.linear_z(self.layer_norm_z(z)).permute(0, 3, 1, 2)
        projections = (self.linear_q, self.linear_k, self.linear_v)
        q, k, v = (plain.heads_apart(linear(m), HEADS) for linear in projections)
        mixed = (q @ k.transpose(-2, -1) / math.sqrt(SIZE) + bias).softmax(-1) @ v
        return self.linear_o(plain.heads_together(mixed) * torch.sigmoid(self.linear_g(m)))


class Folding(nn.Module):
    """Residues, and distances between them in bins, which are looked up."""

    def __init__(self, attention):
        super().__init__()
        self.residues, self.bins = nn.Embedding(VOCABULARY, DIM), nn.Embedding(5, PAIRS)
        self.rows = nn.ModuleList(attention() for _ in range(DEPTH))
        self.transitions = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 12), nn.ReLU(), nn.Linear(12, DIM))
            for _ in range(DEPTH)
        )
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, sequence, distances):
        m, z = self.residues(sequence), self.bins(distances)
        for row, transition in zip(self.rows, self.transitions, strict=True):
            m = m + row(m, z)
            m = m + transition(m)
        return self.head(m)


@pair
def folding():
    """Distances are looked up in a table, too, but what is explained are the residues."""
    model = drawn(Folding(PairAttention))
    twin = filled(Folding(PairAttentionTwin), dict(model.named_parameters()))
    distances = torch.randint(0, 5, (BATCH, TOKENS, TOKENS))
    return Pair(
        model,
        twin,
        (ids(TOKENS, VOCABULARY), distances),
        TOKENS,
        target=(2, 1),
        leaves=(model.residues.weight, twin.residues.weight),
        refused={"attention_norm": "no linear map takes the heads' results"},
    )
