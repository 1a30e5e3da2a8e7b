"""A model that draws random numbers is explained for those that its own run drew, however it seeds
them, and says that it draws."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import relprop
from relprop.errors import CaptureError, ChanceWarning, RelpropError
from tests.common.models import build, closeness, sample
from tests.common.rows import marked


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


@pytest.mark.filterwarnings("ignore:the model draws by chance")
@pytest.mark.parametrize(
    "draw",
    marked([unseeded, seeded, shaped_like, twice], ("seeded", "twice"), lambda f: f.__name__),
)
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


@pytest.mark.filterwarnings("ignore:the model draws by chance")
def test_check_says_where_numbers_are_drawn():
    report = relprop.check(Rotated(unseeded), sample())
    assert report.ok and len(report.draws) == 1 and "random numbers, drawn once: " in str(report)
    assert relprop.check(build(), sample()).draws == ()


class Drawing(nn.Module):
    """A text of numbers, of which ``way`` makes other numbers by chance; ``also`` is returned
    beside the logits."""

    def __init__(self, way, before=lambda: None, beside=False):
        super().__init__()
        self.inner, self.way, self.before, self.beside = build(), way, before, beside

    def forward(self, x):
        self.before()
        drawn = self.way(x)
        return {"logits": self.inner(x), "drawn": drawn} if self.beside else self.inner(drawn)


def with_noise(x):
    return x + torch.randn_like(x)


def permuted_features(x):
    return x[..., torch.randperm(x.shape[-1])]


def dropped_by_bernoulli(x):
    return x * torch.bernoulli(torch.full_like(x, 0.5))


def by_exponential(x):
    return x + torch.empty_like(x).exponential_()


def by_gumbel(x):
    return torch.nn.functional.gumbel_softmax(x, hard=True) + x


def by_a_normal_with_means(x):
    return x + torch.normal(torch.zeros(x.shape[-1]).double(), 1.0)


def in_part(x):
    noise = torch.zeros_like(x)
    noise[:, 1:].uniform_(-1, 1)
    return x + noise


def by_multinomial(x):
    return x[..., torch.multinomial(torch.full((x.shape[-1],), 0.2), x.shape[-1])]


def by_numpy(x):
    return x * float(np.random.rand())


def by_python(x):
    return x * random.random()


def rarely(x):
    return 2 * x if random.random() < 0.6 else x


def read_by_python(x):
    return 2 * x if float(torch.rand(())) < 0.6 else x


def by_rand(x):
    return x * (torch.rand_like(x) < 0.5)


WAYS = [
    with_noise,
    permuted_features,
    dropped_by_bernoulli,
    by_exponential,
    by_gumbel,
    by_a_normal_with_means,
    in_part,
    by_multinomial,
    by_numpy,
    by_python,
    rarely,
    read_by_python,
    by_rand,
]


def seed():
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.mark.parametrize(
    "way",
    marked(
        WAYS, ("by_numpy", "by_python", "read_by_python", "permuted_features"), lambda f: f.__name__
    ),
)
def test_a_draw_that_changes_the_output_is_said_and_the_advice_helps(way):
    x = sample()[:1] + 1
    model = Drawing(way)
    seed()
    states = random.getstate(), np.random.get_state()[2], torch.get_rng_state()
    with pytest.warns(ChanceWarning, match="another draw changes its 'output' of sample 0 by"):
        e = relprop.explain(model, x, 1)
    assert states[:2] == (random.getstate(), np.random.get_state()[2])
    assert torch.equal(states[2], torch.get_rng_state())
    with torch.no_grad():
        assert closeness(e.output, model(x)[:, 1]) <= 1e-12
    with pytest.raises(RelpropError, match="by chance in eval mode"):
        relprop.explain(model, x, 1, strict=True)
    seeded = relprop.explain(Drawing(way, seed), x, 1, strict=True)  # the advice, followed
    assert closeness(seeded.scores, e.scores) <= 1e-9


@pytest.mark.parametrize(
    "way", marked([by_exponential, by_numpy, by_rand], ("by_exponential",), lambda f: f.__name__)
)
def test_a_draw_that_changes_another_output_alone_is_allowed(way):
    model, x = Drawing(way, beside=True), sample()
    e = relprop.explain(model, x, 1, strict=True)
    with torch.no_grad():
        assert closeness(e.output, model.inner(x)[:, 1]) <= 1e-12


def test_numbers_drawn_by_an_input_are_refused_and_the_advice_helps():
    x = sample()[:1]
    with pytest.raises(CaptureError, match=r"torch\.rand_like\(p\) < p for torch.bernoulli\(p\)"):
        relprop.explain(Drawing(lambda x: x * torch.bernoulli(x.sigmoid())), x, 1)
    with pytest.warns(ChanceWarning):
        relprop.explain(Drawing(lambda x: x * (torch.rand_like(x) < x.sigmoid())), x, 1)


def test_a_generator_of_its_own_is_refused_and_the_advice_helps():
    x = sample()[:1]
    with pytest.raises(CaptureError, match="seed a generator of its own in its forward"):
        relprop.explain(Drawing(lambda x: x * np.random.default_rng().random()), x, 1)
    relprop.explain(Drawing(lambda x: x * np.random.default_rng(0).random()), x, 1, strict=True)


class Noisy(nn.Module):
    """Noise of the size of its input: every sample of a batch has noise of its own, which no sample
    has alone."""

    def __init__(self):
        super().__init__()
        self.inner = build()

    def forward(self, x):
        return self.inner(x + torch.randn_like(x))


@pytest.mark.filterwarnings("ignore:the model draws by chance")
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


@pytest.mark.filterwarnings("ignore:the model draws by chance")
@pytest.mark.parametrize(
    "method",
    marked(["gradient_x_input", "lrp", "transformer_attribution"], ("transformer_attribution",)),
)
def test_tokens_that_are_picked_by_chance_are_the_same_however_memory_is_saved(method):
    model, x = Chosen(), sample()
    torch.manual_seed(3)
    whole = relprop.explain(model, x, 1, method=method)
    torch.manual_seed(3)
    assert torch.equal(relprop.explain(model, x, 1, method=method, memory=1).scores, whole.scores)
    torch.manual_seed(3)
    with torch.no_grad():
        assert closeness(whole.output, model(x)[:, 1]) <= 1e-12


@pytest.mark.parametrize("kind", marked(["RNN", "GRU", "LSTM"], ("GRU",)))
def test_a_recurrent_layer_without_dropout_draws_nothing(kind):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)
            self.read = getattr(nn, kind)(4, 4, batch_first=True)

        def forward(self, ids):
            return self.head(self.read(self.embed(ids))[0].mean(1))

    assert relprop.check(Reader().eval(), torch.arange(6).reshape(2, 3)).draws == ()
