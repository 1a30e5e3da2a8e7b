"""Methods at the input against closed forms written out by hand, and against Captum on the user's
own eager model."""

import pytest
import torch
from captum.attr import (
    InputXGradient,
    IntegratedGradients,
    LayerGradientXActivation,
    LayerIntegratedGradients,
    Saliency,
)
from torch import nn

import relprop
from relprop.errors import OptionError, RelpropError, TargetError
from relprop.methods import METHODS, input_level
from tests.common.models import build, closeness, sample
from tests.common.rows import only

INPUT_LEVEL = input_level()
EXACT = 1e-12
QUADRATURE = 1e-7  # Captum weighs its steps in float32
X = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Affine(nn.Module):
    """y = W·x + b of all (time, features)."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(20, 3).double()

    def forward(self, x):
        return self.head(x.flatten(1))


class Square(nn.Module):
    """y_k = Σ w_k·x²."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 5, dtype=torch.float64))

    def forward(self, x):
        return torch.stack([(x * x * w).flatten(1).sum(1) for w in self.weight], 1)


class TwoLayers(nn.Module):
    """Linear, ReLU, linear, with biases."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 6).double(), nn.Linear(6, 3).double()

    def forward(self, x):
        return self.b(self.a(x).relu())


class Convolution(nn.Module):
    """Two channels of pixels, a convolution, ReLU, maximum over 2×2 windows, a linear head."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 3, 3, padding=1).double(), nn.Linear(3 * 4, 3).double()

    def forward(self, x):
        return self.head(nn.functional.max_pool2d(self.conv(x).relu(), 2).flatten(1))


PIXELS = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("target", [0, [2, 0, 1]], ids=["one target", "one per sample"])
def test_an_affine_model_gives_its_weights(target):
    model = Affine()
    weights = model.head.weight.detach()[target].reshape(-1, 4, 5).expand(3, -1, -1)
    gradient = relprop.explain(model, X, target, method="input_gradient", keep="input")
    assert (
        closeness(gradient.input, weights.abs()) <= EXACT
        and closeness(gradient.scores, weights.abs().sum(2)) <= EXACT
    )
    product = relprop.explain(model, X, target, method="gradient_x_input", keep="input")
    assert (
        closeness(product.input, X * weights) <= EXACT
        and closeness(product.scores, (X * weights).sum(2)) <= EXACT
    )
    for n_steps in (1, 7):
        integrated = relprop.explain(
            model, X, target, method="integrated_gradients", n_steps=n_steps
        )
        assert closeness(integrated.scores, (X * weights).sum(2)) <= QUADRATURE


def test_integrated_gradients_of_a_square():
    """∫ 2αx·w dα·x = w·x²; from a baseline x′ it is w·(x² − x′²); two Gauss–Legendre points
    integrate a line exactly."""
    model, baseline = Square(), torch.full((1, 4, 5), 0.5, dtype=torch.float64)
    weight = model.weight.detach()[1]
    for given, squares in (
        (None, X**2),
        (0.5, X**2 - 0.25),
        (baseline, X**2 - 0.25),
        ({"input_0": X.flip(0)}, X**2 - X.flip(0) ** 2),
    ):
        e = relprop.explain(
            model, X, 1, method="integrated_gradients", n_steps=2, baseline=given, keep="input"
        )
        assert closeness(e.input, squares * weight) <= QUADRATURE


def test_integrated_gradients_are_complete():
    model, x = build(), sample()
    e = relprop.explain(model, x, 2, method="integrated_gradients", n_steps=60)
    difference = (model(x) - model(torch.zeros_like(x)))[:, 2].detach()
    assert closeness(e.scores.sum(1), difference) <= 1e-6
    assert closeness(e.output, model(x)[:, 2].detach()) <= EXACT


