"""RoBERTa as fairseq has it: tokens first, heads folded into the batch, positions counted over what
is no padding; and Megatron's attention with ``baddbmm``. Against transformers' RoBERTa and BERT."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import RobertaConfig, RobertaForSequenceClassification

from tests.people.bert import (
    CLASSES,
    HEADS,
    HIDDEN,
    LAYERS,
    LENGTHS,
    TOKENS,
    VOCABULARY,
    WIDTH,
    bert_twin,
    padded,
)
from tests.people.pairs import Pair, drawn, filled, pair, renamed

PAD = 1


def make_positions(tensor, padding_idx):
    """Position numbers begin at padding_idx+1. Padding symbols are ignored."""
    mask = tensor.ne(padding_idx).int()
    return (torch.cumsum(mask, dim=1).type_as(mask) * mask).long() + padding_idx


class MultiheadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key_padding_mask):
        tgt_len, bsz, embed_dim = query.size()
        q, k, v = self.q_proj(query), self.k_proj(query), self.v_proj(query)
        q *= self.scaling
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        src_len = k.size(1)
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        assert list(attn_weights.size()) == [bsz * self.num_heads, tgt_len, src_len]
        attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, src_len)
        attn_weights = attn_weights.masked_fill(
            key_padding_mask.unsqueeze(1).unsqueeze(2).to(torch.bool), float("-inf")
        )
        attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, src_len)
        attn_probs = F.dropout(F.softmax(attn_weights, dim=-1), p=0.1, training=self.training)
        attn = torch.bmm(attn_probs, v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        return self.out_proj(attn)


class TransformerSentenceEncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = MultiheadAttention(WIDTH, HEADS)
        self.self_attn_layer_norm = nn.LayerNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.final_layer_norm = nn.LayerNorm(WIDTH)

    def forward(self, x, self_attn_padding_mask):
        residual = x
        x = self.self_attn(x, self_attn_padding_mask)
        x = residual + x
        x = self.self_attn_layer_norm(x)
        residual = x
        x = F.gelu(self.fc1(x))
        x = self.fc2(x)
        x = residual + x
        return self.final_layer_norm(x)


class RobertaClassificationHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.out_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, features):
        x = features[:, 0, :]  # take <s> token (equiv. to [CLS])
        return self.out_proj(torch.tanh(self.dense(x)))


class RobertaModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PAD)
        self.embed_positions = nn.Embedding(TOKENS + 2, WIDTH, padding_idx=PAD)
        self.emb_layer_norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList([TransformerSentenceEncoderLayer() for _ in range(LAYERS)])
        self.head = RobertaClassificationHead()

    def forward(self, tokens):
        padding_mask = tokens.eq(PAD)
        x = self.embed_tokens(tokens)
        x = x + self.embed_positions(make_positions(tokens, PAD))
        x = self.emb_layer_norm(x)
        x = x * (1 - padding_mask.unsqueeze(-1).type_as(x))
        x = x.transpose(0, 1)  # B x T x C -> T x B x C
        for layer in self.layers:
            x = layer(x, self_attn_padding_mask=padding_mask)
        x = x.transpose(0, 1)
        return self.head(x)


def roberta_twin(weights):
    """RoBERTa has a table of token types with one row, which is 0 here."""
    config = RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        max_position_embeddings=TOKENS + 2,
        type_vocab_size=1,
        num_labels=CLASSES,
        pad_token_id=PAD,
        layer_norm_eps=1e-5,
    )
    types = torch.zeros(1, WIDTH, dtype=torch.float64)
    weights["roberta.embeddings.token_type_embeddings.weight"] = types
    return filled(RobertaForSequenceClassification(config), weights)


@pair
def roberta():
    model = drawn(RobertaModel())
    weights = renamed(
        model,
        ("embed_tokens", "roberta.embeddings.word_embeddings"),
        ("embed_positions", "roberta.embeddings.position_embeddings"),
        ("emb_layer_norm", "roberta.embeddings.LayerNorm"),
        ("head.", "classifier."),
        ("layers.", "roberta.encoder.layer."),
        ("self_attn_layer_norm", "attention.output.LayerNorm"),
        ("self_attn.out_proj", "attention.output.dense"),
        ("self_attn.q_proj", "attention.self.query"),
        ("self_attn.k_proj", "attention.self.key"),
        ("self_attn.v_proj", "attention.self.value"),
        ("fc1", "intermediate.dense"),
        ("fc2", "output.dense"),
        ("final_layer_norm", "output.LayerNorm"),
    )
    twin = roberta_twin(weights)
    tokens, mask = padded(TOKENS, LENGTHS, VOCABULARY, pad=PAD, low=2)
    return Pair(
        model,
        twin,
        tokens,
        TOKENS,
        twin_inputs={"input_ids": tokens, "attention_mask": mask},
        twin_out=lambda out: out.logits,
        leaves=(model.embed_tokens.weight, twin.roberta.embeddings.word_embeddings.weight),
        padding=mask == 0,
    )


class ParallelAttention(nn.Module):
    """Megatron's: queries, keys and values of a head side by side, [s, b, heads, 3 * size]."""

    def __init__(self):
        super().__init__()
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.size = WIDTH // HEADS
        self.norm_factor = self.size**0.5

    def forward(self, hidden_states, attention_mask):
        mixed_x_layer = self.query_key_value(hidden_states)
        mixed_x_layer = mixed_x_layer.view(*mixed_x_layer.size()[:-1], HEADS, 3 * self.size)
        query, key, value = torch.split(mixed_x_layer, self.size, dim=-1)
        sq, b, np, hn = query.size()
        query = query.reshape(sq, b * np, -1)
        key = key.reshape(sq, b * np, -1)
        buffer = torch.empty(b * np, sq, sq, dtype=query.dtype, device=query.device)
        matmul_result = torch.baddbmm(
            buffer,
            query.transpose(0, 1),  # [b * np, sq, hn]
            key.transpose(0, 1).transpose(1, 2),  # [b * np, hn, sk]
            beta=0.0,
            alpha=(1.0 / self.norm_factor),
        )
        attention_scores = matmul_result.view(b, np, sq, sq)
        attention_scores.masked_fill_(attention_mask, -10000.0)
        attention_probs = nn.Softmax(dim=-1)(attention_scores)
        value = value.reshape(sq, b * np, -1)
        context = torch.bmm(attention_probs.view(b * np, sq, sq), value.transpose(0, 1))
        context = context.view(b, np, sq, hn).permute(2, 0, 1, 3).contiguous()
        return self.dense(context.view(sq, b, np * hn))


