"""Every rule of ``paper``, ``stable``, ``lrp`` and ``epsilon`` against a slow oracle written index
by index from the paper.

Shapes, signs, exact zeros, denormals, cancelling operands, all-negative columns and broadcasting
are drawn by Hypothesis.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relprop.rules import PRESETS
from tests.common import subjects
from tests.common.subjects import SUBJECTS
from tests.common.tensors import filled, tensors


def rule_for(preset, call):
    """As the plan chooses it: what carries carries one activation alone."""
    rules = PRESETS[preset]
    rule = rules.for_op(call.op)
    several = rule is not None and rule.family == "carry" and len(call.activations) > 1
    return rules.generic if rule is None or several else rule


def check(preset, relevance, call, answer):
    """Shares and losses equal the oracle's, to 1e-12 of the sum of |summands| (LRP-ε divides by z +
    1e-6, which amplifies z's rounding)."""
    split, allowed = (
        rule_for(preset, call)(relevance, call),
        (1e-9 if preset == "epsilon" else 1e-12) * answer.gross,
    )
    shares = [share.numpy() for share in split.shares if share is not None]
    assert len(shares) == len(answer.shares), preset
    for got, want in zip(shares, answer.shares, strict=True):
        assert got.shape == want.shape, preset
        assert (abs(got - want) <= allowed).all(), (preset, got, want)
    assert abs(float(sum(split.lost.values())) - answer.lost) <= allowed, (
        preset,
        split.lost,
        answer.lost,
    )


@pytest.mark.parametrize("name", SUBJECTS)
@given(data=st.data())
def test_every_rule_equals_its_oracle(name, data):
    subject = SUBJECTS[name]
    spec = data.draw(subject.specs)
    call = spec.call(data.draw(filled(spec, subject.kinds)))
    relevance = data.draw(tensors(call.output.shape))
    for preset in subjects.PRESETS:
        answer = subject.oracle(preset, relevance.numpy(), call)
        if answer.known:
            check(preset, relevance, call, answer)
