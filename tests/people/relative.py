"""Relative positions: Transformer-XL's shift, the music transformer's skew, Shaw's keys and values;
against gathers from the same tables, and Shaw's sums written out."""

import math
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

from tests.people import plain
from tests.people.pairs import Pair, drawn, filled, ids, pair

VOCABULARY, TOKENS, DIM, HEADS, DEPTH, CLASSES = 11, 6, 8, 2, 2, 3
SIZE = DIM // HEADS


class Relative(nn.Module):
    """Projections, and a vector of each distance from −(n − 1) to n − 1, shared by the heads."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.table = nn.Parameter(torch.zeros(2 * TOKENS - 1, SIZE))

    def heads(self, x):
        return (plain.heads_apart(m(x), HEADS) for m in (self.q, self.k, self.v))

    def gathered(self, table):
        """(queries, keys, size): the vector of each distance."""
        at = torch.arange(TOKENS)
        return table[at[None] - at[:, None] + TOKENS - 1]


def causal(scores):
    n = scores.shape[-1]
    return scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))


class Music(Relative):
    """The skew of Huang et al. 2018: a column is put before, the rest is reshaped, a row is cut."""

    def forward(self, x):
        q, k, v = self.heads(x)
        QEr = torch.matmul(q, self.table[:TOKENS].transpose(0, 1))
        Srel = self.skew(QEr)
        attn = (torch.matmul(q, k.transpose(2, 3)) + Srel) / math.sqrt(SIZE)
        attn = causal(attn).softmax(-1)
        return self.out(torch.matmul(attn, v).transpose(1, 2).flatten(2))

    def skew(self, QEr):
        padded = F.pad(QEr, (1, 0))
        batch_size, num_heads, num_rows, num_cols = padded.shape
        reshaped = padded.reshape(batch_size, num_heads, num_cols, num_rows)
        return reshaped[:, :, 1:, :]


class MusicTwin(Relative):
    def forward(self, x):
        q, k, v = self.heads(x)
        distances = torch.einsum("bhqd,qkd->bhqk", q, self.gathered(self.table))
        attention = causal((q @ k.mT + distances) / math.sqrt(SIZE)).softmax(-1)
        return self.out(plain.heads_together(attention @ v))


class Shaw(Relative):
    """Keys and values of distances (Shaw et al. 2018), with the tokens first for the product."""

    def __init__(self):
        super().__init__()
        self.table_v = nn.Parameter(torch.zeros(2 * TOKENS - 1, SIZE))

    def forward(self, x):
        b, n = x.shape[:2]
        q, k, v = self.heads(x)
        r_k, r_v = self.gathered(self.table), self.gathered(self.table_v)
        attn1 = torch.matmul(q, k.permute(0, 1, 3, 2))
        r_q2 = q.permute(2, 0, 1, 3).contiguous().view(n, b * HEADS, SIZE)
        attn2 = torch.matmul(r_q2, r_k.transpose(1, 2)).transpose(0, 1)
        attn2 = attn2.contiguous().view(b, HEADS, n, n)
        attn = torch.softmax((attn1 + attn2) / math.sqrt(SIZE), dim=-1)
        weight1 = torch.matmul(attn, v)
        weight2 = attn.permute(2, 0, 1, 3).contiguous().view(n, b * HEADS, n)
        weight2 = torch.matmul(weight2, r_v)
        weight2 = weight2.transpose(0, 1).contiguous().view(b, HEADS, n, SIZE)
        x = weight1 + weight2
        return self.out(x.permute(0, 2, 1, 3).contiguous().view(b, -1, DIM))


class ShawTwin(Shaw):
    def forward(self, x):
        q, k, v = self.heads(x)
        r_k, r_v = self.gathered(self.table), self.gathered(self.table_v)
        scores = q @ k.mT + torch.einsum("bhqd,qkd->bhqk", q, r_k)
        attention = (scores / math.sqrt(SIZE)).softmax(-1)
        mixed = attention @ v + torch.einsum("bhqk,qkd->bhqd", attention, r_v)
        return self.out(plain.heads_together(mixed))


class TransformerXL(Relative):
    """Tokens first, a softmax over the second axis, sines as positions (Dai et al. 2019)."""

    def __init__(self):
        super().__init__()
        self.r_net = nn.Linear(DIM, DIM, bias=False)
        self.r_w_bias, self.r_r_bias = (nn.Parameter(torch.zeros(HEADS, SIZE)) for _ in range(2))
        inv_freq = 1 / (100 ** (torch.arange(0.0, DIM, 2.0) / DIM))
        self.register_buffer("inv_freq", inv_freq)
        del self.table

    def positions(self, klen):
        pos_seq = torch.arange(klen - 1, -1, -1.0, dtype=self.inv_freq.dtype)
        sinusoid_inp = torch.ger(pos_seq, self.inv_freq)
        return torch.cat([sinusoid_inp.sin(), sinusoid_inp.cos()], dim=-1)[:, None, :]

    def _rel_shift(self, x):
        zero_pad = torch.zeros((x.size(0), 1, *x.size()[2:]), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.view(x.size(1) + 1, x.size(0), *x.size()[2:])
        return x_padded[1:].view_as(x)

    def forward(self, x):
        w = x.transpose(0, 1)
        qlen, bsz = w.size(0), w.size(1)
        w_head_q = self.q(w).view(qlen, bsz, HEADS, SIZE)
        w_head_k = self.k(w).view(qlen, bsz, HEADS, SIZE)
        w_head_v = self.v(w).view(qlen, bsz, HEADS, SIZE)
        r_head_k = self.r_net(self.positions(qlen)).view(qlen, HEADS, SIZE)
        rw_head_q = w_head_q + self.r_w_bias
        AC = torch.einsum("ibnd,jbnd->ijbn", (rw_head_q, w_head_k))
        rr_head_q = w_head_q + self.r_r_bias
        BD = torch.einsum("ibnd,jnd->ijbn", (rr_head_q, r_head_k))
        BD = self._rel_shift(BD)
        attn_score = AC + BD
        attn_score.mul_(1 / (SIZE**0.5))
        attn_mask = torch.triu(torch.ones(qlen, qlen), diagonal=1).bool()[:, :, None]
        attn_score = attn_score.masked_fill(attn_mask[:, :, :, None], -float("inf"))
        attn_prob = F.softmax(attn_score, dim=1)
        attn_vec = torch.einsum("ijbn,jbnd->ibnd", (attn_prob, w_head_v))
        attn_vec = attn_vec.contiguous().view(qlen, bsz, DIM)
        return self.out(attn_vec).transpose(0, 1)


class TransformerXLTwin(TransformerXL):
    """Samples first; the vector of the distance i − j is looked up, 0 where it is masked anyway."""

    def forward(self, x):
        q, k, v = self.heads(x)
        r = self.r_net(self.positions(TOKENS))[:, 0].view(TOKENS, HEADS, SIZE)
        at = torch.arange(TOKENS)
        r = r[(TOKENS - 1 - at[:, None] + at).clamp(max=TOKENS - 1)]
        content = (q + self.r_w_bias[:, None]) @ k.mT
        position = torch.einsum("bhqd,qkhd->bhqk", q + self.r_r_bias[:, None], r)
        attention = causal((content + position) / math.sqrt(SIZE)).softmax(-1)
        return self.out(plain.heads_together(attention @ v))


def relative(attention, twin_attention):
    def transformer(kind):
        def block():
            return plain.Block(kind(), plain.Mlp(DIM, 12), lambda: nn.LayerNorm(DIM))

        blocks = [block() for _ in range(DEPTH)]
        return plain.Language(
            VOCABULARY, None, DIM, blocks, classes=CLASSES, read=lambda x: x[:, -1]
        )

    model = drawn(transformer(attention))
    twin = filled(transformer(twin_attention), dict(model.named_parameters()))
    leaves = (model.embed.weight, twin.embed.weight)
    return Pair(model, twin, ids(TOKENS, VOCABULARY), TOKENS, leaves=leaves)


@pair
def music_transformer():
    return relative(Music, MusicTwin)


@pair
def shaw():
    """What the values of distances add has no token of its own, so it is no part of any f(x_j)."""
    found = relative(Shaw, ShawTwin)
    refused = {"attention_norm": "no linear map takes the heads' results"}
    return replace(found, refused=refused)


@pair
def transformer_xl():
    return relative(TransformerXL, TransformerXLTwin)
