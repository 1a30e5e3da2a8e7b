"""Laws that hold for every rule of every preset: the ledger balances, results are finite, a batch
is its samples, scale and sum of R.

A wrong rule can conserve: these stand beside the oracles (``test_oracles``), never in their place.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relprop.rules import PRESETS
from relprop.rules.attnlrp import EPSILON
from tests.common.calls import amounts
from tests.common.subjects import SUBJECTS
from tests.common.tensors import filled, tensors

every_subject = pytest.mark.parametrize("name", SUBJECTS)
LINEAR_IN_R = [name for name, subject in SUBJECTS.items() if subject.linear]
ALL = tuple(PRESETS)
THEIRS = ("reference", "reference_lrp")  # their stabiliser b + 1e-9 divides by what may be near 0
half = settings(
    max_examples=settings.default.max_examples // 2
)  # of the profile's: each law runs over every subject and preset
OURS = tuple(preset for preset in ALL if preset not in THEIRS)
#: They divide by a sum and an absolute ε.
WITH_EPSILON = ("epsilon", "attnlrp", "attnlrp_identity", "cp_lrp", "lrp_gamma")
#: What they make of a sum depends on whether it is 0, and on its sign.
ASKS_FOR_ZERO = (*THEIRS, *WITH_EPSILON)


def rule_for(preset, call):
    rules = PRESETS[preset]
    return rules.for_op(call.op) or rules.generic


def drawn(data, name, kinds=None, dtype=torch.float64):
    """A call of this subject and a relevance for it."""
    subject = SUBJECTS[name]
    spec = data.draw(subject.specs)
    call = spec.call(data.draw(filled(spec, kinds or subject.kinds, dtype)))
    return call, data.draw(tensors(call.output.shape, dtype=dtype))


def gross(relevance, split):
    """Σ|R|, or Σ|shares| where Eq. 6 on nearly cancelling operands made them larger: no sum is
    rounded better than that."""
    shares = [s.double().abs().sum() for s in split.shares if isinstance(s, torch.Tensor)]
    return torch.stack([relevance.double().abs().sum(), *shares]).sum()


def residual(relevance, split):
    """In − to operands − lost."""
    return relevance.double().sum() - sum(amounts(split)) - sum(split.lost.values())


@every_subject
@half
@given(data=st.data())
def test_the_ledger_balances(name, data):
    call, relevance = drawn(data, name)
    for preset in ALL:
        split = rule_for(preset, call)(relevance, call)
        assert abs(residual(relevance, split)) <= 1e-12 * gross(relevance, split), (preset, split)


@every_subject
@half
@given(data=st.data())
def test_the_ledger_balances_in_float32(name, data):
    call, relevance = drawn(data, name, dtype=torch.float32)
    for preset in OURS:
        split = rule_for(preset, call)(relevance, call)
        assert abs(residual(relevance, split)) <= 1e-5 * gross(relevance, split), (preset, split)


@every_subject
@half
@given(
    data=st.data(),
    kind=st.sampled_from(["huge", "tiny"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_huge_values_and_denormals_leave_everything_finite(name, data, kind, dtype):
    call, _ = drawn(data, name, (kind,), dtype)
    relevance = data.draw(
        tensors(call.output.shape, data.draw(st.sampled_from(["grid", "tiny"])), dtype)
    )
    terms = call.apply(*(x.abs() if x.is_floating_point() else x for x in call.inputs))
    largest = terms.abs().max() * relevance.abs().max() if terms.numel() else terms.sum()
    for preset in OURS if call.output.isfinite().all() else ():
        if preset in WITH_EPSILON and not torch.isfinite(largest / EPSILON):
            continue  # terms that cancel are divided by ε
        split = rule_for(preset, call)(relevance, call)
        assert all(
            torch.isfinite(amount).all()
            for amount in (*split.shares, *split.lost.values())
            if amount is not None
        ), (preset, split)


@every_subject
@half
@given(data=st.data())
def test_a_batch_is_its_samples_one_by_one(name, data):
    spec = data.draw(SUBJECTS[name].specs)
    batched = data.draw(filled(spec, SUBJECTS[name].kinds, batch=3))
    dims = tuple(0 if role == "a" else None for role in spec.hole_roles)
    relevance = data.draw(tensors((3, *spec.output_shape())))
    # whether terms that cancel but for a denormal are 0, above or below it depends on their order
    sizes = torch.cat([x.abs().flatten() for x in batched if x.is_floating_point()])
    denormal = bool(((sizes > 0) & (sizes < 1e-100)).any())
    for preset in (p for p in ALL if not (denormal and p in ASKS_FOR_ZERO)):
        split = one_sample(spec, preset)
        together = torch.func.vmap(split, in_dims=(0, *dims))(relevance, *batched)
        for n in range(3):
            alone = split(
                relevance[n],
                *(x if d is None else x[n] for x, d in zip(batched, dims, strict=True)),
            )
            scale = sum(x.abs().sum() for x in alone) + relevance[n].abs().sum()
            assert all(
                ((a[n] - b).abs() <= 1e-12 * scale).all()
                for a, b in zip(together, alone, strict=True)
            ), preset


def one_sample(spec, preset):
    """(R, tensors) → every share and every loss, as a function that ``vmap`` takes."""

    def split(relevance, *values):
        call = spec.call(values)
        result = rule_for(preset, call)(relevance, call)
        return (
            *(share for share in result.shares if share is not None),
            *(result.lost[cause] for cause in sorted(result.lost)),
        )

    return split


@pytest.mark.parametrize("name", LINEAR_IN_R)
@half
@given(data=st.data())
def test_shares_are_linear_in_relevance(name, data):
    call, first = drawn(data, name)
    second, factor = (
        data.draw(tensors(call.output.shape)),
        data.draw(st.sampled_from([-3.0, 0.5, 1.0])),
    )
    for preset in ALL:
        rule = rule_for(preset, call)
        one, two, both = (rule(r, call) for r in (first, second, factor * first + second))
        allowed = 1e-12 * (3 * gross(first, one) + gross(second, two))
        for a, b, c in zip(one.shares, two.shares, both.shares, strict=True):
            assert a is None or ((factor * a + b - c).abs() <= allowed).all(), preset


@pytest.mark.parametrize("name", ["add", "sub", "generic"])
@half
@given(data=st.data())
def test_shares_are_homogeneous_in_relevance(name, data):
    call, relevance = drawn(data, name)
    factor = data.draw(st.sampled_from([-4.0, -1.0, 0.5, 8.0]))
    for preset in OURS:
        rule = rule_for(preset, call)
        one, scaled = rule(relevance, call), rule(factor * relevance, call)
        for a, b in zip(one.shares, scaled.shares, strict=True):
            assert (
                a is None
                or ((factor * a - b).abs() <= 1e-12 * gross(factor * relevance, scaled)).all()
            ), preset


@every_subject
@half
@given(data=st.data())
def test_no_relevance_gives_none(name, data):
    call, relevance = drawn(data, name)
    for preset in ALL:
        split = rule_for(preset, call)(torch.zeros_like(relevance), call)
        assert all(
            (share == 0).all()
            for share in (*split.shares, *split.lost.values())
            if share is not None
        ), preset