def test_integrated_gradients_follow_a_callable_and_a_prediction():
    """The path keeps the index that the sample itself predicts, and a callable is evaluated at each
    of its points."""
    model, x = build(seed=1), sample()
    predicted = model(x).argmax(1)
    assert len(predicted.unique()) > 1 and predicted[0] != model(torch.zeros_like(x))[0].argmax()
    rows = torch.arange(3)
    how, y, y0 = {"method": "integrated_gradients", "n_steps": 60}, model(x), model(0 * x)
    e = relprop.explain(model, x, **how)
    assert closeness(e.scores.sum(1), (y - y0)[rows, predicted].detach()) <= 1e-6
    e = relprop.explain(model, x, lambda y: y.softmax(-1)[0, 1] ** 2, **how)
    squared = y.softmax(-1)[:, 1] ** 2 - y0.softmax(-1)[:, 1] ** 2
    assert closeness(e.scores.sum(1), squared.detach()) <= 1e-6


class Maps(nn.Module):
    """Class maps, (batch, 3, height, width), and two rows of logits."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1).double()

    def forward(self, x):
        maps = self.conv(x).tanh()
        return {
            "logits": maps,
            "start_logits": maps[:, 0].flatten(1),
            "end_logits": maps[:, 1].flatten(1),
        }


MASK = torch.tensor([[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]])
NAMED = {
    "region": (
        relprop.targets.region(1, MASK),
        lambda y: (y["logits"][:, 1] * MASK).sum((1, 2)) / MASK.sum(),
    ),
    "span": (relprop.targets.span(3, 5), lambda y: y["start_logits"][:, 3] + y["end_logits"][:, 5]),
    "difference": (
        lambda o: 2 * o["logits"][0, 0, 1, 1] - o["start_logits"][0, 7] + 3,
        lambda y: 2 * y["logits"][:, 0, 1, 1] - y["start_logits"][:, 7] + 3,
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_named_targets_are_the_scalar_they_say(name):
    target, y = NAMED[name]
    model, x = Maps(), PIXELS.clone().requires_grad_()
    value = y(model(x))
    gradient = torch.autograd.grad(value.sum(), x)[0]
    product = relprop.explain(model, PIXELS, target, method="gradient_x_input", keep="input")
    assert closeness(product.input, PIXELS * gradient) <= EXACT
    assert closeness(product.output, value.detach()) <= EXACT
    integrated = relprop.explain(model, PIXELS, target, method="integrated_gradients", n_steps=60)
    difference = (value - y(model(torch.zeros_like(PIXELS)))).detach()
    assert closeness(integrated.scores.sum(1), difference) <= 1e-6


def test_lrp_of_two_layers_is_eq_4():
    model, x = TwoLayers(), X[:, 0]
    e = relprop.explain(model, x, 1, method="lrp", keep="input")
    w1, w2 = model.a.weight.detach(), model.b.weight.detach()
    hidden = model.a(x).relu().detach()
    expected = torch.zeros(3, 5, dtype=torch.float64)
    for n in range(3):
        z = sum(max(hidden[n, k], 0) * max(w2[1, k], 0) for k in range(6))
        for k in range(6):
            r = max(hidden[n, k], 0) * max(w2[1, k], 0) / z
            terms = [max(x[n, j], 0) * max(w1[k, j], 0) for j in range(5)]
            for j in range(5):
                expected[n, j] += r * terms[j] / sum(terms) if sum(terms) > 0 else 0
    assert float(expected.abs().max()) > 0
    assert closeness(e.input, expected) <= EXACT and torch.equal(e.scores, e.input)
    assert e.rules == "lrp" and e.ledger.balanced(1e-12)
    assert closeness(e.ledger.reached["input input_0"], expected.sum(1)) <= EXACT


def test_lrp_of_a_convolution_is_eq_4():
    model = Convolution()
    e = relprop.explain(model, PIXELS, 0, method="lrp", keep="input")
    conv, head = model.conv.weight.detach(), model.head.weight.detach()
    active = model.conv(PIXELS).relu().detach()
    pooled = nn.functional.max_pool2d(active, 2).flatten(1)
    expected = torch.zeros_like(PIXELS)
    for n in range(2):
        terms = pooled[n] * head[0].clamp(min=0)
        relevance = (terms / terms.sum()).reshape(3, 2, 2)
        for c in range(3):
            for i in range(2):
                for j in range(2):
                    window = active[n, c, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
                    y, x = 2 * i + int(window.argmax()) // 2, 2 * j + int(window.argmax()) % 2
                    parts = {
                        (d, y + u - 1, x + v - 1): max(PIXELS[n, d, y + u - 1, x + v - 1], 0)
                        * max(conv[c, d, u, v], 0)
                        for d in range(2)
                        for u in range(3)
                        for v in range(3)
                        if 0 <= y + u - 1 < 4 and 0 <= x + v - 1 < 4
                    }
                    for at, part in parts.items():
                        if sum(parts.values()) > 0:
                            expected[(n, *at)] += relevance[c, i, j] * part / sum(parts.values())
    assert closeness(e.input, expected) <= EXACT
    assert closeness(e.scores, expected.sum(1).flatten(1)) <= EXACT
    assert e.grid == e.image == (4, 4) and closeness(e.heatmap(), expected.sum(1)) <= EXACT


def test_lrp_takes_other_rules():
    model = Convolution()
    by_name = relprop.explain(model, PIXELS, 0, method="lrp", rules="paper")
    by_object = relprop.explain(model, PIXELS, 0, method="lrp", rules=relprop.rules.PAPER)
    assert by_name.rules == "paper" and torch.equal(by_name.scores, by_object.scores)
    assert closeness(by_name.scores, relprop.explain(model, PIXELS, 0, method="lrp").scores) > 1e-3


CAPTUM = {
    "input_gradient": (lambda model, x: Saliency(model).attribute(x, target=1), {}, EXACT),
    "gradient_x_input": (lambda model, x: InputXGradient(model).attribute(x, target=1), {}, EXACT),
    "integrated_gradients": (
        lambda model, x: IntegratedGradients(model).attribute(x, target=1, n_steps=9),
        {"n_steps": 9},
        QUADRATURE,
    ),
}
EAGER = {
    "attention": (lambda: build(), lambda: sample()),
    "convolution": (Convolution, lambda: PIXELS),
}


@pytest.mark.filterwarnings(
    "ignore:Input Tensor:UserWarning", "ignore:integrated gradients of:relprop.RelpropWarning"
)
@pytest.mark.parametrize("kind", EAGER)
@pytest.mark.parametrize("method", CAPTUM)
def test_captum_on_the_eager_model_says_the_same(method, kind):
    captum, options, tolerance = CAPTUM[method]
    make, inputs = EAGER[kind]
    model, x = make(), inputs()
    e = relprop.explain(model, x, 1, method=method, keep="input", **options)
    expected = captum(model, x.clone().requires_grad_()).detach()
    assert closeness(e.input, expected) <= tolerance
    features = 2 if kind == "attention" else 1
    assert closeness(e.scores, expected.sum(features).flatten(1)) <= tolerance


@pytest.mark.filterwarnings("ignore:integrated gradients of:relprop.RelpropWarning")
def test_captum_on_the_eager_embedding_says_the_same():
    """Token ids are explained at their embedding, as Captum's layer methods do it; a baseline of
    ids is the embedding of these ids."""
    model, ids = build(ids=True), sample(ids=True)
    product = LayerGradientXActivation(model, model.embed).attribute(ids, target=1).detach()
    e = relprop.explain(model, ids, 1, method="gradient_x_input", keep="input")
    assert closeness(e.input, product) <= EXACT and closeness(e.scores, product.sum(2)) <= EXACT
    assert e.scores.shape == ids.shape and e.grid is None
    pads = torch.full_like(ids, 3)
    integrated = (
        LayerIntegratedGradients(model, model.embed)
        .attribute(ids, pads, target=1, n_steps=9)
        .detach()
    )
    for baseline in (
        pads,
        pads[:1],
        {"input_0": pads},
        model.embed(pads).detach(),
        model.embed(pads[:1, :1]).detach(),
    ):
        e = relprop.explain(
            model, ids, 1, method="integrated_gradients", n_steps=9, baseline=baseline
        )
        assert closeness(e.scores, integrated.sum(2)) <= QUADRATURE


@pytest.mark.parametrize("method", only(["lrp", "smoothgrad"], INPUT_LEVEL))
def test_nothing_is_rolled_up(method):
    e = relprop.explain(Convolution(), PIXELS, 0, method=method)
    assert (
        e.method == method
        and torch.equal(e.row, e.scores)
        and not e.identity.any()
        and e.content.all()
    )
    assert (
        e.source.tolist() == list(range(16))
        and e.scores.shape == (2, 16)
        and e.input is None
        and e.blocks is None
    )
    by_relevance = "relevance" in METHODS[method].needs
    walked = by_relevance and e.facts["relevance"].startswith("walked")
    assert (e.ledger is not None) == walked == (method == "lrp")
    rules = METHODS[method].rule_set(METHODS[method].options())
    assert e.rules == (getattr(rules, "name", rules) if by_relevance else "none")
    assert (method == "input_gradient") <= bool((e.scores >= 0).all())


@pytest.mark.parametrize("method", only(["occlusion"], INPUT_LEVEL))
def test_it_is_saved_and_loaded(method, tmp_path):
    e = relprop.explain(Convolution(), PIXELS, 0, method=method, keep="input")
    again = relprop.load(e.save(tmp_path / "one.safetensors"))
    assert (
        torch.equal(again.scores, e.scores)
        and torch.equal(again.input, e.input)
        and again.grid == e.grid
    )
    assert again.facts == e.facts and (again.method, again.rules) == (e.method, e.rules)


def test_gradients_need_no_captum_and_what_does_says_so(monkeypatch):
    for name in ("captum", "captum.attr"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    for method in ("lrp", "input_gradient", "gradient_x_input"):
        assert relprop.explain(Affine(), X, 0, method=method).scores.shape == (3, 4)
    with pytest.raises(
        OptionError, match=r'integrated_gradients needs Captum: pip install "relprop\[captum\]"'
    ):
        relprop.explain(Affine(), X, 0, method="integrated_gradients")


def explain(**options):
    return relprop.explain(Affine(), X, 0, **options)


WRONG = {
    "unknown method": (
        r"method='saliency' is no method; there are .*input_gradient.*lrp",
        lambda: explain(method="saliency"),
    ),
    "unknown option": (
        r"has no option 'steps'; it has average, baseline, gradient, n_steps",
        lambda: explain(method="integrated_gradients", steps=3),
    ),
    "option of another method": (
        r"'lrp' has no option 'n_steps'; it has average, positions",
        lambda: explain(method="lrp", n_steps=3),
    ),
    "layers": (
        r"'input_gradient' has no option 'layers'; it has average, gradient",
        lambda: explain(method="input_gradient", layers=[0]),
    ),
    "rules for a gradient": (
        r"'gradient_x_input' follows no relevance rules",
        lambda: explain(method="gradient_x_input", rules="paper"),
    ),
    "unknown rules": (
        r"rules='papers' is no rule set",
        lambda: explain(method="lrp", rules="papers"),
    ),
    "keep blocks": (
        (
            r"keep=\['blocks', 'matrix'\] is for methods over attention; method 'lrp' has "
            r"'input' to keep"
        ),
        lambda: explain(method="lrp", keep=("matrix", "blocks")),
    ),
    "no steps": (
        r"n_steps=0: a positive integer",
        lambda: explain(method="integrated_gradients", n_steps=0),
    ),
    "half a step": (
        r"n_steps=1.5: a positive integer",
        lambda: explain(method="integrated_gradients", n_steps=1.5),
    ),
    "baseline of a wrong type": (
        r"baseline for 'input_0' is str: give None, a number",
        lambda: explain(method="integrated_gradients", baseline="pad"),
    ),
    "baseline of a wrong shape": (
        r"baseline for 'input_0' has shape \[2, 5\]; what is explained is \[3, 4, 5\]",
        lambda: explain(method="integrated_gradients", baseline=torch.zeros(2, 5)),
    ),
    "baseline of ids for floats": (
        r"baseline for 'input_0' holds integers; the input is floating",
        lambda: explain(
            method="integrated_gradients", baseline=torch.zeros(1, 4, dtype=torch.long)
        ),
    ),
    "baseline of ids of a wrong shape": (
        r"baseline for 'input_0' has shape \[7\]; the input is \[3, 5\]",
        lambda: relprop.explain(
            build(ids=True),
            sample(ids=True),
            0,
            method="integrated_gradients",
            baseline=torch.zeros(7, dtype=torch.long),
        ),
    ),
    "baseline for no input": (
        r"baseline for 'pixels': the explained inputs are 'input_0'",
        lambda: explain(method="integrated_gradients", baseline={"pixels": 0}),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_refused_with_the_list(name):
    text, call = WRONG[name]
    with pytest.raises(OptionError, match=text):
        call()


def test_an_instrument_explains_at_the_input_with_its_hooks():
    model = Affine()
    with relprop.instrument(model, X, 0, rules="lrp") as probe:
        plain = probe.explanation(method="lrp")
        assert closeness(plain.scores, relprop.explain(model, X, 0, method="lrp").scores) <= EXACT
        probe.hook(probe.names()[-1], lambda r: 2 * r)
        assert closeness(probe.explanation(method="lrp").scores, 2 * plain.scores) <= EXACT


class Sharp(nn.Module):
    """Its gradient is nowhere but within 1e-6 of 0: no quadrature of a few points finds it."""

    def forward(self, x):
        return (x * 1e6).tanh().flatten(1).sum(1, keepdim=True) + 0.01 * x.flatten(1).sum(
            1, keepdim=True
        )


def test_a_sum_that_does_not_converge_is_said():
    with pytest.warns(
        relprop.RelpropWarning,
        match=r"(?s)of 3 of 3 samples have not converged with n_steps=4.*n_steps=16",
    ):
        relprop.explain(Sharp(), X.abs() + 0.1, 0, method="integrated_gradients", n_steps=4)


@torch.library.custom_op("relprop_tests::blind", mutates_args=())
def blind(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@blind.register_fake
def _(x):
    return torch.empty_like(x)


class Blind(nn.Module):
    """An operation without a derivative."""

    def forward(self, x):
        return blind(x).sum(1)


@pytest.mark.parametrize("method", ["input_gradient", "gradient_x_input", "integrated_gradients"])
def test_an_operation_without_a_derivative_is_refused(method):
    with pytest.raises(
        RelpropError,
        match=r"(?s)the gradient .*cannot be taken.*relprop_tests.blind.*register_autograd",
    ):
        relprop.explain(Blind(), X, 0, method=method)


class Deaf(nn.Module):
    """Its output does not depend on its input, except through a detach or not at all."""

    def __init__(self, detached):
        super().__init__()
        self.detached, self.bias = detached, nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (
            x.flatten(1)[:, :3].detach() + self.bias
            if self.detached
            else self.bias + (x.flatten(1)[:, :3] > 99)
        )


@pytest.mark.parametrize("method", INPUT_LEVEL)
def test_a_target_that_depends_on_no_input_is_refused(method):
    with pytest.raises(TargetError, match="depends on no explained input"):
        relprop.explain(Deaf(False), X.float(), 0, method=method)


@pytest.mark.parametrize("method", ["input_gradient", "gradient_x_input"])
def test_behind_a_detach_the_gradient_is_zero(method):
    assert not relprop.explain(Deaf(True), X.float(), 0, method=method).scores.any()
