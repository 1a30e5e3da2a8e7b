"""Coarse fields: what goes back through a move is the same as when every place has its own
number."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from relprop.rules import coarse, fields
from relprop.rules.families import move
from relprop.rules.notes import SiteNote
from tests.common.calls import make_call

aten = torch.ops.aten
CHANNELS = 2

#: An operation, its arguments behind the tensor, the tensor's shape, and its inverse.
MOVES = {
    "reshape, heads side by side": (aten.view.default, ([5, 12],), (5, 3, 4), coarse.reshaped),
    "reshape, heads apart": (aten.view.default, ([5, 2, 2, 3],), (5, 12), coarse.reshaped),
    "reshape, windows": (aten.view.default, ([2, 2, 2, 2, 6],), (16, 6), coarse.reshaped),
    "reshape, another cut": (aten.view.default, ([10, 6],), (4, 15), coarse.reshaped),
    "reshape, nothing there": (aten.view.default, ([6, 0],), (0, 4), coarse.reshaped),
    "squeeze": (aten.squeeze.dim, (1,), (4, 1, 6), coarse.reshaped),
    "unsqueeze": (aten.unsqueeze.default, (-1,), (4, 6), coarse.reshaped),
    "permute": (aten.permute.default, ([2, 0, -2],), (4, 6, 3), coarse.permuted),
    "select": (aten.select.int, (-2, 1), (4, 3, 6), coarse.selected),
    "select from behind": (aten.select.int, (1, -1), (4, 3, 6), coarse.selected),
    "slice": (aten.slice.Tensor, (-1, 4, 8), (3, 12), coarse.sliced),
    "slice to the end": (aten.slice.Tensor, (1, 6), (3, 12), coarse.sliced),
    "slice of nothing": (aten.slice.Tensor, (1, 5, 5), (3, 12), coarse.sliced),
    "slice with steps": (aten.slice.Tensor, (1, 1, 12, 2), (3, 12), coarse.sliced),
    "slice at odd places": (aten.slice.Tensor, (1, 3, 9), (3, 12), coarse.sliced),
    "roll": (aten.roll.default, ([-1, 2], [1, -1]), (4, 3, 6), coarse.rolled),
    "roll of all": (aten.roll.default, ([5],), (4, 6), coarse.rolled),
    "flip": (aten.flip.default, ([0, -1],), (4, 3, 6), coarse.flipped),
}


def lengths(shape):
    """The lengths that a field's axes may have."""
    divisors = [[d for d in range(1, n + 1) if n % d == 0] or [0, 1] for n in shape]
    return st.tuples(*map(st.sampled_from, divisors))


def drawn(sizes):
    return torch.arange(1.0, CHANNELS * math.prod(sizes) + 1).reshape(CHANNELS, *sizes)


def agree(found, call, field, whole):
    """Every operand's field against the move's own vector–Jacobian product, channel by channel."""
    inputs = [x for x in call.inputs if x.is_floating_point()]
    shares = zip(*(move.function(channel, call) for channel in whole), strict=True)
    for one, x, channels in zip(found, inputs, shares, strict=True):
        assert torch.equal(coarse.finer(one, x.shape), torch.stack(channels)), field.shape


@pytest.mark.parametrize("name", MOVES)
@given(data=st.data())
def test_back_through_a_move(name, data):
    op, arguments, shape, inverse = MOVES[name]
    call = make_call(op, torch.randn(shape), *arguments)
    field = drawn(data.draw(lengths(call.output.shape)))
    found = inverse(field, call, tuple(call.output.shape))
    agree(found, call, field, coarse.finer(field, call.output.shape))


@pytest.mark.parametrize("sizes", [(1, 4), (4, 8, 12), (3, 0, 5), (6,)])
@pytest.mark.parametrize("dim", [-1, 1])
@given(data=st.data())
def test_back_through_a_concatenation(sizes, dim, data):
    parts = [torch.randn(2, n, 3).movedim(1, dim) for n in sizes]
    call = make_call(aten.cat.default, parts, dim)
    field = drawn(data.draw(lengths(call.output.shape)))
    found = coarse.joined(field, call, tuple(call.output.shape))
    agree(found, call, field, coarse.finer(field, call.output.shape))


def test_an_empty_vector_among_what_is_joined():
    """A fresh cache: PyTorch lets it pass among tensors of any shape."""
    call = make_call(aten.cat.default, [torch.randn(0), torch.randn(2, 3)], 1)
    empty, rest = coarse.joined(drawn((2, 1)), call, (2, 3))
    assert empty.shape == (CHANNELS, 0)
    assert torch.equal(coarse.finer(rest, (2, 3)), drawn((2, 1)).expand(-1, 2, 3))


@given(st.data())
@example(None)
def test_heads_side_by_side_stay_one_number_each(data):
    """What makes all rows of C affordable: a merged axis of heads and their features keeps one
    number per head, and a cut one finds it again."""
    tokens, heads, features = (
        (7, 3, 5) if data is None else (data.draw(st.integers(2, 9)) for _ in range(3))
    )
    wide = (tokens, heads, features)
    apart = drawn((tokens, heads, 1))
    beside = coarse.refolded(apart, wide, (tokens, heads * features))
    assert beside.shape == (CHANNELS, tokens, heads)
    assert torch.equal(coarse.refolded(beside, (tokens, heads * features), wide), apart)
    alone = coarse.refolded(drawn((tokens, 1, 1)), wide, (tokens, heads * features))
    assert alone.shape == (CHANNELS, tokens, 1)


@pytest.mark.parametrize("transposed", [False, True])
@given(data=st.data())
def test_an_attention_site_takes_fields_as_coarse_as_they_come(transposed, data):
    """Its axes of heads may be tokens and heads in one, each with a number for some of its
    places."""
    attention, v = torch.rand(6, 4, 9), torch.randn(6, 9, 8)
    operands = (v.mT, attention.mT) if transposed else (attention, v)
    call = make_call(aten.matmul.default, *operands)
    shape = tuple(call.output.shape)
    note = SiteNote((False,) * 3, shape=shape, transposed=transposed)
    matrix = torch.rand_like(operands[1 if transposed else 0])
    call = replace(call, note=note, extra=matrix)
    field = drawn(data.draw(lengths(shape)))
    found, expected = (
        fields.number(coarse.finer(share, operands[0 if transposed else 1].shape), ())[0]
        for f in (field, coarse.finer(field, shape))
        for share in fields.attended().function(f, call)
        if share is not None
    )
    torch.testing.assert_close(found, expected)


def test_fields_of_one_value_become_as_fine_as_all_need():
    one, other = drawn((1, 4)), drawn((3, 6))
    found = coarse.as_fine([one, other])
    assert [f.shape for f in found] == [(CHANNELS, 3, 12)] * 2
    whole = (3, 24)
    for before, after in zip((one, other), found, strict=True):
        assert torch.equal(coarse.finer(before, whole), coarse.finer(after, whole))
        wide = before.repeat_interleave(3 // before.shape[1], 1)
        wide = wide.repeat_interleave(24 // before.shape[2], 2)
        assert torch.equal(coarse.finer(after, whole), wide)
