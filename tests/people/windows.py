"""Swin's shifted windows as they were published, against timm's."""

import torch
import torch.nn as nn
from timm.models.swin_transformer import SwinTransformer as TimmSwin

from tests.people.pairs import BATCH, Pair, drawn, filled, normal, pair, renamed

SIZE, PATCH, WINDOW, DIM, HEADS, CLASSES = 8, 2, 2, 8, 2, 3
GRID = SIZE // PATCH


def window_partition(x, window_size):
    B, H, W, C = x.shape
    x = x.view(B, H // window_size, window_size, W // window_size, window_size, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, window_size, window_size, C)


def window_reverse(windows, window_size, H, W):
    B = int(windows.shape[0] / (H * W / window_size / window_size))
    x = windows.view(B, H // window_size, W // window_size, window_size, window_size, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(B, H, W, -1)


class WindowAttention(nn.Module):
    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.window_size = (window_size, window_size)
        self.relative_position_bias_table = nn.Parameter(
            torch.zeros((2 * window_size - 1) * (2 * window_size - 1), num_heads)
        )
        coords_h, coords_w = torch.arange(window_size), torch.arange(window_size)
        coords = torch.stack(torch.meshgrid([coords_h, coords_w], indexing="ij"))
        coords_flatten = torch.flatten(coords, 1)
        relative_coords = coords_flatten[:, :, None] - coords_flatten[:, None, :]
        relative_coords = relative_coords.permute(1, 2, 0).contiguous()
        relative_coords[:, :, 0] += window_size - 1
        relative_coords[:, :, 1] += window_size - 1
        relative_coords[:, :, 0] *= 2 * window_size - 1
        self.register_buffer("relative_position_index", relative_coords.sum(-1))
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x, mask=None):
        B_, N, C = x.shape
        qkv = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads)
        qkv = qkv.permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        q = q * self.scale
        attn = q @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(
            self.window_size[0] * self.window_size[1], self.window_size[0] * self.window_size[1], -1
        )
        attn = attn + bias.permute(2, 0, 1).contiguous().unsqueeze(0)
        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, N, N)
        attn = self.softmax(attn)
        x = (attn @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj(x)


class SwinTransformerBlock(nn.Module):
    def __init__(self, dim, resolution, num_heads, window_size, shift_size):
        super().__init__()
        self.input_resolution = resolution
        self.window_size, self.shift_size = window_size, shift_size
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, window_size, num_heads)
        self.fc1, self.fc2, self.act = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim), nn.GELU()
        self.register_buffer("attn_mask", self.mask() if shift_size > 0 else None)

    def mask(self):
        H, W = self.input_resolution
        img_mask = torch.zeros((1, H, W, 1))
        slices = (
            slice(0, -self.window_size),
            slice(-self.window_size, -self.shift_size),
            slice(-self.shift_size, None),
        )
        cnt = 0
        for h in slices:
            for w in slices:
                img_mask[:, h, w, :] = cnt
                cnt += 1
        mask_windows = window_partition(img_mask, self.window_size)
        mask_windows = mask_windows.view(-1, self.window_size * self.window_size)
        attn_mask = mask_windows.unsqueeze(1) - mask_windows.unsqueeze(2)
        attn_mask = attn_mask.masked_fill(attn_mask != 0, (-100.0))
        return attn_mask.masked_fill(attn_mask == 0, 0.0)

    def forward(self, x):
        H, W = self.input_resolution
        B, L, C = x.shape
        assert L == H * W, "input feature has wrong size"
        shortcut = x
        x = self.norm1(x)
        x = x.view(B, H, W, C)
        if self.shift_size > 0:
            x = torch.roll(x, shifts=(-self.shift_size, -self.shift_size), dims=(1, 2))
        x_windows = window_partition(x, self.window_size)
        x_windows = x_windows.view(-1, self.window_size * self.window_size, C)
        attn_windows = self.attn(x_windows, mask=self.attn_mask)
        attn_windows = attn_windows.view(-1, self.window_size, self.window_size, C)
        x = window_reverse(attn_windows, self.window_size, H, W)
        if self.shift_size > 0:
            x = torch.roll(x, shifts=(self.shift_size, self.shift_size), dims=(1, 2))
        x = x.view(B, H * W, C)
        x = shortcut + x
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class PatchMerging(nn.Module):
    def __init__(self, input_resolution, dim):
        super().__init__()
        self.input_resolution = input_resolution
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)
        self.norm = nn.LayerNorm(4 * dim)

    def forward(self, x):
        H, W = self.input_resolution
        B, _L, C = x.shape
        x = x.view(B, H, W, C)
        x0 = x[:, 0::2, 0::2, :]
        x1 = x[:, 1::2, 0::2, :]
        x2 = x[:, 0::2, 1::2, :]
        x3 = x[:, 1::2, 1::2, :]
        x = torch.cat([x0, x1, x2, x3], -1)
        x = x.view(B, -1, 4 * C)
        return self.reduction(self.norm(x))


class SwinTransformer(nn.Module):
    """Two blocks, the second shifted, a merging of patches, and a block of one window."""

    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, DIM, kernel_size=PATCH, stride=PATCH)
        self.patch_norm = nn.LayerNorm(DIM)
        half = GRID // 2
        self.layers = nn.Sequential(
            SwinTransformerBlock(DIM, (GRID, GRID), HEADS, WINDOW, 0),
            SwinTransformerBlock(DIM, (GRID, GRID), HEADS, WINDOW, WINDOW // 2),
            PatchMerging((GRID, GRID), DIM),
            SwinTransformerBlock(2 * DIM, (half, half), HEADS, WINDOW, 0),
        )
        self.norm, self.avgpool = nn.LayerNorm(2 * DIM), nn.AdaptiveAvgPool1d(1)
        self.head = nn.Linear(2 * DIM, CLASSES)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = self.patch_norm(x)
        x = self.layers(x)
        x = self.norm(x)
        x = self.avgpool(x.transpose(1, 2))
        x = torch.flatten(x, 1)
        return self.head(x)


@pair
def swin():
    model = drawn(SwinTransformer())
    weights = renamed(
        model,
        ("patch_embed", "patch_embed.proj"),
        ("patch_norm", "patch_embed.norm"),
        ("head", "head.fc"),
        ("layers.3", "layers.1.blocks.third"),
        ("layers.2", "layers.1.downsample"),
        ("layers.0.", "layers.0.blocks.0."),
        ("layers.1.norm", "layers.0.blocks.1.norm"),
        ("layers.1.attn", "layers.0.blocks.1.attn"),
        ("layers.1.fc", "layers.0.blocks.1.fc"),
        ("blocks.third", "blocks.0"),
        (".fc1", ".mlp.fc1"),
        (".fc2", ".mlp.fc2"),
    )
    twin = TimmSwin(
        img_size=SIZE,
        patch_size=PATCH,
        num_classes=CLASSES,
        embed_dim=DIM,
        depths=(2, 1),
        num_heads=(HEADS, HEADS),
        window_size=WINDOW,
        mlp_ratio=2,
    )
    refused = {"value_zeroing": "the queries of the attention at .* are not the tokens"}
    images = normal(BATCH, 3, SIZE, SIZE)
    return Pair(model, filled(twin, weights), images, GRID**2, refused=refused)
