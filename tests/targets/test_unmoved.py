"""Numbers that do not depend on the input are refused by name, whatever method reads them; small,
saturated and cancelling ones that do are explained."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import relprop
from relprop.errors import TargetError
from relprop.runner.constant_outputs import Moving
from tests.common.models import randomise

pytestmark = pytest.mark.filterwarnings("ignore::relprop.errors.RelpropWarning")
PRECISIONS = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
METHODS = ("transformer_attribution", "gae", "attnlrp", "input_gradient", "leave_one_out")
IDS = torch.tensor([[3, 7, 1, 12, 4, 9], [8, 8, 2, 0, 15, 6]])


class Reader(nn.Module):
    """One layer of attention over a text, its mean, and what ``end`` makes of it."""

    def __init__(self, end):
        super().__init__()
        self.embed, self.head, self.end = nn.Embedding(16, 8), nn.Linear(8, 5), end
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, ids):
        x = self.embed(ids)
        x = x + (self.q(x) @ self.k(x).mT / 3).softmax(-1) @ self.v(x)
        return self.end(x.mean(1), self.head)


def explained(end, dtype, method, target=0):
    return relprop.explain(reader(end, dtype), IDS, target, method=method)


def reader(end, dtype):
    return randomise(Reader(end)).to(dtype).eval()


def assert_refused(model, target):
    for method in METHODS:
        with pytest.raises(TargetError, match="target does not depend on the input"):
            relprop.explain(model, IDS, target, method=method)


STILL = {
    "cosine with itself": lambda x, head: F.cosine_similarity(x, 2 * x, dim=-1)[:, None],
    "sum of a softmax": lambda x, head: head(x).softmax(-1).sum(-1, keepdim=True),
    "norm of the normalised": lambda x, head: F.normalize(x, dim=-1).norm(dim=-1, keepdim=True),
    "logsumexp": lambda x, head: head(x).log_softmax(-1).logsumexp(-1, keepdim=True),
    "mean of a norm": lambda x, head: F.layer_norm(x, (8,)).mean(-1, keepdim=True),
    "both sides": lambda x, head: (head(x).sigmoid() + (-head(x)).sigmoid())[:, :1],
    "difference": lambda x, head: (head(x) - head(x + 1) + head.weight.sum(1))[:, :1],
}


@PRECISIONS
@pytest.mark.parametrize("end", STILL.values(), ids=STILL)
def test_a_number_that_cannot_change_is_refused(end, dtype):
    assert_refused(reader(end, dtype), 0)


@PRECISIONS
@pytest.mark.parametrize(
    ("end", "target"),
    [
        (lambda x, head: head(x).softmax(-1), lambda out: out[0].sum()),
        (lambda x, head: head(x), lambda out: out[0].log_softmax(-1).logsumexp(-1)),
        (lambda x, head: head(x), lambda out: F.cosine_similarity(out, out)[0]),
    ],
    ids=["probabilities", "log-probabilities", "cosine"],
)
def test_a_function_of_outputs_that_cannot_change_is_refused(end, target, dtype):
    assert_refused(reader(end, dtype), target)


def test_the_sample_is_named_and_methods_without_a_target_are_answered():
    def end(x, head):
        return torch.stack([head(x)[:, 0].sigmoid(), F.normalize(x, dim=-1).norm(dim=-1)], 1)

    with pytest.raises(TargetError, match="y_t of sample 1 is 1 whatever"):
        explained(end, torch.float32, "gae", [0, 1])
    assert explained(end, torch.float32, "rollout", [0, 1]).scores.any()
    assert explained(end, torch.float32, "gae", [0, 0]).scores.any()


HONEST = {
    "tiny": lambda x, head: (1e-12 * head(x)).tanh(),
    "saturated": lambda x, head: (head(x) + torch.arange(5, 0, -1) * 4.0).softmax(-1),
    "all but saturated": lambda x, head: (head(x) + torch.arange(5, 0, -1) * 20.0).softmax(-1),
    "far from 0": lambda x, head: head(x).tanh() + 1e3,
    "cosine": lambda x, head: F.cosine_similarity(x, x + 1e-3 * x.roll(1, -1), dim=-1)[:, None],
}


@PRECISIONS
@pytest.mark.parametrize("end", HONEST.values(), ids=HONEST)
def test_a_number_that_changes_little_is_explained(end, dtype):
    model = reader(end, dtype)
    for method in METHODS[:-1]:
        assert relprop.explain(model, IDS, 0, method=method).scores.any()


def test_a_number_that_is_0_is_explained():
    y = explained(lambda x, head: head(x).tanh(), torch.float64, "gae").output
    e = explained(lambda x, head: head(x).tanh() - float(y[0]), torch.float64, "gae")
    assert float(e.output[0].abs()) < 1e-15 and e.scores[0].any()


class Pair(Reader):
    """The cosine of two texts."""

    def forward(self, first, second):
        both = [Reader.forward(self, ids) for ids in (first, second)]
        return F.cosine_similarity(*both, dim=-1)[:, None]


@PRECISIONS
def test_equal_texts_among_pairs_are_refused_where_a_gradient_is_read(dtype):
    pairs = IDS, IDS.where(IDS != 12, 5)
    model = randomise(Pair(lambda x, head: x)).to(dtype).eval()
    for method in ("transformer_attribution", "gae", "input_gradient", "gradient_x_input"):
        try:  # rounding may happen to leave 0
            assert not relprop.explain(model, pairs, 0, method=method)["input_0"].scores[1].any()
        except TargetError as error:
            assert "y_t of sample 1 is 1, a largest" in str(error)
        one = relprop.explain(model, tuple(p[:1] for p in pairs), 0, method=method)
        assert one["input_0"].scores.any()
    for method in ("attnlrp", "leave_one_out", "rollout"):
        assert relprop.explain(model, pairs, 0, method=method)["input_0"].scores[1].any()


def test_a_small_gradient_is_looked_at_closely_once(monkeypatch):
    looks, flat = [], Moving.flat
    monkeypatch.setattr(Moving, "flat", lambda self: looks.append(1) or flat(self))
    model = reader(HONEST["tiny"], torch.float32)
    for _ in range(3):
        assert relprop.explain(model, IDS, 0, method="gae").scores.any() and len(looks) == 1
