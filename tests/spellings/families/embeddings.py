"""Ids to vectors: looked up, picked, or multiplied with a row that is one at the id."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.spellings.bases import CAUSAL, IDS, PADDED, SCALED
from tests.spellings.model import VOCABULARY, WIDTH
from tests.spellings.spelling import spell, spells


def _hot(ids, table):
    return F.one_hot(ids, len(table)).to(table.dtype)


spell(
    "embed",
    IDS,
    CAUSAL,
    index=lambda ids, w: w[ids],
    index_select=lambda ids, w: w.index_select(0, ids.flatten()).view(*ids.shape, -1),
    one_hot_matmul=lambda ids, w: _hot(ids, w) @ w,
)

spell(
    "embed",
    IDS,
    torch_embedding=lambda ids, w: torch.embedding(w, ids),
    with_padding=lambda ids, w: F.embedding(ids, w, padding_idx=0),
    without_sparsity=lambda ids, w: F.embedding(ids, w, None, None, 2.0, False, False),
    index_of_the_flattened=lambda ids, w: w[ids.reshape(-1)].reshape(len(ids), -1, WIDTH),
    index_with_an_ellipsis=lambda ids, w: w[ids, :],
    index_of_ints=lambda ids, w: w[ids.int()],
    index_of_a_copy=lambda ids, w: (w * 1.0)[ids],
    index_of_the_transposed=lambda ids, w: w.T[:, ids].permute(1, 2, 0),
    embedding_of_the_transposed_twice=lambda ids, w: F.embedding(ids, w.T.contiguous().T),
    embedding_tokens_first=lambda ids, w: F.embedding(ids.T, w).transpose(0, 1),
    embedding_token_by_token=lambda ids, w: torch.stack(
        [F.embedding(i, w) for i in ids.unbind(1)], 1
    ),
    embedding_sample_by_sample=lambda ids, w: torch.stack([F.embedding(i, w) for i in ids]),
    index_select_by_sample=lambda ids, w: torch.stack([w.index_select(0, i) for i in ids]),
    gather_of_the_table=lambda ids, w: w.gather(0, ids.reshape(-1, 1).expand(-1, WIDTH)).unflatten(
        0, ids.shape
    ),
    one_hot_linear=lambda ids, w: F.linear(_hot(ids, w), w.T),
    one_hot_einsum=lambda ids, w: torch.einsum("bnv,vd->bnd", _hot(ids, w), w),
    one_hot_tensordot=lambda ids, w: torch.tensordot(_hot(ids, w), w, 1),
    one_hot_sum=lambda ids, w: (_hot(ids, w)[..., None] * w).sum(2),
    one_hot_by_comparison=lambda ids, w: (ids[..., None] == torch.arange(len(w))).to(w.dtype) @ w,
    one_hot_by_eye=lambda ids, w: torch.eye(len(w), dtype=w.dtype)[ids] @ w,
    one_hot_einsum_with_the_table_first=lambda ids, w: torch.einsum("vd,bnv->bnd", w, _hot(ids, w)),
    one_hot_by_scatter_einsum=lambda ids, w: torch.einsum(
        "vd,bnv->dbn", w, torch.zeros(*ids.shape, len(w)).to(w).scatter(-1, ids[..., None], 1)
    ).permute(1, 2, 0),
    one_hot_by_scatter=lambda ids, w: (
        torch.zeros(*ids.shape, len(w), dtype=w.dtype).scatter(-1, ids[..., None], 1.0) @ w
    ),
    one_hot_by_scatter_in_place=lambda ids, w: (
        torch.zeros(*ids.shape, len(w), dtype=w.dtype).scatter_(2, ids.unsqueeze(-1), 1) @ w
    ),
    one_hot_without_class_count=lambda ids, w: (
        F.one_hot(torch.cat([ids, torch.full_like(ids[:1], len(w) - 1)])).to(w.dtype)[:-1] @ w
    ),
    select_of_the_transposed=lambda ids, w: w.T.index_select(1, ids.flatten()).T.reshape(
        *ids.shape, -1
    ),
    bag_with_weights=lambda ids, w: F.embedding_bag(
        ids.view(-1, 1),
        w,
        mode="sum",
        per_sample_weights=torch.ones(ids.numel(), 1).to(w),
    ).view(*ids.shape, -1),
    bag_of_one=lambda ids, w: F.embedding_bag(ids.flatten()[:, None], w, mode="sum").view(
        *ids.shape, -1
    ),
    vmap=lambda ids, w: torch.vmap(lambda i: F.embedding(i, w))(ids),
    ids_clamped=lambda ids, w: F.embedding(ids.clamp(0, VOCABULARY - 1), w),
    ids_modulo=lambda ids, w: F.embedding(ids % VOCABULARY, w),
    ids_there_and_back=lambda ids, w: F.embedding((ids + 1) - 1, w),
    ids_cast=lambda ids, w: F.embedding(ids.to(torch.int32).long(), w),
    table_rolled=lambda ids, w: F.embedding((ids + 2) % VOCABULARY, w.roll(2, 0)),
    table_and_a_row_more=lambda ids, w: F.embedding(ids, F.pad(w, (0, 0, 0, 1))),
    written_by_index=lambda ids, w: _written(ids, w),
    # Ids in another order, and their rows back in place.
    reversed_twice=lambda ids, w: w[ids.flip(1)].flip(1),
    reversed_and_clamped=lambda ids, w: F.embedding(ids.flip(-1).clamp(min=0), w).flip(1),
    rolled=lambda ids, w: F.embedding(ids.roll(2, 1), w).roll(-2, 1),
    in_another_order=lambda ids, w: _ordered(ids, w, torch.arange(ids.shape[1]) * 3),
    halves_exchanged=lambda ids, w: torch.cat(
        w[torch.cat([ids[:, 2:], ids[:, :2]], 1)].split([ids.shape[1] - 2, 2], 1)[::-1], 1
    ),
    ordered_by_argsort=lambda ids, w: w[ids.gather(1, ids.argsort(1))].take_along_dim(
        ids.argsort(1).argsort(1)[..., None], 1
    ),
    ordered_by_topk=lambda ids, w: _by_topk(ids, w),
    one_more_in_front=lambda ids, w: w[torch.cat([ids.new_ones(len(ids), 1), ids], 1)][:, 1:],
    padded_behind=lambda ids, w: w[F.pad(ids, (0, 3))][:, :-3],
)


def _ordered(ids, w, steps):
    order = steps % ids.shape[1] if ids.shape[1] % 3 else steps.flip(0) // 3
    return w[ids[:, order]][:, order.argsort()]


def _by_topk(ids, w):
    found = ids.topk(ids.shape[1], 1)
    places = found.indices.argsort(1)
    return w[found.values].gather(1, places[..., None].expand(-1, -1, w.shape[1]))


def _written(ids, w):
    out = w.new_zeros(*ids.shape, WIDTH)
    for i in range(ids.shape[1]):
        out[:, i] = w[ids[:, i]]
    return out


spell(
    "embed",
    IDS,
    refused="depends on no explained input",
    gather=lambda ids, w: w.expand(len(ids), -1, -1).gather(
        1, ids[..., None].expand(-1, -1, WIDTH)
    ),
)

spell(
    "embed",
    PADDED,
    reversed_twice=lambda ids, w: w[ids.flip(1)].flip(1),
    index=lambda ids, w: w[ids],
    with_padding=lambda ids, w: F.embedding(ids, w, padding_idx=0),
    one_hot_matmul=lambda ids, w: _hot(ids, w) @ w,
)


@spells("embed", IDS, PADDED)
class EmbeddingModule(nn.Embedding):
    """PyTorch's own module."""

    def __init__(self, table):
        super().__init__(*table.shape, padding_idx=0, dtype=table.dtype)
        self.load_state_dict({"weight": table})


