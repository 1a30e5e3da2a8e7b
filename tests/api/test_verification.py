"""The model verifies: at every call its own forward is compared with what was explained, and
what changed unseen, what Python reads and what belongs to all samples comes out right or is
refused by its name."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import relprop
from relprop.errors import CaptureError, InputError, RelpropWarning, RoundingError
from relprop.runner import comparison, slopes
from tests.common.around import Written
from tests.common.models import FEATURES, TOKENS, build, closeness, sample
from tests.common.rows import only

FACTOR = 2.0


def alone(model, x):
    """The model's own output of class 1 for each sample by itself."""
    with torch.no_grad():
        return torch.cat([model(x[i : i + 1])[:, 1] for i in range(len(x))])


class Holder:
    def __init__(self, value):
        self.value = value


def a_global():
    def change(model):
        global FACTOR
        FACTOR = 5.0

    return Written(lambda m, x: FACTOR * m.inner(x)), change


def a_closure():
    cell = [2.0]
    return Written(lambda m, x: cell[0] * m.inner(x)), lambda m: cell.__setitem__(0, 7.0)


def a_deep_setting():
    deep = Holder(Holder(Holder(Holder(Holder(2.0)))))

    def change(model):
        deep.value.value.value.value.value = 9.0

    return Written(lambda m, x: deep.value.value.value.value.value * m.inner(x)), change


def a_method():
    model = build()
    return model, lambda m: setattr(m, "forward", lambda x: 2 * type(m).forward(m, x))


def a_method_of_a_class():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build()

        def forward(self, x):
            return self.inner(x)

    return Inner(), lambda m: setattr(Inner, "forward", lambda self, x: 3 * self.inner(x))


def a_tensor_that_is_no_buffer():
    model = Written(lambda m, x: m.inner(x) * m.scale)
    model.scale = torch.arange(1.0, 5.0).double()
    return model, lambda m: m.scale.data.mul_(2)


def an_array():
    model = Written(lambda m, x: m.inner(x) * torch.from_numpy(m.scale))
    model.scale = np.ones(4)
    return model, lambda m: m.scale.__imul__(3)


def a_float():
    model = Written(lambda m, x: m.inner(x) * m.scale)
    model.scale = 1.5
    return model, lambda m: setattr(m, "scale", 4.0)


def weights_of_modules_in_a_list():
    model = Written(lambda m, x: m.inner(x) + m.others[0](x))
    model.others = [build()]
    return model, lambda m: m.others[0].head.weight.data.mul_(2)


CHANGES = [
    a_global,
    a_closure,
    a_deep_setting,
    a_method,
    a_method_of_a_class,
    a_tensor_that_is_no_buffer,
    an_array,
    a_float,
    weights_of_modules_in_a_list,
]


@pytest.mark.parametrize(
    "made",
    only((a_global, a_method, a_tensor_that_is_no_buffer, a_float), CHANGES),
    ids=lambda f: f.__name__,
)
def test_what_changes_after_the_first_call_is_seen(made):
    (model, change), x = made(), sample()
    before = relprop.explain(model, x, 1)
    change(model)
    after = relprop.explain(model, x, 1)
    assert closeness(after.output, alone(model, x)) <= 1e-12
    assert closeness(after.output, before.output) > 1e-3
    with relprop.instrument(model, x, 1) as probe:
        value = next(iter(probe.value("*").values()))
    assert torch.isfinite(value).all()
    both = relprop.compare(model, x, ["rollout", "gae"], 1)
    assert closeness(both["gae"].output, alone(model, x)) <= 1e-12


def test_instrument_compares_too():
    model, change = a_closure()
    x = sample()
    relprop.explain(model, x, 1)
    change(model)
    with relprop.instrument(model, x, 1) as probe:
        value = list(probe.value("*").values())[-1]
    with torch.no_grad():
        assert closeness(value, model(x)) <= 1e-12


def test_without_it_the_captured_graph_is_trusted():
    model, change = a_closure()
    x = sample()
    before = relprop.explain(model, x, 1, verify=False)
    change(model)
    after = relprop.explain(model, x, 1, verify=False)
    assert torch.equal(before.output, after.output)
    assert after.facts["compared"] == "not compared with the model: verify=False"
    fact = relprop.explain(model, x, 1).facts["compared"]
    assert fact.startswith("equal to the model's own output for the batch; gradients equal")


def through_tolist(m, x):
    return m.inner(x) * torch.tensor([[1 + abs(v)] for v in x[:, 0, 0].tolist()]).double()


