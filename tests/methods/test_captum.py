"""SmoothGrad, GradientSHAP, DeepLIFT, occlusion and noise: against Captum on the user's own eager
model, against closed forms, and each against its laws."""

import copy
import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from captum.attr import DeepLift, GradientShap, NoiseTunnel, Occlusion, Saliency
from torch import nn
from torch.nn import functional as F

import relprop
from relprop.errors import OptionError, RelpropError
from relprop.runner.positions import windows
from tests.common.models import build, closeness, sample, shared
from tests.common.rows import only
from tests.methods.test_any_model import MODELS, built, towers
from tests.methods.test_inputs import PIXELS, Affine, Blind, Convolution, Sharp, X

EXACT = 1e-9
CAPTUM = 1e-6  # Captum draws, weighs and accumulates in float32
SAMPLED = ("smoothgrad", "gradient_shap")
EAGER = {
    "attention": (shared, sample),
    "convolution": (Convolution, lambda: PIXELS),
    "ids": (lambda: build(ids=True), lambda: sample(ids=True)),
}


def eager(kind):
    """The model of embeddings where there are ids, so that Captum sees what relprop explains."""
    make, inputs = EAGER[kind]
    model, x = make(), inputs()
    return (
        (model, x, model, x)
        if kind != "ids"
        else (model, x, (copied := Behind(model)), copied.first(x).detach())
    )


class Behind(nn.Module):
    """The rest of a model, from its embeddings."""

    def __init__(self, model):
        super().__init__()
        self.first, self.model = model.embed, model

    def forward(self, embedded):
        self.model.embed = nn.Identity()
        try:
            return self.model(embedded)
        finally:
            self.model.embed = self.first


def draws(shape, n, seed):
    """The n noises for one sample that smoothgrad draws."""
    source = torch.Generator().manual_seed(seed)
    return torch.stack(
        [torch.randn(shape, generator=source, dtype=torch.float64) for _ in range(n)]
    )


@pytest.mark.parametrize("kind", EAGER)
def test_smoothgrad_is_captums_with_the_same_noise(kind, monkeypatch):
    model, x, theirs, at = eager(kind)
    n, seed = 4, 3
    spread = (at.flatten(1).amax(1) - at.flatten(1).amin(1)) * 0.2
    noise = torch.cat([spread[b] * draws(at.shape[1:], n, seed) for b in range(len(at))])
    with monkeypatch.context() as patched:
        patched.setattr(torch, "normal", lambda mean, std: noise)
        expected = (
            NoiseTunnel(Saliency(theirs))
            .attribute(at, nt_type="smoothgrad", nt_samples=n, target=1, abs=False)
            .detach()
            .abs()
        )
    how = {"method": "smoothgrad", "n_samples": n, "stdev": 0.2, "keep": "input"}
    e, other = (relprop.explain(model, x, 1, seed=s, **how) for s in (seed, seed + 1))
    assert closeness(e.input, expected) <= 1e-12 and bool((e.scores >= 0).all())
    assert closeness(e.scores, other.scores) > 1e-3


def test_smoothgrad_without_noise_is_the_gradient():
    model, x = shared(), sample()
    plain = relprop.explain(model, x, 1, method="input_gradient", keep="input")
    how = {"method": "smoothgrad", "n_samples": 2, "stdev": 0, "keep": "input"}
    assert closeness(relprop.explain(model, x, 1, **how).input, plain.input) <= 1e-12


