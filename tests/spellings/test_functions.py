"""Every spelling computes its base's function: outputs and gradients, for a batch and for one
sample. Nothing here uses relprop."""

import functools

import pytest
import torch
from torch.nn import functional as F

from tests.common.rows import marked
from tests.spellings.bases import PLAIN
from tests.spellings.checks import FUNCTION, gap, outputs_and_gradients
from tests.spellings.model import Model
from tests.spellings.spelling import spellings
from tests.spellings.test_spellings import BASES, LOOKED_AT, QUICK, by_id, by_name


@functools.cache
def expected(base, batch):
    return outputs_and_gradients(Model(base).eval(), base.inputs(batch))


@torch.no_grad()
def outputs(model, inputs):
    return model(*inputs)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("spelling", marked(spellings(), QUICK, by_id))
def test_the_function_is_the_bases(spelling):
    model = spelling.model()
    for batch in (3, 1):
        inputs = spelling.base.inputs(batch)
        found = (
            (outputs(model, inputs),)
            if spelling.inference
            else outputs_and_gradients(model, inputs)
        )
        for what, ours, theirs in zip(
            ("output", "gradient at the embedding", "gradient at the input"),
            found,
            expected(spelling.base, batch),
            strict=False,
        ):
            assert gap(ours, theirs) <= FUNCTION, f"{what}, batch of {batch}"


@pytest.mark.parametrize("base", marked(BASES, LOOKED_AT, by_name))
def test_the_samples_of_a_base_differ(base):
    """What is equal in all samples cannot show that samples are told apart."""
    for found in expected(base, 3):
        scale = float(found.abs().max())
        assert all(float((found[0] - found[i]).abs().max()) > 0.01 * scale for i in (1, 2))


def test_another_function_is_told_apart():
    other = outputs_and_gradients(Model(PLAIN, activation=F.relu).eval(), PLAIN.inputs())
    assert all(gap(a, b) > 1e-3 for a, b in zip(other, expected(PLAIN, 3), strict=True))


def test_another_gradient_is_told_apart():
    passed = Model(PLAIN, activation=lambda x: F.gelu(x).detach() + x - x.detach()).eval()
    output, *gradients = outputs_and_gradients(passed, PLAIN.inputs())
    assert gap(output, expected(PLAIN, 3)[0]) <= FUNCTION
    assert all(gap(a, b) > 1e-3 for a, b in zip(gradients, expected(PLAIN, 3)[1:], strict=True))
