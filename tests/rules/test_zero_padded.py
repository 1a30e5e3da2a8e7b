"""Shares that are zeros but for a stretch of one axis: what stands for them, and their sum."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from relprop.rules import presets
from relprop.rules.call import ZeroPadded, as_tensors
from tests.common.calls import make_call

aten = torch.ops.aten
SHAPE = torch.Size((4, 5, 3))


@st.composite
def placed(draw):
    axis = draw(st.integers(0, len(SHAPE) - 1))
    start = draw(st.integers(0, SHAPE[axis] - 1))
    length = draw(st.integers(0, SHAPE[axis] - start))
    part = torch.rand([length if i == axis else n for i, n in enumerate(SHAPE)])
    if length == 1 and draw(st.booleans()):
        part = part.squeeze(axis)
    return ZeroPadded(part, axis, start, SHAPE)


def written(part):
    """What it stands for, element by element."""
    made = torch.zeros(part.shape)
    made.movedim(part.axis, 0)[part.start : part.end] = part.stretch.movedim(part.axis, 0)
    return made


@given(parts=st.lists(placed(), max_size=5), whole=st.lists(st.just(torch.ones(SHAPE)), max_size=1))
def test_what_is_laid_side_by_side_is_the_sum(parts, whole):
    got = sum(as_tensors([*whole, *parts]), torch.zeros(SHAPE))
    want = sum(map(written, parts), sum(whole, torch.zeros(SHAPE)))
    assert torch.allclose(got, want, rtol=1e-6, atol=0)


def test_stretches_that_fill_an_axis_are_one_tensor():
    x = torch.rand(SHAPE)
    some = [ZeroPadded(x[:, a:b], 1, a, SHAPE) for a, b in ((3, 5), (0, 1), (1, 3))]
    (made,) = as_tensors(some)
    assert torch.equal(made, x)


def test_those_who_call_a_rule_see_tensors():
    call = make_call(aten.select.int, torch.rand(SHAPE), -2, -1, roles="a")
    relevance = torch.rand(4, 3)
    rule = presets.PAPER.for_op(aten.select.int)
    assert isinstance(rule.split(relevance, call).shares[0], ZeroPadded)
    share = rule(relevance, call).shares[0]
    assert torch.equal(share[:, -1], relevance) and not share[:, :-1].any()
