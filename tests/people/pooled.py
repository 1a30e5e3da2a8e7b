"""Pooling by attention, and sentences by their mean: additive attention over a recurrent network, a
learned query that pools, a sentence encoder with padding; against plain spellings."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.people import plain
from tests.people.bert import padded
from tests.people.pairs import Pair, drawn, filled, ids, pair, renamed

VOCABULARY, TOKENS, DIM, HEADS, DEPTH, CLASSES = 11, 5, 8, 2, 2, 3
LENGTHS = (5, 3, 4)


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_dim):
        super().__init__()
        self.attn, self.v = nn.Linear(hidden_dim, hidden_dim), nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, rnn_outputs):
        energy = torch.tanh(self.attn(rnn_outputs))
        attention_scores = self.v(energy).squeeze(2)
        attn_weights = F.softmax(attention_scores, dim=1)
        context_vector = torch.sum(attn_weights.unsqueeze(2) * rnn_outputs, dim=1)
        return context_vector, attn_weights


class AttentionClassifier(nn.Module):
    """Over the states of a recurrent network, or over the embedded tokens themselves."""

    def __init__(self, recurrent):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.gru = (
            nn.GRU(DIM, DIM // 2, batch_first=True, bidirectional=True) if recurrent else None
        )
        self.attention = BahdanauAttention(DIM)
        self.fc = nn.Linear(DIM, CLASSES)

    def forward(self, text):
        outputs = self.embedding(text)
        if self.gru is not None:
            outputs, _hidden = self.gru(outputs)
        context, _weights = self.attention(outputs)
        return self.fc(context)


class AttentionTwin(AttentionClassifier):
    """The context as a product of matrices."""

    def forward(self, text):
        states = self.embedding(text)
        states = states if self.gru is None else self.gru(states)[0]
        scores = self.attention.v(self.attention.attn(states).tanh())
        return self.fc((scores.softmax(1).transpose(1, 2) @ states)[:, 0])


# One query, which is no token, and no skip connection: there is no layer of tokens.
NO_LAYER = {
    "attcat": "no layer's output holds the tokens of its own attention",
    "value_zeroing": "the queries of the attention at .* are not the tokens",
}


def additive(recurrent):
    model = drawn(AttentionClassifier(recurrent))
    twin = filled(AttentionTwin(recurrent), dict(model.named_parameters()))
    leaves = (model.embedding.weight, twin.embedding.weight)
    return Pair(model, twin, ids(TOKENS, VOCABULARY), TOKENS, leaves=leaves, refused=NO_LAYER)


@pair
def additive_attention():
    return additive(recurrent=False)


@pair
def recurrent_attention():
    return additive(recurrent=True)


class LearnedPool(nn.Module):
    """Heads are columns of one matrix; a query per head is a row of another."""

    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, DIM), nn.Embedding(TOKENS, DIM)
        self.queries = nn.Parameter(torch.zeros(HEADS, DIM))
        self.values, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position.weight
        a = torch.einsum("bnd,hd->bhn", x, self.queries).softmax(dim=-1)
        v = self.values(x).reshape(*x.shape[:2], HEADS, -1)
        pooled = torch.einsum("bhn,bnhd->bhd", a, v).flatten(1)
        return self.head(self.norm(self.out(pooled)))


class LearnedPoolTwin(LearnedPool):
    def forward(self, tokens):
        x = self.embed(tokens) + self.position(torch.arange(TOKENS))
        weights = F.linear(x, self.queries).transpose(1, 2).softmax(-1)
        pooled = weights[:, :, None] @ plain.heads_apart(self.values(x), HEADS)
        return self.head(self.norm(self.out(pooled.flatten(1))))


@pair
def learned_pool():
    model = drawn(LearnedPool())
    twin = filled(LearnedPoolTwin(), dict(model.named_parameters()))
    leaves = (model.embed.weight, twin.embed.weight)
    return Pair(model, twin, ids(TOKENS, VOCABULARY), TOKENS, leaves=leaves, refused=NO_LAYER)


class MaskedSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.mha = nn.MultiheadAttention(DIM, HEADS, batch_first=True)

    def forward(self, x, mask):
        return self.mha(x, x, x, key_padding_mask=(mask == 0), need_weights=True)[0]


class SentenceEncoder(nn.Module):
    """Mean of the real tokens, a length of 1, the cosine to each of some prototypes."""

    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, DIM), nn.Embedding(TOKENS, DIM)
        self.attention = nn.ModuleList(MaskedSelfAttention() for _ in range(DEPTH))
        self.norm = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2 * DEPTH))
        self.ff = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 12), nn.GELU(), nn.Linear(12, DIM)) for _ in range(DEPTH)
        )
        self.prototypes = nn.Parameter(torch.zeros(CLASSES, DIM))

    def mean_pooling(self, token_embeddings, attention_mask):
        input_mask_expanded = attention_mask.unsqueeze(-1).expand(token_embeddings.size())
        input_mask_expanded = input_mask_expanded.to(token_embeddings.dtype)
        sum_embeddings = torch.sum(token_embeddings * input_mask_expanded, 1)
        sum_mask = torch.clamp(input_mask_expanded.sum(1), min=1e-9)
        return sum_embeddings / sum_mask

    def forward(self, input_ids, attention_mask):
        positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        x = self.embed(input_ids) + self.position(positions)
        for i in range(DEPTH):
            x = self.norm[2 * i](x + self.attention[i](x, attention_mask))
            x = self.norm[2 * i + 1](x + self.ff[i](x))
        pooled = self.mean_pooling(x, attention_mask)
        return F.cosine_similarity(pooled.unsqueeze(1), self.prototypes.unsqueeze(0), dim=-1)


class SentenceTwin(nn.Module):
    """The mean as a product with weights that sum to 1; prototypes of length 1."""

    def __init__(self, prototypes):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, DIM), nn.Embedding(TOKENS, DIM)

        def block():
            mlp = plain.Mlp(DIM, 12)
            return plain.PostBlock(plain.Attention(DIM, HEADS), mlp, lambda: nn.LayerNorm(DIM))

        self.blocks = nn.ModuleList(block() for _ in range(DEPTH))
        self.register_buffer("prototypes", F.normalize(prototypes.detach(), dim=-1))

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids) + self.position(torch.arange(TOKENS))
        for block in self.blocks:
            x = block(x, mask=(attention_mask != 0)[:, None, None])
        weights = attention_mask.to(x.dtype) / attention_mask.sum(1, keepdim=True)
        pooled = (weights[:, None] @ x)[:, 0]
        return F.linear(F.normalize(pooled, dim=-1), self.prototypes)


def sentence_weights(model):
    changes = [("out_proj", "out"), ("mha.", "")]
    for i in range(DEPTH):
        changes += [(f"attention.{i}.", f"blocks.{i}.attention.")]
        changes += [(f"norm.{2 * i}.", f"blocks.{i}.norm1.")]
        changes += [(f"norm.{2 * i + 1}.", f"blocks.{i}.norm2.")]
        changes += [(f"ff.{i}.0", f"blocks.{i}.mlp.up"), (f"ff.{i}.2", f"blocks.{i}.mlp.down")]
    weights = renamed(model, *changes)
    weights.pop("prototypes")
    return plain.thirds(weights, "in_proj_", ("q.", "k.", "v."))


@pair
def sentence_encoder():
    model = drawn(SentenceEncoder())
    twin = filled(SentenceTwin(model.prototypes), sentence_weights(model))
    input_ids, mask = padded(TOKENS, LENGTHS, VOCABULARY)
    return Pair(
        model,
        twin,
        {"input_ids": input_ids, "attention_mask": mask},
        TOKENS,
        leaves=(model.embed.weight, twin.embed.weight),
        padding=mask == 0,
    )