@spells("embed", IDS)
class EmbeddingTransposed(nn.Module):
    """The table is the weight of an output layer, (width, vocabulary)."""

    def __init__(self, table):
        super().__init__()
        self.weight = nn.Parameter(table.T.clone())

    def forward(self, ids):
        return F.embedding(ids, self.weight.T)


@spells("embed", IDS)
class LinearOfOneHot(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.layer = nn.Linear(*table.shape, bias=False, dtype=table.dtype)
        self.layer.load_state_dict({"weight": table.T})

    def forward(self, ids):
        return self.layer(F.one_hot(ids, VOCABULARY).double())


@spells("embed", IDS)
class RowsInAList(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.rows = nn.ParameterList(list(table.clone()))

    def forward(self, ids):
        return torch.stack(list(self.rows))[ids]


@spells("embed", IDS)
class Buffer(nn.Module):
    """Fixed vectors of words."""

    def __init__(self, table):
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, ids):
        return self.table[ids]


class OneTable(nn.Module):
    """Words and kinds of words are rows of one table, whose numbers come after each other."""

    def __init__(self, table):
        super().__init__()
        kinds = torch.linspace(-1, 1, 2 * WIDTH, dtype=table.dtype).reshape(2, -1)
        words = table - kinds[_kinds(torch.arange(len(table)))]
        self.weight = nn.Parameter(torch.cat([words, kinds]))

    def forward(self, ids):
        return self.way(F.embedding, ids, _kinds(ids) + VOCABULARY, self.weight)


def _kinds(ids):
    return (ids > 4).long()


spell(
    "embed",
    IDS,
    **{
        name: type(name, (OneTable,), {"way": staticmethod(way)})
        for name, way in {
            "words_and_kinds": lambda look, a, b, w: look(a, w) + look(b, w),
            "at_once": lambda look, a, b, w: look(torch.stack([a, b]), w).sum(0),
            "at_once_behind": lambda look, a, b, w: look(torch.stack([a, b], -1), w).sum(-2),
            "in_a_row": lambda look, a, b, w: sum(look(torch.cat([a, b], 1), w).chunk(2, 1)),
        }.items()
    },
)


# Multiplied by a number.

spell(
    "scale",
    SCALED,
    number_first=lambda x: 2.5 * x,
    tensor=lambda x: x * torch.tensor(2.5, dtype=x.dtype),
    tensor_of_the_type=lambda x: x * x.new_tensor(2.5),
    vector=lambda x: x * torch.full((WIDTH,), 2.5, dtype=x.dtype),
    divided=lambda x: x / 0.4,
    in_place=lambda x: (x + 0).mul_(2.5),
    root=lambda x: x * 6.25**0.5,
    sum_of_two=lambda x: 2 * x + 0.5 * x,
    add_with_alpha=lambda x: torch.add(2 * x, x, alpha=0.5),
    einsum=lambda x: torch.einsum("bnd,->bnd", x, x.new_tensor(2.5)),
    addcmul=lambda x: torch.addcmul(x, x, torch.ones_like(x), value=1.5),
    diagonal=lambda x: x @ (2.5 * torch.eye(WIDTH, dtype=x.dtype)),
    lerp=lambda x: torch.lerp(torch.zeros_like(x), x, 2.5),
    two_steps=lambda x: x * 5 / 2,
    stacked=lambda x: torch.stack([x] * 5).sum(0) / 2,
)
