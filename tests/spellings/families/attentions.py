"""Attention in pieces: heads, queries, samples and keys one by one, in chunks, by vmap, into a
buffer; fused, by PyTorch's modules, and with axes in another order."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from tests.spellings.bases import CAUSAL, IDS, PADDED, PLAIN
from tests.spellings.model import WIDTH
from tests.spellings.spelling import OTHER_MAP, spells


def attend_plainly(q, k, v, allowed=None):
    """The plain way, whatever axes are in front."""
    s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    s = s if allowed is None else s.masked_fill(~allowed, -math.inf)
    return F.softmax(s, -1) @ v


# Heads.


@spells("attend", PLAIN, CAUSAL, PADDED)
def heads_stacked(parts, q, k, v, allowed):
    mask = None if allowed is None else allowed if allowed.dim() == 2 else allowed[:, 0]
    heads = [attend_plainly(q[:, h], k[:, h], v[:, h], mask) for h in range(q.shape[1])]
    return torch.stack(heads, 1)


@spells("attend", PLAIN, CAUSAL)
def heads_joined(parts, q, k, v, allowed):
    pieces = zip(q.split(1, 1), k.split(1, 1), v.split(1, 1), strict=True)
    return torch.cat([attend_plainly(*piece, allowed) for piece in pieces], 1)


@spells("attend", PLAIN)
def heads_unbound(parts, q, k, v, allowed):
    heads = zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True)
    return torch.stack([attend_plainly(*head) for head in heads], dim=1)


@spells("attend", PLAIN)
def heads_in_a_dict(parts, q, k, v, allowed):
    found = {f"head {h}": attend_plainly(q[:, h], k[:, h], v[:, h]) for h in range(q.shape[1])}
    return torch.stack([found[f"head {h}"] for h in range(q.shape[1])], 1)


@spells("attend", PLAIN)
def heads_last_first(parts, q, k, v, allowed):
    heads = [attend_plainly(q[:, h], k[:, h], v[:, h]) for h in reversed(range(q.shape[1]))]
    return torch.stack(heads[::-1], 1)


@spells("attend", PLAIN)
def heads_recursively(parts, q, k, v, allowed):
    if q.shape[1] == 1:
        return attend_plainly(q, k, v)
    halves = zip(*(t.tensor_split(2, 1) for t in (q, k, v)), strict=True)
    return torch.cat([heads_recursively(parts, *half, allowed) for half in halves], 1)


@spells("attend", PLAIN)
def heads_into_zeros(parts, q, k, v, allowed):
    out = torch.zeros_like(v)
    for h in range(q.shape[1]):
        out[:, h] = attend_plainly(q[:, h], k[:, h], v[:, h])
    return out


@spells("attend", PLAIN)
def heads_into_empty_by_copy(parts, q, k, v, allowed):
    out = torch.empty_like(v)
    for h in range(q.shape[1]):
        out[:, h].copy_(attend_plainly(q[:, h], k[:, h], v[:, h]))
    return out


@spells("attend", PLAIN)
def heads_stacked_last(parts, q, k, v, allowed):
    heads = [attend_plainly(q[:, h], k[:, h], v[:, h]) for h in range(q.shape[1])]
    return torch.stack(heads, -1).permute(0, 3, 1, 2)


@spells("attend", PLAIN)
def heads_in_the_batch(parts, q, k, v, allowed):
    return attend_plainly(*(t.flatten(0, 1) for t in (q, k, v))).unflatten(0, q.shape[:2])


@spells("attend", PLAIN)
def heads_in_the_batch_by_cat(parts, q, k, v, allowed):
    """As the Transformer's first implementations: heads are joined along the batch."""
    o = attend_plainly(*(torch.cat(t.unbind(1), 0) for t in (q, k, v)))
    return torch.stack(o.chunk(q.shape[1], 0), 1)


@spells("attend", PLAIN)
def heads_first(parts, q, k, v, allowed):
    return attend_plainly(*(t.transpose(0, 1) for t in (q, k, v))).transpose(0, 1)


