"""What section 3 of the paper proves and shows (Chefer, Gur & Wolf, CVPR 2021): Lemma 1, Lemma 2,
and the example of Eq. 8-10."""

import math

import pytest
import torch
from hypothesis import assume, find, given, settings
from hypothesis import strategies as st

from relprop.rules import LRP, PAPER, STABLE
from relprop.rules.closed import Matmul
from relprop.rules.sums import CANCEL, Add
from tests.common.calls import amounts, make_call
from tests.common.subjects import SUBJECTS
from tests.common.tensors import HUGE, TINY, filled, tensors

aten = torch.ops.aten
BALANCED = ("add", "sub", "matmul", "bmm, mm, mv, dot", "product", "quotient")
unnormalised = Add(normalise=False)


def drawn(data, name, kinds=None):
    """A call with two activations, and a relevance for it."""
    subject = SUBJECTS[name]
    spec = data.draw(subject.specs.filter(lambda spec: spec.roles == "aa"))
    call = spec.call(data.draw(filled(spec, kinds or subject.kinds)))
    return call, data.draw(tensors(call.output.shape))


def total(*values):
    return sum(value.double().sum() for value in values)


# ---- Lemma 1


@pytest.mark.parametrize(("name", "rule"), [("add", unnormalised), ("sub", unnormalised)])
@given(data=st.data())
def test_lemma_1_i_eq_6_on_an_add_conserves(name, rule, data):
    call, relevance = drawn(data, name, ("grid",))
    assume((call.output != 0).all())
    split = rule(relevance, call)
    assert abs(total(*split.shares) - total(relevance)) <= 1e-12 * total(
        *(share.abs() for share in split.shares)
    )
    assert split.lost[CANCEL] == 0


def test_eq_6_takes_truth_values_and_whole_numbers_as_terms():
    relevance, x = torch.tensor([4.0, 4.0]), torch.tensor([3.0, -3.0])
    for constant in (torch.tensor([True, False]), torch.tensor([1, 2])):
        theirs, ours = unnormalised(relevance, make_call(aten.add.Tensor, constant, x)).shares
        torch.testing.assert_close(theirs, relevance * constant / (constant + x))
        torch.testing.assert_close(theirs + ours, relevance)


@st.composite
def products(draw):
    rows, inner, columns = (draw(st.integers(1, 3)) for _ in range(3))
    return (
        draw(tensors((rows, inner))),
        draw(tensors((inner, columns))),
        draw(tensors((rows, columns))),
    )


def breaks_eq_7(example):
    """Whether Eq. 6 on a matmul, without Lemma 2, hands on another sum than it received."""
    u, v, relevance = example
    shares = Matmul(half=1.0)(relevance, make_call(aten.matmul.default, u, v)).shares
    return abs(total(*shares) - total(relevance)) > 1e-6 * relevance.abs().sum()


def test_lemma_1_ii_eq_6_on_a_matmul_does_not_conserve():
    u, v, relevance = find(
        products(),
        breaks_eq_7,
        settings=settings(database=None, derandomize=True, max_examples=200, deadline=None),
    )
    assert (
        u.shape == v.shape == relevance.shape == (1, 1)
    )  # the smallest: one number times one number doubles
    shares = Matmul(half=1.0)(relevance, make_call(aten.matmul.default, u, v)).shares
    assert total(*shares) == 2 * total(relevance) != 0
    assert not breaks_eq_7((u, v, torch.zeros(1, 1)))


# ---- Lemma 2


@pytest.mark.parametrize("rules", [PAPER, STABLE], ids=lambda rules: rules.name)
@pytest.mark.parametrize("name", BALANCED)
@given(data=st.data())
def test_lemma_2_the_normalised_relevances_conserve_and_are_bounded(name, rules, data):
    call, relevance = drawn(data, name)
    split = rules.for_op(call.op)(relevance, call)
    sums, arrived = torch.stack(amounts(split)), total(relevance) - sum(split.lost.values())
    allowed = 1e-12 * max(relevance.abs().sum(), total(*(share.abs() for share in split.shares)))
    assert abs(sums.sum() - arrived) <= allowed  # (i)
    assert (sums.abs() <= arrived.abs() + allowed).all()  # (ii), for a negative total as well:
    assert (sums * arrived.sign() >= -allowed).all()  # no operand's sum has the other sign


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch_whose_sum_is_opposite_is_turned_round(sign):
    u, v, relevance = (
        torch.tensor([3.0, -1.0]),
        torch.tensor([-1.0, 2.0]),
        sign * torch.tensor([1.0, 2.0]),
    )
    plain = unnormalised(relevance, make_call(aten.add.Tensor, u, v)).shares
    assert [float(p.sum()) * sign for p in plain] == [-0.5, 3.5]
    shares = PAPER.for_op(aten.add.Tensor)(relevance, make_call(aten.add.Tensor, u, v)).shares
    torch.testing.assert_close(shares[0], -0.75 * plain[0])
    torch.testing.assert_close(shares[1], 0.75 * plain[1])


# ---- Eq. 8-10


def example(a, b, dtype):
    """Eq. 8: u = (e^a, e^b), v = (1 − e^a, 1 − e^b), R = (1, 1)."""
    u = torch.tensor([math.exp(a), math.exp(b)], dtype=dtype)
    return torch.ones(2, dtype=dtype), make_call(aten.add.Tensor, u, 1 - u)


LIMITS = [(torch.float32, 15.0), (torch.float64, 30.0)]  # beyond them 1 − e^a rounds to −e^a


