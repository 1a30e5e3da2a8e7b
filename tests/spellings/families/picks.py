"""One token whose number is worked out: the last that is no padding."""

import torch

from tests.spellings.bases import ENDED
from tests.spellings.spelling import spell


def _rows(x):
    return torch.arange(len(x))


def _places(x):
    return torch.arange(x.shape[1])


def _end(m):
    return m.sum(1) - 1


spell(
    "pool",
    ENDED,
    gather=lambda x, m: x.gather(1, _end(m)[:, None, None].expand(-1, 1, x.shape[-1]))[:, 0],
    take_along_dim=lambda x, m: torch.take_along_dim(x, _end(m)[:, None, None], 1).squeeze(1),
    flat_rows=lambda x, m: x.flatten(0, 1)[_rows(x) * x.shape[1] + _end(m)],
    largest_place=lambda x, m: x[_rows(x), (_places(x) * m).argmax(-1)],
    first_of_the_reversed=lambda x, m: x[_rows(x), x.shape[1] - 1 - m.flip(1).int().argmax(-1)],
    bool_index=lambda x, m: x[_places(x) == _end(m)[:, None]],
    loop=lambda x, m: torch.stack([t[int(n)] for t, n in zip(x, _end(m), strict=True)]),
)