@spells("attend", PLAIN)
def heads_by_vmap(parts, q, k, v, allowed):
    return torch.vmap(lambda *head: attend_plainly(*head), 1, 1)(q, k, v)


@spells("attend", PLAIN)
def heads_and_samples_by_vmap(parts, q, k, v, allowed):
    return torch.vmap(torch.vmap(lambda *head: attend_plainly(*head)))(q, k, v)


@spells("attend", PLAIN)
def maps_one_by_one_values_at_once(parts, q, k, v, allowed):
    """The maps are made head by head and stacked; the values are read once."""
    maps = [F.softmax(parts.scores(q[:, h], k[:, h]), -1) for h in range(q.shape[1])]
    return torch.stack(maps, 1) @ v


@spells("attend", PLAIN)
def scores_at_once_values_one_by_one(parts, q, k, v, allowed):
    a = F.softmax(parts.scores(q, k), -1)
    return torch.stack([a[:, h] @ v[:, h] for h in range(q.shape[1])], 1)


@spells("attend", PLAIN)
def scores_one_by_one_softmax_at_once(parts, q, k, v, allowed):
    s = torch.stack([parts.scores(q[:, h], k[:, h]) for h in range(q.shape[1])], 1)
    return F.softmax(s, -1) @ v


@spells("attend", PLAIN, either=True, apart=OTHER_MAP)
def heads_as_blocks_of_one_map(parts, q, k, v, allowed):
    """One map over the tokens of all heads; a mask keeps heads apart."""
    h, n = q.shape[1:3]
    own = torch.block_diag(*[torch.ones(n, n)] * h).bool()
    return attend_plainly(*(t.flatten(1, 2) for t in (q, k, v)), own).unflatten(1, (h, n))


@spells("attend", PLAIN)
def heads_as_turns_of_one_map(parts, q, k, v, allowed):
    """The same, head beside head, other heads' keys far below all others."""
    h, n = q.shape[1:3]
    hidden = -1e9 * (1 - torch.eye(h, dtype=q.dtype)).repeat(n, n)
    a, b, c = (t.transpose(1, 2).flatten(1, 2) for t in (q, k, v))
    made = (a @ b.mT / math.sqrt(a.shape[-1]) + hidden).softmax(-1) @ c
    return made.unflatten(1, (n, h)).transpose(1, 2)


@spells("attend", CAUSAL)
def heads_as_blocks_of_a_mask(parts, q, k, v, allowed):
    h, n = q.shape[1:3]
    own = torch.block_diag(*[allowed.double()] * h).bool()
    made = F.scaled_dot_product_attention(*(t.flatten(1, 2) for t in (q, k, v)), own)
    return made.unflatten(1, (h, n))


# Queries.


@spells("attend", PLAIN, PADDED)
def queries_stacked(parts, q, k, v, allowed):
    rows = [attend_plainly(q[:, :, i : i + 1], k, v, allowed)[:, :, 0] for i in range(q.shape[2])]
    return torch.stack(rows, 2)


@spells("attend", PLAIN, PADDED)
def queries_in_chunks(parts, q, k, v, allowed):
    return torch.cat([attend_plainly(piece, k, v, allowed) for piece in q.split(2, 2)], 2)


@spells("attend", PLAIN)
def queries_in_unequal_chunks(parts, q, k, v, allowed):
    return torch.cat([attend_plainly(piece, k, v) for piece in q.split([1, 4], 2)], 2)


@spells("attend", CAUSAL)
def queries_in_chunks_of_a_mask(parts, q, k, v, allowed):
    pieces = zip(q.split(2, 2), allowed.split(2), strict=True)
    return torch.cat([attend_plainly(piece, k, v, mask) for piece, mask in pieces], 2)


@spells("attend", PLAIN)
def queries_into_a_buffer(parts, q, k, v, allowed):
    out = torch.zeros_like(q)
    for i in range(q.shape[2]):
        out[:, :, i] = attend_plainly(q[:, :, i : i + 1], k, v)[:, :, 0]
    return out