def through_numpy(m, x):
    return m.inner(x) * float(np.abs(x.detach().numpy()).max())


def a_loop_over_lengths(m, x):
    lengths = (x[:, 0, 0] > 0).long() + TOKENS - 1
    means = [x[i, :n].sum() for i, n in enumerate(lengths.tolist())]
    return m.inner(x) * torch.stack(means)[:, None]


def through_item(m, x):
    return m.inner(x) * x[:, 0].abs().max().item()


def one_argument_where(m, x):
    return m.inner(x) * x[torch.where(x > 0)].sum()


def a_mask_as_index(m, x):
    return m.inner(x) * x[x > 0].sum()


def as_many_as_the_largest(m, x):
    return m.inner(x) * F.one_hot((9 * x[:, 0, 0].abs()).long()).shape[1]


def all_close(m, x):
    return m.inner(x) * (2.0 if torch.allclose(x, x.abs(), atol=1.0) else 3.0)


READS = [
    through_tolist,
    through_numpy,
    a_loop_over_lengths,
    through_item,
    one_argument_where,
    a_mask_as_index,
    as_many_as_the_largest,
    all_close,
]


@pytest.mark.filterwarnings("ignore:the model mixes the samples of a batch")
@pytest.mark.parametrize(
    "read", only((through_tolist, a_mask_as_index, all_close), READS), ids=lambda f: f.__name__
)
def test_values_that_python_reads_hold_for_their_own_sample(read):
    model, x = Written(read), sample()[:2]
    program = relprop.trace(model, x)
    assert program.input_specialised and "around.py" in program.decisions[0]
    for given, verify in ((x, True), (2 * x.flip(0) - 0.1, False)):
        e = relprop.explain(model, given, 1, method="rollout", verify=verify)
        assert closeness(e.output, alone(model, given)) <= 1e-12


def test_what_no_input_decides_specialises_nothing():
    model = Written(lambda m, x: m.inner(x + x.data) * sum(torch.arange(3).tolist()))
    decisions = relprop.trace(model, sample()).decisions
    assert decisions and all("outside the graph" in d for d in decisions)  # x.data alone


def test_where_rounding_decides_float64_is_asked_for():
    """The sign of a sine of something large: every way to add up gives another one."""

    def coarse(m, x):
        weights = torch.linspace(-1, 1, FEATURES**2).reshape(FEATURES, FEATURES)
        added = (x[..., None, :] * weights.exp()).sum(-1)
        return m.inner(x) * (1 + (added * 1e8).sin().sign().mean())

    torch.manual_seed(0)
    model, x = Written(coarse).float(), torch.randn(3, TOKENS, FEATURES)
    with pytest.raises(RoundingError, match=r"(?s)rounding decides .*precision='float64'"):
        relprop.explain(model, x, 1)
    e = relprop.explain(model, x, 1, precision="float64")
    assert "rounding decides" in e.facts["compared"]


def test_samples_that_mix_are_said_and_explained_alone():
    model, x = (
        Written(lambda m, x: m.inner(x - x.mean(0, keepdim=True))),
        torch.randn(3, TOKENS, FEATURES).double(),
    )
    with pytest.warns(RelpropWarning, match="mixes the samples of a batch: its 'output' of sample"):
        e = relprop.explain(model, x, 1)
    assert closeness(e.output, alone(model, x)) <= 1e-12
    assert "mixes the samples" in e.facts["compared"]
    assert "equal" in relprop.explain(model, x[:1], 1).facts["compared"]


def test_a_dropout_that_is_always_on_is_refused_by_its_name():
    with pytest.raises(CaptureError, match=r"draws by chance in eval mode(.|\n)*self\.training"):
        relprop.explain(Written(lambda m, x: m.inner(F.dropout(x, 0.5, True))), sample(), 1)


def test_a_model_that_is_no_function_is_refused_by_its_name():
    count = iter(range(99))

    with pytest.raises(CaptureError, match="something else when it is run again"):
        relprop.explain(Written(lambda m, x: m.inner(x) * next(count)), sample(), 1)


