"""TabTransformer: categories attend, numbers come behind; against plain blocks and embeddings."""

import torch
import torch.nn.functional as F
from torch import einsum, nn

from tests.people import plain
from tests.people.pairs import BATCH, Pair, drawn, filled, normal, pair, renamed

CATEGORIES, NUMBERS, DIM, HEADS, DEPTH, CLASSES = (4, 3, 5, 2), 3, 8, 2, 2, 3


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x, **kwargs):
        return self.fn(x, **kwargs) + x


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(dim), fn

    def forward(self, x, **kwargs):
        return self.fn(self.norm(x), **kwargs)


class GEGLU(nn.Module):
    def forward(self, x):
        x, gates = x.chunk(2, dim=-1)
        return x * F.gelu(gates)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_qkv, self.to_out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        sim = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


def feed_forward():
    return nn.Sequential(nn.Linear(DIM, 24), GEGLU(), nn.Dropout(0.1), nn.Linear(12, DIM))


class TabTransformer(nn.Module):
    """Categories share a table with offsets; each column has a vector of its own in front."""

    def __init__(self):
        super().__init__()
        self.shared_dim = 2
        offset = F.pad(torch.tensor(CATEGORIES), (1, 0), value=0).cumsum(dim=-1)[:-1]
        self.register_buffer("categories_offset", offset)
        self.category_embed = nn.Embedding(sum(CATEGORIES), DIM - self.shared_dim)
        self.shared_category_embed = nn.Parameter(torch.zeros(len(CATEGORIES), self.shared_dim))
        self.norm = nn.LayerNorm(NUMBERS)
        self.layers = nn.ModuleList([])
        for _ in range(DEPTH):
            attention = Residual(PreNorm(DIM, Attention(DIM, HEADS)))
            self.layers.append(nn.ModuleList([attention, Residual(PreNorm(DIM, feed_forward()))]))
        width = DIM * len(CATEGORIES) + NUMBERS
        self.mlp = nn.Sequential(nn.Linear(width, 10), nn.ReLU(), nn.Linear(10, CLASSES))

    def forward(self, x_categ, x_cont):
        assert x_categ.shape[-1] == len(CATEGORIES)
        x_categ = x_categ + self.categories_offset
        categ_embed = self.category_embed(x_categ)
        shared = self.shared_category_embed.unsqueeze(0).repeat(categ_embed.shape[0], 1, 1)
        x = torch.cat((categ_embed, shared), dim=-1)
        for attn, ff in self.layers:
            x = attn(x)
            x = ff(x)
        flat_categ = x.flatten(1)
        normed_cont = self.norm(x_cont)
        return self.mlp(torch.cat((flat_categ, normed_cont), dim=-1))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(DIM, 12), nn.Linear(DIM, 12), nn.Linear(12, DIM)

    def forward(self, x):
        return self.down(self.up(x) * F.gelu(self.gate(x)))


def blocks():
    def block():
        attention = plain.Attention(DIM, HEADS, bias=False)
        return plain.Block(attention, Gated(), lambda: nn.LayerNorm(DIM))

    return nn.Sequential(*(block() for _ in range(DEPTH)))


class TabTwin(nn.Module):
    """One table of whole vectors, and a vector per column that is added: 0 where the other is
    not."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(sum(CATEGORIES), DIM)
        self.column = nn.Parameter(torch.zeros(len(CATEGORIES), DIM))
        self.blocks, self.norm = blocks(), nn.LayerNorm(NUMBERS)
        width = DIM * len(CATEGORIES) + NUMBERS
        self.mlp = nn.Sequential(nn.Linear(width, 10), nn.ReLU(), nn.Linear(10, CLASSES))

    def forward(self, x_categ, x_cont):
        x = self.blocks(self.embed(x_categ) + self.column)
        return self.mlp(torch.cat([x.flatten(1), self.norm(x_cont)], 1))


def gated(weights):
    """The halves of a projection as a map and a gate."""
    for name in [n for n in weights if "mlp_proj" in n]:
        up, gate = weights.pop(name).chunk(2)
        weights[name.replace("mlp_proj", "mlp.up")] = up
        weights[name.replace("mlp_proj", "mlp.gate")] = gate
    return plain.thirds(weights, "to_qkv", ("q", "k", "v"))


@pair
def tab_transformer():
    """Numbers pass no attention: they are explained at the input only, where they are scored."""
    model = drawn(TabTransformer())
    weights = renamed(
        model,
        ("layers", "blocks"),
        ("0.fn.norm", "norm1"),
        ("1.fn.norm", "norm2"),
        ("0.fn.fn.to_out", "attention.out"),
        ("0.fn.fn", "attention"),
        ("1.fn.fn.0", "mlp_proj"),
        ("1.fn.fn.3", "mlp.down"),
    )
    shared = weights.pop("shared_category_embed")
    weights["column"] = F.pad(shared, (DIM - 2, 0))
    weights["embed.weight"] = F.pad(weights.pop("category_embed.weight"), (0, 2))
    weights = {n.replace("blocks.norm", "blocks.0.norm"): w for n, w in weights.items()}
    twin = filled(TabTwin(), gated(weights))
    columns = torch.stack([torch.randint(0, c, (BATCH,)) for c in CATEGORIES], 1)
    numbers = normal(BATCH, NUMBERS)
    offset = model.categories_offset
    return Pair(
        model,
        twin,
        {"x_categ": columns, "x_cont": numbers},
        len(CATEGORIES),
        twin_inputs={"x_categ": columns + offset, "x_cont": numbers},
    )
