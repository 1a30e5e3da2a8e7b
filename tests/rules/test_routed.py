"""Rows that go to experts: the same as a copy of its expert's matrix for each row, by value, by
derivative, by every rule and in whole models; and no matrix is copied."""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import is_fake
from torch.func import vmap
from torch.utils.flop_counter import FlopCounterMode
from transformers import GptOssConfig, GptOssForCausalLM, MixtralConfig, MixtralForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, batched_mm_experts_forward

import relprop
from relprop.operations.vocabulary import _of_copies, grouped_linear, routed_linear
from relprop.rules.presets import PRESETS
from relprop.rules.routed import for_experts
from relprop.tracer import passes
from tests.common.calls import make_call
from tests.common.models import randomise

BATCH, ROWS, INPUTS, OUTPUTS, EXPERTS = 2, 7, 5, 4, 3


def drawn(seed, *lead, biased=True):
    """Rows, matrices, biases, and the expert of each row; one expert has none."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    experts = draw(*lead, ROWS).sign().long().abs() * torch.arange(ROWS).remainder(EXPERTS - 1)
    bias = draw(EXPERTS, OUTPUTS) if biased else None
    return draw(*lead, ROWS, INPUTS), draw(EXPERTS, OUTPUTS, INPUTS), bias, experts


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("from_the_last", [False, True])
def test_an_expert_multiplies_its_rows(biased, from_the_last):
    x, weight, bias, experts = drawn(0, biased=biased)
    experts = experts - EXPERTS if from_the_last else experts
    for function in (routed_linear, _of_copies):
        y = function(x, weight, bias, experts)
        for row in range(ROWS):
            own = None if bias is None else bias[experts[row]]
            want = torch.nn.functional.linear(x[row], weight[experts[row]], own)
            assert torch.allclose(y[row], want, atol=1e-14)


@pytest.mark.parametrize("axes", [(0, None, None, 0), (1, None, None, None), (None, None, None, 0)])
def test_a_batch_is_its_samples(axes):
    x, weight, bias, experts = drawn(1, BATCH)
    whole = {None: lambda t: t[0], 0: lambda t: t, 1: lambda t: t.movedim(0, 1)}
    given = (whole[axes[0]](x), weight, bias, whole[axes[3]](experts))
    got, want = (vmap(f, axes)(*given) for f in (routed_linear, _of_copies))
    assert torch.allclose(got, want, atol=1e-14)


def test_matrices_of_each_sample():
    x, weight, bias, experts = drawn(2, BATCH)
    weights = torch.stack([weight, 2 * weight])
    got, want = (
        vmap(f, (0, 0, None, 0))(x, weights, bias, experts) for f in (routed_linear, _of_copies)
    )
    assert torch.allclose(got, want, atol=1e-14)


def test_its_derivative_in_a_batch():
    x, weight, bias, experts = drawn(3, BATCH)
    found = []
    for function in (routed_linear, _of_copies):
        rows = x.clone().requires_grad_()
        vmap(function, (0, None, None, 0))(rows, weight, bias, experts).square().sum().backward()
        found.append(rows.grad)
    assert torch.allclose(*found, atol=1e-13)


def test_only_what_is_picked_is_multiplied():
    x, weight, bias, experts = drawn(4)
    with FlopCounterMode(display=False) as counter:
        routed_linear(x, weight, bias, experts)
    assert counter.get_total_flops() == 2 * ROWS * INPUTS * OUTPUTS


RULES = {
    name: rule
    for name, rules in PRESETS.items()
    if (rule := rules.for_op(routed_linear)) is not None
}


@pytest.mark.parametrize("name", RULES)
@given(seed=st.integers(0, 2**20), biased=st.booleans())
def test_every_rule_is_that_of_copies(name, seed, biased):
    """Shares, what parameters absorb, and what is lost; one sample, and each of a batch."""
    rule = RULES[name].for_activations(1)
    x, weight, bias, experts = drawn(seed, BATCH, biased=biased)
    relevance = torch.randn(
        BATCH, ROWS, OUTPUTS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )

    def routed(relevance, x, experts):
        roles = "appc" if biased else "apc"
        call = make_call(routed_linear, x, weight, bias, experts, roles=roles)
        split = for_experts(rule)(relevance, call)
        booked = [s.value for s in split.shares[1:] if s is not None]
        return split.shares[0], booked, dict(split.lost)

    def copied(relevance, x, experts):
        own = () if bias is None else (bias[experts].unsqueeze(1),)
        call = make_call(
            grouped_linear, x.unsqueeze(1), weight[experts], *own, roles="app"[: 2 + len(own)]
        )
        split = rule(relevance.unsqueeze(1), call)
        booked = [s.sum() for s in split.shares[1:] if s is not None]
        return split.shares[0].squeeze(1), booked, dict(split.lost)

    for got, want in (
        (vmap(routed)(relevance, x, experts), vmap(copied)(relevance, x, experts)),
        (routed(relevance[0], x[0], experts[0]), copied(relevance[0], x[0], experts[0])),
    ):
        torch.testing.assert_close(got, want, atol=1e-11, rtol=1e-9)


SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
MODELS = {
    "Mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES)),
    "gpt-oss": lambda: GptOssForCausalLM(GptOssConfig(**SIZES, head_dim=4)),
}


@pytest.fixture(params=["Mixtral", pytest.param("gpt-oss", marks=pytest.mark.slow)])
def model(request):
    torch.manual_seed(0)
    return randomise(MODELS[request.param]().eval())


IDS = torch.randint(40, (3, 6), generator=torch.Generator().manual_seed(0))


def ways(model, **options):
    """A model explained by experts, and by copies of their matrices."""
    without = tuple(p for p in passes.PASSES if p.run is not passes.route_rows)
    assert len(without) == len(passes.PASSES) - 1
    for chosen in (passes.PASSES, without):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(passes, "PASSES", chosen)
            yield relprop.explain(copy.deepcopy(model), IDS, precision="float64", **options)


METHODS = ["transformer_attribution", "attnlrp"]
FURTHER_METHODS = ["lrp", "lrp_gamma", "partial_lrp", "gae", "attcat", "value_zeroing"]


@pytest.mark.parametrize(
    "method", [*METHODS, *(pytest.param(m, marks=pytest.mark.slow) for m in FURTHER_METHODS)]
)
def test_whole_models_are_explained_as_by_copies(model, method):
    got, want = ways(model, method=method)
    assert (got.scores - want.scores).abs().max() <= 1e-11 * want.scores.abs().max()
    if want.ledger is not None:
        assert got.ledger.balanced(1e-9)
        mine, theirs = got.ledger.totals(), want.ledger.totals()
        torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"memory": 0},
        pytest.param({"method": "attnlrp", "ledger": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_so_are_models_in_segments_and_walks(model, options):
    got, want = ways(model, **options)
    assert (got.scores - want.scores).abs().max() <= 1e-11 * want.scores.abs().max()


def test_a_recorded_program_is_of_copies(model):
    explainer = relprop.compile(model.double(), IDS[:2])
    assert explainer(IDS).scores.shape == IDS.shape


def test_half_precision(model):
    assert relprop.explain(model.bfloat16(), IDS).ledger.balanced(1e-4)


def test_the_model_runs_with_its_own_experts(model, monkeypatch):
    """What copies a matrix for each token is captured where no values are, and never run."""
    captured = []

    def copies(self, hidden_states, *given):
        assert is_fake(hidden_states)
        captured.append(self)
        return batched_mm_experts_forward(self, hidden_states, *given)

    monkeypatch.setitem(ALL_EXPERTS_FUNCTIONS._global_mapping, "batched_mm", copies)
    relprop.explain(model, IDS)
    assert len(captured) >= model.config.num_hidden_layers
