"""Eq. 5 on large linear layers by three products: the same as by four, for batches and for walks
side by side, and exact where three would lose digits."""

import copy
from functools import partial

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap
from torch.utils.flop_counter import FlopCounterMode

import relprop
from relprop.plan import planning
from relprop.rules import presets
from relprop.rules.closed import Linear
from relprop.rules.families import NO_POSITIVE
from relprop.rules.large_linear import LEAST, LargeLinear
from tests.common.calls import make_call
from tests.common.models import randomise
from tests.common.rows import diagonal

aten = torch.ops.aten
WALKS, BATCH, ROWS, INPUTS, OUTPUTS = 3, 2, 4, 5, 6


def layer(x, weight, bias=None):
    biased = () if bias is None else (bias,)
    return make_call(aten.linear.default, x, weight, *biased, roles="app"[: 2 + len(biased)])


def shared(rule, relevance, x, weight, bias=None):
    return rule(relevance, layer(x, weight, bias)).shares[0]


def drawn(seed, *shapes, dtype=torch.float64):
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return [draw(shape) for shape in shapes]


@given(seed=st.integers(0, 2**20), biased=st.booleans(), shift=st.sampled_from([-2.0, 0.0, 2.0]))
def test_three_products_give_what_four_do(seed, biased, shift):
    x, weight, bias, relevance = drawn(
        seed, (ROWS, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,), (ROWS, OUTPUTS)
    )
    call = layer(x, weight + shift, bias if biased else None)
    three, four = (rule(relevance, call) for rule in (LargeLinear(), Linear()))
    scale = relevance.abs().sum()
    assert (three.shares[0] - four.shares[0]).abs().max() <= 1e-13 * scale
    assert abs(three.lost[NO_POSITIVE] - four.lost[NO_POSITIVE]) <= 1e-13 * scale


@pytest.mark.parametrize("axes", [(0, 0, None), (1, None, None), (None, 1, None), (0, 0, 0)])
def test_a_batch_and_walks_side_by_side_are_each_by_itself(axes):
    walks = [(WALKS,) if i is not None else () for i in axes]
    relevance, x, weight = drawn(7, (ROWS, OUTPUTS), (ROWS, INPUTS), (OUTPUTS, INPUTS))
    given = []
    for one, walk, axis in zip((relevance, x, weight), walks, axes, strict=True):
        many = one * (1 + torch.arange(WALKS)).reshape(-1, 1, 1) if walk else one
        given.append(many if axis is None else many.movedim(0, axis))
    got = vmap(partial(shared, LargeLinear()), axes)(*given)
    want = vmap(partial(shared, Linear()), axes)(*given)
    assert (got - want).abs().max() <= 1e-13 * relevance.abs().sum()


def test_walks_side_by_side_in_a_batch():
    relevance, x, weight = drawn(
        8, (BATCH, ROWS, WALKS, OUTPUTS), (BATCH, ROWS, INPUTS), (OUTPUTS, INPUTS)
    )

    def rows(rule):
        one = partial(shared, rule)
        return vmap(vmap(one, (1, None, None)), (0, 0, None))(relevance, x, weight)

    got, want = map(rows, (LargeLinear(), Linear()))
    assert (got - want).abs().max() <= 1e-13 * relevance.abs().sum()


@pytest.mark.parametrize("cause", ["terms", "no positive term", "bias", "smallest"])
def test_what_cancels_is_done_by_four_products(cause):
    """In float32, where Σ x_j·w_j and Σ|x_j·w_j| agree to nearly all digits."""
    x, weight, relevance = drawn(
        9, (ROWS, INPUTS), (OUTPUTS, INPUTS), (ROWS, OUTPUTS), dtype=torch.float32
    )
    x, weight, bias = x.abs() + 0.1, weight.abs() + 0.1, torch.zeros(OUTPUTS)
    if cause == "bias":
        bias = bias + 1e6
    else:
        weight[2] *= -1
        weight[2, 1] *= {"terms": -1e-6, "no positive term": 1, "smallest": -1e-20}[cause]
    three, four = (rule(relevance, layer(x, weight, bias)) for rule in (LargeLinear(), Linear()))
    exact = Linear()(relevance.double(), layer(x.double(), weight.double(), bias.double()))
    scale = relevance.abs().sum()
    assert (three.shares[0] - exact.shares[0]).abs().max() <= 1e-6 * scale
    assert torch.allclose(three.lost[NO_POSITIVE], four.lost[NO_POSITIVE], atol=1e-6 * scale)


def test_rounding_is_bounded_by_what_three_products_lose():
    x, weight, relevance = drawn(10, (64, 512), (256, 512), (64, 256), dtype=torch.float32)
    exact = shared(Linear(), relevance.double(), x.double(), weight.double())
    error = (shared(LargeLinear(), relevance, x, weight) - exact).abs().sum(1)
    assert (error <= torch.finfo().eps / LEAST * relevance.abs().sum(1)).all()


@pytest.fixture
def vit():
    torch.manual_seed(0)
    return randomise(timm.create_model("vit_tiny_patch16_224", depth=2, img_size=32).eval())


@pytest.mark.parametrize(
    ("options", "batch"), diagonal([{}, {"memory": 0}, {"rules": "stable"}], (3, 1))
)
def test_whole_models_are_explained_as_before(vit, monkeypatch, batch, options):
    """The map, the books and further targets, by either form of the rule."""
    x = torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    found = []
    for large in (2**62, 2**14):
        monkeypatch.setattr(planning, "LARGE", large)
        model = copy.deepcopy(vit)  # which is planned anew
        call = partial(relprop.explain, model, x, precision="float64", **options)
        found.append([call(target=3), call(target=lambda y: y[0, 3] - y[0, 5])])
    for four, three in zip(*found, strict=True):
        assert (four.scores - three.scores).abs().max() <= 1e-11 * four.scores.abs().max()
        assert three.ledger.balanced(1e-9)


def test_a_large_layer_costs_three_products():
    relevance, x, weight = drawn(11, (64, 256), (64, 512), (256, 512))
    call, counts = layer(x, weight), []
    for rule in (Linear(), LargeLinear()):
        with FlopCounterMode(display=False) as counter:
            rule(relevance, call)
        counts.append(counter.get_total_flops())
    assert counts[1] / counts[0] == 3 / 4


def test_a_rule_is_taken_where_what_stands_in_for_it_is(monkeypatch):
    """The built-in one for an operation of its own, examined and added to a rule set."""
    monkeypatch.setattr(planning, "LARGE", 2**14)
    found = relprop.testing.check_rule(
        presets.linear, aten.linear.default, torch.randn(2, 3, 192), torch.randn(192, 192)
    )
    assert "taken" in str(found)


def test_half_precision_shares_by_the_terms_and_not_by_the_rounded_output(vit, monkeypatch):
    monkeypatch.setattr(planning, "LARGE", 2**14)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert relprop.explain(vit.bfloat16(), x, 3).ledger.balanced(1e-4)