class Masked(nn.Module):
    """Attention with an additive mask between positions."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.qkv, self.out = nn.Linear(FEATURES, 24).double(), nn.Linear(8, 4).double()
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator, dtype=p.dtype)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(((q @ k.mT / 8**0.5 + mask).softmax(-1) @ v).mean(1))


class Strict(Masked):
    def forward(self, x, mask):
        assert mask.shape == (x.shape[1], x.shape[1])
        return super().forward(x, mask)


@pytest.mark.parametrize("kind", [Masked, Strict])
@pytest.mark.parametrize(("batch", "size"), [(1, None), (3, None), (5, None), (5, 2)])
def test_a_mask_between_positions_belongs_to_all_samples(kind, batch, size):
    model, x = kind(), torch.randn(batch, 5, FEATURES).double()
    mask = torch.triu(torch.full((5, 5), -1e9).double(), 1)
    e = relprop.explain(model, (x, mask), 1, batch_size=size)
    with torch.no_grad():
        assert closeness(e.output, model(x, mask)[:, 1]) <= 1e-12
    assert "'input_1' belongs to all samples" in e.facts["compared"]
    own = relprop.explain(model, (x[:1], mask), 1)
    assert closeness(e.scores[:1], own.scores) <= 1e-9


def test_a_mask_of_each_sample_stays_its_own():
    x, mask = torch.randn(5, 5, FEATURES).double(), torch.randn(5, 5, 5).double()
    e = relprop.explain(Masked(), (x, mask), 1)
    with torch.no_grad():
        assert closeness(e.output, Masked()(x, mask)[:, 1]) <= 1e-12
    assert "belongs" not in e.facts["compared"]


def test_without_it_a_mask_of_another_length_is_refused():
    x, mask = torch.randn(2, 5, FEATURES).double(), torch.zeros(5, 5).double()
    with pytest.raises(InputError, match="'input_1' has 5 samples"):
        relprop.explain(Masked(), (x, mask), 1, verify=False)


class Through(torch.autograd.Function):
    """Rounding whose gradient is passed on."""

    @staticmethod
    def forward(ctx, x):
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Doubled(torch.autograd.Function):
    """A backward that is the derivative of the forward."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def test_a_backward_of_its_own_is_refused_by_its_name_where_a_gradient_is_needed():
    model, x = Written(lambda m, x: m.inner(x + Through.apply(x))), sample()
    for method, given in (
        ("transformer_attribution", x),
        ("gae", x[:1]),
        ("gradient_x_input", x),
        ("smoothgrad", x),
    ):
        with pytest.raises(CaptureError, match=r"backward functions of its own \(.*Through\)"):
            relprop.explain(model, given, 1, method=method)
    assert relprop.explain(model, x, 1, method="rollout").scores.isfinite().all()
    assert relprop.explain(model, x, 1, verify=False).scores.isfinite().all()
    with relprop.instrument(model, x, 1) as probe, pytest.raises(CaptureError, match="Through"):
        probe.gradient("*")
    report = relprop.check(model, x)
    assert not report.ok and "Through" in report.functions[0] and "Through" in str(report)


class Mapped(torch.autograd.Function):
    """Rounding whose gradient is passed on, for each row."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return (4 * x).round() / 4

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_a_backward_of_its_own_inside_a_transform_is_refused_by_its_name():
    model = Written(lambda m, x: m.inner(x + torch.vmap(Mapped.apply)(x)))
    with pytest.raises(CaptureError, match=r"backward functions of its own \(.*Mapped\)"):
        relprop.explain(model, sample(), 1)


def test_a_backward_that_is_the_derivative_is_named_by_check_alone():
    model, x = Written(lambda m, x: m.inner(Doubled.apply(x))), sample()
    assert "gradients equal" in relprop.explain(model, x, 1).facts["compared"]
    report = relprop.check(model, x)
    assert report.ok and report.functions == (f"{__name__}.Doubled",)
    assert relprop.check(build(), x).functions == ()


def test_gradients_of_the_model_are_compared_at_embeddings_too():
    from tests.common.models import Recipe

    model, ids = build(Recipe(ids=True)), torch.randint(0, 11, (3, TOKENS))
    assert "gradients equal" in relprop.explain(model, ids, 1).facts["compared"]


def test_gradients_are_compared_through_a_cache_that_begins_empty():
    tokens = torch.randint(3, 50, (2, 9))
    model = tiny_llama()
    said = relprop.explain(model, {"input_ids": tokens}, (-1, 7)).facts["compared"]
    assert model.config.use_cache and "gradients equal to autograd's" in said


def tiny_llama():
    """A decoder that keeps keys and values as it runs, in tensors that it first makes empty."""
    config = LlamaConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=50,
    )
    return LlamaForCausalLM(config).eval()


def test_a_part_under_no_grad_is_followed_and_said():
    def cut(m, x):
        with torch.no_grad():
            x = 2 * x
        return m.inner(x)

    said = relprop.explain(Written(cut), sample(), 1).facts["compared"]
    assert "no_grad at test_verification.py" in said and "differentiated, too" in said


def test_under_inference_mode_there_are_no_gradients_to_compare():
    def inference(m, x):
        with torch.inference_mode():
            return m.inner(x)

    said = relprop.explain(Written(inference), sample(), 1).facts["compared"]
    assert "gradients not compared" in said and "inference_mode" in said


class Training(Doubled):
    """A backward that refuses, without a word."""

    @staticmethod
    def backward(ctx, gradient):
        raise AssertionError


def ungraded(m, x):
    """A model that isn't to be differentiated."""
    assert not torch.is_grad_enabled(), "call it under no_grad"
    return m.inner(x)


