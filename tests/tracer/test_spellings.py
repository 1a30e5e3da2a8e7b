"""One operation by any of its names: the model is captured alike, explained alike, and nothing is
generic."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop
from tests.common.models import closeness, randomise

MIDDLE = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)


def written(x):
    y = x.clone()
    y[:, 0] = y[:, 0] * 2
    return y


def thirds(x):
    return x.unflatten(-1, (2, 3))


def summed(product):
    """Over each half of the features, and that for every feature of the half."""
    return thirds(product).sum(-1, keepdim=True).expand(*product.shape[:2], 2, 3).flatten(2)


def summed_by_einsum(a, b):
    total = torch.einsum("...k,...k->...", thirds(a), thirds(b))
    return total[..., None].expand(*a.shape[:2], 2, 3).flatten(2)


#: name: (as it may be spelled, as the rules know it)
PAIRS = {
    "mT": (
        lambda x: (x.mT * MIDDLE[:5]).mT,
        lambda x: (x.transpose(-2, -1) * MIDDLE[:5]).transpose(-2, -1),
    ),
    "swapdims": (
        lambda x: (x.swapdims(1, 2) * MIDDLE[:5]).swapaxes(1, 2),
        lambda x: (x.transpose(1, 2) * MIDDLE[:5]).transpose(1, 2),
    ),
    "moveaxis": (lambda x: x.moveaxis(1, 2).moveaxis(2, 1), lambda x: x),
    "ravel": (lambda x: x.ravel().reshape(x.shape), lambda x: x.reshape(-1).reshape(x.shape)),
    "concat": (
        lambda x: torch.concat([x[:, :2], x[:, 2:]], 1),
        lambda x: torch.cat([x[:, :2], x[:, 2:]], 1),
    ),
    "concatenate": (
        lambda x: torch.concatenate([x[:, :2], x[:, 2:]], axis=1),
        lambda x: torch.cat([x[:, :2], x[:, 2:]], 1),
    ),
    "cat with nothing": (lambda x: torch.cat([torch.tensor([], dtype=x.dtype), x], 1), lambda x: x),
    "narrow from the end": (
        lambda x: torch.cat([x.narrow(1, -2, 2), x.narrow(1, -5, 3)], 1),
        lambda x: torch.cat([x[:, 3:], x[:, :3]], 1),
    ),
    "subtract": (lambda x: torch.subtract(x, x.sin(), alpha=0.5), lambda x: x - 0.5 * x.sin()),
    "multiply": (lambda x: torch.multiply(x, MIDDLE), lambda x: x * MIDDLE),
    "divide": (lambda x: torch.true_divide(x, MIDDLE), lambda x: x / MIDDLE),
    "absolute, negative": (lambda x: x.absolute().negative(), lambda x: -x.abs()),
    "clip": (lambda x: x.clip(-1, 1), lambda x: x.clamp(-1, 1)),
    "addcmul": (
        lambda x: torch.addcmul(x, x.sin(), x.cos(), value=0.5),
        lambda x: x + x.sin() * x.cos() * 0.5,
    ),
    "addcdiv": (lambda x: torch.addcdiv(x, x.sin(), MIDDLE), lambda x: x + x.sin() / MIDDLE),
    "glu": (lambda x: F.glu(torch.cat([x, x.sin()], -1)), lambda x: x * x.sin().sigmoid()),
    "cosine_similarity": (
        lambda x: x * F.cosine_similarity(x, x.cos(), dim=-1)[..., None],
        lambda x: x * (F.normalize(x, dim=-1) * F.normalize(x.cos(), dim=-1)).sum(-1, keepdim=True),
    ),
    "products summed in another shape": (
        lambda x: x * summed(x.sin() * x.softmax(1)),
        lambda x: x * summed_by_einsum(x.sin(), x.softmax(1)),
    ),
    "view_as": (lambda x: x.reshape(1, -1).view_as(x), lambda x: x),
    "written into": (written, lambda x: torch.cat([x[:, :1] * 2, x[:, 1:]], 1)),
}


class Around(nn.Module):
    """One attention site below ``change``, which keeps the shape of (batch, 5, 6)."""

    def __init__(self, change):
        super().__init__()
        self.change, self.first, self.head = change, nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        x = self.change(self.first(x))
        return self.head((x + (x @ x.transpose(1, 2) / 4).softmax(-1) @ x).mean(1))


@pytest.mark.parametrize("name", PAIRS)
def test_a_spelling_is_explained_as_what_it_means(name):
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    one, other = (
        relprop.explain(randomise(Around(change)).double(), x, 1, keep="input", on_unknown="error")
        for change in PAIRS[name]
    )
    assert one.ledger.balanced(1e-12)
    assert closeness(one.scores, other.scores) <= 1e-9 and closeness(one.input, other.input) <= 1e-9


def test_a_normalised_vector_is_a_norm():
    e = relprop.explain(
        randomise(Around(lambda x: F.normalize(x, dim=-1))).double(),
        torch.randn(3, 5, 6, dtype=torch.float64),
        1,
        keep="input",
        on_unknown="error",
    )
    assert torch.isfinite(e.input).all() and e.ledger.balanced(1e-12)
