"""A model that draws random numbers is explained for those that its own run drew, however it seeds
them, and says that it draws."""

import pytest
import torch
from torch import nn

import relprop
from tests.common.models import build, closeness, sample


class Rotated(nn.Module):
    """Its logits are turned by a matrix drawn at every call: as it comes, seeded by the model
    itself, or shaped like another tensor."""

    def __init__(self, draw):
        super().__init__()
        self.inner, self.draw = build(), draw

    def forward(self, x):
        y = self.inner(x)
        return y @ self.draw(y.shape[-1])


def unseeded(n):
    return torch.randn(n, n, dtype=torch.float64)


def seeded(n):
    torch.manual_seed(7)
    return torch.randn(n, n, dtype=torch.float64)


def shaped_like(n):
    return torch.rand_like(torch.zeros(n, n, dtype=torch.float64))


def twice(n):
    return seeded(n) @ torch.rand(n, n, dtype=torch.float64)


@pytest.mark.parametrize("draw", [unseeded, seeded, shaped_like, twice], ids=lambda f: f.__name__)
def test_the_graph_draws_what_the_model_drew(draw):
    model, x = Rotated(draw), sample()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    e = relprop.explain(model, x, 1)
    assert torch.equal(torch.get_rng_state(), state), "the user's random state is as it was"
    with torch.no_grad():
        assert closeness(e.output, model(x)[:, 1]) <= 1e-12
    for i in range(len(x)):
        torch.set_rng_state(state)
        assert (
            closeness(relprop.explain(model, x[i : i + 1], 1).scores, e.scores[i : i + 1]) <= 1e-9
        )


def test_check_says_where_numbers_are_drawn():
    report = relprop.check(Rotated(unseeded), sample())
    assert report.ok and len(report.draws) == 1 and "random numbers, drawn once: " in str(report)
    assert relprop.check(build(), sample()).draws == ()


class Noisy(nn.Module):
    """Noise of the size of its input: every sample of a batch has noise of its own, which no sample
    has alone."""

    def __init__(self):
        super().__init__()
        self.inner = build()

    def forward(self, x):
        return self.inner(x + torch.randn_like(x))


def test_noise_on_every_sample_is_that_of_one():
    model, x = Noisy(), sample()
    torch.manual_seed(3)
    e = relprop.explain(model, x, 1)
    torch.manual_seed(3)
    first = relprop.explain(model, x[:1], 1)
    assert closeness(first.scores, e.scores[:1]) <= 1e-9
    torch.manual_seed(3)
    with torch.no_grad():
        assert closeness(e.output[:1], model(x[:1])[:, 1]) <= 1e-12


class Chosen(nn.Module):
    """Tokens picked from equally likely ones, as ViLT picks patches."""

    def __init__(self):
        super().__init__()
        self.inner = build()

    def forward(self, x):
        places = torch.multinomial(torch.ones(x.shape[1]).float(), 4)
        return self.inner(torch.cat([x[:, places], x[:, :1]], 1))


@pytest.mark.parametrize("method", ["gradient_x_input", "lrp", "transformer_attribution"])
def test_tokens_that_are_picked_by_chance_are_the_same_however_memory_is_saved(method):
    model, x = Chosen(), sample()
    torch.manual_seed(3)
    whole = relprop.explain(model, x, 1, method=method)
    torch.manual_seed(3)
    assert torch.equal(relprop.explain(model, x, 1, method=method, memory=1).scores, whole.scores)
    torch.manual_seed(3)
    with torch.no_grad():
        assert closeness(whole.output, model(x)[:, 1]) <= 1e-12
