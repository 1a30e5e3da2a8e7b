"""The table from operators, module classes and module paths to rules: order, matching, the
process-wide layer, and what it refuses."""

import dataclasses

import pytest
import torch
from torch import nn

from relprop.errors import OptionError, RelpropError, RuleError
from relprop.operations import Kind, kind
from relprop.operations.table import TABLE
from relprop.rules import (
    PAPER,
    PRESETS,
    Rule,
    RuleSet,
    Split,
    carry,
    generic,
    move,
    register_rule,
    rule,
)
from relprop.rules.families import either
from relprop.rules.ruleset import Entry, named
from tests.common.calls import make_call

aten = torch.ops.aten
EMPTY = RuleSet("empty", (), generic)
ADD = make_call(aten.add.Tensor, torch.ones(2, 3), torch.ones(3))


def one(relevance, call):
    return relevance


def two(relevance, call):
    return relevance


# ---- order and matching


def test_with_rule_puts_first_and_changes_nothing_else():
    rules = PAPER.with_rule(aten.add, one)
    assert rules.for_op(aten.add.Tensor).function is one
    assert rules.entries[1:] == PAPER.entries
    assert PAPER.for_op(aten.add.Tensor).function is not one
    assert (rules.generic, rules.fan_out) == (PAPER.generic, PAPER.fan_out)
    assert [rules.name, rules.with_rule("blocks", two).name] == ["paper+1", "paper+2"]


def test_the_first_match_wins():
    rules = EMPTY.with_rule(aten.add, one).with_rule(aten.add, two)
    assert rules.for_op(aten.add.Tensor).function is two
    assert EMPTY.for_op(aten.add.Tensor) is None


def test_a_rule_set_is_printed_on_one_screen():
    """Of every shipped one a line per rule; of one with rules added, these first."""
    for shipped in PRESETS.values():
        lines = repr(shipped).splitlines()
        assert len(lines) < 40 and max(map(len, lines)) <= 100
        assert lines[-1].endswith("anything else")
    own = PAPER.with_rule("blocks.*", carry).with_rule(torch.ops.aten.cumsum, move)
    lines = [
        line.split(maxsplit=1) for line in repr(own.with_rule(nn.LayerNorm, carry)).splitlines()
    ]
    assert lines[1:3] == [["carry", "'blocks.*', LayerNorm"], ["move", "aten.cumsum"]]


def test_a_rule_set_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PAPER.name = "mine"
    with pytest.raises(dataclasses.FrozenInstanceError):
        PAPER.entries[0].rule.name = "mine"


def test_a_packet_is_about_all_its_overloads_and_an_overload_about_itself():
    packet, overload = EMPTY.with_rule(aten.add, one), EMPTY.with_rule(aten.add.Tensor, one)
    assert packet.for_op(aten.add.Tensor) is not None is not packet.for_op(aten.add.Scalar)
    assert overload.for_op(aten.add.Tensor) is not None
    assert overload.for_op(aten.add.Scalar) is None
    assert packet.for_op(aten.sub.Tensor) is None


def test_an_overload_put_first_narrows_a_packet():
    rules = EMPTY.with_rule(aten.add, one).with_rule(aten.add.Scalar, two)
    assert rules.for_op(aten.add.Scalar).function is two
    assert rules.for_op(aten.add.Tensor).function is one


class Norm(nn.LayerNorm):
    pass


@pytest.mark.parametrize(
    ("key", "module", "paths", "matches"),
    [
        (nn.LayerNorm, nn.LayerNorm(2), (), True),
        (nn.LayerNorm, Norm(2), (), True),
        (Norm, nn.LayerNorm(2), (), False),
        (nn.Module, nn.GELU(), ("anywhere",), True),
        (nn.LayerNorm, None, ("norm",), False),
        ("blocks.*.norm1", nn.GELU(), ("blocks.0.norm1",), True),
        ("blocks.*.norm1", nn.GELU(), ("blocks.0.norm2",), False),
        ("blocks.?", nn.GELU(), ("blocks.10",), False),
        ("head", nn.GELU(), ("body", "head"), True),
        ("head", nn.GELU(), ("Head",), False),
        ("shared@1", nn.GELU(), ("shared@1",), True),
        ("shared@1", nn.GELU(), ("shared",), False),
        (aten.add, nn.GELU(), ("add",), False),
    ],
    ids=str,
)
def test_classes_match_by_isinstance_and_paths_by_pattern_under_any_alias(
    key, module, paths, matches
):
    assert Entry(key, carry).matches_module(module, paths) is matches


