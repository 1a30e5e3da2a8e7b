"""Vision transformers from tutorials: patches by moves, by unfold, tokens first, with registers;
against timm's."""

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional as F

from tests.people.pairs import BATCH, Pair, drawn, filled, normal, pair, renamed

CHANNELS, HEIGHT, WIDTH, PATCH, DIM, HEADS, DEPTH, MLP, CLASSES = 2, 4, 6, 2, 8, 2, 2, 12, 3
PATCHES, EPS = (HEIGHT // PATCH) * (WIDTH // PATCH), 1e-6


def timm_twin(weights, **options):
    twin = VisionTransformer(
        img_size=(HEIGHT, WIDTH),
        patch_size=PATCH,
        in_chans=CHANNELS,
        num_classes=CLASSES,
        embed_dim=DIM,
        depth=DEPTH,
        num_heads=HEADS,
        mlp_ratio=MLP / DIM,
        **options,
    )
    return filled(twin, weights)


def images():
    return normal(BATCH, CHANNELS, HEIGHT, WIDTH)


class FeedForward(nn.Module):
    def __init__(self, dim, hidden_dim, dropout=0.0):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(dim, EPS),
            nn.Linear(dim, hidden_dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_dim, dim),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return self.net(x)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        dim_head = dim // heads
        self.heads = heads
        self.scale = dim_head**-0.5
        self.norm = nn.LayerNorm(dim, EPS)
        self.attend = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(0.1)
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(0.1))

    def forward(self, x):
        b, n, _ = x.shape
        x = self.norm(x)
        qkv = self.to_qkv(x).chunk(3, dim=-1)
        # b n (h d) -> b h n d
        q, k, v = (t.reshape(b, n, self.heads, -1).permute(0, 2, 1, 3) for t in qkv)
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        attn = self.dropout(self.attend(dots))
        out = torch.matmul(attn, v)
        # b h n d -> b n (h d)
        out = out.permute(0, 2, 1, 3).reshape(b, n, -1)
        return self.to_out(out)


class Rearranged(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_patch_embedding = nn.Linear(PATCH * PATCH * CHANNELS, DIM)
        self.pos_embedding = nn.Parameter(torch.randn(1, PATCHES + 1, DIM))
        self.cls_token = nn.Parameter(torch.randn(1, 1, DIM))
        self.layers = nn.ModuleList([])
        for _ in range(DEPTH):
            self.layers.append(nn.ModuleList([Attention(DIM, HEADS), FeedForward(DIM, MLP)]))
        self.norm = nn.LayerNorm(DIM, EPS)
        self.mlp_head = nn.Linear(DIM, CLASSES)

    def forward(self, img):
        # b c (h p1) (w p2) -> b (h w) (p1 p2 c)
        b, c, height, width = img.shape
        h, w = height // PATCH, width // PATCH
        x = img.reshape(b, c, h, PATCH, w, PATCH).permute(0, 2, 4, 3, 5, 1)
        x = self.to_patch_embedding(x.reshape(b, h * w, PATCH * PATCH * c))
        n = x.shape[1]
        cls_tokens = self.cls_token.repeat(b, 1, 1)
        x = torch.cat((cls_tokens, x), dim=1)
        x += self.pos_embedding[:, : (n + 1)]
        for attn, ff in self.layers:
            x = attn(x) + x
            x = ff(x) + x
        x = self.norm(x)
        x = x[:, 0]
        return self.mlp_head(x)


@pair
def vit_rearranged():
    model = drawn(Rearranged())
    weights = renamed(
        model,
        ("to_patch_embedding", "patch_embed.proj"),
        ("pos_embedding", "pos_embed"),
        ("layers", "blocks"),
        ("mlp_head", "head"),
        ("0.norm", "norm1"),
        ("0.to_qkv", "attn.qkv"),
        ("0.to_out.0", "attn.proj"),
        ("1.net.0", "norm2"),
        ("1.net.1", "mlp.fc1"),
        ("1.net.4", "mlp.fc2"),
    )
    weights = {n.replace("blocks.norm2", "blocks.1.norm1"): w for n, w in weights.items()}
    proj = weights["patch_embed.proj.weight"].unflatten(1, (PATCH, PATCH, CHANNELS))
    weights["patch_embed.proj.weight"] = proj.permute(0, 3, 1, 2)
    return Pair(model, timm_twin(weights, qkv_bias=False), images(), PATCHES + 1)


class UnfoldBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM, EPS), nn.LayerNorm(DIM, EPS)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.fc1, self.fc2 = nn.Linear(DIM, MLP), nn.Linear(MLP, DIM)

    def attend(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1)) * (C // HEADS) ** -0.5
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Unfolded(nn.Module):
    """Patches by ``unfold`` of the tensor or of ``nn``; the mean of all patches is read."""

    def __init__(self, by_module):
        super().__init__()
        self.unfold = nn.Unfold(kernel_size=PATCH, stride=PATCH) if by_module else None
        self.embed = nn.Linear(CHANNELS * PATCH * PATCH, DIM)
        self.pos_embed = nn.Parameter(torch.zeros(1, PATCHES, DIM))
        self.blocks = nn.ModuleList([UnfoldBlock() for _ in range(DEPTH)])
        self.fc_norm = nn.LayerNorm(DIM, EPS)
        self.head = nn.Linear(DIM, CLASSES)

    def patches(self, x):
        if self.unfold is not None:
            return self.unfold(x).transpose(1, 2)
        p = x.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)
        p = p.contiguous().view(x.size(0), x.size(1), -1, PATCH, PATCH)
        return p.permute(0, 2, 1, 3, 4).flatten(2)

    def forward(self, x):
        x = self.embed(self.patches(x)) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        x = torch.mean(x, dim=1)
        return self.head(self.fc_norm(x))