@pytest.mark.parametrize("kind", EAGER)
def test_gradient_shap_is_captums_with_the_same_draws(kind, monkeypatch):
    model, x, theirs, at = eager(kind)
    n, seed, spread, batch = 5, 2, 0.3, len(at)
    stock = torch.randn(
        3, *at.shape[1:], generator=torch.Generator().manual_seed(9), dtype=torch.float64
    )
    source, which, alphas, noise = torch.Generator().manual_seed(seed), [], [], []
    for _ in range(n):
        which.append(int(torch.randint(3, (), generator=source)))
        alphas.append(float(torch.rand((), generator=source, dtype=torch.float64)))
        noise.append(spread * torch.randn(at.shape[1:], generator=source, dtype=torch.float64))
    assert len(set(which)) > 1
    with monkeypatch.context() as patched:
        patched.setattr(
            torch,
            "normal",
            lambda mean, std: torch.stack(noise).repeat(batch, *[1] * (at.dim() - 1)),
        )
        patched.setattr(np.random, "uniform", lambda low, high, size: np.array(alphas * batch))
        patched.setattr(np.random, "choice", lambda count, size: np.array(which * batch))
        expected = (
            GradientShap(theirs).attribute(at, stock, n_samples=n, stdevs=spread, target=1).detach()
        )
    how = {"baselines": stock, "n_samples": n, "stdevs": spread, "seed": seed, "keep": "input"}
    e = relprop.explain(model, x, 1, method="gradient_shap", **how)
    assert closeness(e.input, expected) <= 1e-12


def test_gradient_shap_of_a_linear_model_is_its_differences():
    """Whatever is drawn: (x − b)·w for one baseline, and the mean over the drawn ones for several;
    noise of mean ε̄ adds ε̄·w."""
    model = Affine()
    weight = model.head.weight.detach()[2].reshape(4, 5)
    how = {"method": "gradient_shap", "keep": "input"}
    for n, given in (
        (1, 0.5),
        (7, torch.full((1, 4, 5), 0.5)),
        (3, [0.5]),
        (2, {"input_0": torch.full((2, 1, 1), 0.5)}),
    ):
        e = relprop.explain(model, X, 2, n_samples=n, baselines=given, **how)
        assert closeness(e.input, (X - 0.5) * weight) <= 1e-12
    many = relprop.explain(model, X, 2, n_samples=4000, baselines=[0.0, 1.0], **how)
    drawn = (X - many.input / weight).mean()
    assert 0.47 < float(drawn) < 0.53 and closeness(many.input, (X - drawn) * weight) <= 1e-12
    noisy = relprop.explain(model, X, 2, n_samples=4000, stdevs=0.5, **how)
    assert 0 < float((noisy.input / weight - X).abs().max()) < 5 * 0.5 / 4000**0.5


@pytest.mark.slow
def test_gradient_shap_comes_to_integrated_gradients():
    """Of a model of few operations, for there are thousands of passes."""
    torch.manual_seed(0)
    x = sample()
    layers = nn.Flatten(), nn.Linear(x[0].numel(), 6), nn.Tanh(), nn.Linear(6, 3)
    model = nn.Sequential(*layers).double()
    options = {"baseline": 0.2, "n_steps": 50}
    expected = relprop.explain(model, x, 1, method="integrated_gradients", **options).scores
    drawn = relprop.explain(model, x, 1, method="gradient_shap", n_samples=3000, baselines=0.2)
    assert closeness(drawn.scores, expected) <= 0.03


OCCLUDED = {
    "attention": ((1, 6), (1, 6), None),
    "convolution": ((2, 2, 2), (2, 1, 1), 0.3),
    "ids": ((2, 8), (1, 8), 0.1),
    "cut": ((2, 3, 3), (2, 2, 2), None),
}


@pytest.mark.parametrize("case", OCCLUDED)
def test_occlusion_is_captums(case):
    window, stride, baseline = OCCLUDED[case]
    kind = "convolution" if case == "cut" else case
    model, x, theirs, at = eager(kind)
    expected = Occlusion(theirs).attribute(
        at, window, strides=stride, baselines=0 if baseline is None else baseline, target=1
    )
    features = 1 if kind == "convolution" else 2
    places = slice(1, None) if features == 1 else slice(0, 1)
    how = {"window": window[places], "stride": stride[places], "baseline": baseline}
    e = relprop.explain(model, x, 1, method="occlusion", keep="input", **how)
    assert closeness(e.scores, expected.select(features, 0).flatten(1).to(e.scores.dtype)) <= CAPTUM
    assert closeness(e.input * at.shape[features], expected.to(e.input.dtype)) <= CAPTUM


