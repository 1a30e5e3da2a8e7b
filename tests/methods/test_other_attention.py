"""Attention whose weights come from no softmax: methods over attention say that they do not count
it; methods at the input read every operation, and say nothing."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import relprop
from relprop.errors import UnrecognisedWarning
from relprop.targets import output
from tests.common.models import randomise

X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))


def sparsemax(z):
    ordered = z.sort(-1, descending=True).values
    total = ordered.cumsum(-1) - 1
    count = (ordered * torch.arange(1, z.shape[-1] + 1) > total).sum(-1, keepdim=True)
    return (z - total.gather(-1, count - 1) / count).clamp(min=0)


def divided(function):
    return lambda z: function(z) / function(z).sum(-1, keepdim=True)


OTHERS = {
    "sparsemax": sparsemax,
    "relu": divided(lambda z: F.relu(z + 3)),
    "elu": divided(lambda z: F.elu(z) + 1),
    "sigmoid": divided(torch.sigmoid),
    "squares": lambda z: F.normalize(z.square(), p=1, dim=-1),
}
SAME = {
    "softmax": lambda z: z.softmax(-1),
    "exponentials": divided(lambda z: (z - z.amax(-1, keepdim=True)).exp()),
    "powers of two": divided(lambda z: 2**z),
    "no weights": lambda z: F.relu(z) / 6,
}


class Mixed(nn.Module):
    """A layer of softmax attention below one whose weights are what ``weigh`` makes of scores."""

    def __init__(self, weigh, by_sum=False):
        super().__init__()
        self.weigh, self.by_sum = weigh, by_sum
        self.below = nn.MultiheadAttention(16, 2, batch_first=True)
        self.q, self.k, self.v, self.head = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        x = x + self.below(x, x, x)[0]
        weights, values = self.weigh((self.q(x) @ self.k(x).mT / 99).tanh()), self.v(x)
        if self.by_sum:
            return self.head((x + (weights[..., None] * values[:, None]).sum(2)).mean(1))
        return self.head((x + weights @ values).mean(1))


def model(weigh, by_sum=False):
    return randomise(Mixed(weigh, by_sum)).eval()


def test_the_mean_of_what_a_mask_leaves_is_no_attention():
    """TimesFM's statistics of the numbers that are there."""

    def mean(scores):
        there = (scores > 0).to(scores)
        return there / there.sum(-1, keepdim=True).clamp(min=1)

    with warnings.catch_warnings():
        warnings.simplefilter("error", UnrecognisedWarning)
        assert not relprop.explain(model(mean), X, 1).facts["unrecognised"]


@pytest.mark.parametrize("by_sum", [False, True], ids=["product", "sum"])
@pytest.mark.parametrize("name", OTHERS)
def test_attention_without_a_softmax_is_said_once(name, by_sum):
    made = model(OTHERS[name], by_sum)
    with pytest.warns(UnrecognisedWarning, match="does not count 1 of the attentions"):
        e = relprop.explain(made, X, 1)
    assert "test_other_attention.py" in e.facts["unrecognised"][0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnrecognisedWarning)
        assert relprop.explain(made, X, 1, method="rollout").facts["unrecognised"]
        for method in ("attnlrp", "gradient_x_input"):  # as the warning says
            assert not relprop.explain(made, X, 1, method=method).facts["unrecognised"]
    with pytest.raises(relprop.RelpropError, match="come from no softmax"):
        relprop.explain(made, X, 1, strict=True)
    report = relprop.check(made, X)
    assert len(report.unrecognised) == 1 and "attention without a softmax: " in str(report)


@pytest.mark.parametrize("name", SAME)
def test_a_softmax_in_other_words_and_what_does_not_sum_to_one_is_not(name):
    made = model(SAME[name])
    assert not relprop.explain(made, X, 1, strict=True).facts["unrecognised"]
    assert not relprop.check(made, X).unrecognised


def test_only_what_the_target_reads():
    class Beside(Mixed):
        def forward(self, x):
            y = x + self.below(x, x, x)[0]
            return self.head(y.mean(1)), super().forward(x)

    made = randomise(Beside(sparsemax)).eval()
    assert not relprop.explain(made, X, output("[0]")[1], strict=True).facts["unrecognised"]
