"""What does nothing in a recorded program is taken out of both recordings, and nothing else is."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from relprop.compiled.tidying import without_idle_calls

SIZES = (3, 5)


def recorded(function):
    """The two recordings of a function of (batch, 4, 6), tidied, and how long they were."""
    both = [make_fx(function)(torch.rand(n, 4, 6)) for n in SIZES]
    before = [str(n.target) for n in both[0].graph.nodes]
    without_idle_calls(*both)
    for module in both:
        module.graph.lint()
        module.recompile()
    for module, n in zip(both, SIZES, strict=True):
        x = torch.rand(n, 4, 6)
        assert torch.equal(module(x), function(x))
    first, second = ([str(n.target) for n in m.graph.nodes] for m in both)
    assert first == second
    return before, first


def twice(x):
    return torch.ops.aten.view(x, [len(x) * 4, 6]).view(len(x), 24).view(len(x), 4, 6) + 1


def in_place(x):
    return x.clone().view(len(x), 24).view(len(x) * 24).add_(1)


def test_views_of_views_are_one_and_of_the_same_shape_none():
    before, after = recorded(twice)
    assert before.count("aten.view.default") == 3 and "aten.view.default" not in after


def test_what_is_spread_or_copied_to_no_end():
    before, after = recorded(lambda x: (x * 2).expand(len(x), 4, 6).clone() * 1 + 1)
    assert {"aten.expand.default", "aten.clone.default"} <= {*before}
    assert not {"aten.expand.default", "aten.clone.default"} & {*after}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clone(),  # what is given must not be handed out
        lambda x: (x * 2).mT.clone(memory_format=torch.contiguous_format),
        lambda x: x[:, :, :1].expand(len(x), 4, 6) + 1,
        lambda x: (
            (x[:, :3, 0] + 1).contiguous().view(3, len(x)) + 1
        ),  # as square as the batch, of one size
        in_place,
    ],
)
def test_what_does_something_stays(function):
    before, after = recorded(function)
    assert [n for n in before if "aten" in n] == [n for n in after if "aten" in n]