def test_occlusion_hides_one_token_at_a_time():
    model, ids = build(ids=True), sample(ids=True)
    e = relprop.explain(model, ids, 1, method="occlusion", baseline=torch.tensor([[3]]))
    for k in range(ids.shape[1]):
        without = ids.clone()
        without[:, k] = 3
        assert closeness(e.scores[:, k], (model(ids) - model(without))[:, 1].detach()) <= 1e-12


WINDOWS = {
    "MLP-Mixer": (8, 8),
    "VGG": (8, 8),
    "video": (2, 8, 8),
    "spectrogram": (4, 4),
    "BERT, padded": (1,),
    "raw audio": (8,),
    "LSTM": (1,),
    "MLP on a table": (1,),
    "MLP on pixels": (4, 4),
}


@pytest.mark.parametrize("name", only(("VGG", "video", "BERT, padded", "raw audio"), WINDOWS))
def test_windows_are_the_models_own_patches(name):
    program = relprop.trace(*built(name)[:2])
    assert windows(program, next(iter(program.leaves.values()))) == WINDOWS[name]


class Modules(nn.Module):
    """Nonlinearities Captum hooks, each once."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        kinds = [nn.ReLU(), nn.Sigmoid(), nn.Tanh(), nn.ELU(), nn.LeakyReLU(0.2), nn.Softplus()]
        self.layers = nn.Sequential(
            *itertools.chain(
                *((nn.Linear(20 if not i else 8, 8), kind) for i, kind in enumerate(kinds))
            ),
            nn.Linear(8, 3),
        ).double()

    def forward(self, x):
        return self.layers(x.flatten(1))


class Pools(nn.Module):
    """Convolution, maximum, batch norm, ReLU, mean. The maximum stands between linear layers: next
    to a hooked module Captum's is not complete."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = (
            nn.Sequential(
                nn.Conv2d(2, 3, 3, padding=1),
                nn.MaxPool2d(2),
                nn.BatchNorm2d(3),
                nn.ReLU(),
                nn.AvgPool2d(2),
                nn.Flatten(),
                nn.Linear(3, 3),
            )
            .double()
            .eval()
        )
        nn.init.normal_(self.layers[2].running_mean)

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("make,x", [(Modules, X), (Pools, PIXELS)])
def test_deeplift_is_captums_where_that_is_defined(make, x):
    model = make()
    for baseline in (0.0, 0.3, x.flip(0)):
        start = baseline if isinstance(baseline, torch.Tensor) else torch.full_like(x, baseline)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it announces its hooks
            expected = DeepLift(model).attribute(x.clone().requires_grad_(), start, target=1)
        e = relprop.explain(model, x, 1, method="deeplift", baseline=baseline, keep="input")
        assert closeness(e.input, expected.detach()) <= 1e-8


