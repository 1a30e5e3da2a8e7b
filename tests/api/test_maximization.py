"""Activation maximisation against the closed form of a linear model, and what is refused."""

import dataclasses

import pytest
import torch
from torch import nn

import relprop
from relprop import activation_maximization
from relprop.demo.model import digit_scene_model
from relprop.errors import InputError, OptionError, RelpropError, TargetError
from tests.common.models import build, closeness, sample
from tests.e2e.test_non_invasive import assert_undisturbed, snapshot

SHAPE = (2, 3, 4, 4)


class Linear(nn.Module):
    """y = W·I + b of an image."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(48, 5).double()

    def forward(self, image):
        return {"logits": self.head(image.flatten(1)), "scaled": 2 * self.head(image.flatten(1))}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 5)).double()


@pytest.mark.parametrize("l2", [0.05, 0.5])
@pytest.mark.parametrize(
    "unit,scale",
    [
        (3, 1),
        ([3, 3], 1),
        (relprop.targets.output("scaled")[3], 2),
        (lambda y: 3 * y["logits"][0, 3], 3),
    ],
    ids=["class", "list", "output", "callable"],
)
def test_the_optimum_of_a_linear_unit_is_w_over_2_lambda(unit, scale, l2):
    model = Linear()
    found = relprop.activation_maximization(
        model, unit, shape=SHAPE, l2=l2, lr=0.5 / l2 / 2, steps=40
    )
    optimum = scale * model.head.weight.detach()[3].reshape(1, 3, 4, 4) / (2 * l2)
    assert found.image.shape == SHAPE and closeness(found.image, optimum.expand(SHAPE)) <= 1e-4
    weight, bias = scale * model.head.weight.detach()[3], scale * model.head.bias.detach()[3]
    assert closeness(found.objective[-1], (weight @ weight / (4 * l2) + bias).expand(2)) <= 1e-8
    assert closeness(found.score, (weight @ weight / (2 * l2) + bias).expand(2)) <= 1e-4


def test_each_step_leaves_its_part_of_the_way():
    model, start = (
        Linear(),
        torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
    )
    optimum = model.head.weight.detach()[1].reshape(1, 3, 4, 4) / (2 * 0.1)
    for steps in (1, 2, 5):
        found = relprop.activation_maximization(model, 1, start=start, steps=steps, lr=1.0, l2=0.1)
        assert closeness(found.image - optimum, (1 - 2 * 0.1) ** steps * (start - optimum)) <= 1e-12


@pytest.mark.parametrize(
    "make,shape",
    [(network, (3, 3, 4, 4)), (build, (2, 5, sample().shape[-1]))],
    ids=["convolution", "transformer"],
)
def test_the_objective_rises_and_is_what_it_says(make, shape):
    model = make()
    found = relprop.activation_maximization(model, 2, shape=shape, steps=30, lr=0.02, l2=0.01)
    assert (
        found.objective.shape == (31, shape[0])
        and bool((found.objective.diff(dim=0) > 0).all())
        and found.target == (2,) * shape[0]
    )
    y = model(found.image)[:, 2].detach()
    assert closeness(found.score, y) <= 1e-12
    assert (
        closeness(found.objective[-1], y - 0.01 * found.image.flatten(1).square().sum(1)) <= 1e-12
    )


def test_a_step_is_that_of_the_eager_gradient():
    model, start = (
        network(),
        torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
    )
    point = start.clone().requires_grad_()
    gradient = torch.autograd.grad(model(point)[:, 4].sum() - 0.3 * point.square().sum(), point)[0]
    found = relprop.activation_maximization(model, 4, start=start, steps=1, lr=0.2, l2=0.3)
    assert closeness(found.image, start + 0.2 * gradient) <= 1e-12


def test_samples_are_ascents_of_their_own():
    model, start = (
        network(),
        torch.randn(3, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
    )
    whole = relprop.activation_maximization(model, [0, 1, 2], start=start, steps=10)
    for i in range(3):
        alone = relprop.activation_maximization(model, i, start=start[i : i + 1], steps=10)
        assert (
            closeness(whole.image[i : i + 1], alone.image) <= 1e-9
            and closeness(whole.objective[:, i], alone.objective[:, 0]) <= 1e-9
        )


def test_a_unit_inside_the_model_rises():
    start = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    unit, model = relprop.targets.unit("blocks.1.mlp", 3, position=7), digit_scene_model()
    found = activation_maximization(model, unit, start=start, steps=5, lr=0.1, l2=0)
    assert bool(found.objective[-1] > found.objective[0])
    e = relprop.explain(model, found.image, unit, method="gradient_x_input")
    assert closeness(e.output, found.objective[-1]) <= 1e-4


def test_seeds_reproduce():
    model, state = network(), torch.get_rng_state()
    one, same, other = (
        relprop.activation_maximization(model, 0, shape=SHAPE, steps=3, seed=seed)
        for seed in (5, 5, 6)
    )
    assert torch.equal(one.image, same.image) and not torch.equal(one.image, other.image)
    assert torch.equal(one.image[0], one.image[1])
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.image = None


def test_bounds_and_precision():
    model = network()
    found = relprop.activation_maximization(
        model, 0, shape=SHAPE, steps=20, l2=0.0, bounds=(-0.5, 0.25)
    )
    assert float(found.image.min()) == -0.5 and float(found.image.max()) == 0.25
    half = relprop.activation_maximization(network().to(torch.bfloat16), 0, shape=SHAPE, steps=3)
    assert half.image.dtype == torch.float32 and torch.isfinite(half.objective).all()
    double = relprop.activation_maximization(
        network().float(), 0, shape=SHAPE, steps=3, precision="float64"
    )
    assert double.image.dtype == torch.float64


class Shifted(nn.Module):
    """An image, and ids that stay as they are."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 48).double(), Linear()

    def forward(self, input_ids, pixel_values):
        return self.head(pixel_values * self.embed(input_ids).reshape(-1, 3, 4, 4))["logits"]


