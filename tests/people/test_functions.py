"""Each model is the same function as its twin: outputs and gradients, of a batch and of one sample.
What the explanations are held against would else be worth nothing."""

from collections.abc import Mapping

import pytest
import torch

from tests.common.models import closeness
from tests.people.everything import PAIRS
from tests.people.pairs import BATCH, called, one
from tests.people.test_people import FAST

EXACT = 1e-12
pytestmark = pytest.mark.filterwarnings("ignore")  # what the models' own code warns of


def tensors(inputs):
    """The tensors of inputs of any form, in order."""
    if isinstance(inputs, torch.Tensor):
        return [inputs]
    return list(inputs.values() if isinstance(inputs, Mapping) else inputs)


def ready(inputs):
    """A copy of the inputs whose floating tensors ask for a gradient."""

    def fresh(x):
        return x.detach().clone().requires_grad_(x.is_floating_point())

    if isinstance(inputs, torch.Tensor):
        return fresh(inputs)
    if isinstance(inputs, Mapping):
        return {name: fresh(x) for name, x in inputs.items()}
    return tuple(map(fresh, inputs))


def result(model, inputs, out, leaf, differentiable=True):
    """The output, and the gradients of a sum of it with fixed weights: at the leaf if there is one,
    and at the floating inputs."""
    if not differentiable:
        return out(called(model, inputs)), None
    inputs = ready(inputs)
    output = out(called(model, inputs))
    weights = torch.linspace(-1, 2, output[0].numel(), dtype=output.dtype).view_as(output[0])
    at = [x for x in tensors(inputs) if x.requires_grad] + ([] if leaf is None else [leaf])
    gradients = torch.autograd.grad((output * weights).sum(), at, allow_unused=True)
    return output.detach(), [g for g in gradients if g is not None]


def of_model(pair, inputs):
    leaf = None if pair.leaves is None else pair.leaves[0]
    return result(pair.model, inputs, pair.out, leaf, pair.differentiable)


def of_twin(pair, inputs, sample=None):
    """The twin's; of twins per sample, each its own sample's, put together."""
    leaf = None if pair.leaves is None else pair.leaves[1]
    if not isinstance(pair.twin, tuple):
        return result(pair.twin, inputs, pair.twin_out, leaf, pair.differentiable)
    rows = range(BATCH) if sample is None else [sample]
    each = [
        result(pair.twin[i], one(inputs, i if sample is None else 0), pair.twin_out, leaf)
        for i in rows
    ]
    gradients = [torch.cat(same) for same in zip(*(g for _, g in each), strict=True)]
    return torch.cat([output for output, _ in each]), gradients


def assert_same(found, expected):
    assert closeness(found[0], expected[0]) <= EXACT
    if found[1] is None:
        return
    assert len(expected[1]) > 0 and len(found[1]) >= len(expected[1])
    for a, b in zip(found[1], expected[1], strict=False):
        assert float(b.abs().max()) > 0
        assert closeness(a, b) <= EXACT


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in PAIRS]
)
def test_the_model_is_its_twin(name):
    pair = PAIRS[name]()
    output, _ = batch = of_model(pair, pair.inputs)
    assert_same(batch, of_twin(pair, pair.twin_inputs))
    assert closeness(output[:1], output[1:2]) > 1e-3, "the samples should differ"
    for i in range(BATCH):
        found = of_model(pair, one(pair.inputs, i))
        assert_same(found, of_twin(pair, one(pair.twin_inputs, i), i))
        assert closeness(found[0], output[i : i + 1]) <= EXACT
