"""Relevance as one gradient against the walk, which is the judge: on every kind of model, target,
length and batch, and what is walked all the same."""

import itertools
import math
import warnings

import pytest
import torch
import transformers
from torch import nn

import relprop
from relprop.interpreter.forms import forms_of
from relprop.rules.attnlrp import attnlrp_lines
from relprop.rules.gradient_form import own
from relprop.rules.presets import gamma_lines, variant
from relprop.tracer import chunked
from tests.common.models import closeness, sample, shared
from tests.common.rows import diagonal, only
from tests.methods.test_any_model import MODELS, built

#: The same rules without a stabiliser, so that the gradient is no limit of them.
EXACT = {
    "attnlrp": variant("attnlrp, ε = 0", *attnlrp_lines(0.0)),
    "cp_lrp": variant(
        "cp_lrp, ε = 0", *attnlrp_lines(0.0, constants=("constant", "attention", "gate"))
    ),
    "lrp_gamma": variant("lrp_gamma, ε = 0", *gamma_lines(attnlrp_lines(0.0), 0.25, 0.25)),
    "epsilon_lrp": None,  # its gradient has its ε
}
ONE = "one gradient"


def both(model, inputs, target=None, method="attnlrp", **options):
    """An explanation by one gradient, and by the walk."""
    options = {"precision": "float64", "rules": EXACT[method], "keep": "input", **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", relprop.RelpropWarning)
        fast, walked = (
            relprop.explain(model, inputs, target, method=method, ledger=ledger, **options)
            for ledger in (None, True)
        )
    assert walked.ledger is not None and walked.facts["relevance"].startswith("walked: ledger")
    return fast, walked


def assert_same(fast, walked, tolerance=1e-12):
    assert fast.facts["relevance"] == ONE and fast.ledger is None
    assert fast.rules == walked.rules and fast.target == walked.target
    for name, stream in walked.streams.items():
        assert float(stream.scores.abs().max()) > 0
        assert closeness(fast[name].input, stream.input) <= tolerance
        assert closeness(fast[name].scores, stream.scores) <= tolerance


@pytest.mark.parametrize(
    ("name", "method"),
    only(
        [
            ("VGG", "lrp_gamma"),
            ("MLP on a table", "epsilon_lrp"),
            ("GRU", "attnlrp"),
            ("BERT, padded", "cp_lrp"),
            ("(batch, time, features)", "attnlrp"),
        ],
        itertools.product(MODELS, EXACT),
    ),
)
def test_any_model(name, method):
    fast, walked = both(*built(name), method=method)
    if fast.facts["relevance"] == ONE:
        # products nearly 0 of another order of operations, in models that divide by such
        assert_same(fast, walked, 1e-9 if method == "epsilon_lrp" else 1e-11)
    else:
        assert method == "epsilon_lrp" or "no gradient form" not in fast.facts["relevance"]
        assert torch.equal(fast.scores, walked.scores)


TARGETS = {
    "one per sample": [1, 2, 3],
    "a difference": lambda y: y[0, 0] - y[0, 1],
    "a probability": lambda y: y.softmax(-1)[0, 2],
    "the prediction": None,
}


@pytest.mark.parametrize(("target", "method"), diagonal(TARGETS, EXACT))
def test_targets_and_a_start_with_one(target, method):
    model, x, target = shared(), sample(), TARGETS[target]
    assert_same(*both(model, x, target, method))
    rules = EXACT[method] or "epsilon"
    fast, walked = (
        relprop.explain(model, x, target, method="lrp", rules=rules, keep="input", ledger=ledger)
        for ledger in (None, True)
    )
    assert_same(fast, walked)


def test_several_targets_share_a_forward_pass():
    model, x = shared(), sample()
    many = relprop.explain_many(model, x, [0, None, TARGETS["a probability"]], method="attnlrp")
    for target, e in zip([0, None, TARGETS["a probability"]], many, strict=True):
        assert torch.equal(e.scores, relprop.explain(model, x, target, method="attnlrp").scores)
    compared = relprop.compare(model, x, methods=["attnlrp", "rollout", "gradient_x_input"])
    assert (
        closeness(compared["attnlrp"].scores, relprop.explain(model, x, method="attnlrp").scores)
        <= 1e-12
    )


def llama(**options):
    torch.manual_seed(0)
    given = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        **given, num_attention_heads=4, num_key_value_heads=2, **options
    )
    return transformers.LlamaForCausalLM(config).eval()


IDS = torch.randint(50, (2, 24), generator=torch.Generator().manual_seed(1))
PADDED = {"input_ids": IDS, "attention_mask": (torch.arange(24) > torch.tensor([[-1], [6]])) * 1}


TEXTS = {"causal": {"input_ids": IDS}, "padded": PADDED}


@pytest.mark.parametrize(
    ("text", "method", "memory"), diagonal(TEXTS, ["attnlrp", "cp_lrp"], [None, 0])
)
def test_attention_whole_in_chunks_and_in_segments(text, method, memory, monkeypatch):
    """By the fused kernel at once, some queries at a time, and in a graph that is cut."""
    model, inputs = llama(), TEXTS[text]
    fast, walked = both(model, inputs, (23, 4), method, memory=memory)
    assert (fast.facts["segments"] > 1) == (memory == 0)
    assert_same(fast, walked, 1e-11)
    monkeypatch.setattr(chunked, "CHUNK_BYTES", 7 * 24 * 4 * 2 * 8)
    few, _ = both(model, inputs, (23, 4), method, memory=memory)
    assert closeness(few.scores, walked.scores) <= 1e-11