def test_other_inputs_stay():
    model, ids = Shifted(), torch.tensor([[3], [7]])
    found = relprop.activation_maximization(
        model,
        1,
        start={"input_ids": ids, "pixel_values": torch.zeros(SHAPE, dtype=torch.float64)},
        l2=0.1,
        lr=2.5,
        steps=60,
    )
    weight = model.head.head.weight.detach()[1] * model.embed(ids).detach()[:, 0]
    assert closeness(found.image.flatten(1), weight / 0.2) <= 1e-4


def test_the_model_is_left_as_it_was():
    model, start = build(), sample()
    model.train()
    model.blocks[0].mlp.eval()
    model.head.weight.requires_grad_(False)
    model(start).sum().backward()
    before = snapshot(model, [start])
    relprop.activation_maximization(model, 1, start=start, steps=2)
    assert_undisturbed(before, snapshot(model, [start]))


class Branching(nn.Module):
    def forward(self, x):
        return x.flatten(1) if bool(x.sum() > 0) else -x.flatten(1)


def ascend(unit=0, model=None, **options):
    return relprop.activation_maximization(model or network(), unit, **({"shape": SHAPE} | options))


WRONG = {
    "no unit": (OptionError, r"unit=None: name what to maximise", lambda: ascend(None)),
    "unknown class": (TargetError, r"99", lambda: ascend(99)),
    "neither shape nor start": (
        OptionError,
        r"give either shape= .* or start=",
        lambda: ascend(shape=None),
    ),
    "both": (
        OptionError,
        r"give either shape= .* or start=",
        lambda: ascend(start=torch.zeros(SHAPE)),
    ),
    "shape of zeros": (
        OptionError,
        r"shape=\(0, 3\): positive integers, batch first",
        lambda: ascend(shape=(0, 3)),
    ),
    "shape of a number": (OptionError, r"shape=3: positive integers", lambda: ascend(shape=3)),
    "no steps": (OptionError, r"steps=0: a positive integer", lambda: ascend(steps=0)),
    "seed": (OptionError, r"seed='a': an integer", lambda: ascend(seed="a")),
    "backwards": (OptionError, r"lr=-1: a positive number", lambda: ascend(lr=-1)),
    "negative l2": (
        OptionError,
        r"l2=-0.1: a number that is not negative",
        lambda: ascend(l2=-0.1),
    ),
    "diverging": (
        OptionError,
        r"(?s)lr·l2 = 2: from 1 on.*lr=0.25",
        lambda: ascend(lr=1.0, l2=2.0),
    ),
    "bounds": (OptionError, r"bounds=\(1, 0\): \(low, high\)", lambda: ascend(bounds=(1, 0))),
    "ids": (
        InputError,
        r"none: ids have no gradient",
        lambda: ascend(model=build(ids=True), shape=None, start=sample(ids=True)),
    ),
    "two images": (
        InputError,
        r"are 'input_0', 'input_1'",
        lambda: ascend(
            model=nn.Bilinear(3, 3, 2), shape=None, start=(torch.zeros(1, 3), torch.zeros(1, 3))
        ),
    ),
    "a branch on values": (
        InputError,
        r"(?s)branches on values.*torch.where",
        lambda: ascend(model=Branching(), shape=None, start=torch.ones(1, 3)),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_arguments_are_refused(name):
    error, text, call = WRONG[name]
    with pytest.raises(error, match=text):
        call()


class Growing(nn.Module):
    def forward(self, x):
        return x.flatten(1).exp()


def test_an_objective_without_end_is_said():
    with pytest.raises(
        RelpropError,
        match=r"(?s)the objective is not finite after \d+ steps.*a smaller lr than 1.0",
    ):
        relprop.activation_maximization(Growing(), 0, shape=(1, 4))
