"""Rules made with numbers: each against its definition term by term in NumPy, a layer worked out by
hand, the laws of ``check_rule``, composites by name, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import relprop
from relprop import rules
from relprop.errors import OptionError, RuleError
from relprop.testing import CheckFailed, check_rule
from tests.common import oracles
from tests.common.calls import make_call
from tests.common.models import closeness
from tests.common.subjects import SUBJECTS
from tests.common.tensors import filled, tensors

aten = torch.ops.aten
LOW, HIGH = -3.0, 4.0
MADE = {
    "epsilon": rules.epsilon(0.1),
    "gamma": rules.gamma(0.5),
    "alpha_beta": rules.alpha_beta(2, 1),
    "alpha": rules.alpha_beta(1, 0),
    "z_box": rules.z_box(LOW, HIGH),
    "w_squared": rules.w_squared(),
    "flat": rules.flat(),
}


def shared(relevance, groups):
    """Σ over ``groups`` (factor, {input: its terms by output}, bias by output) of each term's part
    of factor·R, and what the bias takes."""
    found, absorbed = {}, np.zeros(relevance.shape)
    for factor, held, (terms, bias) in groups:
        z = bias.copy()
        for i, _, term in terms:
            z[i] += term
        whole = z + held * np.where(z < 0, -1.0, 1.0)
        gone = abs(whole) < oracles.SMALLEST
        s = np.divide(factor * relevance, whole, out=np.zeros_like(z), where=~gone)
        for i, j, term in terms:
            oracles.collect(found, j, term * s[i])
        absorbed += bias * s
    return found, absorbed


def definition(name, z_terms, bias):
    """(what part of R, ε, (terms, bias)) by the papers: terms are (output, input, x, w)."""
    none = np.zeros_like(bias)

    def each(of, b=none):
        return [(i, j, of(x, w)) for i, j, x, w in z_terms], b

    up, down = lambda v: np.maximum(v, 0.0), lambda v: np.minimum(v, 0.0)
    plus = each(lambda x, w: up(x * w), up(bias))
    minus = each(lambda x, w: down(x * w), down(bias))
    return {
        "epsilon": [(1, 0.1, each(lambda x, w: x * w, bias))],
        "alpha_beta": [(2, 0, plus), (-1, 0, minus)],
        "alpha": [(1, 0, plus)],
        "z_box": [(1, 0, each(lambda x, w: x * w - LOW * up(w) - HIGH * down(w)))],
        "w_squared": [(1, 0, each(lambda x, w: w * w))],
        "flat": [(1, 0, each(lambda x, w: 1.0))],
    }[name]


@pytest.mark.parametrize("name", [n for n in MADE if n != "gamma"])  # test_gamma.py
@pytest.mark.parametrize("op", ["linear", "conv2d"])
@given(data=st.data())
def test_each_is_its_definition(op, name, data):
    spec = data.draw(SUBJECTS[op].specs)
    call = spec.call(data.draw(filled(spec, ("grid",))))
    relevance = data.draw(tensors(call.output.shape)).numpy()
    x, weight, *rest = (v.numpy() for v in call.inputs)
    options = [call.argument(i, "", d) for i, d in ((3, 1), (4, 0), (5, 1), (6, 1))]
    values, weights, bias = np.ones_like(x), np.ones_like(weight), np.zeros(relevance.shape)

    def terms(x, w):
        given = oracles.conv2d_terms(x, w, *options) if op == "conv2d" else None
        return given or oracles.linear_terms(x, w)

    if rest:
        bias += rest[0].reshape(-1, 1, 1) if op == "conv2d" else rest[0]
    pairs = zip(terms(x, weights), terms(values, weight), strict=True)
    z_terms = [(i, j, a, w) for (i, j, a), (_, _, w) in pairs]
    found, absorbed = shared(relevance, definition(name, z_terms, bias))
    split = MADE[name](torch.from_numpy(relevance), call)
    every = [abs(v) for values in found.values() for v in values]
    allowed = 1e-10 * (1 + math.fsum(every) + abs(relevance).sum() + abs(absorbed).sum())
    assert abs(split.shares[0].numpy() - oracles.gathered(x.shape, found)).max() <= allowed
    taken = sum(float(s.sum()) for s in split.shares[1:] if s is not None)
    assert abs(taken - absorbed.sum()) <= allowed
    whole = taken + float(split.shares[0].sum()) + sum(map(float, split.lost.values()))
    assert abs(whole - relevance.sum()) <= allowed


BY_HAND = {  # of x = (1, −2), w = (3, 1), b = 0.5: the terms are 3, −2 and 0.5, z = 1.5; R = 1
    "epsilon": (3 / 1.6, -2 / 1.6),
    "gamma": (4.5 / 3.25, -2 / 3.25),  # 3 and 0.5 count 1.5 times
    "alpha_beta": (2 * 3 / 3.5, -1.0),
    "alpha": (3 / 3.5, 0.0),
    "z_box": (12 / 13, 1 / 13),  # 3 + 3·3 and −2 + 3·1
    "w_squared": (0.9, 0.1),
    "flat": (0.5, 0.5),
}


@pytest.mark.parametrize("name", MADE)
def test_a_layer_by_hand(name):
    layer = nn.Linear(2, 1).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 1.0]]))
        layer.bias.fill_(0.5)
    x = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    model = nn.Sequential(layer, nn.Flatten())
    own = rules.LRP.with_rule("0", MADE[name])
    e = relprop.explain(model, x, 0, method="lrp", rules=own, keep="input", ledger=True)
    assert closeness(e.input, torch.tensor([BY_HAND[name]], dtype=torch.float64)) < 1e-12
    assert e.ledger.balanced()


QUICK = ("gamma", "alpha_beta", "z_box")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MADE]
)
def test_each_obeys_the_laws(name):
    torch.manual_seed(0)
    x = torch.rand(2, 3, 6, 6)
    kept = check_rule(MADE[name], nn.Conv2d(3, 4, 3, stride=2, padding=1, groups=1), x)
    assert kept and check_rule(MADE[name], aten.mean, x, (2, 3), draws=5)
    assert check_rule(MADE[name], nn.Linear(6, 3), x.double(), draws=5)


def test_a_box_has_the_ends_of_each_channel():
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.25, 0.3])
    low, high = (-mean / std).reshape(3, 1, 1), ((1 - mean) / std).reshape(3, 1, 1)
    torch.manual_seed(0)
    layer, relevance = nn.Conv2d(3, 4, 2).double(), torch.randn(1, 4, 3, 3).double()
    x = low + torch.rand(1, 3, 4, 4).double() * (high - low)
    call = make_call(aten.conv2d.default, x, layer.weight.data, layer.bias.data, roles="app")
    share = rules.z_box(low, high)(relevance.abs(), call).shares[0]
    assert (share > 0).all()  # every value lies in its box
    for c in range(3):
        other = rules.z_box(low[c].item(), high[c].item())(relevance.abs(), call).shares[0]
        assert closeness(other, share) > 1e-3


def test_a_composite_by_the_names_of_layers():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 8), nn.ReLU()
    ).append(nn.Linear(8, 2))
    x = torch.rand(2, 3, 4, 4).double()
    plain = rules.EPSILON.with_rule(nn.Linear, rules.epsilon(0.25))
    composite = plain.with_rule("3", rules.gamma(0.25)).with_rule("0", rules.flat())
    found = relprop.explain(
        model.double(), x, 0, method="lrp", rules=composite, keep="input", ledger=True
    )
    step = relprop.explain(model, x, 0, method="lrp", rules=plain, keep="input")
    assert found.ledger.balanced() and closeness(found.input, step.input) > 1e-3
    windows = found.input.reshape(2, 3, 2, 2, 2, 2).transpose(3, 4)  # flat: 12 pixels are alike
    assert closeness(windows, windows.mean((1, 4, 5), keepdim=True).expand_as(windows)) < 1e-12


def test_numbers_that_mean_nothing_and_operations_of_another_kind_are_refused():
    for made in (lambda: rules.epsilon(-1), lambda: rules.gamma(math.nan)):
        with pytest.raises(OptionError, match="a finite number, 0 or more"):
            made()
    with pytest.raises(OptionError, match=r"α − β = 3 times what arrives(.|\n)*alpha_beta\(2, 1\)"):
        rules.alpha_beta(4, 1)
    with pytest.raises(OptionError, match="is not below"):
        rules.z_box(1.0, torch.tensor([2.0, 0.0]))
    with pytest.raises(OptionError, match="do not meet"):
        rules.z_box(torch.zeros(2), torch.ones(3))
    for rule in MADE.values():
        with pytest.raises(RuleError, match="is for operations of these kinds: average pool, conv"):
            rules.PAPER.with_rule(aten.gelu, rule)
        with pytest.raises(CheckFailed, match="no operation takes it: the call is captured as"):
            check_rule(rule, nn.GELU(), torch.randn(2, 3))
    model, x = nn.Sequential(nn.Conv2d(3, 2, 4), nn.ReLU(), nn.Flatten()), torch.rand(2, 3, 4, 4)
    box = rules.z_box(torch.zeros(2), torch.ones(2))
    with pytest.raises(RuleError, match="expand"):
        relprop.explain(model, x, 0, method="lrp", rules=rules.LRP.with_rule("0", box))
    with pytest.warns(
        relprop.errors.UnusedRuleWarning, match=r"'1'(.|\n)*of these kinds: average pool"
    ):
        relprop.explain(model, x, 0, method="lrp", rules=rules.LRP.with_rule("1", rules.flat()))


def test_a_module_is_all_of_its_linear_operations():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 4)), nn.Linear(4, 2)
    )
    x = torch.randn(3, 4)
    each = rules.LRP.with_rule("0.0", rules.flat()).with_rule("0.2", rules.flat())
    rest = each.with_rule("1", rules.gamma())
    one, other = (
        relprop.explain(model, x, 0, method="lrp", rules=r).scores
        for r in (rest, rules.LRP.with_rule("*", rules.gamma()).with_rule("0", rules.flat()))
    )
    assert torch.equal(one, other)
