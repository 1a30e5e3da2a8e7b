"""DiT: noisy patches, a timestep and a class that modulate every norm and gate every branch. The
picture is explained; timestep and class are numbers of the twin, so there is one per sample."""

import math

import torch
from torch import nn

from tests.people import plain
from tests.people.pairs import BATCH, Pair, drawn, filled, normal, pair, renamed

CHANNELS, SIZE, PATCH, DIM, HEADS, DEPTH, CLASSES, FREQUENCIES = 2, 4, 2, 8, 2, 2, 4, 6
PATCHES, GRID = (SIZE // PATCH) ** 2, SIZE // PATCH


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class TimestepEmbedder(nn.Module):
    def __init__(self, hidden_size, frequency_embedding_size=FREQUENCIES):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(frequency_embedding_size, hidden_size, bias=True),
            nn.SiLU(),
            nn.Linear(hidden_size, hidden_size, bias=True),
        )
        self.frequency_embedding_size = frequency_embedding_size

    @staticmethod
    def timestep_embedding(t, dim, max_period=10000):
        half = dim // 2
        freqs = torch.exp(-math.log(max_period) * torch.arange(start=0, end=half) / half)
        args = t[:, None].float() * freqs[None]
        embedding = torch.cat([torch.cos(args), torch.sin(args)], dim=-1)
        if dim % 2:
            embedding = torch.cat([embedding, torch.zeros_like(embedding[:, :1])], dim=-1)
        return embedding

    def forward(self, t):
        t_freq = self.timestep_embedding(t, self.frequency_embedding_size)
        return self.mlp(t_freq.to(self.mlp[0].weight.dtype))


class LabelEmbedder(nn.Module):
    def __init__(self, num_classes, hidden_size):
        super().__init__()
        self.embedding_table = nn.Embedding(num_classes + 1, hidden_size)

    def forward(self, labels):
        return self.embedding_table(labels)


class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class DiTBlock(nn.Module):
    """A DiT block with adaptive layer norm zero (adaLN-Zero) conditioning."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.attn = Attention(hidden_size, num_heads)
        self.norm2 = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, 12), nn.GELU(approximate="tanh"), nn.Linear(12, hidden_size)
        )
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden_size, 6 * hidden_size))

    def forward(self, x, c):
        modulation = self.adaLN_modulation(c).chunk(6, dim=1)
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = modulation
        x = x + gate_msa.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift_msa, scale_msa))
        x = x + gate_mlp.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))
        return x


class FinalLayer(nn.Module):
    def __init__(self, hidden_size, patch_size, out_channels):
        super().__init__()
        self.norm_final = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(hidden_size, patch_size * patch_size * out_channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden_size, 2 * hidden_size))

    def forward(self, x, c):
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=1)
        return self.linear(modulate(self.norm_final(x), shift, scale))


class DiT(nn.Module):
    """``labels=False`` leaves the class out."""

    def __init__(self, labels=True):
        super().__init__()
        self.x_embedder = nn.Conv2d(CHANNELS, DIM, kernel_size=PATCH, stride=PATCH)
        self.t_embedder = TimestepEmbedder(DIM)
        self.y_embedder = LabelEmbedder(CLASSES, DIM) if labels else None
        self.pos_embed = nn.Parameter(torch.zeros(1, PATCHES, DIM), requires_grad=False)
        self.blocks = nn.ModuleList([DiTBlock(DIM, HEADS) for _ in range(DEPTH)])
        self.final_layer = FinalLayer(DIM, PATCH, CHANNELS)

    def unpatchify(self, x):
        c, p = CHANNELS, PATCH
        h = w = int(x.shape[1] ** 0.5)
        assert h * w == x.shape[1]
        x = x.reshape(shape=(x.shape[0], h, w, p, p, c))
        x = torch.einsum("nhwpqc->nchpwq", x)
        return x.reshape(shape=(x.shape[0], c, h * p, h * p))

    def condition(self, t, y=None):
        c = self.t_embedder(t)
        return c if y is None else c + self.y_embedder(y)

    def forward(self, x, t, y=None):
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        c = self.condition(t, y)
        for block in self.blocks:
            x = block(x, c)
        x = self.final_layer(x, c)
        return self.unpatchify(x)


class TwinBlock(plain.Block):
    """Scales, shifts and gates are buffers."""

    def __init__(self, modulation):
        attention = plain.Attention(DIM, HEADS)
        mlp = plain.Mlp(DIM, 12, nn.GELU(approximate="tanh"))
        super().__init__(attention, mlp, lambda: nn.LayerNorm(DIM, 1e-6, elementwise_affine=False))
        self.register_buffer("modulation", modulation.unflatten(0, (6, DIM)))

    def forward(self, x):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation
        x = x + gate1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Twin(nn.Module):
    def __init__(self, modulations, last):
        super().__init__()
        self.x_embedder = nn.Conv2d(CHANNELS, DIM, kernel_size=PATCH, stride=PATCH)
        self.pos_embed = nn.Parameter(torch.zeros(1, PATCHES, DIM))
        self.blocks = nn.Sequential(*map(TwinBlock, modulations))
        self.norm = nn.LayerNorm(DIM, 1e-6, elementwise_affine=False)
        self.linear = nn.Linear(DIM, PATCH * PATCH * CHANNELS)
        self.register_buffer("last", last.unflatten(0, (2, DIM)))

    def forward(self, x):
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        shift, scale = self.last
        x = self.linear(self.norm(self.blocks(x)) * (1 + scale) + shift)
        x = x.view(-1, GRID, GRID, PATCH, PATCH, CHANNELS).permute(0, 5, 1, 3, 2, 4)
        return x.reshape(-1, CHANNELS, SIZE, SIZE)


def twin_of(model, condition):
    """The twin of one sample, for its condition (features,)."""
    with torch.no_grad():
        modulations = [block.adaLN_modulation(condition) for block in model.blocks]
        twin = Twin(modulations, model.final_layer.adaLN_modulation(condition))
    weights = renamed(
        model,
        ("attn.proj", "attention.out"),
        ("attn.", "attention."),
        ("mlp.0", "mlp.up"),
        ("blocks.0.mlp.2", "blocks.0.mlp.down"),
        ("blocks.1.mlp.2", "blocks.1.mlp.down"),
        ("final_layer.linear", "linear"),
    )
    inner = ("adaLN", "t_embedder", "y_embedder")
    weights = {n: w for n, w in weights.items() if not any(part in n for part in inner)}
    return filled(twin, plain.thirds(weights, "qkv", ("q", "k", "v")))


def conditioned(model, *given):
    """What is explained is the noisy picture: one pixel of one channel of what is predicted."""
    model = drawn(model)
    x = normal(BATCH, CHANNELS, SIZE, SIZE)
    twins = tuple(twin_of(model, c) for c in model.condition(*given).detach())
    return Pair(model, twins, (x, *given), PATCHES, target=(1, 2, 3), twin_inputs=x)


@pair
def dit_timesteps():
    return conditioned(DiT(labels=False), torch.tensor([3.0, 0.5, 40.0], dtype=torch.float64))


@pair
def dit_integer_timesteps():
    return conditioned(DiT(labels=False), torch.tensor([3, 700, 40]))


@pair
def dit_timesteps_and_labels():
    t = torch.tensor([3.0, 0.5, 40.0], dtype=torch.float64)
    return conditioned(DiT(), t, torch.tensor([1, 3, 0]))
