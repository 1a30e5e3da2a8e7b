"""PatchTST: patches of several series, each by itself, folded into the batch; against plain blocks
with an axis of series."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.people import plain
from tests.people.pairs import BATCH, Pair, drawn, filled, normal, pair, renamed

DIM, HEADS, DEPTH, HIDDEN = 8, 2, 2, 12
SERIES, LENGTH, PATCH, STRIDE, HORIZON = 2, 10, 4, 2, 3
PATCHES = (LENGTH - PATCH) // STRIDE + 2


class Transpose(nn.Module):
    def __init__(self, *dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.transpose(*self.dims)


class TSTEncoderLayer(nn.Module):
    """Batch norm over features, between two transpositions."""

    def __init__(self):
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Linear(DIM, DIM) for _ in range(3))
        self.to_out = nn.Sequential(nn.Linear(DIM, DIM), nn.Dropout(0.1))
        norms = (nn.Sequential(Transpose(1, 2), nn.BatchNorm1d(DIM), Transpose(1, 2)) for _ in "ab")
        self.norm_attn, self.norm_ffn = norms
        self.ff = nn.Sequential(nn.Linear(DIM, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, DIM))

    def attention(self, x):
        bs, d_k = x.size(0), DIM // HEADS
        q_s = self.W_Q(x).view(bs, -1, HEADS, d_k).transpose(1, 2)
        k_s = self.W_K(x).view(bs, -1, HEADS, d_k).permute(0, 2, 3, 1)
        v_s = self.W_V(x).view(bs, -1, HEADS, d_k).transpose(1, 2)
        attn_weights = F.softmax(torch.matmul(q_s, k_s) * d_k**-0.5, dim=-1)
        output = torch.matmul(attn_weights, v_s)
        return self.to_out(output.transpose(1, 2).contiguous().view(bs, -1, DIM))

    def forward(self, src):
        src = self.norm_attn(src + self.attention(src))
        return self.norm_ffn(src + self.ff(src))


class PatchTST(nn.Module):
    """Every series by itself: they are folded into the batch. ``revin``: each is normalised over
    time, and what is forecast is put back to its scale."""

    def __init__(self, revin):
        super().__init__()
        self.revin = revin
        self.padding_patch_layer = nn.ReplicationPad1d((0, STRIDE))
        self.W_P = nn.Linear(PATCH, DIM)
        self.W_pos = nn.Parameter(torch.zeros(PATCHES, DIM))
        self.layers = nn.ModuleList([TSTEncoderLayer() for _ in range(DEPTH)])
        self.linear = nn.Linear(DIM * PATCHES, HORIZON)

    def forward(self, x):  # x: [Batch, Input length, Channel]
        if self.revin:
            mean = torch.mean(x, dim=1, keepdim=True).detach()
            stdev = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + 1e-5).detach()
            x = (x - mean) / stdev
        z = self.padding_patch_layer(x.permute(0, 2, 1))
        z = z.unfold(dimension=-1, size=PATCH, step=STRIDE)  # z: [bs x nvars x patch_num x len]
        n_vars = z.shape[1]
        z = self.W_P(z)
        u = torch.reshape(z, (z.shape[0] * z.shape[1], z.shape[2], z.shape[3]))
        u = u + self.W_pos
        for layer in self.layers:
            u = layer(u)
        z = torch.reshape(u, (-1, n_vars, u.shape[-2], u.shape[-1]))
        z = z.permute(0, 1, 3, 2)  # z: [bs x nvars x d_model x patch_num]
        z = self.linear(z.flatten(start_dim=-2)).permute(0, 2, 1)
        return z * stdev + mean if self.revin else z


class OverFeatures(nn.BatchNorm2d):
    """Batch norm of features that come last."""

    def forward(self, x):
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class Twin(nn.Module):
    def __init__(self, revin):
        super().__init__()
        self.revin = revin
        self.embed, self.position = (
            nn.Linear(PATCH, DIM),
            nn.Parameter(torch.zeros(PATCHES, DIM)),
        )

        def block():
            mlp = plain.Mlp(DIM, HIDDEN)
            return plain.PostBlock(plain.Attention(DIM, HEADS), mlp, lambda: OverFeatures(DIM))

        self.blocks = nn.Sequential(*(block() for _ in range(DEPTH)))
        self.head = nn.Linear(DIM * PATCHES, HORIZON)

    def forward(self, x):
        mean = x.mean(1, keepdim=True).detach()
        deviation = (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt().detach()
        series = ((x - mean) / deviation if self.revin else x).transpose(1, 2)
        series = torch.cat([series, series[..., -1:].expand(-1, -1, STRIDE)], -1)
        patches = torch.stack(
            [series[..., i * STRIDE : i * STRIDE + PATCH] for i in range(PATCHES)], 2
        )
        x = self.blocks(self.embed(patches) + self.position)  # (batch, series, patches, features)
        x = self.head(x.transpose(2, 3).flatten(2)).transpose(1, 2)
        return x * deviation + mean if self.revin else x


def forecaster(revin, tokens):
    """Of two series one is read; batch norms have numbers of their own."""
    model = drawn(PatchTST(revin))
    weights = renamed(
        model,
        ("layers", "blocks"),
        ("norm_attn.1", "norm1"),
        ("norm_ffn.1", "norm2"),
        ("W_Q", "attention.q"),
        ("W_K", "attention.k"),
        ("W_V", "attention.v"),
        ("to_out.0", "attention.out"),
        ("ff.0", "mlp.up"),
        ("ff.2", "mlp.down"),
        ("W_pos", "position"),
        ("W_P", "embed"),
        ("linear", "head"),
    )
    twin = filled(Twin(revin), weights)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
    for norm, other in zip(
        norms, [m for m in twin.modules() if isinstance(m, OverFeatures)], strict=True
    ):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 1.5)
        other.load_state_dict(norm.state_dict())
    inputs = normal(BATCH, LENGTH, SERIES)
    return Pair(model, twin, inputs, tokens, target=(2, 1))


@pair
def patch_tst():
    return forecaster(False, SERIES * PATCHES)


@pair
def patch_tst_normalised():
    """The mean goes past all attention, so the tokens are the numbers of the series themselves."""
    return forecaster(True, SERIES * LENGTH)
