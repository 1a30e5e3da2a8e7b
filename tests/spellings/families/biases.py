"""Relative positions: a learned number per head and distance, laid out as a matrix and added to the
scores in every way."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.spellings.bases import RELATIVE
from tests.spellings.families.softmaxes import divided_after_the_product
from tests.spellings.model import TOKENS
from tests.spellings.spelling import spell, spells

HEADS, DISTANCES = 2, 2 * TOKENS - 1


def _index(n):
    """For each query and key, which distance of the table is theirs."""
    return torch.arange(n)[:, None] - torch.arange(n) + n - 1


spell(
    "bias",
    RELATIVE,
    embedding=lambda n, t: F.embedding(_index(n), t.T).permute(2, 0, 1),
    index_select=lambda n, t: t.index_select(1, _index(n).flatten()).view(-1, n, n),
    gather=lambda n, t: t.gather(1, _index(n).flatten().expand(len(t), -1)).unflatten(1, (n, n)),
    take_along_dim=lambda n, t: torch.take_along_dim(t[:, None], _index(n)[None], 2),
    one_hot=lambda n, t: torch.einsum("qkr,hr->hqk", F.one_hot(_index(n), DISTANCES).to(t), t),
    one_hot_matmul=lambda n, t: (F.one_hot(_index(n), DISTANCES).to(t) @ t.T).movedim(-1, 0),
    rows_stacked=lambda n, t: torch.stack([t[:, i : i + n].flip(1) for i in range(n)], 1),
    rows_by_narrow=lambda n, t: torch.stack(
        [t.flip(1).narrow(1, n - 1 - i, n) for i in range(n)], 1
    ),
    unfold=lambda n, t: t.flip(1).unfold(1, n, 1).flip(1),
    as_strided=lambda n, t: t.contiguous().as_strided((len(t), n, n), (DISTANCES, 1, 1)).flip(2),
    shifted_by_padding=lambda n, t: _shifted(n, t),
    diagonals_added=lambda n, t: sum(
        torch.diag_embed(t[:, i + n - 1, None].expand(-1, n - abs(i)), offset=-i)
        for i in range(1 - n, n)
    ),
    diagonals_written=lambda n, t: _diagonals(n, t),
    rows_written=lambda n, t: _rows(n, t),
    numbers_one_by_one=lambda n, t: torch.stack(
        [torch.stack([t[:, q - k + n - 1] for k in range(n)], -1) for q in range(n)], 1
    ),
    heads_one_by_one=lambda n, t: torch.stack([row[_index(n)] for row in t]),
    signs_and_sizes=lambda n, t: torch.where(
        _index(n) >= n - 1,
        t[:, n - 1 :][:, (_index(n) - n + 1).clamp(min=0)],
        t[:, : n - 1][:, _index(n).clamp(max=n - 2)],
    ),
    with_an_axis_for_samples=lambda n, t: t[:, _index(n)].unsqueeze(0),
    contiguous=lambda n, t: t.T[_index(n)].permute(2, 0, 1).contiguous(),
)


def _shifted(n, t):
    """As Transformer-XL: rows are shifted by a column of padding and a view."""
    rows = t.flip(1)[:, None].expand(-1, n, -1)
    padded = F.pad(rows, (1, 0)).reshape(len(t), DISTANCES + 1, n)
    return padded[:, 1:].reshape(len(t), n, DISTANCES)[:, :, :n]


def _diagonals(n, t):
    out = t.new_zeros(len(t), n, n)
    for i in range(1 - n, n):
        out.diagonal(-i, 1, 2).copy_(t[:, i + n - 1, None])
    return out


def _rows(n, t):
    out = t.new_empty(len(t), n, n)
    for q in range(n):
        out[:, q] = t[:, q : q + n].flip(1)
    return out


@spells("bias", RELATIVE)
class Swin(nn.Module):
    """The table transposed, and the index as a buffer."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table.T.contiguous())
        self.register_buffer("index", _index(TOKENS))

    def forward(self, n):
        rows = self.table[self.index.view(-1)].view(n, n, -1)
        return rows.permute(2, 0, 1).contiguous().unsqueeze(0)


@spells("bias", RELATIVE)
class T5(nn.Module):
    """An embedding of distances."""

    def __init__(self, table):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(table.T.contiguous(), freeze=False)

    def forward(self, n):
        places = torch.arange(n)
        distances = places[None, :] - places[:, None]
        return self.embedding(TOKENS - 1 - distances).permute([2, 0, 1]).unsqueeze(0)


spell(
    "hide",
    RELATIVE,
    bias_first=lambda s, m: m + s,
    method=lambda s, m: torch.add(s, m),
    in_place=lambda s, m: s.add_(m),
    expanded=lambda s, m: s + m.expand_as(s),
    repeated=lambda s, m: s + m.repeat(len(s), 1, 1, 1),
    head_by_head=lambda s, m: torch.stack([s[:, h] + m[h] for h in range(HEADS)], 1),
    merged_heads=lambda s, m: (s.flatten(0, 1) + m.repeat(len(s), 1, 1)).view_as(s),
    less_the_negative=lambda s, m: s - (-m),
    stacked=lambda s, m: torch.stack([s, m.expand_as(s)]).sum(0),
    shifted=lambda s, m: s + (m - m.amax(-1, keepdim=True)),
    shifted_both=lambda s, m: (
        (s - s.amax(-1, keepdim=True)) + (m - m.mean(-1, keepdim=True).detach())
    ),
    shifted_and_scaled=lambda s, m: (2 * (s + m) - (s + m).amax(-1, keepdim=True)) / 2,
    taken_from_the_largest=lambda s, m: -(m.amax(-1, keepdim=True) - m - s),
    logarithms_of_shares=lambda s, m: s + m.log_softmax(-1),
)


@spells("attend", RELATIVE)
def fused(parts, q, k, v, given):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=given)


@spells("attend", RELATIVE)
def fused_with_a_mask_per_sample(parts, q, k, v, given):
    mask = given.expand(len(q), -1, -1, -1).contiguous()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@spells("attend", RELATIVE)
def baddbmm_onto_the_bias(parts, q, k, v, given):
    s = torch.baddbmm(
        given.repeat(len(q), 1, 1), q.flatten(0, 1), k.flatten(0, 1).mT, alpha=q.shape[-1] ** -0.5
    )
    return s.softmax(-1).bmm(v.flatten(0, 1)).view_as(v)


@spells("attend", RELATIVE)
def bias_as_a_factor(parts, q, k, v, given):
    """The numbers' exponentials multiply those of the scores."""
    e = parts.scores(q, k).exp() * given.exp()
    return (e / e.sum(-1, keepdim=True)) @ v


@spells("attend", RELATIVE)
def bias_as_a_divisor_and_shifts(parts, q, k, v, given):
    s = parts.scores(q, k)
    e = torch.exp(s - s.amax(-1, keepdim=True)) / torch.exp(given.amax(-1, keepdim=True) - given)
    return (e @ v) / e.sum(-1, keepdim=True)


@spells("attend", RELATIVE)
def shares_as_factors(parts, q, k, v, given):
    e = parts.scores(q, k).softmax(-1) * given.softmax(-1)
    return F.normalize(e, p=1, dim=-1) @ v


spell("attend", RELATIVE, divided_after_the_product=divided_after_the_product)
