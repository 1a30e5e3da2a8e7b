"""Two inputs through one tower as one batch, as networks for pairs are written, and how alike their
vectors are; against the tower called twice, and normalised vectors."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tests.people import plain
from tests.people.pairs import BATCH, Pair, drawn, filled, ids, normal, pair, renamed

VOCABULARY, TOKENS, DIM, HEADS, DEPTH, CLASSES = 11, 5, 8, 2, 2, 3


class Tower(nn.Module):
    """PyTorch's own encoder, its first axis the tokens."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, DIM)
        self.pos = nn.Parameter(torch.zeros(TOKENS, 1, DIM))
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 16, activation="gelu", norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.project = nn.Linear(DIM, CLASSES)

    def forward(self, tokens):
        return self.project(self.encoder(self.embed(tokens.t()) + self.pos).mean(0))


class Pictures(nn.Module):
    """Patches by a convolution and its batch norm, a class token in front."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, DIM, 2, 2), nn.BatchNorm2d(DIM)
        self.cls = nn.Parameter(torch.zeros(1, 1, DIM))
        self.attn = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.project = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1)
        x = x + self.attn(x, x, x, need_weights=False)[0]
        return self.project(x[:, 0])


class Siamese(nn.Module):
    """Both inputs are one batch of twice as many samples."""

    def __init__(self, tower):
        super().__init__()
        self.tower, self.head = tower, nn.Linear(4 * CLASSES, CLASSES)

    def both(self, a, b):
        return self.tower(torch.cat([a, b], dim=0)).chunk(2, dim=0)

    def forward(self, a, b):
        u, v = self.both(a, b)
        return self.head(torch.cat([u, v, torch.abs(u - v), u * v], dim=-1))


class SiameseByViews(Siamese):
    """The two views of each sample are neighbours in the batch."""

    def both(self, a, b):
        out = self.tower(torch.stack([a, b], dim=1).flatten(0, 1))
        out = out.view(a.shape[0], 2, -1)
        return out[:, 0], out[:, 1]


class SiameseTwin(Siamese):
    def both(self, a, b):
        return self.tower(a), self.tower(b)


class Guided(nn.Module):
    """What the ids say beyond a learned prompt of nothing, both in one batch."""

    def __init__(self):
        super().__init__()
        self.tower, self.nothing = Tower(), nn.Parameter(torch.zeros(1, TOKENS, DIM))

    def both(self, x, nothing):
        y = self.read(torch.cat([x, nothing.expand(len(x), -1, -1)]))
        return y.split(len(x))

    def read(self, x):
        x = self.tower.encoder(x.transpose(0, 1) + self.tower.pos)
        return self.tower.project(x[-1])

    def forward(self, tokens):
        told, untold = self.both(self.tower.embed(tokens), self.nothing)
        return untold + 2.5 * (told - untold)


class GuidedTwin(Guided):
    def both(self, x, nothing):
        return self.read(x), self.read(nothing)


class Alike(NamedTuple):
    logits: torch.Tensor
    vectors: tuple


class TwoTowers(nn.Module):
    """The cosine is worked out at the end, and how often each is likelier than its opposite."""

    def __init__(self):
        super().__init__()
        self.query, self.document = Tower(), Tower()
        self.temperature = nn.Parameter(torch.zeros(()))

    def cosine(self, u, v):
        return torch.sum(u * v, dim=1) / (torch.norm(u, dim=1) * torch.norm(v, dim=1))

    def forward(self, query, document):
        u, v = self.query(query), self.document(document)
        score = self.cosine(u, v) * self.temperature.exp()
        return Alike(torch.stack([score, -score], dim=1), (u, v))


class TwoTowersByRoots(TwoTowers):
    def cosine(self, u, v):
        together = (u.unsqueeze(1) @ v.unsqueeze(2)).squeeze()
        together = together.reshape(len(u))
        return together * ((u * u).sum(-1) * v.pow(2).sum(-1)).rsqrt()


class TwoTowersTwin(TwoTowers):
    def cosine(self, u, v):
        return (F.normalize(u, dim=-1) * F.normalize(v, dim=-1)).sum(-1)


def siamese(model, tower, inputs, tokens):
    drawn(model)
    twin = filled(SiameseTwin(tower()), dict(model.named_parameters()))
    leaves = tables(model.tower, twin.tower) if tower is Tower else None
    return Pair(model, twin, inputs, tokens, leaves=leaves)


def tables(tower, other):
    return tower.embed.weight, other.embed.weight


@pair
def siamese_in_one_batch():
    inputs = (ids(TOKENS, VOCABULARY), ids(TOKENS, VOCABULARY))
    return siamese(Siamese(Tower()), Tower, inputs, (TOKENS, TOKENS))


@pair
def siamese_by_views():
    inputs = (normal(BATCH, 3, 4, 4), normal(BATCH, 3, 4, 4))
    return siamese(SiameseByViews(Pictures()), Pictures, inputs, (5, 5))


@pair
def guided_in_one_batch():
    model, twin = drawn(Guided()), GuidedTwin()
    filled(twin, dict(model.named_parameters()))
    leaves = tables(model.tower, twin.tower)
    return Pair(model, twin, ids(TOKENS, VOCABULARY), TOKENS, leaves=leaves)


def two_towers(model):
    drawn(model)
    twin = filled(TwoTowersTwin(), dict(model.named_parameters()))
    inputs = (ids(TOKENS, VOCABULARY), ids(TOKENS, VOCABULARY))
    leaves = tables(model.query, twin.query)
    return Pair(model, twin, inputs, (TOKENS, TOKENS), out=lambda out: out.logits, leaves=leaves)


@pair
def two_towers_cosine():
    return two_towers(TwoTowers())


@pair
def two_towers_by_roots():
    return two_towers(TwoTowersByRoots())


class Cut(nn.Module):
    """A picture cut into patches one by one, each through the same layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.cls = nn.Linear(12, DIM), nn.Parameter(torch.zeros(1, 1, DIM))
        self.block = plain.Block(
            plain.Attention(DIM, HEADS), plain.Mlp(DIM, 16), lambda: nn.LayerNorm(DIM)
        )
        self.head = nn.Linear(DIM, CLASSES)

    def patches(self, x):
        found = []
        for i in range(0, 4, 2):
            for j in range(0, 4, 2):
                found.append(self.embed(x[:, :, i : i + 2, j : j + 2].reshape(x.shape[0], -1)))
        return torch.stack(found, dim=1)

    def forward(self, x):
        x = torch.cat([self.cls.repeat(x.shape[0], 1, 1), self.patches(x)], dim=1)
        return self.head(self.block(x)[:, 0])