class Functional(nn.Module):
    """A functional ReLU, and one module called twice: Captum's hooks see neither as it is."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c, self.act = (
            nn.Linear(20, 6).double(),
            nn.Linear(6, 6).double(),
            nn.Linear(6, 3).double(),
            nn.Tanh(),
        )

    def forward(self, x):
        return self.c(self.act(self.b(self.act(F.relu(self.a(x.flatten(1)))))))


def test_deeplift_of_functions_is_the_chain_of_rescaled_slopes():
    model, x = Functional(), X
    zero = torch.zeros_like(x)

    def chain(t):
        u = model.a(t.flatten(1))
        v = u.relu()
        w = v.tanh()
        z = model.b(w)
        return [u, v, w, z, z.tanh()]

    (u, v, w, z, y), (u0, v0, w0, z0, y0) = ([t.detach() for t in chain(s)] for s in (x, zero))
    m = model.c.weight.detach()[1] * (y - y0) / (z - z0)
    m = (m @ model.b.weight.detach()) * (w - w0) / (v - v0).where(v != v0, 1) * (v != v0)
    m = (m * (v - v0) / (u - u0)) @ model.a.weight.detach()
    e = relprop.explain(model, x, 1, method="deeplift", keep="input")
    assert closeness(e.input, m.reshape(x.shape) * x) <= EXACT


def test_deeplift_of_a_pool_behind_a_nonlinearity_by_hand():
    """All of Δy goes to the larger of the two maxima, and tanh hands it on whole; Captum's do not
    sum to the change here."""
    model = nn.Sequential(nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)).double()
    start = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    e = relprop.explain(model, PIXELS, 1, method="deeplift", baseline=start, keep="input")
    expected, weight = torch.zeros_like(PIXELS), model[3].weight.detach()[1].reshape(2, 2, 2)
    for n, c, i, j in itertools.product(range(2), repeat=4):
        ours, theirs = (
            t[n, c, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].tanh().flatten() for t in (PIXELS, start)
        )
        k = int((ours if ours.max() >= theirs.max() else theirs).argmax())
        expected[n, c, 2 * i + k // 2, 2 * j + k % 2] = weight[c, i, j] * (
            ours.max() - theirs.max()
        )
    assert closeness(e.input, expected) <= 1e-12


UNARY = (
    "abs asinh atan ceil celu clamp clamp_max clamp_min cos cosh elu erf erfc exp exp2 expm1 floor "
    "gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu log log10 log1p log2 log_sigmoid "
    "mish nan_to_num pow prelu reciprocal relu relu6 round rsqrt selu sigmoid sign silu sin sinc "
    "sinh softplus softshrink sqrt square tanh trunc"
).split()
FORMS = {
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "clamp_min": lambda x: x.clamp_min(0.2),
    "clamp_max": lambda x: x.clamp_max(0.2),
    "pow": lambda x: x**3,
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.3, dtype=x.dtype)),
    "log": lambda x: (x * x + 0.1).log(),
    "log1p": lambda x: (x * x).log1p(),
    "log2": lambda x: (x * x + 0.1).log2(),
    "log10": lambda x: (x * x + 0.1).log10(),
    "sqrt": lambda x: (x * x + 0.1).sqrt(),
    "rsqrt": lambda x: (x * x + 0.1).rsqrt(),
    "reciprocal": lambda x: (x * x + 0.1).reciprocal(),
    "log_sigmoid": F.logsigmoid,
    "nan_to_num": lambda x: x.nan_to_num(),
    "softsign": F.softsign,
}
OPERATIONS = {
    name: FORMS.get(name) or (lambda x, op=getattr(torch.ops.aten, name): op(x)) for name in UNARY
} | {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "masked softmax": lambda x: (3 * x).masked_fill(torch.eye(4, 5) > 0, float("-inf")).softmax(-1),
    "large softmax": lambda x: (400 * x).softmax(1),
    "layer_norm": lambda x: F.layer_norm(x, (5,), x.new_tensor([1, 2, -1, 3, 1]), x.new_ones(5)),
    "layer_norm of all": lambda x: F.layer_norm(x, (4, 5)),
    "rms_norm": lambda x: F.rms_norm(x, (5,), eps=1e-6),
    "rms_norm, no eps": lambda x: F.rms_norm(x, (5,)),
    "group_norm": lambda x: F.group_norm(x, 2, x.new_tensor([1, 2, 3, 4]), x.new_ones(4)),
    "rms written out": lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "product": lambda x: x[..., 1:] * x[..., :-1],
    "square": lambda x: x * x,
    "quotient": lambda x: x / (1 + x.flip(1) ** 2),
    "one over": lambda x: 1 / (1 + x * x),
    "matmul": lambda x: x @ x.mT,
    "attention": lambda x: (x @ x.mT).softmax(-1) @ x,
    "gate": lambda x: x.chunk(2, 1)[0] * x.chunk(2, 1)[1].sigmoid(),
    "max_pool1d": lambda x: F.max_pool1d(x, 3, 1),
    "max_pool2d": lambda x: F.max_pool2d(x.unsqueeze(1), (2, 3), 1),
    "norm": lambda x: x.norm(dim=-1),
    "the larger of two": lambda x: torch.maximum(x, x.flip(1)),
    "the smaller of two": lambda x: torch.fmin(x, 2 * x.flip(2)),
    "the larger, hidden": lambda x: torch.maximum(
        x.masked_fill(torch.eye(4, 5) > 0, float("-inf")), x.flip(1)
    ),
    "the smaller of fixed numbers": lambda x: torch.minimum(torch.arange(5) / 5 - 0.5, x),
    "clamp between": lambda x: x.clamp(x.flip(1), 0.2 + x.flip(2)),
    "amax": lambda x: x.amax(1),
    "amin of two axes": lambda x: x - x.amin((1, 2), keepdim=True),
    "max along an axis": lambda x: x.max(-1).values,
    "where": lambda x: torch.where(torch.eye(4, 5) > 0, x * x, 2 * x),
    "a choice by its own values": lambda x: torch.where(x > 0.1, x, 3 * x),
    "bessel": torch.special.i1,
    "moves": lambda x: torch.cat(
        [x.mT.reshape(len(x), -1), x.flip(1)[:, 1].cumsum(-1), x.mean(1)], 1
    ).tanh(),
    "detach": lambda x: x.detach() * 2 + x,
}


OF_EACH_RULE = (
    "gelu",
    "clamp",
    "reciprocal",
    "masked softmax",
    "layer_norm",
    "rms_norm",
    "group_norm",
    "normalize",
    "product",
    "square",
    "quotient",
    "matmul",
    "attention",
    "max_pool2d",
    "norm",
    "the larger of two",
    "amax",
    "max along an axis",
    "where",
    "a choice by its own values",
    "moves",
    "detach",
)


class One(nn.Module):
    """An operation between two linear maps."""

    def __init__(self, operation):
        super().__init__()
        self.first, self.operation = nn.Linear(5, 5).double(), operation
        self.weights = torch.randn(
            2, 500, generator=torch.Generator().manual_seed(4), dtype=torch.float64
        )

    def forward(self, x):
        y = self.operation(self.first(x)).flatten(1)
        return y @ self.weights[:, : y.shape[1]].mT


@pytest.mark.parametrize("name", only(OF_EACH_RULE, OPERATIONS))
def test_deeplift_sums_to_the_difference(name):
    """Complete from every baseline, and where the baseline is next to the input its multipliers are
    the gradient."""
    torch.manual_seed(0)
    model = One(OPERATIONS[name])
    for baseline in (torch.zeros_like(X), X.flip(0), -X):
        e = relprop.explain(model, X, 1, method="deeplift", baseline=baseline, keep="input")
        difference = (model(X) - model(baseline))[:, 1].detach()
        assert bool((difference != 0).any()) and closeness(e.scores.sum(1), difference) <= EXACT
        assert float(e.input.abs().sum()) < 1e4 * float(difference.abs().sum())
    if name not in ("sign", "round", "floor", "ceil", "trunc", "detach"):
        near = X - 1e-5 * X.flip(0)
        e = relprop.explain(model, X, 1, method="deeplift", baseline=near, keep="input")
        x = ((X + near) / 2).requires_grad_()
        gradient = torch.autograd.grad(model(x)[:, 1].sum(), x)[0]
        assert closeness(e.input / (X - near), gradient) <= (1e-2 if "large" in name else 1e-5)


FROM_ZERO = [n for n, (_, places) in MODELS.items() if "input_0" in places]
FROM_ZERO += ["raw audio", "spectrogram", "time series", "video", "BERT, padded", "T5"]


@pytest.mark.parametrize(
    "name", only(("VGG", "GRU", "BERT, padded", "(batch, time, features)"), FROM_ZERO)
)
def test_deeplift_is_complete_on_whole_models(name):
    model, inputs, target = built(name)
    double = copy.deepcopy(model).double()
    e = relprop.explain(model, inputs, target, method="deeplift", precision="float64")
    index = tuple(torch.tensor([list(t) if isinstance(t, tuple) else [t] for t in target]).T)

    def y(given):
        out = double(**given) if isinstance(given, dict) else double(given)
        out = getattr(out, "logits", getattr(out, "prediction_logits", out))
        return out[(torch.arange(2), *index)].detach()

    if isinstance(inputs, dict):
        there = {
            ("inputs_embeds" if n == "input_ids" else "decoder_inputs_embeds"): torch.zeros(
                *inputs[n].shape, 16
            ).double()
            for n in inputs
            if n.endswith("input_ids")
        }
        rest = {n: v.double() if v.is_floating_point() else v for n, v in inputs.items()}
        there |= {
            n: torch.zeros_like(v) if v.is_floating_point() else v
            for n, v in rest.items()
            if not n.endswith("input_ids")
        }
        difference = y(rest) - y(there)
    elif inputs.is_floating_point():
        difference = y(inputs.double()) - y(torch.zeros_like(inputs).double())
    else:
        embedding = next(m for m in double.modules() if isinstance(m, nn.Embedding))
        difference = y(inputs)
        with torch.no_grad():
            embedding.weight.zero_()
        difference = difference - y(inputs)
    assert (
        closeness(sum(e[n].scores.sum(1) for n in e.streams), difference.to(torch.float64)) <= 1e-7
    )


def test_norms_before_a_constant_reference_do_not_explode():
    """1/√ε is 1e6 at a reference of zeros: with the other order the numbers of two such layers come
    to 1e16, and cancel."""
    model, inputs, target = built("spectrogram")
    e = relprop.explain(model, inputs, target, method="deeplift", precision="float64")
    assert float(e.scores.abs().sum()) < 100 * float(e.scores.sum(1).abs().sum())


class Refused(nn.Module):
    def __init__(self, operation):
        super().__init__()
        self.operation = operation

    def forward(self, x):
        return self.operation(x).flatten(1)


NO_RULE = {
    "a sort": (lambda x: x.sort(-1).values, r"aten.sort.default: DeepLIFT has no rule for it"),
    "a product over an axis": (
        lambda x: x.prod(-1),
        r"aten.prod.dim_int: DeepLIFT has no rule for it",
    ),
    "a choice by values": (
        lambda x: torch.where(x.flip(1) > 0.1, x, 3 * x),
        r"aten.where.self: which of its values it takes depends on the input, by gt",
    ),
    "an unknown kernel": (
        lambda x: torch.linalg.matrix_exp(x[:, :, :4]),
        r"linalg_matrix_exp.default: DeepLIFT has no rule for it",
    ),
}


@pytest.mark.parametrize("name", NO_RULE)
def test_deeplift_refuses_what_has_no_rule(name):
    operation, text = NO_RULE[name]
    with pytest.raises(
        OptionError,
        match=rf"(?s)deeplift is not defined for this model: .*{text}.*integrated_gradients",
    ):
        relprop.explain(Refused(operation), X, 0, method="deeplift", on_unknown="generic")


def test_deeplift_refuses_a_callable_that_is_not_linear():
    def scores(target):
        return relprop.explain(shared(), sample(), target, method="deeplift").scores

    said = r"deeplift is not defined for this target: the callable is not linear"
    with pytest.raises(OptionError, match=said):
        scores(lambda y: y.softmax(-1)[0, 1])
    linear = scores(lambda y: 2 * y[0, 1] - y[0, 0] + 7)
    assert closeness(linear, 2 * scores(1) - scores(0)) <= EXACT


def test_deeplift_says_what_rounding_takes():
    with pytest.warns(
        relprop.RelpropWarning,
        match=r"(?s)deeplift of 3 of 3 samples is off by rounding.*precision='float64'",
    ):
        relprop.explain(Cancelling(), X.float(), 0, method="deeplift")


class Cancelling(nn.Module):
    def forward(self, x):
        return ((x + 3e7) - 3e7).flatten(1).sum(1, keepdim=True)


def test_random_is_uniform_and_knows_neither_model_nor_batch():
    e = relprop.explain(Convolution(), PIXELS, 0, method="random", keep="input")
    drawn = torch.rand(
        4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).flatten()
    assert closeness(e.scores, drawn.expand(2, -1)) <= 1e-12 and e.input.shape == PIXELS.shape
    again = relprop.explain(Pools(), PIXELS[1:] + 1, 2, method="random")
    assert torch.equal(again.scores[0], e.scores[0])
    assert not torch.equal(
        relprop.explain(Convolution(), PIXELS, 0, method="random", seed=1).scores, e.scores
    )
    model, inputs, target = towers()[:3]
    both = relprop.explain(model, inputs, target, method="random")
    assert not torch.equal(both["input_ids"].scores[0, :7], both["pixel_values"].scores[0, :7])


def test_several_inputs_are_captums_tuple(monkeypatch):
    model, inputs, target, leaves, y = towers()
    leaves = tuple(leaf.detach() for leaf in leaves)
    e = relprop.explain(
        model, inputs, target, method="occlusion", window={"pixel_values": (2, 3)}, keep="input"
    )
    expected = Occlusion(y).attribute(leaves, ((1, 6), (3, 2, 3)), strides=((1, 6), (3, 2, 3)))
    for stream, theirs, features in zip(e.streams, expected, (6, 3), strict=True):
        assert closeness(features * e[stream].input, theirs.double()) <= CAPTUM
    baseline = {"pixel_values": 0.5, "input_ids": torch.tensor([[3]])}
    deep = relprop.explain(model, inputs, target, method="deeplift", baseline=baseline)
    there = y(model.embed(torch.full((2, 7), 3)), torch.full_like(leaves[1], 0.5))
    difference = (y(*leaves) - there).detach()
    assert closeness(sum(s.scores.sum(1) for s in deep.streams.values()), difference) <= EXACT
    stock = {
        "input_ids": torch.full((4, 7), 3),
        "pixel_values": torch.full((4, 3, 5, 6), 0.5, dtype=torch.float64),
    }
    shap = relprop.explain(
        model, inputs, target, method="gradient_shap", baselines=stock, n_samples=500
    )
    assert closeness(sum(s.scores.sum(1) for s in shap.streams.values()), difference) <= 0.05
    how = {"stdev": {"pixel_values": 0.1}, "n_samples": 3, "keep": "input"}
    smooth = relprop.explain(model, inputs, target, method="smoothgrad", **how)
    assert all(bool(smooth[n].scores.any()) for n in smooth.streams)


STOCK = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "smoothgrad", "n_samples": 3},
        {"method": "random"},
        {"method": "occlusion", "stride": (1, 2), "window": 2},
        {"method": "gradient_shap", "n_samples": 6, "stdevs": 0.1, "baselines": STOCK},
        {"method": "deeplift", "baseline": STOCK},
    ],
    ids=lambda o: o["method"],
)
def test_parts_of_a_batch_say_the_same(options):
    """Also where there are as many baselines to draw from as samples: they are no sample's own."""
    model = Convolution()
    whole, parts = (
        relprop.explain(model, PIXELS, 0, batch_size=size, keep="input", **options)
        for size in (None, 1)
    )
    assert closeness(whole.input, parts.input) <= EXACT
    if options["method"] != "deeplift":
        alone = relprop.explain(model, PIXELS[1:], 0, keep="input", **options)
        assert closeness(whole.input[1:], alone.input) <= EXACT