def test_entries_about_modules_are_no_entries_about_operators():
    rules = EMPTY.with_rule(aten.add, one).with_rule(nn.GELU, one).with_rule("head.*", two)
    assert [entry.kind for entry in rules.entries] == ["path", "class", "op"]
    assert [entry.key for entry in rules.module_entries()] == ["head.*", nn.GELU]
    assert rules.with_rule(nn.GELU, one).for_op(aten.gelu.default) is None


# ---- the process-wide layer


def test_a_registered_rule_is_consulted_first_by_every_rule_set_until_removed():
    registration = register_rule(aten.add)(one)
    try:
        assert all(rules.for_op(aten.add.Tensor).function is one for rules in PRESETS.values())
        assert PAPER.with_rule(aten.add, two).for_op(aten.add.Tensor).function is one
    finally:
        registration.remove()
    assert PAPER.for_op(aten.add.Tensor).function is not one
    registration.remove()  # once more does nothing


def test_a_registration_is_a_context_and_the_newest_wins():
    with register_rule(aten.add)(one):
        with register_rule(aten.add)(two):
            assert PAPER.for_op(aten.add.Tensor).function is two
        assert PAPER.for_op(aten.add.Tensor).function is one
    assert PAPER.consulted == PAPER.entries


def test_a_context_that_fails_takes_its_rule_along():
    with pytest.raises(ZeroDivisionError), register_rule(aten.add)(one):
        raise ZeroDivisionError
    assert PAPER.consulted == PAPER.entries


def test_registering_twice_and_removing_the_first_leaves_the_second():
    first, second = register_rule(aten.add)(one), register_rule(aten.add)(one)
    first.remove()
    assert PAPER.for_op(aten.add.Tensor).function is one
    second.remove()


def test_as_a_decorator_it_leaves_something_to_call():
    @register_rule("blocks.*")
    def halve(relevance, call):
        return relevance / 2, None

    try:
        assert (halve(torch.ones(2, 3), ADD).shares[0] == 0.5).all()
        assert PAPER.module_entries()[0].key == "blocks.*"
    finally:
        halve.remove()


def test_a_fixed_rule_set_takes_no_registered_rule():
    with register_rule(aten.add)(one):
        assert dataclasses.replace(EMPTY, fixed=True).for_op(aten.add.Tensor) is None


# ---- what it refuses

BAD_KEYS = {
    "a number": 3,
    "a class that is no module": int,
    "a function": torch.add,
    "no path": "",
    "an instance": nn.GELU(),
    "nothing": None,
}


@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)
@pytest.mark.parametrize(
    "put",
    [PAPER.with_rule, lambda key, rule: register_rule(key)(rule)],
    ids=["with_rule", "register_rule"],
)
def test_a_key_that_can_never_match_is_refused(put, key):
    with pytest.raises(RuleError, match="is no key of a rule") as caught:
        put(key, carry)
    assert "then  give an operator (torch.ops.aten.gelu" in str(caught.value)
    assert "module-path pattern ('blocks.*.norm1')" in str(caught.value)
    assert PAPER.consulted == PAPER.entries


@pytest.mark.parametrize(
    "put",
    [PAPER.with_rule, lambda key, rule: register_rule(key)(rule)],
    ids=["with_rule", "register_rule"],
)
def test_what_cannot_be_called_is_no_rule(put):
    with pytest.raises(
        RuleError, match=r"a rule is a function \(relevance, call\) -> shares, not float"
    ):
        put(aten.add, 0.5)
    assert PAPER.consulted == PAPER.entries


