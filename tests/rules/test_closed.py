"""Closed forms equal the family they stand for: linear, conv2d, matmul and product; and every
closed inverse of a move."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relprop.numerics import AuthorsStabiliser, Epsilon, safe_divide
from relprop.rules import families, moves
from relprop.rules.call import Total
from relprop.rules.closed import Conv2d, Linear, Matmul, Product
from relprop.rules.families import Halves, Share
from tests.common import subjects
from tests.common.calls import Hole, Spec, make_call, unread
from tests.common.tensors import filled, shapes, tensors

aten = torch.ops.aten
PAIRS = {
    "linear": (Linear, Share),
    "conv2d": (Conv2d, Share),
    "matmul": (Matmul, Halves),
    "bmm, mm, mv, dot": (Matmul, Halves),
    "product": (Product, Halves),
}
DIVIDES = (safe_divide, Epsilon(), Epsilon(0.1), AuthorsStabiliser())


def ramp(*shape):
    """Different numbers of both signs."""
    return torch.linspace(-1, 1.1, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def same(one, other, scale):
    """Two splits with equal shares and equal losses."""
    for a, b in zip(one.shares, other.shares, strict=True):
        assert (a is None) == (b is None)
        assert a is None or (a.shape == b.shape and ((a - b).abs() <= 1e-12 * scale).all()), (a, b)
    assert one.lost.keys() == other.lost.keys()
    assert all(abs(one.lost[cause] - other.lost[cause]) <= 1e-12 * scale for cause in one.lost)


def largest(relevance, *splits):
    """The scale of rounding errors: Σ|R|, or Σ|shares| where those are larger."""
    return max(
        relevance.abs().sum(),
        *(sum(s.abs().sum() for s in split.shares if s is not None) for split in splits),
    )


@pytest.mark.parametrize("name", PAIRS)
@given(data=st.data())
def test_a_closed_form_equals_its_family(name, data):
    spec = data.draw(subjects.SUBJECTS[name].specs)
    call = spec.call(data.draw(filled(spec)))
    relevance, divide = data.draw(tensors(call.output.shape)), data.draw(st.sampled_from(DIVIDES))
    closed, family = (rule(divide)(relevance, call) for rule in PAIRS[name])
    same(closed, family, largest(relevance, closed, family))


@pytest.mark.parametrize(
    ("rule", "call"),
    [
        (
            Conv2d(),
            make_call(
                aten.conv2d.padding,
                ramp(1, 2, 4, 4),
                ramp(2, 2, 3, 3),
                None,
                [1, 1],
                "same",
                roles="ap",
            ),
        ),
        (Conv2d(), make_call(aten.conv2d.default, ramp(2, 4, 4), ramp(2, 2, 3, 3), roles="ap")),
        (Conv2d(), make_call(aten.conv2d.default, ramp(1, 2, 4, 4), ramp(2, 2, 3, 3), roles="pa")),
        (Linear(), make_call(aten.linear.default, ramp(3, 4), ramp(2, 4), roles="pa")),
    ],
    ids=[
        "padding in words",
        "no batch",
        "the kernel is the activation",
        "the weight is the activation",
    ],
)
def test_a_closed_form_leaves_what_it_does_not_cover_to_its_family(rule, call):
    relevance = ramp(*call.output.shape)
    same(rule(relevance, call), Share()(relevance, call), 0.0)


@given(data=st.data())
def test_alpha_beta_is_the_difference_of_two_halves(data):
    spec = data.draw(subjects.SUBJECTS["linear"].specs)
    call = spec.call(data.draw(filled(spec)))
    relevance, alpha = (
        data.draw(tensors(call.output.shape)),
        data.draw(st.sampled_from([0.5, 1.5, 2.0])),
    )
    x, weight = call.inputs[:2]
    ours = Linear()(relevance, call).shares[0]
    inhibitor = Linear()(relevance, make_call(aten.linear.default, x, -weight, roles="ap")).shares[
        0
    ]
    got = Linear(alpha=alpha)(relevance, call).shares[0]
    assert (
        (got - (alpha * ours - (alpha - 1) * inhibitor)).abs() <= 1e-12 * relevance.abs().sum()
    ).all()


@pytest.mark.parametrize("where", [(0,), (1,), (0, 1)])
@given(data=st.data())
def test_an_unread_share_of_a_matmul_is_known_by_its_sum(where, data):
    spec = data.draw(
        subjects.matmul_specs().filter(lambda spec: all(len(hole.shape) > 1 for hole in spec.holes))
    )
    call = spec.call(data.draw(filled(spec)))
    relevance = data.draw(tensors(call.output.shape))
    full, short = Matmul()(relevance, call), Matmul()(relevance, unread(call, *where))
    for i, (a, b) in enumerate(zip(full.shares, short.shares, strict=True)):
        assert isinstance(b, Total) == (i in where)
        assert abs(a.sum() - (b.value if i in where else b.sum())) <= 1e-12 * largest(
            relevance, full
        )


# ---- moves


def axis(shape):
    return st.integers(-len(shape), len(shape) - 1)


@st.composite
def reshaped(draw):
    shape = draw(shapes(1, 3))
    flat = torch.Size(shape).numel()
    return draw(
        st.sampled_from(
            [
                Spec(aten.reshape.default, (Hole(shape), [flat]), "a"),
                Spec(aten.view.default, (Hole(shape), [*shape, 1]), "a"),
                Spec(aten.flatten.using_ints, (Hole(shape), 0, -1), "a"),
                Spec(
                    aten.unsqueeze.default,
                    (Hole(shape), draw(st.integers(-len(shape) - 1, len(shape)))),
                    "a",
                ),
                Spec(aten.squeeze.default, (Hole((1, *shape)),), "a"),
                Spec(aten.squeeze.dim, (Hole(shape), draw(axis(shape))), "a"),
                Spec(aten.unflatten.int, (Hole((*shape, 4)), -1, [2, -1]), "a"),
                Spec(aten.view_as.default, (Hole(shape), torch.zeros(flat)), "ac"),
            ]
        )
    )


@st.composite
def permuted(draw):
    shape = draw(shapes(1, 4))
    order = draw(st.permutations(range(len(shape))))
    return Spec(
        aten.permute.default,
        (Hole(shape), [d - len(shape) if draw(st.booleans()) else d for d in order]),
        "a",
    )


@st.composite
def expanded(draw):
    shape = draw(shapes(1, 3))
    sizes = [draw(st.integers(1, 3)) if n == 1 else draw(st.sampled_from([n, -1])) for n in shape]
    front = draw(st.lists(st.integers(1, 2), max_size=2))
    return Spec(aten.expand.default, (Hole(shape), [*front, *sizes]), "a")


@st.composite
def selected(draw):
    shape = draw(shapes(1, 3))
    dim = draw(axis(shape))
    return Spec(
        aten.select.int, (Hole(shape), dim, draw(st.integers(-shape[dim], shape[dim] - 1))), "a"
    )


@st.composite
def sliced(draw):
    shape = draw(shapes(1, 3, 6))
    ends = st.one_of(st.none(), st.integers(-8, 8), st.just(2**63 - 1))
    return Spec(
        aten.slice.Tensor,
        (Hole(shape), draw(axis(shape)), draw(ends), draw(ends), draw(st.integers(1, 3))),
        "a",
    )


@st.composite
def joined(draw):
    shape = draw(shapes(1, 3))
    dim = draw(axis(shape))
    lengths = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    parts = [Hole((*shape[: dim % len(shape)], n, *shape[dim % len(shape) + 1 :])) for n in lengths]
    if draw(st.booleans()):
        parts.insert(
            draw(st.integers(0, len(parts))), Hole((0,))
        )  # torch lets an empty vector pass anywhere: a fresh cache
    return Spec(aten.cat.default, (parts, dim), "".join(draw(st.sampled_from("ap")) for _ in parts))


@st.composite
def masked(draw):
    shape = draw(shapes(1, 3))
    mask = draw(st.lists(st.booleans(), min_size=shape[-1], max_size=shape[-1]))
    value = draw(st.sampled_from([0.0, 1.0, -5.0, float("-inf")]))
    return Spec(aten.masked_fill.Scalar, (Hole(shape), torch.tensor(mask), value), "ac")


@given(data=st.data())
def test_a_closed_fill_equals_that_of_any_operation(data):
    spec = data.draw(masked())
    call = spec.call(data.draw(filled(spec)))
    relevance = data.draw(tensors(call.output.shape))
    closed, family = (r(relevance, call) for r in (moves.masked_fill, families.fill))
    same(closed, family, relevance.abs().sum())


MOVES = {
    "reshape": (moves.reshape, reshaped()),
    "permute": (moves.permute, permuted()),
    "expand": (moves.expand, expanded()),
    "select": (moves.select, selected()),
    "slice": (moves.slice_, sliced()),
    "cat": (moves.cat, joined()),
}


@pytest.mark.parametrize("name", MOVES)
@given(data=st.data())
def test_a_closed_move_equals_the_operators_own_derivative(name, data):
    rule, specs = MOVES[name]
    spec = data.draw(specs)
    call = spec.call(data.draw(filled(spec)))
    relevance = data.draw(tensors(call.output.shape))
    same(
        rule(relevance, call),
        given_zeros(families.move(relevance, call), call),
        relevance.abs().sum(),
    )


def given_zeros(split, call):
    """``families.move`` gives zeros to what is not read (the like of ``view_as``); the closed forms
    give nothing."""
    return replace(
        split,
        shares=tuple(
            None if i and call.op is aten.view_as.default else s for i, s in enumerate(split.shares)
        ),
    )


@pytest.mark.parametrize(
    "spec",
    [
        Spec(aten.slice.Tensor, (Hole((4, 3)),), "a", {"dim": -2, "start": 1, "end": -1}),
        Spec(aten.select.int, (Hole((4, 3)),), "a", {"dim": -1, "index": -2}),
        Spec(aten.permute.default, (Hole((4, 3)),), "a", {"dims": [1, 0]}),
        Spec(aten.cat.default, ([Hole((4, 3)), Hole((4, 1))],), "aa", {"dim": -1}),
        Spec(aten.slice.Tensor, (Hole((4, 3)),), "a"),
    ],
    ids=lambda spec: f"{spec.op} {spec.kwargs}",
)
def test_arguments_by_name_and_left_out(spec):
    call = spec.call([ramp(*hole.shape) for hole in spec.holes])
    relevance = ramp(*call.output.shape)
    rule = {
        aten.slice: moves.slice_,
        aten.select: moves.select,
        aten.permute: moves.permute,
        aten.cat: moves.cat,
    }[spec.op.overloadpacket]
    same(rule(relevance, call), families.move(relevance, call), 0.0)