@pytest.mark.parametrize(
    ("way", "why"),
    [
        (lambda m, x: m.inner(Training.apply(x)), "AssertionError: AssertionError"),
        (ungraded, "AssertionError: call it under no_grad"),
    ],
)
def test_what_a_model_raises_when_it_is_differentiated_is_why_nothing_is_compared(way, why):
    said = relprop.explain(Written(way), sample(), 1).facts["compared"]
    assert f"gradients not compared: the model itself cannot be differentiated: {why}" in said


def test_a_backward_that_refuses_is_named_by_check():
    report = relprop.check(Written(lambda m, x: m.inner(Training.apply(x))), sample())
    assert report.ok and "Training" in report.functions[0]


def counted(monkeypatch):
    """How many backward passes through the user's model were made to compare gradients."""
    from relprop.interpreter import slopes

    made, right = [], slopes.model_gradients

    def counting(*args):
        made.append(args)
        return right(*args)

    monkeypatch.setattr(slopes, "model_gradients", counting)
    return made


@pytest.mark.parametrize("method", ["transformer_attribution", "gradient_x_input"])
def test_gradients_are_compared_once_for_texts_of_all_lengths(method, monkeypatch):
    """Of one text the answer's own gradient is compared, whatever is asked; where two come first,
    two once more."""
    made, model = counted(monkeypatch), tiny_llama()
    said = []
    for length in (9, 7, 8, 5):
        text = {"input_ids": torch.randint(3, 50, (1, length))}
        said.append(relprop.explain(model, text, (-1, 7), method=method).facts["compared"])
    assert len(made) == 1
    assert said[0].endswith("; gradients equal to autograd's")
    assert all(s.endswith("; gradients equal to autograd's for other lengths") for s in said[1:])
    two = {"input_ids": torch.randint(3, 50, (2, 6))}
    for _ in range(2):
        relprop.explain(model, two, (-1, 7), method=method)
    assert len(made) == 3
    relprop.explain(tiny_llama(), text, (-1, 7), method="rollout")
    assert len(made) == 3


class Septupled(Doubled):
    """The same, and a backward of another function."""

    @staticmethod
    def backward(ctx, gradient):
        return -7 * gradient


def test_one_class_does_not_vouch_for_another():
    """All outputs are compared, whichever is asked about first."""
    first, second = nn.Linear(4, 1), nn.Linear(4, 1)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x):
            return torch.cat([self.first(x), Septupled.apply(self.second(x)).tanh()], 1)

    for target in (0, 1):
        with pytest.raises(CaptureError, match="Septupled"):
            relprop.explain(Two(), torch.randn(1, 4), target, method="gradient_x_input")


