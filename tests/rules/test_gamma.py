"""LRP-γ: the rule against its definition term by term in NumPy, its gradient form against the rule,
a small network worked out by hand, and the method's options."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import relprop
from relprop.errors import OptionError
from relprop.rules import LRP_GAMMA, lrp_gamma
from tests.common import oracles
from tests.common.calls import amounts, make_call
from tests.common.models import build, closeness, sample
from tests.common.subjects import SUBJECTS
from tests.common.tensors import filled, tensors

aten = torch.ops.aten
GAMMAS = (0.0, 0.25, 3.0)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def expected(relevance, x, terms, bias, gamma, axis=-1):
    """R_j and R_b: for z > 0 by x⁺(w + γw⁺) + x⁻(w + γw⁻) and b + γb⁺, for z < 0 by the other
    signs; ``terms`` are (output, input, x_j·w_ji)."""
    b = np.zeros(relevance.shape)
    if bias is not None:
        b += bias.reshape([-1 if a == axis % b.ndim else 1 for a in range(b.ndim)])
    z = b.copy()
    for i, _, term in terms:
        z[i] += term
    raised = np.where(b * np.where(z < 0, -1, 1) > 0, (1 + gamma) * b, b)
    whole = raised.copy()
    weighed = []
    for i, j, term in terms:
        ours = term > 0 if z[i] >= 0 else term < 0
        weighed.append((i, j, term * (1 + gamma) if ours else term))
        whole[i] += weighed[-1][2]
    s = np.divide(relevance, whole, out=np.zeros_like(whole), where=whole != 0)
    share = np.zeros(x.shape)
    for i, j, term in weighed:
        share[j] += term * s[i]
    absorbed = (raised * s).sum(tuple(a for a in range(b.ndim) if a != axis % b.ndim))
    return share, absorbed


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("name", ["linear", "conv2d"])
@given(data=st.data())
def test_the_rule_is_its_definition(name, gamma, data):
    subject = SUBJECTS[name]
    spec = data.draw(subject.specs)
    call = spec.call(data.draw(filled(spec, ("grid",))))
    relevance = data.draw(tensors(call.output.shape))
    x, weight, *rest = (v.numpy() for v in call.inputs)
    options = [call.argument(i, "", d) for i, d in ((3, 1), (4, 0), (5, 1), (6, 1))]
    conv = name == "conv2d"
    terms = oracles.conv2d_terms(x, weight, *options) if conv else oracles.linear_terms(x, weight)
    bias = rest[0] if rest else None
    share, absorbed = expected(relevance.numpy(), x, terms, bias, gamma, 1 if conv else -1)
    split = lrp_gamma(gamma).for_op(call.op)(relevance, call)
    allowed = 1e-10 * (1 + abs(share).sum() + float(relevance.abs().sum()))
    assert abs(split.shares[0].numpy() - share).max() <= allowed
    assert bias is None or abs(split.shares[2].numpy() - absorbed).max() <= allowed
    gap = relevance.sum() - sum(amounts(split)) - sum(split.lost.values())
    assert abs(float(gap)) <= allowed


CALLS = {
    "linear": lambda x: make_call(
        aten.linear.default, x, drawn(5, 4, seed=1), drawn(5, seed=2), roles="app"
    ),
    "conv1d": lambda x: make_call(aten.conv1d.default, x, drawn(5, 3, 2, seed=1), roles="ap"),
    "matmul": lambda x: make_call(aten.matmul.default, x, drawn(4, 5, seed=1), roles="ap"),
    "matmul from the left": lambda x: make_call(
        aten.matmul.default, drawn(5, 3, seed=1), x, roles="pa"
    ),
}


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("name", CALLS)
def test_the_gradient_form_is_the_rule(name, gamma):
    x = drawn(2, 3, 4).requires_grad_()
    call, rules = CALLS[name](x.detach()), lrp_gamma(gamma)
    rule = rules.for_op(call.op).for_activations(1)
    slope = drawn(*call.output.shape, seed=7)
    shares = rule(slope * call.output, call).shares
    made = rule.gradient(CALLS[name](x))
    assert torch.equal(made.detach(), call.output)
    (found,) = torch.autograd.grad(made, x, slope)
    assert closeness(x.detach() * found, next(s for s in shares if s is not None)) <= 1e-13


def test_without_a_bias_everything_is_handed_on():
    x, relevance = drawn(2, 3, 4), drawn(2, 3, 5, seed=3)
    for name in ("matmul", "conv1d"):
        call = CALLS[name](x)
        relevance = drawn(*call.output.shape, seed=3)
        split = LRP_GAMMA.for_op(call.op).for_activations(1)(relevance, call)
        assert closeness(split.shares[0].sum(), relevance.sum()) <= 1e-12
    nothing = make_call(aten.matmul.default, torch.zeros(2, 4).double(), drawn(4, 5), roles="ap")
    split = LRP_GAMMA.for_op(aten.matmul.default).for_activations(1)(drawn(2, 5), nothing)
    assert float(sum(split.lost.values())) == pytest.approx(float(drawn(2, 5).sum()))


def test_a_network_by_hand():
    """x = (1, −2) through relu(W x + b) and v: z = (3 − 2·1 + 0.5, −1 − 2·(−2) − 1) = (1.5, 2)."""
    first, last = nn.Linear(2, 2), nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[3.0, 1.0], [-1.0, -2.0]]))
        first.bias.copy_(torch.tensor([0.5, -1.0]))
        last.weight.copy_(torch.tensor([[2.0, -1.0]]))
    model = nn.Sequential(first, nn.ReLU(), last).double()
    x = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    # y = 2·1.5 − 2 = 1; raised by γ = 1: 2·3 − 2 = 4, so 6/4 and −2/4 of it
    top = (6 / 4, -2 / 4)
    # of the first: 3, −2 and b 0.5 become 6, −2, 1: sum 5; of the second: −1, 4, b −1: −1, 8, −1: 6
    share = (top[0] * 6 / 5 + top[1] * -1 / 6, top[0] * -2 / 5 + top[1] * 8 / 6)
    for ledger in (None, True):
        e = relprop.explain(model, x, 0, method="lrp_gamma", gamma=1.0, ledger=ledger, keep="input")
        assert closeness(e.input, torch.tensor([share], dtype=torch.float64)) <= 1e-12
    absorbed = top[0] * 1 / 5 + top[1] * -1 / 6
    assert float(sum(e.ledger.absorbed().values())) == pytest.approx(absorbed)
    assert math.isclose(sum(share) + absorbed, 1)


def test_only_positive_values_are_the_first_gamma_rule():
    """R_j = Σ_i a_j(w_ji + γ·w_ji⁺)·R_i/Σ (Montavon et al. 2019) where z > 0."""
    x, w = drawn(3, 4).abs(), drawn(5, 4, seed=1)
    w = w + (0.1 - (x @ w.T).amin(0).clamp(max=0)[:, None] / x.sum(1).min())
    call = make_call(aten.linear.default, x, w, roles="ap")
    assert (call.output > 0).all() and (w < 0).any()
    relevance, raised = drawn(3, 5, seed=2), w + 0.4 * w.clamp(min=0)
    split = lrp_gamma(0.4).for_op(call.op)(relevance, call)
    assert closeness(split.shares[0], x * ((relevance / F.linear(x, raised)) @ raised)) <= 1e-13


def test_convolutions_have_a_gamma_of_their_own():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2)).double()
    x = torch.randn(2, 1, 4, 4, dtype=torch.float64)

    def scores(**options):
        e = relprop.explain(model, x, 0, method="lrp_gamma", **options)
        assert e.facts["relevance"] == "one gradient"
        return e.scores

    usual = scores()
    assert torch.equal(usual, scores(gamma=0.25, conv_gamma=0.25))
    assert closeness(scores(gamma=0), relprop.explain(model, x, 0, method="attnlrp").scores) < 1e-12
    found = [usual, scores(conv_gamma=10), scores(gamma=10, conv_gamma=0.25), scores(gamma=10)]
    assert min(closeness(a, b) for i, a in enumerate(found) for b in found[:i]) > 1e-3
    by_rules = relprop.explain(model, x, 0, method="attnlrp", rules=lrp_gamma(0.25, 10))
    assert by_rules.rules == "lrp_gamma(0.25, 10)" and torch.equal(by_rules.scores, found[1])


def test_options_that_would_go_for_nothing_or_mean_nothing_are_refused():
    model, x = build(), sample()
    for bad in ({"gamma": -1}, {"gamma": math.inf}, {"conv_gamma": "a"}, {"gamma": True}):
        with pytest.raises(OptionError, match=r"a finite number, 0 or more"):
            relprop.explain(model, x, 0, method="lrp_gamma", **bad)
    with pytest.raises(OptionError, match=r"makes its rule set of its options \(gamma\)"):
        relprop.explain(model, x, 0, method="lrp_gamma", gamma=1, rules="attnlrp")
    e = relprop.explain(model, x, 0, method="lrp_gamma", rules="attnlrp")
    assert torch.equal(e.scores, relprop.explain(model, x, 0, method="attnlrp").scores)
    assert relprop.explain(model, x, 0, method="lrp_gamma").rules == "lrp_gamma"
