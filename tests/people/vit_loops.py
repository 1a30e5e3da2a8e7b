"""The vision transformer of a tutorial that loops over everything: over pictures and patches to cut
them, over samples and heads to attend; against plain blocks."""

import torch
import torch.nn as nn

from tests.people import plain
from tests.people.pairs import BATCH, Pair, drawn, filled, normal, pair, renamed

CHANNELS, SIZE, N_PATCHES, DIM, HEADS, DEPTH, CLASSES = 2, 4, 2, 8, 2, 2, 3
TOKENS, PATCH = N_PATCHES**2 + 1, SIZE // N_PATCHES


def patchify(images, n_patches):
    n, c, h, w = images.shape
    assert h == w, "Patchify method is implemented for square images only"
    patches = images.new_zeros(n, n_patches**2, h * w * c // n_patches**2)
    patch_size = h // n_patches
    for idx, image in enumerate(images):
        for i in range(n_patches):
            for j in range(n_patches):
                patch = image[
                    :,
                    i * patch_size : (i + 1) * patch_size,
                    j * patch_size : (j + 1) * patch_size,
                ]
                patches[idx, i * n_patches + j] = patch.flatten()
    return patches


def get_positional_embeddings(sequence_length, d):
    result = torch.ones(sequence_length, d)
    for i in range(sequence_length):
        for j in range(d):
            at = torch.tensor(i / (10000 ** ((j - j % 2) / d)))
            result[i][j] = torch.sin(at) if j % 2 == 0 else torch.cos(at)
    return result


class MyMSA(nn.Module):
    def __init__(self, d, n_heads=2):
        super().__init__()
        self.n_heads = n_heads
        d_head = int(d / n_heads)
        self.q_mappings = nn.ModuleList([nn.Linear(d_head, d_head) for _ in range(n_heads)])
        self.k_mappings = nn.ModuleList([nn.Linear(d_head, d_head) for _ in range(n_heads)])
        self.v_mappings = nn.ModuleList([nn.Linear(d_head, d_head) for _ in range(n_heads)])
        self.d_head = d_head
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, sequences):
        result = []
        for sequence in sequences:
            seq_result = []
            for head in range(self.n_heads):
                q_mapping = self.q_mappings[head]
                k_mapping = self.k_mappings[head]
                v_mapping = self.v_mappings[head]
                seq = sequence[:, head * self.d_head : (head + 1) * self.d_head]
                q, k, v = q_mapping(seq), k_mapping(seq), v_mapping(seq)
                attention = self.softmax(q @ k.T / (self.d_head**0.5))
                seq_result.append(attention @ v)
            result.append(torch.hstack(seq_result))
        return torch.cat([torch.unsqueeze(r, dim=0) for r in result])


class MyViTBlock(nn.Module):
    def __init__(self, hidden_d, n_heads, mlp_ratio=2):
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden_d)
        self.mhsa = MyMSA(hidden_d, n_heads)
        self.norm2 = nn.LayerNorm(hidden_d)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_d, mlp_ratio * hidden_d),
            nn.GELU(),
            nn.Linear(mlp_ratio * hidden_d, hidden_d),
        )

    def forward(self, x):
        out = x + self.mhsa(self.norm1(x))
        out = out + self.mlp(self.norm2(out))
        return out


class MyViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear_mapper = nn.Linear(CHANNELS * PATCH * PATCH, DIM)
        self.class_token = nn.Parameter(torch.rand(1, DIM))
        embeddings = get_positional_embeddings(N_PATCHES**2 + 1, DIM)
        self.register_buffer("positional_embeddings", embeddings, persistent=False)
        self.blocks = nn.ModuleList([MyViTBlock(DIM, HEADS) for _ in range(DEPTH)])
        self.mlp = nn.Sequential(nn.Linear(DIM, CLASSES), nn.Softmax(dim=-1))

    def forward(self, images):
        n, _c, _h, _w = images.shape
        patches = patchify(images, N_PATCHES).to(self.positional_embeddings.device)
        tokens = self.linear_mapper(patches)
        tokens = torch.stack([torch.vstack((self.class_token, t)) for t in tokens])
        out = tokens + self.positional_embeddings.repeat(n, 1, 1)
        for block in self.blocks:
            out = block(out)
        out = out[:, 0]
        return self.mlp(out)


class HeadwiseAttention(nn.Module):
    """A projection per head of its own features, as one product over all heads; no projection of
    what comes out."""

    def __init__(self):
        super().__init__()
        size = DIM // HEADS
        self.weight = nn.Parameter(torch.zeros(3, HEADS, size, size))
        self.bias = nn.Parameter(torch.zeros(3, HEADS, 1, size))

    def forward(self, x):
        q, k, v = plain.heads_apart(x, HEADS)[:, None].matmul(self.weight).add(self.bias).unbind(1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return plain.heads_together(mixed)


class Twin(nn.Module):
    """Patches by a convolution."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(CHANNELS, DIM, PATCH, PATCH)
        self.first = nn.Parameter(torch.zeros(1, 1, DIM))
        self.position = nn.Parameter(torch.zeros(TOKENS, DIM))

        def block():
            mlp = plain.Mlp(DIM, 2 * DIM)
            return plain.Block(HeadwiseAttention(), mlp, lambda: nn.LayerNorm(DIM))

        self.blocks = nn.Sequential(*(block() for _ in range(DEPTH)))
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, images):
        x = self.embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), 1, DIM), x], 1) + self.position
        return self.head(self.blocks(x)[:, 0]).softmax(-1)


def mapped(msa):
    """The mappings of all heads: weights (3, heads, inputs, outputs), biases."""
    kinds = (msa.q_mappings, msa.k_mappings, msa.v_mappings)
    return (
        torch.stack([torch.stack([m.weight.T for m in maps]) for maps in kinds]),
        torch.stack([torch.stack([m.bias[None] for m in maps]) for maps in kinds]),
    )


@pair
def vit_in_loops():
    """Nothing is projected behind the heads, so there is no f(x)."""
    model = drawn(MyViT(), 0.25)
    weights = renamed(
        model,
        ("class_token", "first"),
        ("linear_mapper", "embed"),
        ("blocks.0.mlp.0", "blocks.0.mlp.up"),
        ("blocks.0.mlp.2", "blocks.0.mlp.down"),
        ("blocks.1.mlp.0", "blocks.1.mlp.up"),
        ("blocks.1.mlp.2", "blocks.1.mlp.down"),
    )
    weights = {n: w for n, w in weights.items() if "mhsa" not in n}
    for i, block in enumerate(model.blocks):
        weight, bias = mapped(block.mhsa)
        weights |= {f"blocks.{i}.attention.weight": weight, f"blocks.{i}.attention.bias": bias}
    weights |= {f"head.{part}": weights.pop(f"mlp.0.{part}") for part in ("weight", "bias")}
    weights["first"] = weights["first"][None]
    weights["embed.weight"] = weights["embed.weight"].unflatten(1, (CHANNELS, PATCH, PATCH))
    weights["position"] = model.positional_embeddings.double()
    refused = {"attention_norm": "no linear map takes the heads' results"}
    images = normal(BATCH, CHANNELS, SIZE, SIZE)
    return Pair(model, filled(Twin(), weights), images, TOKENS, refused=refused)