def unfolded(by_module):
    model = drawn(Unfolded(by_module))
    weights = renamed(
        model,
        ("embed.weight", "patch_embed.proj.weight"),
        ("embed.bias", "patch_embed.proj.bias"),
        (".qkv", ".attn.qkv"),
        (".proj.w", ".attn.proj.w"),
        (".proj.b", ".attn.proj.b"),
        (".fc1", ".mlp.fc1"),
        (".fc2", ".mlp.fc2"),
        ("patch_embed.attn", "patch_embed"),
    )
    proj = weights["patch_embed.proj.weight"]
    weights["patch_embed.proj.weight"] = proj.unflatten(1, (CHANNELS, PATCH, PATCH))
    twin = timm_twin(weights, class_token=False, global_pool="avg")
    return Pair(model, twin, images(), PATCHES)


@pair
def vit_unfolded():
    return unfolded(by_module=False)


@pair
def vit_unfolded_by_module():
    return unfolded(by_module=True)


class AttentionBlock(nn.Module):
    def __init__(self, embed_dim, hidden_dim, num_heads, dropout=0.0):
        super().__init__()
        self.layer_norm_1 = nn.LayerNorm(embed_dim, EPS)
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout)
        self.layer_norm_2 = nn.LayerNorm(embed_dim, EPS)
        self.linear = nn.Sequential(
            nn.Linear(embed_dim, hidden_dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_dim, embed_dim),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        inp_x = self.layer_norm_1(x)
        x = x + self.attn(inp_x, inp_x, inp_x)[0]
        x = x + self.linear(self.layer_norm_2(x))
        return x


def img_to_patch(x, patch_size, flatten_channels=True):
    B, C, H, W = x.shape
    x = x.reshape(B, C, H // patch_size, patch_size, W // patch_size, patch_size)
    x = x.permute(0, 2, 4, 1, 3, 5)  # [B, H', W', C, p_H, p_W]
    x = x.flatten(1, 2)  # [B, H'*W', C, p_H, p_W]
    if flatten_channels:
        x = x.flatten(2, 4)  # [B, H'*W', C*p_H*p_W]
    return x


class TokensFirst(nn.Module):
    """Tokens before samples; ``registers`` behind the class token, the mean of the patches read."""

    def __init__(self, registers=0):
        super().__init__()
        self.input_layer = nn.Linear(CHANNELS * PATCH**2, DIM)
        self.transformer = nn.Sequential(*(AttentionBlock(DIM, MLP, HEADS) for _ in range(DEPTH)))
        self.mlp_head = nn.Sequential(nn.LayerNorm(DIM, EPS), nn.Linear(DIM, CLASSES))
        self.cls_token = nn.Parameter(torch.randn(1, 1, DIM))
        self.registers = nn.Parameter(torch.randn(registers, DIM)) if registers else None
        self.pos_embedding = nn.Parameter(torch.randn(1, 1 + PATCHES, DIM))

    def forward(self, x):
        x = img_to_patch(x, PATCH)
        B, T, _ = x.shape
        x = self.input_layer(x)
        cls_token = self.cls_token.repeat(B, 1, 1)
        x = torch.cat([cls_token, x], dim=1)
        x = x + self.pos_embedding[:, : T + 1]
        if self.registers is not None:
            r = self.registers.expand(B, *self.registers.shape)
            x = torch.cat([x[:, :1], r, x[:, 1:]], dim=1)
        x = x.transpose(0, 1)
        x = self.transformer(x)
        if self.registers is None:
            return self.mlp_head(x[0])
        return self.mlp_head(x[1 + len(self.registers) :].mean(dim=0))


def tokens_first(registers=0, **options):
    model = drawn(TokensFirst(registers))
    norm = "fc_norm" if registers else "norm"
    weights = renamed(
        model,
        ("input_layer", "patch_embed.proj"),
        ("pos_embedding", "pos_embed"),
        ("mlp_head.0", norm),
        ("mlp_head.1", "head"),
        ("transformer", "blocks"),
        ("layer_norm_", "norm"),
        ("in_proj_", "qkv."),
        ("out_proj", "proj"),
        ("linear.0", "mlp.fc1"),
        ("linear.3", "mlp.fc2"),
    )
    proj = weights["patch_embed.proj.weight"]
    weights["patch_embed.proj.weight"] = proj.unflatten(1, (CHANNELS, PATCH, PATCH))
    if registers:
        weights["reg_token"] = weights.pop("registers")[None]
        first, rest = weights["pos_embed"].split([1, PATCHES], 1)
        weights["pos_embed"] = torch.cat([first, rest.new_zeros(1, registers, DIM), rest], 1)
    return model, timm_twin(weights, **options)


@pair
def vit_tokens_first():
    return Pair(*tokens_first(), images(), PATCHES + 1)


@pair
def vit_registers():
    """timm gives registers positions, too: 0 here."""
    model, twin = tokens_first(2, global_pool="avg", reg_tokens=2)
    return Pair(model, twin, images(), PATCHES + 1 + 2)