@pytest.mark.parametrize("method", [*SAMPLED, "random", "occlusion", "deeplift"])
def test_random_state_and_precision(method):
    model, x = shared(dtype=torch.float32), sample(dtype=torch.float32)
    state, theirs = torch.get_rng_state(), np.random.get_state()[1].copy()
    single, double = (
        relprop.explain(model, x, 1, method=method, precision=p).scores for p in (None, "float64")
    )
    assert torch.equal(state, torch.get_rng_state()) and np.array_equal(
        theirs, np.random.get_state()[1]
    )
    assert double.dtype == torch.float64 and closeness(single.double(), double) <= 1e-4


@pytest.mark.parametrize("method", [*SAMPLED, "deeplift"])
def test_an_operation_without_a_derivative_is_refused(method):
    with pytest.raises(RelpropError, match=r"cannot be taken|is not defined for this model"):
        relprop.explain(Blind(), X, 0, method=method)


def test_occlusion_needs_no_derivative_and_nothing_needs_captum(monkeypatch):
    for name in ("captum", "captum.attr"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    assert closeness(relprop.explain(Blind(), X, 0, method="occlusion").scores, X[..., 0]) <= 1e-12
    for method in (*SAMPLED, "deeplift", "random"):
        assert relprop.explain(Affine(), X, 0, method=method).scores.shape == (3, 4)


def test_a_sharp_function_is_what_smoothgrad_smooths():
    """Of tanh(10⁶x) the gradient is 0 nearly everywhere; over noise its mean is the density of the
    noise at the step."""
    e = relprop.explain(Sharp(), X, 0, method="smoothgrad", n_samples=5)
    assert float(e.scores.max()) < 1


def explain(method, model=None, x=X, **options):
    return relprop.explain(model or Affine(), x, 0, method=method, **options)


WRONG = {
    "unknown option": (
        r"'smoothgrad' has no option 'n_steps'; it has average, gradient, n_samples, seed, stdev",
        lambda: explain("smoothgrad", n_steps=3),
    ),
    "option of another": (
        r"'deeplift' has no option 'window'; it has average, baseline",
        lambda: explain("deeplift", window=3),
    ),
    "rules": (
        r"'occlusion' follows no relevance rules|leave rules= out",
        lambda: explain("occlusion", rules="paper"),
    ),
    "no samples": (r"n_samples=0: a positive integer", lambda: explain("smoothgrad", n_samples=0)),
    "half a sample": (
        r"n_samples=1.5: a positive integer",
        lambda: explain("gradient_shap", n_samples=1.5),
    ),
    "negative noise": (
        r"stdev=-1: a number that is not negative",
        lambda: explain("smoothgrad", stdev=-1),
    ),
    "noise in words": (
        r"stdevs='much': a number that is not negative",
        lambda: explain("gradient_shap", stdevs="much"),
    ),
    "noise for no input": (
        r"stdev for 'pixels': the explained inputs are 'input_0'",
        lambda: explain("smoothgrad", stdev={"pixels": 1}),
    ),
    "seed": (r"seed='a': an integer", lambda: explain("random", seed="a")),
    "baselines": (
        r"baseline for 'input_0' is str",
        lambda: explain("gradient_shap", baselines="pad"),
    ),
    "no baselines": (r"baselines is empty", lambda: explain("gradient_shap", baselines=[])),
    "baselines of a wrong shape": (
        r"baseline for 'input_0' has shape \[1, 2, 5\]",
        lambda: explain("gradient_shap", baselines=torch.zeros(3, 2, 5)),
    ),
    "counts": (
        r"baselines has 2, 3 entries",
        lambda: relprop.explain(
            *towers()[:3],
            method="gradient_shap",
            baselines={
                "input_ids": torch.zeros(2, 7, dtype=torch.long),
                "pixel_values": torch.zeros(3, 3, 5, 6),
            },
        ),
    ),
    "window": (
        r"window=0 for 'input_0': a positive integer, or 1 of them",
        lambda: explain("occlusion", window=0),
    ),
    "window of two axes": (
        r"window=\(1, 2\) for 'input_0': a positive integer, or 1 of them",
        lambda: explain("occlusion", window=(1, 2)),
    ),
    "window too wide": (
        r"window=\(9,\) is larger than 'input_0', which has 4 positions",
        lambda: explain("occlusion", window=9),
    ),
    "gaps": (
        r"stride=\(2,\) for 'input_0' is larger than window=\(1,\)",
        lambda: explain("occlusion", stride=2),
    ),
    "window for no input": (
        r"window for 'pixels': the explained inputs are 'input_0'",
        lambda: explain("occlusion", window={"pixels": 1}),
    ),
    "baseline of a wrong shape": (
        r"baseline for 'input_0' has shape \[2, 5\]",
        lambda: explain("deeplift", baseline=torch.zeros(2, 5)),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_refused(name):
    text, call = WRONG[name]
    with pytest.raises(OptionError, match=text):
        call()


def test_the_page_names_every_option():
    """``test_any_model`` runs it."""
    text = (Path(__file__).parents[2] / "docs/methods-input.md").read_text()
    for name in ("smoothgrad", "gradient_shap", "deeplift", "occlusion", "leave_one_out", "random"):
        section = text.split(f"## `{name}`")[1].split("\n## ")[0]
        assert all(f"`{option}=" in section for option in relprop.methods.METHODS[name].options())