@torch.jit.script
def bias_gelu(bias, y):
    x = bias + y
    return x * 0.5 * (1.0 + torch.erf(x * 0.70710678118654752440))


class ParallelTransformerLayer(nn.Module):
    """The output of a linear map and its bias come apart, to be fused with what follows."""

    def __init__(self):
        super().__init__()
        self.attention = ParallelAttention()
        self.attention_norm, self.output_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.dense_h_to_4h, self.dense_4h_to_h = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x, attention_mask):
        x = self.attention_norm(self.attention(x, attention_mask) + x)
        parallel = F.linear(x, self.dense_h_to_4h.weight)
        intermediate = bias_gelu(self.dense_h_to_4h.bias, parallel)
        output = F.linear(intermediate, self.dense_4h_to_h.weight)
        return self.output_norm((output + self.dense_4h_to_h.bias) + x)


class MegatronBert(nn.Module):
    def __init__(self):
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.position_embeddings = nn.Embedding(TOKENS + 2, WIDTH)
        self.tokentype_embeddings = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList([ParallelTransformerLayer() for _ in range(LAYERS)])
        self.pooler, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids, attention_mask, tokentype_ids):
        position_ids = torch.arange(input_ids.size(1)).unsqueeze(0).expand_as(input_ids)
        embeddings = self.word_embeddings(input_ids) + self.position_embeddings(position_ids)
        x = self.norm(embeddings + self.tokentype_embeddings(tokentype_ids))
        # [b, 1, s] * [b, s, 1] -> [b, 1, s, s]
        extended = (attention_mask.unsqueeze(1) * attention_mask.unsqueeze(2)).unsqueeze(1)
        x = x.transpose(0, 1).contiguous()  # [b s h] -> [s b h]
        for layer in self.layers:
            x = layer(x, extended < 0.5)
        pooled = torch.tanh(self.pooler(x[0]))
        return self.head(pooled)


def megatron_weights(model):
    """Queries, keys and values of each head apart, as BERT has them."""
    weights = renamed(
        model,
        ("layers.", "bert.encoder.layer."),
        ("attention.dense", "attention.output.dense"),
        ("attention_norm", "attention.output.LayerNorm"),
        ("output_norm", "output.LayerNorm"),
        ("dense_h_to_4h", "intermediate.dense"),
        ("dense_4h_to_h", "output.dense"),
        ("pooler", "bert.pooler.dense"),
        ("head", "classifier"),
        ("tokentype", "token_type"),
        ("word_emb", "bert.embeddings.word_emb"),
        ("position_emb", "bert.embeddings.position_emb"),
        ("token_type_emb", "bert.embeddings.token_type_emb"),
    )
    apart = {}
    for name, w in weights.items():
        if name.startswith("norm."):
            apart["bert.embeddings.LayerNorm." + name.removeprefix("norm.")] = w
        elif "query_key_value" in name:
            parts = w.unflatten(0, (HEADS, 3, -1)).unbind(1)
            for which, part in zip(("query", "key", "value"), parts, strict=True):
                apart[name.replace("query_key_value", f"self.{which}")] = part.flatten(0, 1)
        else:
            apart[name] = w
    return apart


@pair
def megatron_bert():
    model = drawn(MegatronBert())
    for norm in (m for m in model.modules() if isinstance(m, nn.LayerNorm)):
        norm.eps = 1e-12  # as transformers' BERT
    twin = bert_twin(megatron_weights(model))
    input_ids, mask = padded(TOKENS, LENGTHS, VOCABULARY)
    types = torch.zeros_like(input_ids)
    return Pair(
        model,
        twin,
        {"input_ids": input_ids, "attention_mask": mask, "tokentype_ids": types},
        TOKENS,
        twin_inputs={"input_ids": input_ids, "attention_mask": mask, "token_type_ids": types},
        twin_out=lambda out: out.logits,
        padding=mask == 0,
        leaves=(model.position_embeddings.weight, twin.bert.embeddings.position_embeddings.weight),
    )