@spells("attend", PLAIN)
def queries_into_slices(parts, q, k, v, allowed):
    out = q.new_empty(q.shape)
    for i in range(0, q.shape[2], 2):
        out[:, :, i : i + 2] = attend_plainly(q[:, :, i : i + 2], k, v)
    return out


@spells("attend", PLAIN)
def queries_recursively(parts, q, k, v, allowed):
    if q.shape[2] == 1:
        return attend_plainly(q, k, v)
    pieces = q.tensor_split(2, 2)
    return torch.cat([queries_recursively(parts, p, k, v, allowed) for p in pieces], 2)


@spells("attend", PLAIN)
def queries_and_heads_one_by_one(parts, q, k, v, allowed):
    def row(h, i):
        return attend_plainly(q[:, h, i : i + 1], k[:, h], v[:, h])

    rows = [torch.cat([row(h, i) for i in range(q.shape[2])], 1) for h in range(q.shape[1])]
    return torch.stack(rows, 1)


@spells("attend", PLAIN)
def maps_by_queries_values_at_once(parts, q, k, v, allowed):
    rows = [F.softmax(parts.scores(q[:, :, i : i + 1], k), -1) for i in range(q.shape[2])]
    return torch.cat(rows, 2) @ v


@spells("attend", PLAIN)
def the_class_token_apart(parts, q, k, v, allowed):
    """The first query by itself, as class attention has it."""
    first, rest = attend_plainly(q[:, :, :1], k, v), attend_plainly(q[:, :, 1:], k, v)
    return torch.cat((first, rest), 2)


# Keys.


@spells("attend", PLAIN)
def scores_by_chunks_of_keys(parts, q, k, v, allowed):
    s = torch.cat([parts.scores(q, piece) for piece in k.split(2, 2)], -1)
    return F.softmax(s, -1) @ v


@spells("attend", PLAIN, either=True, apart=OTHER_MAP)
def values_by_chunks_of_keys(parts, q, k, v, allowed):
    a = F.softmax(parts.scores(q, k), -1)
    return sum(w @ t for w, t in zip(a.split(2, -1), v.split(2, 2), strict=True))


@spells("attend", PLAIN, apart=OTHER_MAP)
def a_key_that_is_hidden(parts, q, k, v, allowed):
    """A further key that no query sees."""
    k, v = (torch.cat([t, torch.ones_like(t[:, :, :1])], 2) for t in (k, v))
    s = parts.scores(q, k).masked_fill(torch.arange(k.shape[2]) == q.shape[2], -math.inf)
    return F.softmax(s, -1) @ v


# Samples.


@spells("attend", PLAIN)
def samples_stacked(parts, q, k, v, allowed):
    return torch.stack([attend_plainly(*s) for s in zip(q, k, v, strict=True)])


@spells("attend", PLAIN)
def samples_joined(parts, q, k, v, allowed):
    pieces = zip(q.split(1), k.split(1), v.split(1), strict=True)
    return torch.cat([attend_plainly(*piece) for piece in pieces])


@spells("attend", PLAIN)
def samples_into_a_buffer(parts, q, k, v, allowed):
    out = torch.zeros_like(q)
    for i in range(len(q)):
        out[i] = attend_plainly(q[i], k[i], v[i])
    return out


@spells("attend", PLAIN)
def samples_by_vmap(parts, q, k, v, allowed):
    return torch.vmap(lambda *s: attend_plainly(*s))(q, k, v)


@spells("attend", PLAIN)
def samples_and_heads_one_by_one(parts, q, k, v, allowed):
    return torch.stack(
        [
            torch.stack([attend_plainly(*head) for head in zip(*sample, strict=True)])
            for sample in zip(q, k, v, strict=True)
        ]
    )


# Fused, and by PyTorch's modules.


@spells("attend", PLAIN)
def fused(parts, q, k, v, allowed):
    return F.scaled_dot_product_attention(q, k, v)


@spells("attend", PLAIN)
def fused_with_a_scale(parts, q, k, v, allowed):
    q = q * q.shape[-1] ** -0.5
    return F.scaled_dot_product_attention(q, k, v, scale=1.0)


