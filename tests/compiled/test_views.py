"""What does nothing is not recorded, what is done twice once, and what grows with the batch is read
from it."""

import pytest
import torch
from torch import fx

from relprop.compiled.tape import NotFlat, Tape, Writes
from relprop.operations.looking import recorded

BATCH = 5


def made(function, *, shorter=True):
    """The operators that a function of (batch, 4, 6) is recorded as, which give what it gives for
    other batches, too."""
    x = torch.rand(BATCH, 4, 6)
    with recorded(), Tape([x], BATCH, 0, shorter=shorter) as tape:
        y = function(x)
    tape.finish({"y": y})
    tape.graph.eliminate_dead_code()
    tape.graph.lint()
    module = fx.GraphModule(tape.held, tape.graph)
    for n in (BATCH, 3, 1):
        x = torch.rand(n, 4, 6)
        assert torch.equal(module(x)["y"], function(x))
    names = [str(n.target) for n in tape.graph.nodes]
    return [n for n in names if n.startswith("aten") and "sym_size" not in n]


def twice(x):
    return torch.ops.aten.view(x, [len(x) * 4, 6]).view(len(x), 24).view(len(x), 4, 6) + 1


def in_place(x):
    return x.clone().view(len(x), 24).view(len(x) * 24).add_(1)


def test_views_of_views_are_one_and_of_the_same_shape_none():
    assert made(twice) == ["aten.add.Tensor"]


def test_what_is_spread_or_copied_to_no_end():
    spread = made(lambda x: (x * 2).expand(len(x), 4, 6).clone() * 1 + 1)
    assert spread == ["aten.mul.Tensor", "aten.add.Tensor"]


def test_what_is_done_twice_is_recorded_once():
    def function(x):
        parts = [torch.split(x * 2, 3, -1)[i] for i in (0, 1)]
        return parts[0] + parts[1] * 2.0 + parts[1].div(2)

    assert sorted(made(function)) == [
        *("aten.add.Tensor", "aten.add.Tensor", "aten.div.Tensor", "aten.mul.Tensor"),
        *("aten.mul.Tensor", "aten.split.Tensor"),
    ]


def test_whole_numbers_are_no_fractions():
    """1 == 1.0 == True, and what they are added to tells which it was."""

    def function(x):
        n = (x > 0.5).long()
        return torch.add(n, 1).sum() * 0.5 + torch.add(n, 1.0).div(3).sum() + torch.add(n, True)

    assert made(function).count("aten.add.Tensor") == 5


@pytest.mark.parametrize(
    ("function", "stays"),
    [
        (lambda x: x.clone(), "clone"),  # what is given must not be handed out
        (lambda x: (x * 2).mT.clone(memory_format=torch.contiguous_format), "clone"),
        (lambda x: x[:, :, :1].expand(len(x), 4, 6) + 1, "expand"),
    ],
)
def test_what_does_something_stays(function, stays):
    assert f"aten.{stays}.default" in made(function)


def test_what_is_written_into_is_recorded_as_it_is():
    with pytest.raises(Writes):
        made(in_place)
    assert made(in_place, shorter=False) == [
        *("aten.clone.default", "aten.view.default", "aten.view.default", "aten.add_.Tensor"),
    ]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (torch.rand_like, "rand_like.default draws random numbers"),
        (lambda x: x[x > 0.5], "shapes depend on values"),
        (lambda x: x * float(x.sum()), "looks at values"),
    ],
)
def test_what_no_program_for_all_calls_can_hold(function, said):
    with pytest.raises(NotFlat, match=said):
        made(function)
