"""A user's own rules: by operator, module class and module path; the process-wide layer; whole
modules as one operation; a custom op.

The custom operator is a gated norm from ``torch.library``: unknown at first, refused with the
message that says how, then three lines.
"""

import functools
import re

import pytest
import torch
from torch import nn

import relprop
from relprop.errors import (
    NoAttentionError,
    RelpropError,
    RelpropWarning,
    RuleError,
    UnknownOperation,
)
from relprop.rules import PAPER, carry
from tests.common.models import Attention, Block, Recipe, build, closeness, randomise, sample

aten = torch.ops.aten
KEEP = ("blocks", "input")


def halved(relevance, call):
    """A rule that can be seen: half of the relevance goes on."""
    return relevance / 2


@functools.cache
def plain_model():
    """One model for every test that does not change it: captured once."""
    return build()


def explain(rules="paper", model=None, **options):
    return relprop.explain(
        plain_model() if model is None else model, sample(), 1, rules=rules, keep=KEEP, **options
    )


def rules_at(e, path):
    return {a.rule for a in e.ledger.accounts if a.path == path}


# -- RuleSet.with_rule
# --------------------------------------------------------------------------------------------------

KEYS = {
    "operator packet": (aten.gelu, {"blocks.0.mlp.1", "blocks.1.mlp.1"}),
    "operator overload": (aten.gelu.default, {"blocks.0.mlp.1", "blocks.1.mlp.1"}),
    "module class": (nn.GELU, {"blocks.0.mlp.1", "blocks.1.mlp.1"}),
    "a class above it": (
        nn.LayerNorm,
        {"blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.1.norm2", "norm"},
    ),
    "path": ("blocks.0.mlp.1", {"blocks.0.mlp.1"}),
    "path pattern": ("blocks.*.norm1", {"blocks.0.norm1", "blocks.1.norm1"}),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_rule_is_used_where_its_key_matches_and_nowhere_else(name):
    key, places = KEYS[name]
    e = explain(PAPER.with_rule(key, halved))
    assert {a.path for a in e.ledger.accounts if a.rule == "halved"} == places
    for account in e.ledger.accounts:
        if account.rule == "halved":
            assert closeness(account.to_inputs, account.arrived / 2) <= 1e-12
            assert closeness(account.residual, account.arrived / 2) <= 1e-12
    assert e.rules == "paper+1"


def test_the_rule_set_it_came_from_is_unchanged():
    before = explain()
    PAPER.with_rule(aten.gelu, halved)
    assert explain().scores.equal(before.scores) and PAPER.name == "paper"


def test_the_newest_rule_is_consulted_first():
    rules = PAPER.with_rule(aten.gelu, halved).with_rule(aten.gelu, carry)
    assert closeness(explain(rules).input, explain().input) <= 1e-12 and rules.name == "paper+2"


def test_a_path_tells_the_calls_of_one_module_apart():
    model = build(Recipe(shared=True))
    e = explain(PAPER.with_rule("blocks.0.norm1@1", halved), model)
    assert {a.path for a in e.ledger.accounts if a.rule == "halved"} == {"blocks.0.norm1@1"}
    both = explain(PAPER.with_rule("blocks.0.norm1", halved), model)
    assert {a.path for a in both.ledger.accounts if a.rule == "halved"} == {
        "blocks.0.norm1",
        "blocks.0.norm1@1",
    }


def test_a_path_matches_every_alias_of_a_module():
    """Two names of one module: a rule for either holds for the calls under both."""
    model = build()
    model.blocks[1] = model.blocks[0]
    for name in ("blocks.0.norm1", "blocks.1.norm1"):
        e = explain(PAPER.with_rule(name, halved), model)
        assert len([a for a in e.ledger.accounts if a.rule == "halved"]) == 2, name


@pytest.mark.parametrize("key", [nn.LayerNorm, nn.Sequential], ids=["leaf", "several operations"])
def test_a_class_holds_for_every_call_of_a_shared_module(key):
    e = explain(PAPER.with_rule(key, halved), build(Recipe(shared=True, depth=3)))
    rows = [a.path for a in e.ledger.accounts if a.rule == "halved"]
    assert len(rows) == len(set(rows)) == (7 if key is nn.LayerNorm else 3)


def test_a_rule_that_gives_nothing_ends_the_walk_there():
    e = explain(
        PAPER.with_rule("blocks.1.mlp", lambda relevance, call: torch.zeros_like(relevance))
    )
    assert torch.isfinite(e.scores).all() and closeness(e.input, explain().input) > 1e-6


BROKEN = {
    "raises": (lambda relevance, call: 1 / 0, r"failed on aten.gelu.default: division by zero"),
    "returns too many": (
        lambda relevance, call: (relevance, relevance),
        r"returned 2 shares for 1 operands",
    ),
    "returns nothing": (
        lambda relevance, call: None,
        r"'NoneType' object is not iterable|returned NoneType",
    ),
    "returns another shape": (lambda relevance, call: (relevance[..., :1],), r"shape"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named_with_its_place(name):
    rule, said = BROKEN[name]
    with pytest.raises(RuleError) as caught:
        explain(PAPER.with_rule(aten.gelu, rule))
    flat = " ".join(str(caught.value).split())
    assert re.search(said, flat) and "blocks.1.mlp.1" in flat, flat


# -- the process-wide layer
# --------------------------------------------------------------------------------------------------


def test_a_registered_rule_changes_the_next_explanation_and_remove_undoes_it():
    before = explain()

    @relprop.register_rule(aten.gelu)
    def mine(relevance, call):
        return relevance / 2

    try:
        during = explain()
    finally:
        mine.remove()
    assert rules_at(during, "blocks.0.mlp.1") == {"mine"}
    assert closeness(during.input, before.input) > 1e-3
    assert explain().input.equal(before.input)
    mine.remove()


def test_as_a_context_manager_also_after_an_error():
    before = explain()
    with pytest.raises(KeyError), relprop.register_rule("blocks.0.norm1")(halved):
        assert rules_at(explain(), "blocks.0.norm1") == {"halved"}
        raise KeyError
    assert explain().input.equal(before.input)


def test_registered_rules_hold_for_a_cached_program_and_for_every_rule_set():
    model = build()
    before = {name: explain(name, model).input for name in ("paper", "stable", "lrp")}
    with relprop.register_rule(aten.gelu)(halved):
        for name in before:
            assert closeness(explain(name, model).input, before[name]) > 1e-6
    for name in before:
        assert explain(name, model).input.equal(before[name])


def test_the_roll_up_is_not_changed_by_rules():
    """Rollout reads no relevance: rules for relevance must not reach it."""
    plain = relprop.explain(build(), sample(), method="rollout")
    with (
        relprop.register_rule(aten.gelu)(halved),
        relprop.register_rule(aten.add)(lambda r, call: (r, None)),
    ):
        assert relprop.explain(build(), sample(), method="rollout").scores.equal(plain.scores)


# -- a module as one operation
# -----------------------------------------------------------------------------------------------


class Mlp(nn.Module):
    """Several operations; a rule on its class makes them one."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x):
        return self.down(self.up(x).tanh() * self.up(x).sigmoid())


class Leaky(Mlp):
    """Hands out an inner tensor, too."""

    def forward(self, x):
        inner = self.up(x)
        return self.down(inner.tanh()), inner


class Around(nn.Module):
    """Attention over the output of ``part``."""

    def __init__(self, part):
        super().__init__()
        self.embed, self.part, self.head = nn.Linear(6, 8), part, nn.Linear(8, 4)

    def forward(self, x):
        x = self.embed(x)
        y = self.part(x)
        if isinstance(y, tuple):
            y = y[0] + y[1].mean(-1, keepdim=True)
        x = x + y
        return self.head((x + (x @ x.mT).softmax(-1) @ x).mean(1))


def test_a_module_with_a_rule_is_one_row_of_the_ledger():
    model = randomise(Around(Mlp())).double()
    plain = explain(model=model)
    assert len([a for a in plain.ledger.accounts if a.path.startswith("part")]) >= 5
    seen = []

    def whole(relevance, call):
        seen.append((call.op, len(call.activations), call.output.shape, call.path))
        return carry(relevance, call)

    e = explain(PAPER.with_rule(Mlp, whole), model)
    rows = [a for a in e.ledger.accounts if a.path.startswith("part")]
    assert len(rows) == 1 and rows[0].rule == "whole" and rows[0].op == "Mlp"
    assert e.ledger.balanced(1e-12) and torch.isfinite(e.scores).all()
    assert {op for op, *_ in seen} == {Mlp} and {n for _, n, *_ in seen} == {1}
    assert closeness(rows[0].to_inputs, rows[0].arrived) <= 1e-12


def test_a_regions_call_can_be_replayed_and_differentiated():
    """What the rule is told is enough for Eq. 2: ``call.apply`` is the module's own function."""
    model = randomise(Around(Mlp())).double()

    def by_gradient(relevance, call):
        assert len(call.activations) == 1
        x, *rest = call.inputs
        assert torch.func.vmap is not None and call.apply(x, *rest).shape == call.output.shape
        output, pull = torch.func.vjp(lambda a: call.apply(a, *rest), x)
        return call.only(x * pull(relevance / output)[0])

    e = explain(PAPER.with_rule(Mlp, by_gradient), model)
    assert (torch.isfinite(e.scores).all() and rules_at(e, "part") == {"by_gradient"}) or any(
        a.rule == "by_gradient" for a in e.ledger.accounts
    )


def test_a_region_that_leaks_an_inner_tensor_is_refused():
    with pytest.raises(
        RuleError,
        match=r"the call of 'part' cannot be one operation: 2 of its tensors are used outside it",
    ):
        explain(PAPER.with_rule(Leaky, carry), randomise(Around(Leaky())).double())


class Picked(nn.Module):
    """What one of several results, or a place, picks of twice its input."""

    def __init__(self, pick):
        super().__init__()
        self.pick = pick

    def forward(self, x):
        return self.pick(x * 2)


PICKS = {
    "sort": lambda x: x.sort(-1)[0],
    "topk": lambda x: x.topk(8, -1).values,
    "median": lambda x: x.median(1, keepdim=True)[0],
    "cummax": lambda x: x.cummax(1)[0],
    "kthvalue": lambda x: x.kthvalue(2, -1, keepdim=True).values,
    "argmax": lambda x: x.gather(1, x.tanh().argmax(1, keepdim=True)),
}


@pytest.mark.parametrize("key", [Picked, "part"], ids=["class", "path"])
@pytest.mark.parametrize("pick", PICKS.values(), ids=PICKS)
def test_a_module_may_hold_results_that_nobody_reads(pick, key):
    """Relevance enters by the one that is read."""

    def by_gradient(relevance, call):
        (x,) = call.inputs
        output, pull = torch.func.vjp(call.apply, x)
        return call.only(x * pull(relevance / output)[0])

    e = explain(PAPER.with_rule(key, by_gradient), randomise(Around(Picked(pick))).double())
    (row,) = [a for a in e.ledger.accounts if a.path == "part"]
    assert (row.rule, row.op) == ("by_gradient", "Picked") and row.arrived.any()
    assert closeness(row.to_inputs, row.arrived) <= 1e-9


def test_a_rule_that_hides_the_only_attention_leaves_nothing_to_explain():
    with pytest.raises(
        NoAttentionError, match=r"inside modules that rules of yours treat as one operation"
    ):
        explain(PAPER.with_rule(Attention, carry))


def test_a_rule_that_hides_one_attention_site_leaves_the_other():
    rules = PAPER.with_rule("blocks.0.attention", carry)
    e = explain(rules)
    assert [b.path for b in e.blocks] == ["blocks.1.attention"] and torch.isfinite(e.scores).all()
    report = relprop.check(build(), sample(), rules=rules)
    assert report.hidden_sites and "blocks.0.attention" in str(report)


def test_a_whole_block_by_its_class_hides_all_sites():
    with pytest.raises(NoAttentionError):
        explain(PAPER.with_rule(Block, carry))


# -- a layer with an operator of its own
# -------------------------------------------------------------------------------------


def define(name, *, derivative):
    """``x / rms(x) · sigmoid(gate)`` as a custom operator."""

    @torch.library.custom_op(f"relprop_tests::{name}", mutates_args=())
    def op(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return x / x.square().mean(-1, keepdim=True).add(1e-6).sqrt() * gate.sigmoid()

    op.register_fake(lambda x, gate: torch.empty_like(x))

    def batched(info, in_dims, x, gate):
        x = x.movedim(in_dims[0], 0)
        return op(x, gate if in_dims[1] is None else gate.movedim(in_dims[1], 0)), 0

    op.register_vmap(batched)
    if derivative:
        op.register_autograd(
            backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
        )
    return op


def backward(ctx, grad):
    x, gate = ctx.saved_tensors
    with torch.enable_grad():
        x, gate = x.detach().requires_grad_(), gate.detach().requires_grad_()
        y = x / x.square().mean(-1, keepdim=True).add(1e-6).sqrt() * gate.sigmoid()
        return torch.autograd.grad(y, (x, gate), grad)


OPS = {
    True: define("gated_norm", derivative=True),
    False: define("gated_norm_without_derivative", derivative=False),
}


class GatedNorm(nn.Module):
    def __init__(self, derivative):
        super().__init__()
        self.gate, self.op = nn.Parameter(torch.linspace(-1, 1, 8).double()), OPS[derivative]

    def forward(self, x):
        return self.op(x, self.gate)


def with_gated_norm(derivative, where="norm1"):
    model = build()
    setattr(model.blocks[0], where, GatedNorm(derivative))
    return model


def operator(derivative):
    return getattr(
        torch.ops.relprop_tests, "gated_norm" if derivative else "gated_norm_without_derivative"
    )


@pytest.mark.parametrize("derivative", [True, False], ids=["with derivative", "without derivative"])
def test_an_unknown_operator_is_refused_with_the_message_that_says_how(derivative):
    with pytest.raises(UnknownOperation) as caught:
        explain(model=with_gated_norm(derivative), on_unknown="error")
    said = str(caught.value)
    assert f"no relevance rule for {operator(derivative).default}" in said
    assert (
        "blocks.0.norm1" in said
        and "test_customisation.py" in said
        and "self.op(x, self.gate)" in said
    )
    assert (
        f"relprop.rules.PAPER.with_rule(torch.ops.{operator(derivative).default}, "
        "relprop.rules.carry)"
    ) in said
    assert "register_rule" in said and "relprop.check(model, inputs)" in said


def test_it_is_refused_as_generic_too_because_its_derivative_is_out_of_reach():
    with pytest.raises(
        UnknownOperation,
        match=r"relprop_tests.gated_norm.default, and torch.func cannot enter its derivative",
    ):
        explain(model=with_gated_norm(True))
    with pytest.raises(
        UnknownOperation,
        match=r"gated_norm_without_derivative.default, and PyTorch has no derivative of it",
    ):
        explain(model=with_gated_norm(False))


def test_check_names_it_before_anything_runs():
    report = relprop.check(with_gated_norm(False), sample())
    assert not report.ok and "gated_norm_without_derivative" in str(report)
    assert "test_customisation.py" in str(report)


def test_an_aten_operator_without_a_rule_is_generic_and_says_so_once():
    model = randomise(Around(nn.Softmax2d()))
    model.part.forward = lambda x: torch.logcumsumexp(x, -1) / 4
    with pytest.warns(
        RelpropWarning, match="take the generic one.*aten.logcumsumexp.default"
    ) as warned:
        e = explain(model=model.double())
        explain(model=model)
    assert len(warned) == 1
    assert (
        e.facts["generic"] == ["aten.logcumsumexp.default"]
        and e.ledger.balanced(1e-9)
        and torch.isfinite(e.scores).all()
    )


@pytest.mark.parametrize("derivative", [True, False], ids=["with derivative", "without derivative"])
def test_three_lines_make_it_work(derivative):
    """A norm and a gate by a parameter: one element in, one element out. Below the first attention
    map no gradient is asked for."""
    model = with_gated_norm(derivative)

    @relprop.register_rule(operator(derivative))
    def gated_norm(relevance, call):
        return relevance

    with gated_norm:
        e = explain(model=model, on_unknown="error")
        single = relprop.explain(model, sample()[1:2], 1, on_unknown="error")
    assert {a.rule for a in e.ledger.accounts if "gated_norm" in a.op} == {"gated_norm"}
    assert e.ledger.balanced(1e-12) and e.facts["generic"] == []
    assert torch.isfinite(e.scores).all() and closeness(e.scores[1:2], single.scores) <= 1e-9
    assert closeness(e.output, model(sample())[:, 1].detach()) <= 1e-12
    with pytest.raises(UnknownOperation):
        explain(model=model, on_unknown="error")


def test_its_gradient_is_the_operators_own():
    """Above an attention map the operator's registered derivative is used: as for the same norm
    written out in PyTorch."""
    model, plain = with_gated_norm(True, "norm2"), with_gated_norm(True, "norm2")
    plain.blocks[0].norm2.op = lambda x, gate: (
        x / x.square().mean(-1, keepdim=True).add(1e-6).sqrt() * gate.sigmoid()
    )
    e = explain(PAPER.with_rule(operator(True), carry), model)
    assert closeness(e.blocks[0].gradient, explain(model=plain).blocks[0].gradient) <= 1e-9
    assert closeness(e.scores, explain(model=plain).scores) <= 1e-9


def test_without_a_derivative_above_an_attention_map_it_is_refused_clearly():
    model, rules = with_gated_norm(False, "norm2"), PAPER.with_rule(operator(False), carry)
    with pytest.raises(
        RelpropError, match=r"gradient cannot be taken: .*no autograd formula was registered"
    ):
        relprop.explain(model, sample(), 1, rules=rules)
    e = relprop.explain(model, sample(), 1, rules=rules, use_gradient=False)
    assert torch.isfinite(e.scores).all() and e.ledger.balanced(1e-12)


def test_the_message_snippet_works_as_pasted():
    with pytest.raises(UnknownOperation) as caught:
        explain(model=with_gated_norm(True), on_unknown="error")
    snippet = next(
        line.split("then", 1)[1].split("#")[0].strip()
        for line in str(caught.value).splitlines()
        if line.strip().startswith("then")
    )
    scope = {"relprop": relprop, "torch": torch}
    exec(snippet, scope)
    e = explain(scope["rules"], with_gated_norm(True), on_unknown="error")
    assert e.ledger.balanced(1e-12)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("blocks.*.nrm1", r"'blocks\.\*\.nrm1'\n.*called like 'blocks\.1\.norm1'"),
        (torch.nn.LSTM, "LSTM"),
        (aten.cumsum, "cumsum"),
    ],
)
def test_an_added_rule_that_no_operation_takes_is_told(key, said):
    rules = relprop.rules.PAPER.with_rule(key, relprop.rules.carry)
    with pytest.warns(relprop.RelpropWarning, match=f"no operation .* takes .*{said}"):
        relprop.explain(build(), sample(), 1, rules=rules)


@pytest.mark.parametrize("key", ["blocks.*.norm1", torch.nn.LayerNorm, aten.layer_norm])
def test_an_added_rule_that_one_takes_is_not(key, recwarn):
    relprop.explain(
        build(), sample(), 1, rules=relprop.rules.PAPER.with_rule(key, relprop.rules.carry)
    )
    assert not [w for w in recwarn if "no operation" in str(w.message)]