@spells("attend", PLAIN)
def fused_with_a_mask_of_nothing(parts, q, k, v, allowed):
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=0.0)


@spells("attend", PLAIN)
def fused_head_by_head(parts, q, k, v, allowed):
    heads = zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True)
    return torch.stack([F.scaled_dot_product_attention(*head) for head in heads], 1)


@spells("attend", PLAIN)
def fused_by_the_private_math(parts, q, k, v, allowed):
    return torch.ops.aten._scaled_dot_product_attention_math(q, k, v)[0]


class PytorchAttention(nn.Module):
    """``nn.MultiheadAttention`` with the base's weights."""

    def __init__(self, base, parts, weights):
        super().__init__()
        self.inner = nn.MultiheadAttention(
            WIDTH, base.heads, batch_first=True, dtype=weights["query"][0].dtype
        )
        named = [weights[n] for n in ("query", "key", "value")]
        self.inner.load_state_dict(
            {
                "in_proj_weight": torch.cat([w for w, _ in named]),
                "in_proj_bias": torch.cat([b for _, b in named]),
                "out_proj.weight": weights["out"][0],
                "out_proj.bias": weights["out"][1],
            }
        )


@spells("attention", PLAIN)
class MultiheadAttention(PytorchAttention):
    def forward(self, x, allowed):
        return self.inner(x, x, x)[0]


@spells("attention", PLAIN)
class MultiheadAttentionWithoutWeights(PytorchAttention):
    def forward(self, x, allowed):
        return self.inner(x, x, x, need_weights=False)[0]


@spells("attention", CAUSAL)
class MultiheadAttentionCausal(PytorchAttention):
    def forward(self, x, allowed):
        return self.inner(x, x, x, attn_mask=~allowed, need_weights=False)[0]


@spells("attention", PADDED)
class MultiheadAttentionPadded(PytorchAttention):
    def forward(self, x, allowed):
        return self.inner(x, x, x, key_padding_mask=~allowed[:, 0, 0])[0]


@spells("attention", PLAIN)
class MultiheadAttentionTokensFirst(PytorchAttention):
    def forward(self, x, allowed):
        i, x = self.inner, x.transpose(0, 1)
        out, _ = F.multi_head_attention_forward(
            x, x, x, WIDTH, i.num_heads, i.in_proj_weight, i.in_proj_bias, None, None, False, 0.0,
            i.out_proj.weight, i.out_proj.bias, training=False,
        )  # fmt: skip
        return out.transpose(0, 1)


class _EncoderLayer(nn.Module):
    """``nn.TransformerEncoderLayer`` with the base's weights."""

    def __init__(self, base, parts, weights):
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(
            WIDTH, base.heads, len(weights["up"][0]), 0.1, parts.activation, 1e-5, True,
            norm_first=not base.post, dtype=torch.float64,
        )  # fmt: skip
        attention = PytorchAttention(base, parts, weights).inner
        layers = {"linear1": "up", "linear2": "down", "norm1": "norm1", "norm2": "norm2"}
        self.inner.load_state_dict(
            {f"self_attn.{n}": t for n, t in attention.state_dict().items()}
            | {f"{n}.weight": weights[w][0] for n, w in layers.items()}
            | {f"{n}.bias": weights[w][1] for n, w in layers.items()}
        )


@spells("block", PLAIN, IDS)
class TransformerEncoderLayer(_EncoderLayer):
    def forward(self, x, allowed):
        return self.inner(x)


@spells("block", CAUSAL)
class TransformerEncoderLayerCausal(_EncoderLayer):
    def forward(self, x, allowed):
        return self.inner(x, src_mask=~allowed, is_causal=True)


@spells("block", PADDED)
class TransformerEncoderLayerPadded(_EncoderLayer):
    def forward(self, x, allowed):
        return self.inner(x, src_key_padding_mask=~allowed[:, 0, 0])


# Features first, tokens first.