WRONG = {
    "one share too few": (
        lambda r, call: (r,),
        "returned 1 shares for 2 operands of aten.add.Tensor",
    ),
    "one too many": (
        lambda r, call: [r, None, None],
        "returned 3 shares for 2 operands of aten.add.Tensor",
    ),
    "none": (lambda r, call: Split(()), "returned 0 shares for 2 operands"),
    "a shape not summed": (
        lambda r, call: (r, r),
        (
            r"returned a share of shape \[2, 3\] for operand 1 of aten.add.Tensor, which has "
            r"shape \[3\]"
        ),
    ),
    "a shape turned": (
        lambda r, call: (r.T, None),
        r"returned a share of shape \[3, 2\] for operand 0",
    ),
}


@pytest.mark.parametrize(("function", "words"), WRONG.values(), ids=WRONG)
def test_a_rule_that_returns_the_wrong_shares_is_named(function, words):
    with pytest.raises(RuleError, match=f"rule 'mine' {words}"):
        Rule(function, "mine")(torch.ones(2, 3), ADD)


def test_an_unknown_name_is_answered_with_the_list():
    assert named("stable", PRESETS) is PRESETS["stable"]
    assert named(PAPER, PRESETS) is PAPER
    with pytest.raises(
        OptionError,
        match=(
            "rules='papers' is no rule set; there are attnlrp, attnlrp_identity, "
            "cp_lrp, epsilon, libra, lrp, lrp_gamma, paper, reference, reference_lrp, stable"
        ),
    ):
        named("papers", PRESETS)


def test_errors_of_rules_are_errors_of_this_library():
    assert issubclass(RuleError, RelpropError)


# ---- rules


def test_one_tensor_goes_to_the_only_activation_summed_over_what_was_broadcast():
    call = make_call(aten.mul.Tensor, torch.ones(3), torch.ones(2, 3), roles="ap")
    split = Rule(one, "one")(torch.ones(2, 3), call)
    assert split.shares[1] is None
    assert split.shares[0].tolist() == [2, 2, 2]


def test_a_decorated_function_is_a_rule_with_what_it_reads():
    @rule(family="carry", reads="output", name="mine")
    def mine(relevance, call):
        return relevance

    assert (mine.name, mine.family, mine.reads) == ("mine", "carry", frozenset({"output"}))
    assert Rule.ensure(mine) is mine
    assert Rule.ensure(one).reads == {"inputs", "output"}


def test_a_lone_activation_may_have_a_rule_of_its_own():
    mixed = either(carry, Rule(lambda r, call: (r / 2, r.sum(0) / 2), "halves"))
    lone = make_call(aten.add.Tensor, torch.ones(2, 3), torch.ones(3), roles="ap")
    assert mixed(torch.ones(2, 3), lone).shares[1] is None
    assert mixed(torch.ones(2, 3), ADD).shares[1].tolist() == [1, 1, 1]


# ---- the presets as tables


#: What no canonical graph has, and what only Eq. 2 is for.
WITHOUT = {Kind.CHECK, Kind.ATTENTION, Kind.RECURRENT, Kind.COMPLEX, Kind.OUTPUT, Kind.UNKNOWN}
WITHOUT |= {Kind.CONTRACTION, Kind.STATISTIC}


@pytest.mark.parametrize("rules", PRESETS.values(), ids=PRESETS)
def test_every_preset_has_a_rule_for_every_listed_operator(rules):
    listed = [getattr(aten, name.partition(".")[0]) for name in TABLE if "." not in name]
    wanted = [op for op in listed if kind(op) not in WITHOUT]
    assert len(wanted) > 250 and all(rules.for_op(op) is not None for op in wanted)
    assert all(rules.for_op(op) is None for op in listed if kind(op) is Kind.STATISTIC)


def test_stop_hands_on_nothing():
    call = make_call(aten.eq.Tensor, torch.ones(3), torch.ones(3))
    assert PAPER.for_op(aten.eq.Tensor)(torch.ones(3), call) == Split((None, None))


def test_a_shape_operation_in_no_closed_list_is_still_a_move():
    assert PAPER.for_op(aten.roll.default) is move
