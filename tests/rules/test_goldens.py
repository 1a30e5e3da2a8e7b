"""Single rules of ``reference`` and ``reference_lrp`` against the authors' code, to 1e-9
(``tests/goldens/README.md``).

Not to be matched, by that README: ``conv2`` (there relevance doubles), ``bn`` (the variance is
squared), and ``add`` and ``addb`` over the whole batch (the sums of Lemma 2 mix its samples). Of
``addb`` only the shares up to that one factor per operand are compared.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from relprop.numerics import AuthorsStabiliser
from relprop.rules import REFERENCE, REFERENCE_LRP
from relprop.rules.closed import Linear
from tests.common.calls import make_call
from tests.common.goldens import FOLDER

aten = torch.ops.aten
GOLDENS = dict(np.load(FOLDER / "rules_f64.npz"))
SETS = {"ours": REFERENCE, "lrp": REFERENCE_LRP}
both_sets = pytest.mark.parametrize("theirs", SETS)
LINEAR_CASES = [("linear", "1"), ("linear", "0.5"), ("linear", "2"), ("linear_negcol", "1")]


def golden(key):
    return torch.from_numpy(GOLDENS[key])


def close(got, want, tolerance=1e-9):
    """Equal to ``tolerance`` of the largest golden value."""
    assert got.shape == want.shape
    assert (got - want).abs().max() <= tolerance * want.abs().max()


def split(theirs, relevance, op, *args, roles="", rule=None):
    """What the rule for ``op`` makes of ``relevance``."""
    return (rule or SETS[theirs].for_op(op))(relevance, make_call(op, *args, roles=roles)).shares


def with_alpha(rule, alpha):
    """The same linear rule with another alpha."""
    return replace(rule, function=replace(rule.function, alpha=alpha))


@both_sets
@pytest.mark.parametrize(("case", "alpha"), LINEAR_CASES)
def test_linear(theirs, case, alpha):
    rule = with_alpha(SETS[theirs].for_op(aten.linear.default), float(alpha))
    x, weight = golden(f"{case}.x"), golden(f"{case}.w")
    shares = split(
        theirs,
        golden("linear.R"),
        aten.linear.default,
        x,
        weight,
        golden("linear.b"),
        roles="app",
        rule=rule,
    )
    close(shares[0], golden(f"{case}.{theirs}.alpha{alpha}.out"))
    assert shares[2] is None


def test_the_linear_rule_of_the_paper_is_theirs_without_stabiliser():
    shares = split(
        "ours",
        golden("linear.R"),
        aten.linear.default,
        golden("linear.x"),
        golden("linear.w"),
        roles="ap",
    )
    exact = Linear()(
        golden("linear.R"),
        make_call(aten.linear.default, golden("linear.x"), golden("linear.w"), roles="ap"),
    ).shares
    assert isinstance(REFERENCE.for_op(aten.linear.default).function.divide, AuthorsStabiliser)
    assert not torch.equal(shares[0], exact[0])
    close(exact[0], shares[0], 1e-6)


@both_sets
@pytest.mark.parametrize("item", [0, 1])
def test_add_of_single_samples(theirs, item):
    u, v, relevance = (golden(f"add.{name}")[item : item + 1] for name in "uvR")
    shares = split(theirs, relevance, aten.add.Tensor, u, v)
    close(shares[0], golden(f"add.{theirs}.item{item}.Ru"))
    close(shares[1], golden(f"add.{theirs}.item{item}.Rv"))


@both_sets
def test_add_of_opposite_sums(theirs):
    shares = split(theirs, golden("add2.R"), aten.add.Tensor, golden("add2.u"), golden("add2.v"))
    close(shares[0], golden(f"add2.{theirs}.Ru"))
    close(shares[1], golden(f"add2.{theirs}.Rv"))


@both_sets
def test_add_with_broadcasting_up_to_lemma_2_which_mixes_their_batch(theirs):
    u, v, relevance = golden("add.u"), golden("addb.v"), golden("add.R")
    shares = split(theirs, relevance, aten.add.Tensor, u, v)
    for got, want in zip(
        shares, (golden(f"addb.{theirs}.Ru"), golden(f"addb.{theirs}.Rv")), strict=True
    ):
        factor = 1 if theirs == "lrp" else (got * want).sum() / got.square().sum()
        close(got * factor, want)


@both_sets
def test_queries_times_keys(theirs):
    q, k = golden("qk.q"), golden("qk.k")
    shares = split(theirs, golden("qk.R"), aten.matmul.default, q, k.mT)
    close(2 * shares[0], golden(f"qk.{theirs}.Rq_unhalved"))
    close(2 * shares[1].mT, golden(f"qk.{theirs}.Rk_unhalved"))


@both_sets
def test_attention_times_values(theirs):
    shares = split(theirs, golden("av.R"), aten.matmul.default, golden("av.A"), golden("av.V"))
    close(2 * shares[0], golden(f"av.{theirs}.RA_unhalved"))
    close(2 * shares[1], golden(f"av.{theirs}.RV_unhalved"))


@both_sets
def test_a_value_used_twice(theirs):
    close(
        SETS[theirs].fan_out(golden("clone.x"), (golden("clone.R0"), golden("clone.R1"))),
        golden(f"clone.{theirs}.out"),
    )


@both_sets
def test_cat(theirs):
    shares = split(theirs, golden("cat.R"), aten.cat.default, [golden("cat.a"), golden("cat.b")], 1)
    close(shares[0], golden(f"cat.{theirs}.Ra"))
    close(shares[1], golden(f"cat.{theirs}.Rb"))


@both_sets
def test_masked_scores_pass_whole_what_arrives_at_them(theirs):
    """x · R/(x + 1e-9) at x = −inf: scores beside a sink, which their models do not have."""
    scores, sink = torch.tensor([[1.0, float("-inf")]]).double(), torch.ones(1, 1).double()
    relevance = torch.tensor([[2.0, 3.0, 4.0]]).double()
    shares = split(theirs, relevance, aten.cat.default, [scores, sink], 1)
    close(shares[0], relevance[:, :2])
    close(SETS[theirs].fan_out(scores, (relevance[:, :2],) * 2), 2 * relevance[:, :2])


@both_sets
def test_selection_of_a_token(theirs):
    x, want = golden("index.x"), golden(f"index.{theirs}.out")
    token = int(want.abs().sum((0, 2)).argmax())
    shares = split(theirs, golden("index.R")[:, 0], aten.select.int, x, 1, token)
    close(shares[0], want)


POOLS = {
    "avgpool": (aten.avg_pool2d.default, [2, 2], "avgpool.R"),
    "maxpool": (aten.max_pool2d.default, [2, 2], "avgpool.R"),
    "adaptavg": (aten.adaptive_avg_pool2d.default, [1, 1], "adaptavg.R"),
}


@both_sets
@pytest.mark.parametrize("pool", POOLS)
def test_pools(theirs, pool):
    op, size, relevance = POOLS[pool]
    close(
        split(theirs, golden(relevance), op, golden("avgpool.x"), size)[0],
        golden(f"{pool}.{theirs}.out"),
    )


@both_sets
@pytest.mark.parametrize("item", [0, 1])
def test_convolution_of_an_image(theirs, item):
    x, relevance, want = (
        golden(key)[item : item + 1] for key in ("conv3.x", "conv3.R", f"conv3.{theirs}.out")
    )
    args = (
        x,
        golden("conv3.w"),
        golden("conv3.b"),
        stride_of(golden("conv3.x"), golden("conv3.w"), relevance),
    )
    close(split(theirs, relevance, aten.conv2d.default, *args, roles="app")[0], want)


def stride_of(x, weight, relevance):
    """The stride that makes an output of the relevance's size."""
    return [
        (n - k) // (m - 1)
        for n, k, m in zip(x.shape[2:], weight.shape[2:], relevance.shape[2:], strict=True)
    ]


def test_safe_divide():
    got, want = (
        AuthorsStabiliser()(golden("safe_divide.a"), golden("safe_divide.b")),
        golden("safe_divide.out"),
    )
    assert ((got - want).abs() <= 1e-12 * want.abs()).all()


def test_every_case_is_matched_or_left_out_for_a_reason():
    others = {
        "conv2": "doubles relevance",
        "bn": "squares the variance",
        "rollout": "no rule",
        "gae": "no rule",
    }
    matched = {
        "linear",
        "linear_negcol",
        "add",
        "add2",
        "addb",
        "qk",
        "av",
        "clone",
        "cat",
        "index",
        "avgpool",
        "maxpool",
        "adaptavg",
        "conv3",
        "safe_divide",
    }
    assert {key.split(".")[0] for key in GOLDENS} == matched | set(others)
