"""The Annotated Transformer's encoder with a generator that classifies. Its norm divides by the
unbiased deviation plus eps, as no library's does, so the twin has the same norm; with an eps of 0
it is a layer norm of other weights."""

import copy
import math

import torch
from torch import nn
from torch.nn.functional import log_softmax

from tests.people import plain
from tests.people.bert import padded
from tests.people.pairs import Pair, drawn, filled, pair, renamed

VOCABULARY, TOKENS, D_MODEL, HEADS, LAYERS, D_FF, CLASSES = 13, 7, 8, 2, 2, 16, 3
LENGTHS = (5, 7, 4)


def clones(module, N):
    "Produce N identical layers."
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


class LayerNorm(nn.Module):
    "Construct a layernorm module (See citation for details)."

    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class SublayerConnection(nn.Module):
    def __init__(self, size, dropout, eps):
        super().__init__()
        self.norm = LayerNorm(size, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, sublayer):
        "Apply residual connection to any sublayer with the same size."
        return x + self.dropout(sublayer(self.norm(x)))


class EncoderLayer(nn.Module):
    def __init__(self, size, self_attn, feed_forward, dropout, eps):
        super().__init__()
        self.self_attn = self_attn
        self.feed_forward = feed_forward
        self.sublayer = clones(SublayerConnection(size, dropout, eps), 2)
        self.size = size

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, self.feed_forward)


class Encoder(nn.Module):
    "Core encoder is a stack of N layers"

    def __init__(self, layer, N, eps):
        super().__init__()
        self.layers = clones(layer, N)
        self.norm = LayerNorm(layer.size, eps)

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


def attention(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        assert d_model % h == 0
        self.d_k = d_model // h
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        nbatches = query.size(0)
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        ]
        x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        del query, key, value
        return self.linears[-1](x)


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.w_2(self.dropout(self.w_1(x).relu()))


class Embeddings(nn.Module):
    def __init__(self, d_model, vocab):
        super().__init__()
        self.lut = nn.Embedding(vocab, d_model)
        self.d_model = d_model

    def forward(self, x):
        return self.lut(x) * math.sqrt(self.d_model)


class PositionalEncoding(nn.Module):
    "Implement the PE function."

    def __init__(self, d_model, dropout, max_len=20):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        pe = pe.unsqueeze(0)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[:, : x.size(1)].requires_grad_(False)
        return self.dropout(x)


class Classifier(nn.Module):
    def __init__(self, eps=1e-6, dropout=0.1):
        super().__init__()
        attn, ff = MultiHeadedAttention(HEADS, D_MODEL), PositionwiseFeedForward(D_MODEL, D_FF)
        layer = EncoderLayer(D_MODEL, attn, ff, dropout, eps)
        self.encoder = Encoder(layer, LAYERS, eps)
        position = PositionalEncoding(D_MODEL, dropout)
        self.src_embed = nn.Sequential(Embeddings(D_MODEL, VOCABULARY), position)
        self.proj = nn.Linear(D_MODEL, CLASSES)

    def forward(self, src):
        src_mask = (src != 0).unsqueeze(-2)
        memory = self.encoder(self.src_embed(src), src_mask)
        return log_softmax(self.proj(memory[:, 0]), dim=-1)


class LogClassifier(plain.Language):
    def forward(self, ids):
        return super().forward(ids).log_softmax(-1)


def twin_of(model, norm, rescaled):
    """Plain blocks with these norms; the embedding's factor is in its table."""

    def block():
        attn = plain.Attention(D_MODEL, HEADS)
        mlp = plain.Mlp(D_MODEL, D_FF, nn.functional.relu)
        return plain.Block(attn, mlp, norm)

    twin = LogClassifier(
        VOCABULARY,
        TOKENS,
        D_MODEL,
        [block() for _ in range(LAYERS)],
        norm,
        classes=CLASSES,
        read=lambda x: x[:, 0],
        mask=lambda ids: (ids != 0)[:, None, None, :],
    )
    weights = renamed(
        model,
        ("encoder.layers", "blocks"),
        ("encoder.", ""),
        ("sublayer.0.norm", "norm1"),
        ("sublayer.1.norm", "norm2"),
        ("self_attn.linears.0", "attention.q"),
        ("self_attn.linears.1", "attention.k"),
        ("self_attn.linears.2", "attention.v"),
        ("self_attn.linears.3", "attention.out"),
        ("feed_forward.w_1", "mlp.up"),
        ("feed_forward.w_2", "mlp.down"),
        ("src_embed.0.lut", "embed"),
        ("proj", "head"),
    )
    weights["embed.weight"] = weights["embed.weight"] * math.sqrt(D_MODEL)
    weights["position.weight"] = model.src_embed[1].pe[0, :TOKENS].double()
    return filled(twin, rescaled(weights))


def annotated(eps, norm, rescaled=lambda weights: weights):
    model = drawn(Classifier(eps))
    twin = twin_of(model, norm, rescaled)
    tokens, mask = padded(TOKENS, LENGTHS, VOCABULARY)
    leaves = (
        model.encoder.layers[0].self_attn.linears[0].weight,
        twin.blocks[0].attention.q.weight,
    )
    return {
        "model": model,
        "twin": twin,
        "inputs": tokens,
        "tokens": TOKENS,
        "leaves": leaves,
        "padding": mask == 0,
    }


@pair
def annotated_transformer():
    return Pair(**annotated(1e-6, lambda: LayerNorm(D_MODEL)))


@pair
def annotated_transformer_without_eps():
    def rescaled(weights):
        ratio = math.sqrt((D_MODEL - 1) / D_MODEL)
        return {
            name.replace("a_2", "weight").replace("b_2", "bias"): w * ratio if "a_2" in name else w
            for name, w in weights.items()
        }

    return Pair(**annotated(0.0, lambda: nn.LayerNorm(D_MODEL, 0.0), rescaled))
