"""``relprop.testing``: what is right passes, and each fault is named with what to do. And what a
run itself says of a rule or a method that is wrong."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import relprop
from relprop import evaluation
from relprop.demo.model import digit_scene_model
from relprop.errors import OptionError, RelpropError, RuleError, UnusedRuleWarning
from relprop.rules import PAPER, Rule, Split, Total, carry, generic, linear, matmul, register_rule
from relprop.testing import (
    CheckFailed,
    check_adapter,
    check_measure,
    check_method,
    check_rule,
)
from tests.common.models import build, sample
from tests.common.rows import only

aten = torch.ops.aten
X = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
DOCS = Path(__file__).parents[2] / "docs"


def laws(caught) -> set[str]:
    return {fault.law for fault in caught.value.faults}


# -- rules

RIGHT = {
    "an operator": (carry, aten.gelu, (X,)),
    "one sample": (carry, aten.gelu, (X[:1],)),
    "a module": (carry, nn.LayerNorm(8), (X,)),
    "a module of several operations": (carry, nn.Sequential(nn.Linear(8, 8), nn.GELU()), (X,)),
    "parameters": (linear, aten.linear, (X, nn.Parameter(torch.randn(3, 8)))),
    "two activations": (matmul, aten.matmul, (X, torch.randn(2, 8, 3))),
    "other arguments": (generic, aten.cumsum, (X, -1)),
}


@pytest.mark.parametrize("name", only(["a module of several operations", "two activations"], RIGHT))
def test_a_right_rule_keeps_every_law(name):
    rule, op, inputs = RIGHT[name]
    found = check_rule(rule, op, *inputs)
    asked = {"taken", "runs", "leaves its inputs", "finite", "conserving", "homogeneous"}
    assert asked | {"repeatable", "batch-exact"} <= set(found.laws)


def test_a_decorated_rule_is_the_one_that_it_registered():
    """By its own name, and taken although it is there for the whole process already."""

    @register_rule(nn.GELU)
    def mine(relevance, call):
        return relevance

    with mine:
        assert str(check_rule(mine, nn.GELU(), X)).startswith("rule 'mine' on GELU: taken, ")


def test_a_rule_that_no_node_takes_is_warned_of():
    """A path that matches nothing, and an operation that the model does not have."""
    model, x = build(), sample()
    for key in ("nothing.like.this", torch.ops.aten.cumsum):
        with pytest.warns(UnusedRuleWarning, match="no operation that relevance passes takes"):
            relprop.explain(model, x, 1, rules=PAPER.with_rule(key, carry))


def test_a_gradient_form_that_is_not_defined_at_these_numbers_is_no_fault():
    assert "is not defined here" in str(check_rule(carry, nn.ReLU(), X))


def in_place(relevance, call):
    call.inputs[0].mul_(2)
    return relevance


def lost(relevance, call):
    return Split((relevance / 2,), {"half of it": relevance.sum() / 2})


WRONG = {
    "nothing": (lambda r, c: None, {"runs"}, "returned NoneType"),
    "a number": (lambda r, c: 1.0, {"runs"}, "returned float"),
    "numbers as shares": (lambda r, c: [1.0], {"runs"}, "returned float as the share"),
    "an array": (lambda r, c: r.numpy(), {"runs"}, "returned ndarray"),
    "too many": (lambda r, c: (r, r), {"runs"}, "2 shares for 1"),
    "another shape": (lambda r, c: r[..., :1], {"runs"}, r"shape \[1, 4, 1\]"),
    "raises": (lambda r, c: 1 / 0, {"runs"}, "division by zero"),
    "0/0": (lambda r, c: r * c.inputs[0] / c.inputs[0], {"finite"}, "every input is 0"),
    "loses": (lambda r, c: r / 2, {"conserving"}, "declared"),
    "a constant": (lambda r, c: r + 1, {"conserving", "homogeneous"}, "2.5 times"),
    "branches": (lambda r, c: r if r.sum() > 0 else 1 * r, {"batch-exact"}, "torch.where"),
    "noise": (
        lambda r, c: r * torch.rand_like(r),
        {"conserving", "homogeneous", "repeatable", "batch-exact"},
        "random",
    ),
    "writes": (in_place, {"leaves its inputs"}, "mul_"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_told_its_faults(name):
    rule, expected, said = WRONG[name]
    with pytest.raises(CheckFailed, match=said) as caught:
        check_rule(rule, aten.gelu, X, draws=0)
    assert laws(caught) == expected
    assert all(fault.then in str(caught.value) for fault in caught.value.faults)


DRAWN = {
    "a value": (lambda r, c: r * (c.inputs[0] < 1.5), aten.gelu, (X.clamp(max=1),), "Eq. 3"),
    "a shape": (lambda r, c: r.flip(-1) if r.shape[1] > 1 else r * 2, aten.gelu, (X,), "Eq. 3"),
    "a role": (
        lambda r, c: (r, 0 * r) if len(c.activations) == 2 else r[..., :1],
        aten.add,
        (X, X),
        r"returned a share of shape",
    ),
    "a sum": (lambda r, c: (r / 2, r * (c.inputs[0] != 0.25) / 2), aten.add, (X, X), "Lemma 1"),
    "a product": (lambda r, c: (r / 2, r * (c.inputs[0] != 2) / 2), aten.mul, (X, X), "Lemma 2"),
}


@pytest.mark.parametrize("name", only(["a shape", "a role"], DRAWN))
def test_what_only_other_calls_show(name):
    rule, op, inputs, said = DRAWN[name]
    assert check_rule(rule, op, *inputs, draws=0)
    with pytest.raises(CheckFailed, match=rf"{said}(.|\n)*    of  tensor \[") as caught:
        check_rule(rule, op, *inputs, draws=200)
    assert len(laws(caught)) <= 2


def test_the_smallest_call_is_small():
    with pytest.raises(CheckFailed, match=r"of  tensor \[\[\[0.0\]\]\]\n"):
        check_rule(lambda r, c: r / 2, aten.gelu, X)


def test_without_hypothesis_it_is_said(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "hypothesis is not installed" in str(check_rule(carry, aten.gelu, X))


def test_a_parameter_as_long_as_the_batch_is_not_cut():
    assert check_rule(linear, aten.linear, X, nn.Parameter(torch.randn(2, 8)), draws=0)


def test_a_rule_that_says_what_it_loses_conserves():
    check_rule(lost, aten.gelu, X)
    found = check_rule(lambda r, c: r / 2, aten.gelu, X, conserving=False, draws=0)
    assert "conserving" not in found.laws and "residual" in str(found)


def test_a_rule_that_is_not_what_it_says_of_itself():
    def of_all(relevance, call):
        return relevance.abs() / relevance.abs().sum() * relevance.sum()

    with pytest.raises(CheckFailed) as caught:
        check_rule(Rule(of_all, "of all", row_wise=True), aten.gelu, X)
    assert laws(caught) == {"row-wise"}
    own = relprop.rules.gradient_form.own
    with pytest.raises(CheckFailed) as caught:
        check_rule(replace(carry, gradient=own), aten.gelu, X)
    assert laws(caught) == {"gradient form"}


def test_a_rule_that_nothing_takes():
    with pytest.raises(CheckFailed, match="captured as") as caught:
        check_rule(carry, aten.addmm, torch.randn(8), X[0], nn.Parameter(torch.randn(8, 8)))
    assert laws(caught) == {"taken"}
    with pytest.raises(CheckFailed, match="this call has 2"):
        check_rule(carry, aten.silu_backward, X, X.flip(0))
    with pytest.raises(CheckFailed, match=r"GELU\(\.\.\.\)"):
        check_rule(carry, nn.GELU, X)
    with pytest.raises(RelpropError, match="batch first"):
        check_rule(carry, aten.gelu, nn.Parameter(X))


def test_the_subject_is_left_as_it_was():
    module, given = nn.LayerNorm(8), X.clone()
    before = {n: p.clone() for n, p in module.state_dict().items()}
    check_rule(carry, module, given, draws=5)
    assert torch.equal(given, X) and module.weight.dtype == torch.float32 and module.training
    assert all(torch.equal(p, before[n]) for n, p in module.state_dict().items())


# -- a run


def test_a_run_names_the_rule_that_made_relevance_infinite():
    def infinite(relevance, call):
        return relevance / 0

    rules = PAPER.with_rule(aten.gelu, infinite)
    with pytest.raises(RelpropError, match=r"rule 'infinite' hands on .*(\n.*)*blocks\.1\.mlp"):
        relprop.explain(build(), sample(), 1, rules=rules, keep=("input",))


@pytest.mark.parametrize("rule", [lambda r, c: None, lambda r, c: 2.0, lambda r, c: ["x"]])
def test_a_run_says_what_a_rule_returned(rule):
    with pytest.raises(RuleError, match=r"returned (NoneType|float|str)"):
        relprop.explain(build(), sample(), 1, rules=PAPER.with_rule(aten.gelu, rule))


# -- methods

MODEL = digit_scene_model()
IMAGES = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
Study = relprop.methods.AttentionStudy


@pytest.fixture
def register():
    names = []

    def add(function, **facts):
        relprop.methods.register("tried", function, **facts)
        names.append("tried")

    yield add
    for name in names:
        relprop.methods.remove(name)


FORGOTTEN = {
    "gradient": lambda at: {v.site.contraction: v.gradient for v in at.sites},
    "relevance": lambda at: at.matrices(lambda v: v.relevance),
    "hidden": lambda at: {"input_0": relprop.methods.TokenMap(at.layers[0].value)},
    "features": lambda at: at.features,
    "inputs": lambda at: at.inputs,
}


@pytest.mark.parametrize("need", FORGOTTEN)
def test_a_forgotten_need_is_named(need, register):
    register(FORGOTTEN[need])
    with pytest.raises(OptionError, match=rf"needs=\['{need}'\]"):
        relprop.explain(MODEL, IMAGES, 3, method="tried")


@pytest.mark.parametrize("need", ["gradient", "relevance"])
def test_a_forgotten_need_at_the_input_is_named(need, register):
    register(lambda at: getattr(at, f"{need}s"), level="input")
    with pytest.raises(OptionError, match=rf"needs=\['{need}'\]"):
        relprop.explain(MODEL, IMAGES, 3, method="tried")


def test_gradients_and_relevances_at_the_input_may_both_be_asked_for(register):
    def both(at):
        return {n: at.gradients[n] + at.relevances[n] for n in at.values}

    register(both, level="input", needs=["gradient", "relevance"], rules="attnlrp", signed=True)
    e = relprop.explain(MODEL, IMAGES, 3, method="tried")
    parts = [relprop.explain(MODEL, IMAGES, 3, method=m).scores for m in ("attnlrp",)]
    assert not torch.allclose(e.scores, parts[0]) and e.scores.isfinite().all()


RETURNED = {
    "nothing": (lambda at: None, "returned NoneType"),
    "an empty dict": (lambda at: {}, "returned an empty mapping"),
    "bare scores": (lambda at: {"input_0": torch.ones(2, 65)}, r"a tensor \[2, 65\] for 'input_0'"),
    "another input": (
        lambda at: {"pixels": relprop.methods.TokenMap(torch.ones(2, 65))},
        "the inputs are 'input_0'",
    ),
    "too few": (
        lambda at: {"input_0": relprop.methods.TokenMap(torch.ones(2, 64))},
        r"\(batch, tokens\) is \[2, 65\]",
    ),
    "other matrices": (
        lambda at: {v.site.contraction: v.attention.mean(1) for v in at.sites},
        r"its maps are \[2, 1, 4, 65, 65\]",
    ),
}


@pytest.mark.parametrize("name", RETURNED)
def test_a_wrong_return_is_said(name, register):
    function, said = RETURNED[name]
    register(function)
    with pytest.raises(OptionError, match=said):
        relprop.explain(MODEL, IMAGES, 3, method="tried")


@pytest.mark.parametrize("wrong", [{}, {"input_0": torch.ones(2, 3)}, [1]])
def test_a_wrong_return_at_the_input_is_said(wrong, register):
    register(lambda at: wrong, level="input")
    with pytest.raises(OptionError, match=r"method 'tried' returned"):
        relprop.explain(MODEL, IMAGES, 3, method="tried")


@pytest.mark.parametrize("method", ["transformer_attribution", "gradcam", "attnlrp"])
def test_a_right_method_keeps_every_law(method):
    assert "batch-exact" in check_method(method, MODEL, IMAGES, 3, other=8).laws


def of_batch(at):
    maps = {v.site.contraction: v.attention * v.attention.mean(0, keepdim=True) for v in at.sites}
    return maps


def noisy(at):
    return {v.site.contraction: torch.rand_like(v.attention) for v in at.sites}


FAULTY = {
    "of the batch": (of_batch, {"class_specific": False}, {"batch-exact"}),
    "noise": (noisy, {"class_specific": False}, {"batch-exact"}),
    "says classes": (FORGOTTEN["gradient"], {"needs": ["gradient"]}, {"signed as said"}),
    "is of none": (lambda at: {v.site.contraction: v.attention for v in at.sites}, {},
                   {"class-specific as said"}),
    "needs": (FORGOTTEN["gradient"], {}, {"runs"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTY)
def test_a_wrong_method_is_told_its_faults(name, register):
    function, facts, expected = FAULTY[name]
    register(function, **facts)
    with pytest.raises(CheckFailed) as caught:
        check_method("tried", MODEL, IMAGES, 3, other=8)
    assert laws(caught) == expected


# -- adapters


class Ids(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, ids):
        return self.head(self.embed(ids).mean(1))


class Right(relprop.adapters.Adapter):
    def tokens(self, model, given):
        return [[str(i) for i in row] for row in given.tensor.tolist()]

    def words(self, model, given):
        return [[("all", list(range(given.tensor.shape[1])))] for _ in range(given.batch)]

    def content(self, model, given):
        return given.tensor > 0

    def labels(self, model):
        return "a", "b"


def method_of(name, value):
    return type("Wrong", (Right,), {name: lambda self, *given: value})


ADAPTERS = {
    "labels": method_of("tokens", [["a"]]),
    "words": method_of("words", [[("all", [9])], []]),
    "content": method_of("content", torch.ones(2, 5)),
    "clock": method_of("clock", (0, 1.0)),
    "inputs": method_of("token_inputs", ("nothing",)),
    "classes": method_of("label_index", None),
    "next token": method_of("last_position", torch.tensor([9, 9])),
    "prepares": method_of("prepare", None),
}


def test_a_right_adapter_keeps_every_law():
    ids = torch.randint(0, 9, (2, 5))
    assert set(check_adapter(Right, Ids(), ids).laws) >= {"fits", "labels", "words", "content"}


@pytest.mark.parametrize("law", [name for name in ADAPTERS if name != "prepares"])
def test_a_wrong_adapter_is_told_its_faults(law):
    with pytest.raises(CheckFailed) as caught:
        check_adapter(ADAPTERS[law], Ids(), torch.randint(0, 9, (2, 5)))
    assert laws(caught) == {law}


def test_an_adapter_that_raises_or_does_not_fit():
    raising = type("Raising", (Right,), {"content": lambda self, *given: 1 / 0})
    with pytest.raises(CheckFailed, match="ZeroDivisionError"):
        check_adapter(raising, Ids(), torch.randint(0, 9, (2, 5)))
    with pytest.raises(CheckFailed, match="fits"):
        check_adapter(relprop.adapters.HuggingFace, Ids(), torch.randint(0, 9, (2, 5)))


# -- measures


@dataclass(frozen=True)
class Named:
    name: str = "mine"
    higher_is_better: bool = True
    protocol: str = "mine"
    source: str = ""
    deviations: tuple[str, ...] = ()


class Mine(evaluation.OfLabel):
    metric = Named()
    statistics = (evaluation.mean_of("mean"),)

    def __call__(self, task, batch, maps):
        return maps.of(batch.main()).flatten(1).amax(1, keepdim=True).double()


class OfBatch(Mine):
    def __call__(self, task, batch, maps):
        return super().__call__(task, batch, maps) / len(batch.samples)


class Noisy(Mine):
    def __call__(self, task, batch, maps):
        return torch.rand(len(batch.samples), 1)


class Misshapen(Mine):
    def __call__(self, task, batch, maps):
        return torch.zeros(len(batch.samples))


class NoMean(Mine):
    statistics = (replace(evaluation.mean_of("mean"), of=lambda table: 7.0),)


class Nameless(Mine):
    metric = None


MEASURES = {
    OfBatch: {"batch-exact"},
    Noisy: {"repeatable", "batch-exact"},
    Misshapen: {"runs"},
    NoMean: {"statistics"},
    Nameless: {"says what it is"},
}


def test_a_right_measure_keeps_every_law():
    assert "statistics" in check_measure(Mine(), evaluation.digit_scenes(4)).laws


@pytest.mark.parametrize(
    "kind", only([OfBatch, NoMean, Nameless], MEASURES), ids=lambda k: k.__name__
)
def test_a_wrong_measure_is_told_its_faults(kind):
    with pytest.raises(CheckFailed) as caught:
        check_measure(kind(), evaluation.digit_scenes(4), samples=3)
    assert laws(caught) == MEASURES[kind]


# -- the guides


@pytest.mark.parametrize("page", only(["write-a-method"], ["write-a-metric", "write-a-method"]))
def test_the_guide_runs(page, capsys):
    text, scope = (DOCS / f"{page}.md").read_text(), {}
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(block, page, "exec"), scope)
    assert "batch-exact" in capsys.readouterr().out


def test_a_total_stands_for_a_share_that_nobody_reads():
    rule = Rule(lambda r, c: Split((Total(r.sum()),)), "total")
    with pytest.raises(CheckFailed):
        check_rule(rule, aten.gelu, X, draws=0)