@spells("attention", PLAIN)
def features_first(at, x, allowed):
    """Everything as columns: (batch, features, tokens)."""
    q, k, v = (
        (f.weight @ x.mT + f.bias[:, None]).unflatten(1, (at.heads, -1))
        for f in (at.query, at.key, at.value)
    )
    a = torch.softmax(q.mT @ k / math.sqrt(q.shape[2]), -1)
    return (at.out.weight @ (v @ a.mT).flatten(1, 2) + at.out.bias[:, None]).mT


@spells("attention", PLAIN)
def maps_keys_before_queries(at, x, allowed):
    """The map is made and read with its keys in rows: softmax over the columns."""
    q, k, v = at.parts.queries_keys_values(at, x)
    a = torch.softmax(k @ q.mT / math.sqrt(q.shape[-1]), -2)
    return at.out(at.parts.join(a.mT @ v))


@spells("attention", PLAIN)
def maps_keys_before_queries_by_einsum(at, x, allowed):
    q, k, v = at.parts.queries_keys_values(at, x)
    a = (torch.einsum("bhkd,bhqd->bhkq", k, q) / math.sqrt(q.shape[-1])).softmax(2)
    return at.out(at.parts.join(torch.einsum("bhkq,bhkd->bhqd", a, v)))


@spells("attention", PLAIN)
def tokens_first(at, x, allowed):
    """As fairseq: (tokens, batch · heads, width of a head)."""
    b, n, _ = x.shape
    q, k, v = (
        f(x.transpose(0, 1)).contiguous().view(n, b * at.heads, -1).transpose(0, 1)
        for f in (at.query, at.key, at.value)
    )
    a = F.softmax(torch.bmm(q, k.transpose(1, 2)) * q.shape[-1] ** -0.5, dim=-1)
    o = torch.bmm(a, v).transpose(0, 1).contiguous().view(n, b, WIDTH)
    return at.out(o).transpose(0, 1)


@spells("attention", PLAIN)
def heads_between_tokens_and_features(at, x, allowed):
    """As Flax: (batch, tokens, heads, width of a head), never transposed."""
    q, k, v = (f(x).unflatten(-1, (at.heads, -1)) for f in (at.query, at.key, at.value))
    s = torch.einsum("bqhd,bkhd->bhqk", q / math.sqrt(q.shape[-1]), k)
    return at.out(torch.einsum("bhqk,bkhd->bqhd", torch.softmax(s, -1), v).flatten(2))


@spells("attention", PLAIN)
def heads_last(at, x, allowed):
    q, k, v = (f(x).unflatten(-1, (at.heads, -1)) for f in (at.query, at.key, at.value))
    s = torch.einsum("bqhd,bkhd->bqkh", q, k) / math.sqrt(q.shape[-1])
    return at.out(torch.einsum("bqkh,bkhd->bqhd", s.softmax(2), v).flatten(2))


@spells("attention", PLAIN)
def one_product_of_everything(at, x, allowed):
    """Scores as a sum over an axis that stands beside queries and keys."""
    q, k, v = at.parts.queries_keys_values(at, x)
    s = (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1) / math.sqrt(q.shape[-1])
    return at.out(at.parts.join((s.softmax(3).unsqueeze(-1) * v.unsqueeze(2)).sum(3)))


# PyTorch's flexible attention has no derivative on a CPU.


@spells("attend", PLAIN, inference=True)
def flexible(parts, q, k, v, allowed):
    return flex_attention(q, k, v)


@spells("attend", CAUSAL, inference=True)
def flexible_by_scores(parts, q, k, v, allowed):
    def seen(score, batch, head, query, key):
        return torch.where(query >= key, score, -math.inf)

    return flex_attention(q, k, v, score_mod=seen)


@spells("attend", PADDED, inference=True)
def flexible_by_a_tensor(parts, q, k, v, allowed):
    kept = allowed[:, 0, 0]

    def seen(score, batch, head, query, key):
        return torch.where(kept[batch, key], score, -math.inf)

    return flex_attention(q, k, v, score_mod=seen)