class CutTwin(Cut):
    def patches(self, x):
        weight = self.embed.weight.view(DIM, 3, 2, 2)
        return F.conv2d(x, weight, self.embed.bias, stride=2).flatten(2).mT


@pair
def vit_patch_by_patch():
    model = drawn(Cut())
    return Pair(model, filled(CutTwin(), renamed(model)), normal(BATCH, 3, 4, 4), 5)


class Columns(nn.Module):
    """Numbers and categories as tokens, made column by column."""

    def __init__(self):
        super().__init__()
        self.numbers = nn.ModuleList(nn.Linear(1, DIM) for _ in range(3))
        self.categories = nn.ModuleList(nn.Embedding(n, DIM) for n in (4, 3, 5))
        self.cls = nn.Parameter(torch.zeros(DIM))
        self.block = plain.Block(
            plain.Attention(DIM, HEADS), plain.Mlp(DIM, 16), lambda: nn.LayerNorm(DIM)
        )
        self.head = nn.Linear(DIM, CLASSES)

    def tokens(self, numbers, categories):
        tokens = [self.cls.expand(len(numbers), 1, -1)]
        tokens += [f(numbers[:, i : i + 1]).unsqueeze(1) for i, f in enumerate(self.numbers)]
        tokens += [f(categories[:, i]).unsqueeze(1) for i, f in enumerate(self.categories)]
        return torch.cat(tokens, dim=1)

    def forward(self, numbers, categories):
        return self.head(self.block(self.tokens(numbers, categories)).mean(1))


class ColumnsTwin(Columns):
    """All numbers at once, and one table in which the columns' rows follow each other."""

    def tokens(self, numbers, categories):
        weight = torch.stack([f.weight[:, 0] for f in self.numbers])
        bias = torch.stack([f.bias for f in self.numbers])
        table = torch.cat([f.weight for f in self.categories])
        rows = F.embedding(categories + torch.tensor([0, 4, 7]), table)
        cls = self.cls.expand(len(numbers), 1, -1)
        return torch.cat([cls, numbers[..., None] * weight + bias, rows], dim=1)


@pair
def column_by_column():
    model = drawn(Columns())
    inputs = (normal(BATCH, 3), torch.randint(0, 3, (BATCH, 3)))
    return Pair(model, filled(ColumnsTwin(), renamed(model)), inputs, (3, 3))


class CosineAttention(plain.Attention):
    """Scores are divided by the lengths of queries and keys."""

    def forward(self, x):
        q, k, v = (plain.heads_apart(f(x), HEADS) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / (q.norm(dim=-1, keepdim=True) * k.norm(dim=-1).unsqueeze(-2))
        return self.out(plain.heads_together((scores * 10).softmax(-1) @ v))


class CosineAttentionTwin(CosineAttention):
    def forward(self, x):
        q, k, v = (plain.heads_apart(f(x), HEADS) for f in (self.q, self.k, self.v))
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
        return self.out(plain.heads_together((scores * 10).softmax(-1) @ v))


@pair
def cosine_attention():
    def language(attention):
        block = plain.Block(attention(DIM, HEADS), plain.Mlp(DIM, 16), lambda: nn.LayerNorm(DIM))
        return plain.Language(VOCABULARY, TOKENS, DIM, [block], read=lambda x: x.mean(1))

    model = drawn(language(CosineAttention))
    twin = filled(language(CosineAttentionTwin), renamed(model))
    return Pair(model, twin, ids(TOKENS, VOCABULARY), TOKENS, leaves=tables(model, twin))