def test_a_backward_of_ones_own_is_compared_at_each_length():
    """One that is right for short texts says nothing of long ones, and the other way round."""

    class Long(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

        def forward(self, ids):
            h = self.table(ids)
            h = (Septupled if ids.shape[1] > 5 else Doubled).apply(h)
            return self.head(h.tanh().mean(1))

    def asked(model, length):
        ids = torch.randint(0, 20, (1, length))
        return relprop.explain(model, ids, 1, method="gradient_x_input")

    for order in ((4, 8, 3, 9), (8, 4, 9, 3)):
        model = Long()
        for length in order:
            if length > 5:
                with pytest.raises(CaptureError, match="Septupled"):
                    asked(model, length)
            else:
                assert "gradients equal" in asked(model, length).facts["compared"]


def test_the_gradient_of_what_a_callable_makes_of_the_output_serves_too(monkeypatch):
    model, x = build().eval(), sample()[:1]
    made = counted(monkeypatch)
    flat = relprop.explain(model, x, lambda out: out[0].softmax(-1)[1] + out[0, 2]).facts
    assert "gradients equal to autograd's" in flat["compared"] and len(made) == 1


@pytest.mark.parametrize("count", [1, 3])
def test_a_gradient_that_is_off_by_a_thousandth_is_refused(count, monkeypatch):
    from relprop.interpreter.forward import Forward

    right = Forward.gradients

    def off(self, scalars, nodes, *, again):
        found = right(self, scalars, nodes, again=again)
        return {n: g * (1 + 1e-3 * (g > g.mean())) for n, g in found.items()}

    monkeypatch.setattr(Forward, "gradients", off)
    with pytest.raises(CaptureError, match="is not autograd's: off by"):
        relprop.explain(build().double(), sample()[:count].double(), 1)


def test_buffers_that_a_model_writes_stay_free_of_gradients():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build()
            self.register_buffer("last", torch.zeros(4, dtype=torch.float64))

        def forward(self, x):
            y = self.inner(x)
            self.last.mul_(0.5).add_(y.sum(0))
            return y

    model = Keeps()
    relprop.explain(model, sample(), 1)
    assert not model.last.requires_grad and not model.last.any()


class AtTheBorder(nn.Module):
    """Numbers that a ReLU passes or not as they are rounded, of an input that it was made for."""

    def __init__(self, x):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 64))
        self.border = nn.Parameter((x.double() @ self.weight.double()).float()[0])
        self.out = nn.Linear(64, 3)
        self.past = nn.Linear(256, 3)

    def forward(self, x):
        h = (x[..., None] * self.weight).sum(1)  # a linear layer, which adds up in another order
        return self.past(x) + self.out((h - self.border).relu())


def test_gradients_that_rounding_decides_are_not_compared():
    torch.manual_seed(0)
    x = torch.randn(1, 256)
    compared = relprop.explain(AtTheBorder(x), x, 1, method="gradient_x_input").facts["compared"]
    assert "the last digits of 'input_0' move its gradient" in compared
    away = relprop.explain(AtTheBorder(x), x + 1, 1, method="gradient_x_input").facts["compared"]
    assert "gradients equal" in away


def test_the_gradients_that_an_answer_takes_are_the_ones_compared(monkeypatch):
    """No mixture of outputs is differentiated where the target's own gradients tell; and they do
    not, where they are others than the model's."""
    asked, real = [], comparison.confirmed

    def confirmed(program, model, inputs, scalars, mine, *more):
        off = {name: g * torch.linspace(0.99, 1.01, g.shape[-1]) for name, g in mine.items()}
        assert real(program, model, inputs, scalars, off, *more) is None
        asked.append(len(scalars))
        return real(program, model, inputs, scalars, mine, *more)

    monkeypatch.setattr(comparison, "confirmed", confirmed)
    monkeypatch.setattr(slopes, "slopes", lambda *a: pytest.fail("a pass of its own"))
    model, x = build(), sample()
    for target in (1, [0, 2, 1], lambda y: (y[:, 0] - y[:, 1]).tanh(), 3):
        found = relprop.explain(model, x, target)
        assert "gradients equal to autograd's" in found.facts["compared"]
    assert asked == [2]


def test_a_target_that_few_entries_reach_does_not_vouch_for_the_graph(monkeypatch):
    """A sum of one token's features alone: what is compared is a mixture of all outputs."""
    mixed, real = [], slopes.slopes
    monkeypatch.setattr(slopes, "slopes", lambda *a: mixed.append(1) or real(*a))

    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(FEATURES, FEATURES) for _ in "qkv")

        def forward(self, x):
            q, k, v = self.q(x), self.k(x), self.v(x)
            return x + F.scaled_dot_product_attention(q, k, v, is_causal=True)

    x = torch.randn(2, TOKENS, FEATURES)
    for place, passes in ((TOKENS - 1, 0), (0, 1)):
        mixed.clear()
        relprop.explain(Causal().eval(), x, (place, 1))
        assert len(mixed) == passes


def test_a_hook_on_another_output_is_seen_whichever_is_asked_about_first():
    class Hooked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x):
            h = x.tanh()
            if h.requires_grad:
                h.register_hook(lambda g: -3 * g)
            return torch.cat([self.first(x), self.second(h)], 1)

    for target in (0, 3):
        with pytest.raises(CaptureError, match="register_hook"):
            relprop.explain(Hooked(), torch.randn(1, 4), target, method="gradient_x_input")