def test_the_fused_kernel_makes_the_attention(monkeypatch):
    made = []
    plain = chunked.KernelCall.made
    monkeypatch.setattr(
        chunked.KernelCall, "made", lambda call: made.append(call.is_fused) or plain(call)
    )
    behind = {
        "input_ids": IDS,
        "attention_mask": (torch.arange(24) < torch.tensor([[24], [18]])) * 1,
    }
    relprop.explain(llama(), behind, (17, 4), method="attnlrp", verify=False)
    assert made == [True, True]


class AtZero(nn.Module):
    """exp of what is exactly 0 in the second sample."""

    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.mix(x).exp().mean(1))


def test_a_function_that_is_not_0_at_0_is_walked():
    torch.manual_seed(0)
    model, x = AtZero().double(), torch.randn(2, 5, 4, dtype=torch.float64)
    fast = relprop.explain(model, x, 1, method="attnlrp")
    assert fast.facts["relevance"] == ONE
    x[1, 2] = 0
    walked = relprop.explain(model, x, 1, method="attnlrp")
    assert walked.facts["relevance"] == "walked: a function that is not 0 at 0 is given a 0"
    kept = relprop.explain(model, x, 1, method="attnlrp", ledger=True)
    assert torch.equal(walked.scores, kept.scores)


def test_what_has_no_gradient_form_is_walked_and_says_why():
    model, x = shared(dtype=torch.float32), sample(dtype=torch.float32)

    @relprop.rules.rule(family="carry", reads="")
    def mine(relevance, call):
        return relevance

    op = torch.ops.aten.gelu
    rules = relprop.rules.ATTNLRP.with_rule(op, mine)
    fact = relprop.explain(model, x, 1, method="attnlrp", rules=rules).facts["relevance"]
    assert fact == "walked: rule 'mine' has no gradient form"
    with_form = relprop.rules.Rule(mine.function, "mine", "carry", frozenset(), gradient=own)
    rules = relprop.rules.ATTNLRP.with_rule(op, with_form)
    e = relprop.explain(model, x, 1, method="attnlrp", rules=rules)
    assert e.facts["relevance"] == ONE
    assert closeness(e.scores, relprop.explain(model, x, 1, method="attnlrp").scores) > 1e-3
    assert "no gradient form" in relprop.explain(model, x, 1, method="lrp").facts["relevance"]
    half = shared(dtype=torch.bfloat16)
    fact = relprop.explain(half, x.bfloat16(), 1, method="attnlrp").facts["relevance"]
    assert fact == "walked: gradients of a model in bfloat16 are rounded to that"


def test_a_rule_of_a_whole_module_call_is_walked():
    """Several operations in one, of which the gradient form would be of none."""
    model, x = shared(), sample()

    def module_rule(relevance, call):
        return relprop.rules.carry(relevance, call)

    rules = relprop.rules.ATTNLRP.with_rule(type(model.blocks[0]), module_rule)
    e = relprop.explain(model, x, 1, method="attnlrp", rules=rules)
    said = "walked: rule 'module_rule' takes a whole call of Block"
    assert e.facts["relevance"] == said and e.ledger is not None
    assert not relprop.explain(model, x, 1, method="attnlrp", rules=rules, ledger=False).ledger


@pytest.mark.parametrize("method", ["attnlrp", "lrp", "transformer_attribution"])
def test_without_books_the_numbers_are_the_same(method):
    model, x = shared(), sample()
    with_books, without = (
        relprop.explain(model, x, 1, method=method, ledger=ledger) for ledger in (True, False)
    )
    assert without.ledger is None and with_books.ledger is not None
    assert closeness(without.scores, with_books.scores) <= 1e-8
    if method != "attnlrp":
        assert torch.equal(without.scores, with_books.scores)


def test_a_step_where_relevance_ends_ends_the_gradient():
    """Positions that are read get nothing by either way, though they have a derivative."""

    class Read(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(12, 3)

        def forward(self, x):
            grid = x.mean(1)[..., None].expand(-1, -1, -1, 2).tanh()
            return self.head(nn.functional.grid_sample(x, grid, align_corners=False).flatten(1))

    torch.manual_seed(0)
    model, x = Read().double(), torch.randn(2, 3, 2, 2, dtype=torch.float64)
    assert_same(*both(model, x, 1))
    assert math.isfinite(float(both(model, x, 1)[0].scores.sum()))


def test_the_forms_are_worked_out_once_per_plan(monkeypatch):
    model, x, seen = shared(), sample(), []
    monkeypatch.setattr(
        "relprop.runner.needing.forms_of", lambda plan: seen.append(forms_of(plan)) or seen[-1]
    )
    for target in (0, 1):
        relprop.explain(model, x, target, method="attnlrp")
    assert len({id(forms) for forms in seen}) == 1