@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=str)
@given(data=st.data())
def test_eq_9_the_relevances_of_an_add_explode(dtype, limit, data):
    a, b = data.draw(st.floats(0, limit)), data.draw(st.floats(0, limit))
    relevance, call = example(a, b, dtype)
    shares = unnormalised(relevance, call).shares
    # u + v is 1 only up to the rounding of 1 − e^a, which moves the quotient by e^a·eps
    allowed = 1.01 * torch.finfo(dtype).eps * call.inputs[0] + 1e-6
    assert ((shares[0] - call.inputs[0]).abs() <= allowed * call.inputs[0]).all()
    assert ((shares[1] - call.inputs[1]).abs() <= allowed * call.inputs[0]).all()


@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=str)
@given(data=st.data())
def test_eq_10_the_normalised_relevances_do_not(dtype, limit, data):
    relevance, call = example(data.draw(st.floats(0, limit)), data.draw(st.floats(0, limit)), dtype)
    for rules in (PAPER, STABLE):
        split = rules.for_op(call.op)(relevance, call)
        eps = 4 * torch.finfo(dtype).eps
        assert abs(total(*split.shares) - 2) <= 2 * eps + 1e-14
        assert all(-eps <= share.double().sum() <= 2 + eps for share in split.shares)
        assert sum(abs(amount) for amount in split.lost.values()) <= 1e-14


def test_eq_9_grows_like_the_exponential_and_eq_10_stays():
    plain, bounded = [], []
    for a in (5, 10, 15):
        relevance, call = example(a, a, torch.float32)
        plain.append(unnormalised(relevance, call).shares[0].abs().max())
        bounded.append(PAPER.for_op(call.op)(relevance, call).shares[0].abs().max())
    assert plain[1] / plain[0] > 100 and plain[2] / plain[1] > 100
    assert max(bounded) <= 1


@pytest.mark.parametrize("rules", [PAPER, LRP], ids=lambda rules: rules.name)
@pytest.mark.parametrize(("dtype", "a"), [(torch.float32, 20.0), (torch.float64, 40.0)], ids=str)
def test_beyond_what_the_dtype_holds_the_operands_cancel_and_that_is_booked(dtype, a, rules):
    relevance, call = example(a, a, dtype)
    split = rules.for_op(call.op)(relevance, call)
    assert (call.output == 0).all()
    assert split.lost[CANCEL] == 2
    assert all((share == 0).all() for share in split.shares)


def test_where_only_some_operands_cancel_the_others_carry_the_sum():
    relevance, call = example(20, 3, torch.float32)
    split = PAPER.for_op(call.op)(relevance, call)
    assert split.shares[0][0] == 0 == split.shares[1][0]
    assert abs(total(*split.shares) - 2) <= 1e-6
    assert LRP.for_op(call.op)(relevance, call).lost[CANCEL] == 1


# ---- masks and extremes on an add


@pytest.mark.parametrize("rules", [PAPER, STABLE, LRP], ids=lambda rules: rules.name)
@pytest.mark.parametrize("op", [aten.add.Tensor, aten.sub.Tensor], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@given(data=st.data())
def test_an_add_with_a_mask_gives_all_to_the_other_operand(dtype, op, rules, data):
    scores, relevance = (
        data.draw(tensors((2, 3), dtype=dtype)),
        data.draw(tensors((2, 3), dtype=dtype)),
    )
    scores, relevance = torch.where(scores == 0, 1.0, scores), relevance + 4.0
    hidden = torch.tensor(data.draw(st.lists(st.booleans(), min_size=3, max_size=3)))
    value = data.draw(st.sampled_from([float("-inf"), torch.finfo(dtype).min]))
    mask = torch.where(
        hidden, value if op is aten.add.Tensor else -value, torch.zeros(3, dtype=dtype)
    )
    split = rules.for_op(op)(relevance, make_call(op, scores, mask, roles="ac"))
    assert (split.shares[1] == 0).all()
    assert (
        (split.shares[0] - relevance).abs() <= (2e-3 if rules is STABLE else 1e-6) * relevance
    ).all()
    assert sum(abs(amount) for amount in split.lost.values()) <= 1e-12 * relevance.sum()


@pytest.mark.parametrize("rules", [PAPER, STABLE, LRP], ids=lambda rules: rules.name)
def test_where_both_operands_are_masked_nothing_is_made_up(rules):
    low, relevance = torch.tensor([float("-inf"), 1.0]), torch.ones(2)
    split = rules.for_op(aten.add.Tensor)(relevance, make_call(aten.add.Tensor, low, low))
    assert all(torch.isfinite(x).all() for x in (*split.shares, *split.lost.values()))
    assert split.shares[0][0] == 0 == split.shares[1][0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@given(data=st.data())
def test_an_add_is_finite_and_balanced_whatever_the_magnitudes(dtype, data):
    numbers = st.sampled_from([0.0, 1.0, -1.0, 3.0, *TINY[dtype], *HUGE[dtype]])
    u, v, relevance = (
        torch.tensor(data.draw(st.lists(numbers, min_size=3, max_size=3)), dtype=dtype)
        for _ in range(3)
    )
    relevance = torch.where(relevance.abs() > 10, 1.0, relevance)
    for rules in (PAPER, STABLE, LRP):
        split = rules.for_op(aten.add.Tensor)(relevance, make_call(aten.add.Tensor, u, v))
        assert all(torch.isfinite(x).all() for x in (*split.shares, *split.lost.values())), (
            rules.name
        )


def test_a_sum_that_is_next_to_nothing_is_not_scaled_up_to_infinity():
    relevance, call = (
        torch.tensor([1.0, 1e-40]),
        make_call(aten.add.Tensor, torch.ones(2), torch.tensor([-1.0, 1.0])),
    )
    split = PAPER.for_op(call.op)(relevance, call)
    assert all((share == 0).all() for share in split.shares)
    assert abs(split.lost[CANCEL] - 1) <= 1e-6
