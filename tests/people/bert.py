"""BERT as it was ported from TensorFlow, with padding, against transformers' BERT."""

import math

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from tests.people.pairs import Pair, drawn, filled, ids, pair, renamed

VOCABULARY, TOKENS, WIDTH, HEADS, LAYERS, HIDDEN, CLASSES = 13, 7, 8, 2, 2, 12, 3
LENGTHS = (7, 5, 4)


def gelu(x):
    """Implementation of the gelu activation function (with erf)."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class BertLayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-12):
        """Construct a layernorm module in the TF style (epsilon inside the square root)."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x):
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.variance_epsilon)
        return self.weight * x + self.bias


class BertEmbeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.position_embeddings = nn.Embedding(TOKENS + 2, WIDTH)
        self.token_type_embeddings = nn.Embedding(2, WIDTH)
        self.LayerNorm = BertLayerNorm(WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, input_ids, token_type_ids=None):
        seq_length = input_ids.size(1)
        position_ids = torch.arange(seq_length, dtype=torch.long, device=input_ids.device)
        position_ids = position_ids.unsqueeze(0).expand_as(input_ids)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        words_embeddings = self.word_embeddings(input_ids)
        position_embeddings = self.position_embeddings(position_ids)
        token_type_embeddings = self.token_type_embeddings(token_type_ids)
        embeddings = words_embeddings + position_embeddings + token_type_embeddings
        embeddings = self.LayerNorm(embeddings)
        return self.dropout(embeddings)


class BertSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_attention_heads = HEADS
        self.attention_head_size = int(WIDTH / HEADS)
        self.all_head_size = self.num_attention_heads * self.attention_head_size
        self.query = nn.Linear(WIDTH, self.all_head_size)
        self.key = nn.Linear(WIDTH, self.all_head_size)
        self.value = nn.Linear(WIDTH, self.all_head_size)
        self.dropout = nn.Dropout(0.1)

    def transpose_for_scores(self, x):
        new_x_shape = x.size()[:-1] + (self.num_attention_heads, self.attention_head_size)
        x = x.view(*new_x_shape)
        return x.permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask):
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        attention_scores = attention_scores + attention_mask
        attention_probs = nn.Softmax(dim=-1)(attention_scores)
        attention_probs = self.dropout(attention_probs)
        context_layer = torch.matmul(attention_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        new_context_layer_shape = context_layer.size()[:-2] + (self.all_head_size,)
        return context_layer.view(*new_context_layer_shape)


class BertOutput(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.dense = nn.Linear(size, WIDTH)
        self.LayerNorm = BertLayerNorm(WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden_states, input_tensor):
        hidden_states = self.dropout(self.dense(hidden_states))
        return self.LayerNorm(hidden_states + input_tensor)


class BertLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.ModuleDict({"self": BertSelfAttention(), "output": BertOutput(WIDTH)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(WIDTH, HIDDEN)})
        self.output = BertOutput(HIDDEN)

    def forward(self, hidden_states, attention_mask):
        self_output = self.attention["self"](hidden_states, attention_mask)
        attention_output = self.attention["output"](self_output, hidden_states)
        intermediate_output = gelu(self.intermediate["dense"](attention_output))
        return self.output(intermediate_output, attention_output)


class BertPooler(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.activation = nn.Tanh()

    def forward(self, hidden_states):
        first_token_tensor = hidden_states[:, 0]
        return self.activation(self.dense(first_token_tensor))


class BertClassifier(nn.Module):
    """``bert`` holds what the pretrained weights name so."""

    def __init__(self):
        super().__init__()
        layers = nn.ModuleDict({"layer": nn.ModuleList([BertLayer() for _ in range(LAYERS)])})
        parts = {"embeddings": BertEmbeddings(), "encoder": layers, "pooler": BertPooler()}
        self.bert = nn.ModuleDict(parts)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids, token_type_ids=None, attention_mask=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        extended_attention_mask = attention_mask.unsqueeze(1).unsqueeze(2)
        extended_attention_mask = extended_attention_mask.to(dtype=next(self.parameters()).dtype)
        extended_attention_mask = (1.0 - extended_attention_mask) * -10000.0
        hidden_states = self.bert["embeddings"](input_ids, token_type_ids)
        for layer_module in self.bert["encoder"]["layer"]:
            hidden_states = layer_module(hidden_states, extended_attention_mask)
        return self.classifier(self.dropout(self.bert["pooler"](hidden_states)))


def padded(tokens, lengths, vocabulary, pad=0, low=1):
    """Ids and a mask of texts of these lengths, padded on the right."""
    mask = (torch.arange(tokens) < torch.tensor(lengths)[:, None]).long()
    return torch.where(mask == 1, ids(tokens, vocabulary, low), pad), mask


def bert_twin(weights):
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        max_position_embeddings=TOKENS + 2,
        num_labels=CLASSES,
    )
    return filled(BertForSequenceClassification(config), weights)


@pair
def bert():
    model = drawn(BertClassifier())
    twin = bert_twin(renamed(model))
    input_ids, attention_mask = padded(TOKENS, LENGTHS, VOCABULARY)
    token_type_ids = (torch.arange(TOKENS) > torch.tensor([3, 2, 2])[:, None]).long()
    return Pair(
        model,
        twin,
        {
            "input_ids": input_ids,
            "token_type_ids": token_type_ids * attention_mask,
            "attention_mask": attention_mask,
        },
        TOKENS,
        twin_out=lambda out: out.logits,
        leaves=(
            model.bert["embeddings"].word_embeddings.weight,
            twin.bert.embeddings.word_embeddings.weight,
        ),
        padding=attention_mask == 0,
    )
