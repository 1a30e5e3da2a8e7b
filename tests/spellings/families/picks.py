"""One token that a mask is true at, or whose number is worked out: the last that is no padding."""

import torch
from torch.nn import functional as F

from tests.spellings.bases import ENDED
from tests.spellings.spelling import spell


def _rows(x):
    return torch.arange(len(x))


def _places(x):
    return torch.arange(x.shape[1])


def _end(m):
    return m.sum(1) - 1


def _at(x, m):
    """Whether each place is the last real one."""
    return _places(x) == _end(m)[:, None]


def _by_count(m):
    """The same, by how many real ones stand up to each."""
    return (m.cumsum(1) == m.sum(1, keepdim=True)) & m


spell(
    "pool",
    ENDED,
    gather=lambda x, m: x.gather(1, _end(m)[:, None, None].expand(-1, 1, x.shape[-1]))[:, 0],
    take_along_dim=lambda x, m: torch.take_along_dim(x, _end(m)[:, None, None], 1).squeeze(1),
    flat_rows=lambda x, m: x.flatten(0, 1)[_rows(x) * x.shape[1] + _end(m)],
    largest_place=lambda x, m: x[_rows(x), (_places(x) * m).argmax(-1)],
    first_of_the_reversed=lambda x, m: x[_rows(x), x.shape[1] - 1 - m.flip(1).int().argmax(-1)],
    one_hot_product=lambda x, m: (F.one_hot(_end(m), x.shape[1]).to(x)[:, None] @ x)[:, 0],
    one_hot_sum=lambda x, m: (F.one_hot(_end(m), x.shape[1])[..., None] * x).sum(1),
    comparison_and_sum=lambda x, m: (_at(x, m)[..., None] * x).sum(1),
    comparison_as_numbers=lambda x, m: (x * _at(x, m).to(x).unsqueeze(-1)).sum(dim=-2),
    comparison_by_where=lambda x, m: torch.where(_at(x, m)[..., None], x, 0.0).sum(1),
    comparison_by_where_not=lambda x, m: torch.where(
        ~_at(x, m)[..., None], torch.zeros_like(x), x
    ).sum(1),
    comparison_masked_fill=lambda x, m: x.masked_fill(~_at(x, m)[..., None], 0).sum(1),
    comparison_expanded=lambda x, m: (x * _at(x, m)[..., None].expand_as(x)).sum(1, keepdim=True)[
        :, 0
    ],
    comparison_einsum=lambda x, m: torch.einsum("bs,bsd->bd", _at(x, m).to(x), x),
    comparison_matmul=lambda x, m: (_at(x, m).to(x).unsqueeze(1) @ x).squeeze(1),
    comparison_bmm=lambda x, m: torch.bmm(x.mT, _at(x, m).to(x)[..., None]).squeeze(-1),
    comparison_divided=lambda x, m: (
        (_at(x, m)[..., None] * x).sum(1) / _at(x, m).sum(1, keepdim=True)
    ),
    comparison_of_the_transposed=lambda x, m: (x.mT * _at(x, m)[:, None]).sum(-1),
    counted=lambda x, m: (_by_count(m)[..., None] * x).sum(1),
    counted_einsum=lambda x, m: torch.einsum("bs,bsd->bd", _by_count(m).to(x), x),
    counted_from_behind=lambda x, m: (
        ((m.flip(1).cumsum(1).flip(1) == 1) & m).to(x).unsqueeze(1).bmm(x)[:, 0]
    ),
    between_two=lambda x, m: (
        ((_places(x) < m.sum(1, keepdim=True)) & (_places(x) >= _end(m)[:, None]))[..., None] * x
    ).sum(1),
    difference_of_masks=lambda x, m: (
        ((_places(x) < m.sum(1, keepdim=True)).to(x) - (_places(x) < _end(m)[:, None]).to(x))[
            ..., None
        ]
        * x
    ).sum(1),
    largest_place_compared=lambda x, m: (
        (_places(x) == (_places(x) * m).amax(1, keepdim=True))[..., None] * x
    ).sum(1),
    scattered=lambda x, m: (
        torch.zeros_like(x[..., 0]).scatter(1, _end(m)[:, None], 1.0)[..., None] * x
    ).sum(1),
    rows_of_the_identity=lambda x, m: (torch.eye(x.shape[1]).to(x)[_end(m)][..., None] * x).sum(1),
    bool_index=lambda x, m: x[_at(x, m)],
    loop=lambda x, m: torch.stack([t[int(n)] for t, n in zip(x, _end(m), strict=True)]),
)
