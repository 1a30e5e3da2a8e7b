"""Input-level methods on models as their users have them, first of all those without token
attention: convolutions, mixers, state spaces."""

import copy
import functools
import math
import re
from pathlib import Path

import pytest
import timm
import torch
import transformers
from captum.attr import InputXGradient, IntegratedGradients, Saliency
from torch import nn

import relprop
import relprop.runner.run
from relprop.errors import NoAttentionError, OptionError
from relprop.methods import input_level
from tests.common.models import build, closeness, sample, shared
from tests.common.rows import only
from tests.methods import table
from tests.targets.models import tokenizer

INPUT_LEVEL = input_level()
VOCABULARY = 50
LENGTHS = torch.tensor([[7], [4]])
EXACT = 1e-9
pytestmark = pytest.mark.filterwarnings("ignore:integrated gradients of:relprop.RelpropWarning")


def ids(length=7):
    return torch.randint(3, VOCABULARY, (2, length))


def scrambled(model, seed=0):
    """Norms with scales of either sign and running statistics of their own; heads that are not
    0."""
    source = torch.Generator().manual_seed(seed)
    norms = {
        id(p)
        for m in model.modules()
        if "Norm" in type(m).__name__
        for p in m.parameters(recurse=False)
    }
    with torch.no_grad():
        for name, p in model.named_parameters():
            if id(p) in norms:
                p.copy_(float("bias" not in name) + 0.4 * torch.randn(p.shape, generator=source))
            elif not p.any() or p.unique().numel() == 1:
                p.copy_(0.3 * torch.randn(p.shape, generator=source))
        for name, b in model.named_buffers():
            if "running" in name:
                b.copy_((1 if "var" in name else 0) + 0.3 * torch.rand(b.shape, generator=source))
    return model.eval()


def picture(name, **options):
    return scrambled(timm.create_model(name, num_classes=5, **options)), torch.randn(2, 3, 32, 32)


def mixer():
    return scrambled(
        timm.models.MlpMixer(img_size=32, patch_size=8, embed_dim=16, num_blocks=2, num_classes=5)
    ), torch.randn(2, 3, 32, 32)


def vgg():
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    ]
    return scrambled(
        nn.Sequential(*layers, nn.Flatten(), nn.Dropout(), nn.Linear(8 * 16, 5))
    ), torch.randn(2, 3, 16, 16)


def mamba():
    config = transformers.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2, time_step_rank=4
    )
    return transformers.MambaForCausalLM(config).eval(), {"input_ids": ids()}


def bert():
    model, inputs, _ = table.bert()
    return model.eval(), inputs | {"attention_mask": (torch.arange(7) < LENGTHS).long()}


def of_table(make):
    model, inputs, _ = make()
    return model.eval(), {n: t.float() if t.is_floating_point() else t for n, t in inputs.items()}


def wav2vec2():
    config = transformers.Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(8, 8),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        vocab_size=20,
        classifier_proj_size=8,
        num_labels=3,
    )
    return transformers.Wav2Vec2ForSequenceClassification(config).eval(), {
        "input_values": torch.randn(2, 400)
    }


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return transformers.WhisperForConditionalGeneration(config).eval(), {
        "input_features": torch.randn(2, 8, 40),
        "decoder_input_ids": ids(3),
    }


def spectrogram():
    config = transformers.ASTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        patch_size=4,
        max_length=24,
        num_mel_bins=16,
        frequency_stride=4,
        time_stride=4,
        num_labels=3,
    )
    return transformers.ASTForAudioClassification(config).eval(), {
        "input_values": torch.randn(2, 24, 16)
    }


def series():
    config = transformers.PatchTSTConfig(
        num_input_channels=3,
        context_length=32,
        patch_length=8,
        patch_stride=8,
        d_model=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=32,
        num_targets=3,
    )
    return transformers.PatchTSTForClassification(config).eval(), {
        "past_values": torch.randn(2, 32, 3)
    }


def video():
    config = transformers.VideoMAEConfig(
        image_size=16,
        patch_size=8,
        num_frames=4,
        tubelet_size=2,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=3,
    )
    return transformers.VideoMAEForVideoClassification(config).eval(), {
        "pixel_values": torch.randn(2, 4, 3, 16, 16)
    }


class ChannelsLast(nn.Module):
    """Pixels as (batch, height, width, channels)."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.conv(x.permute(0, 3, 1, 2)).relu().mean((2, 3)))


class Series(nn.Module):
    """(batch, time, features) through a convolution over time."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv1d(4, 6, 3), nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.conv(x.mT).relu().mean(2))


class Choices(nn.Module):
    """Several texts per sample, folded into the batch before they are embedded."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 6), nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.embed(x.flatten(0, 1)).relu().mean(1)).reshape(len(x), -1)


class Recurrent(nn.Module):
    """A recurrent layer over (batch, time, features) or over embedded ids; the head reads the last
    step."""

    def __init__(self, kind, embedded=False, **options):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 4) if embedded else nn.Identity()
        self.layer = kind(4, 6, batch_first=True, **options)
        self.head = nn.Linear(6 * (2 if options.get("bidirectional") else 1), 5)

    def forward(self, x):
        return self.head(self.layer(self.embed(x))[0][:, -1])


def recurrent(kind, **options):
    model = Recurrent(kind, **options)
    return model, ids() if options.get("embedded") else torch.randn(2, 7, 4)


#: What is made, and the number of positions of each explained input; (h, w) or (t, h, w) where it
#: is a grid.
WITHOUT_ATTENTION = {
    "ResNet": (lambda: picture("test_resnet"), {"input_0": (32, 32)}),
    "ConvNeXt": (lambda: picture("test_convnext"), {"input_0": (32, 32)}),
    "EfficientNet, gates": (lambda: picture("test_efficientnet"), {"input_0": (32, 32)}),
    "MobileNet v3": (lambda: picture("mobilenetv3_small_050"), {"input_0": (32, 32)}),
    "MLP-Mixer": (mixer, {"input_0": (32, 32)}),
    "VGG": (vgg, {"input_0": (16, 16)}),
    "Mamba": (mamba, {"input_ids": 7}),
    "MLP on pixels": (
        lambda: (
            nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 5)),
            torch.randn(2, 3, 4, 4),
        ),
        {"input_0": (4, 4)},
    ),
    "MLP on a table": (
        lambda: (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)), torch.randn(2, 6)),
        {"input_0": 6},
    ),
    "channels last": (lambda: (ChannelsLast(), torch.randn(2, 7, 9, 3)), {"input_0": (7, 9)}),
    "convolution over time": (lambda: (Series(), torch.randn(2, 9, 4)), {"input_0": 9}),
    "LSTM": (lambda: recurrent(nn.LSTM), {"input_0": 7}),
    "LSTM over ids, both ways, two layers": (
        lambda: recurrent(nn.LSTM, embedded=True, bidirectional=True, num_layers=2),
        {"input_0": 7},
    ),
    "GRU": (lambda: recurrent(nn.GRU), {"input_0": 7}),
    "RNN": (lambda: recurrent(nn.RNN), {"input_0": 7}),
    "choices": (lambda: (Choices(), torch.randint(0, VOCABULARY, (2, 3, 7))), {"input_0": (3, 7)}),
}
WITH_ATTENTION = {
    "BERT, padded": (bert, {"input_ids": 7}),
    "T5": (lambda: of_table(table.t5), {"input_ids": 7, "decoder_input_ids": 4}),
    "CLIP": (lambda: of_table(table.clip), {"input_ids": 7, "pixel_values": (16, 16)}),
    "raw audio": (wav2vec2, {"input_values": 400}),
    "audio frames": (whisper, {"input_features": 40, "decoder_input_ids": 3}),
    "spectrogram": (spectrogram, {"input_values": (24, 16)}),
    "time series": (series, {"past_values": (32, 3)}),
    "video": (video, {"pixel_values": (4, 16, 16)}),
    "(batch, time, features)": (
        lambda: (build(dtype=torch.float32), sample(batch=2, dtype=torch.float32)),
        {"input_0": 5},
    ),
}
MODELS = WITHOUT_ATTENTION | WITH_ATTENTION
FEW_METHODS = ("lrp", "attnlrp", "integrated_gradients", "occlusion")
#: One of each form of input, of those that are cheap.
FEW = ("VGG", "MLP on a table", "channels last", "GRU", "choices", "BERT, padded", "CLIP")
TARGETS = {
    "T5": [(2, 7), (3, 9)],
    "audio frames": [(1, 7), (2, 9)],
    "CLIP": lambda o: (o.text_embeds * o.image_embeds).sum(),
}
OPTIONS = {
    "integrated_gradients": {"n_steps": 3},
    "smoothgrad": {"n_samples": 3},
    "gradient_shap": {"n_samples": 3},
}


def defined(method, target):
    """DeepLIFT takes no callable that is not linear."""
    linear = relprop.targets.output("logits_per_image")[0]
    return linear if method == "deeplift" and callable(target) else target


@functools.cache
def built(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name][0]()
    return model, inputs, TARGETS.get(name, [0, 1])


def alone(inputs, i):
    return (
        {k: v[i : i + 1] for k, v in inputs.items()}
        if isinstance(inputs, dict)
        else inputs[i : i + 1]
    )


def one(target, i):
    return [target[i]] if isinstance(target, list) else target


def everything(name, inputs, target, **more):
    """Every method's explanation at the input, by as few calls as there are kinds of target."""
    found = {}
    for methods in (["deeplift"], [m for m in INPUT_LEVEL if m != "deeplift"]):
        asked = [(m, options_of(name, m)) for m in methods]
        wanted = defined(methods[0], target)
        found |= relprop.compare(
            built(name)[0], inputs, asked, wanted, keep="input", **more
        ).explanations
    return found


def options_of(name, method):
    """What keeps a method from taking long on a model."""
    large = MODELS[name][1].get("input_0") == (32, 32)
    # a pass for every window, of which 16 say what 64 do
    window = {"window": 8} if method == "occlusion" and large else {}
    return {**OPTIONS.get(method, {}), **window}


@pytest.mark.parametrize("name", only(FEW, MODELS))
def test_scores_are_finite_and_one_per_position(name):
    _, inputs, target = built(name)
    found = everything(name, inputs, target)
    assert set(found) == set(INPUT_LEVEL)
    for method, e in found.items():
        assert list(e.streams) == list(MODELS[name][1])
        for stream, places in MODELS[name][1].items():
            assert_one_per_position(e[stream], places, method)


def assert_one_per_position(found, places, method):
    grid = places if isinstance(places, tuple) else None
    assert found.grid == grid and found.image == grid
    assert found.scores.shape == (2, math.prod(grid) if grid else places)
    assert torch.isfinite(found.scores).all(), method
    assert found.scores.any() and found.scores.dtype == torch.float32, method
    kept, scores = found.input.flatten(1).double(), found.scores.double()
    assert ((kept.sum(1) - scores.sum(1)).abs() <= 1e-6 * kept.abs().sum(1)).all(), method
    if grid is not None:
        assert closeness(found.heatmap().flatten(1), found.scores) <= 1e-6


@pytest.mark.parametrize("name", only(("VGG", "GRU", "BERT, padded", "CLIP"), MODELS))
def test_the_ledger_balances_in_float32(name):
    model, inputs, target = built(name)
    for rules in ("lrp", "paper", "attnlrp", "cp_lrp"):
        e = relprop.explain(model, inputs, target, method="lrp", rules=rules, ledger=True)
        ledger = e.ledger
        assert ledger.balanced(1e-5), ledger.worst()
        totals = ledger.totals()
        scale = torch.stack([a.absolute for a in ledger.accounts]).amax(0)
        missing = totals["started"] - sum(
            totals[k] for k in ("reached", "absorbed", "lost", "unread")
        )
        assert (missing.abs() <= 1e-5 * len(ledger.accounts) * scale).all()


@pytest.mark.parametrize("name", only(("VGG", "GRU", "BERT, padded", "T5"), MODELS))
def test_a_batch_equals_its_samples_one_by_one(name):
    """The second of two: the first would not tell whether its seed or place is another's."""
    _, inputs, target = built(name)
    together = everything(name, inputs, target, precision="float64")
    singles = everything(name, alone(inputs, 1), one(target, 1), precision="float64")
    assert set(singles) == set(together) == set(INPUT_LEVEL)
    for method, single in singles.items():
        assert single.target == together[method].target[1:]
        for stream, found in together[method].streams.items():
            assert found.scores.dtype == torch.float64
            assert closeness(found.scores[1:], single[stream].scores) <= EXACT, method
            assert closeness(found.input[1:], single[stream].input) <= EXACT, method


@pytest.mark.parametrize("name", only(["BERT, padded"], ["VGG", "BERT, padded", "T5"]))
def test_a_batch_in_parts_equals_its_samples_bit_by_bit(name):
    _, inputs, target = built(name)
    parts = everything(name, inputs, target, precision="float64", batch_size=1)
    for i in range(2):
        singles = everything(name, alone(inputs, i), one(target, i), precision="float64")
        for method, single in singles.items():
            assert parts[method].target[i] == single.target[0]
            for stream, found in parts[method].streams.items():
                assert torch.equal(found.scores[i : i + 1], single[stream].scores), method


class Towers(nn.Module):
    """Ids and pixels, each embedded by itself; the output is their similarity, and a bias for each
    of three classes."""

    def __init__(self):
        super().__init__()
        self.embed, self.text = nn.Embedding(VOCABULARY, 6), nn.Linear(6, 8)
        self.conv, self.image = nn.Conv2d(3, 6, 3), nn.Linear(6, 8)
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, input_ids, pixel_values):
        return self.behind(self.embed(input_ids), pixel_values)

    def behind(self, embedded, pixel_values):
        text, image = (
            self.text(embedded.tanh().mean(1)),
            self.image(self.conv(pixel_values).tanh().mean((2, 3))),
        )
        return (text * image).sum(1, keepdim=True).tanh() * self.bias


def towers():
    model = Towers().double()
    inputs = {"input_ids": ids(), "pixel_values": torch.randn(2, 3, 5, 6, dtype=torch.float64)}
    return (
        model,
        inputs,
        [0, 2],
        (model.embed(inputs["input_ids"]), inputs["pixel_values"]),
        lambda e, p: model.behind(e, p)[torch.arange(2), [0, 2]],
    )


def encoder_decoder():
    model, inputs, target = built("T5")
    model = copy.deepcopy(model).double()

    def y(encoder, decoder):
        return model(inputs_embeds=encoder, decoder_inputs_embeds=decoder).logits[
            torch.arange(2), *torch.tensor(target).unbind(1)
        ]

    return (
        model,
        inputs,
        target,
        (model.shared(inputs["input_ids"]), model.shared(inputs["decoder_input_ids"])),
        y,
    )


@pytest.mark.filterwarnings("ignore:Input Tensor:UserWarning")
@pytest.mark.parametrize("make", only([towers], [towers, encoder_decoder]))
def test_several_inputs_are_one_path(make):
    """Embeddings and pixels as Captum's own tuple of inputs: every input's attribution is Captum's,
    and only all of them together are complete."""
    model, inputs, target, leaves, y = make()
    leaves = tuple(leaf.detach() for leaf in leaves)
    near = 1e-7 if make is towers else 1e-6  # T5 rounds the variance of a float64 norm to float32
    n_steps = 64 if make is towers else 9
    captum = {
        "input_gradient": lambda: Saliency(y).attribute(
            tuple(leaf.clone().requires_grad_() for leaf in leaves)
        ),
        "gradient_x_input": lambda: InputXGradient(y).attribute(
            tuple(leaf.clone().requires_grad_() for leaf in leaves)
        ),
        "integrated_gradients": lambda: IntegratedGradients(y).attribute(
            leaves, n_steps=n_steps, internal_batch_size=2
        ),
    }
    for method, expected in captum.items():
        options = {"n_steps": n_steps} if method == "integrated_gradients" else {}
        e = relprop.explain(model, inputs, target, method=method, keep="input", **options)
        assert list(e.streams) == list(inputs)
        for stream, theirs in zip(e.streams, expected(), strict=True):
            assert closeness(e[stream].input, theirs.detach()) <= near
    if make is towers:
        difference = (y(*leaves) - y(*map(torch.zeros_like, leaves))).detach()
        assert closeness(sum(e[n].scores.sum(1) for n in e.streams), difference) <= 1e-6
        other = relprop.explain(
            model,
            inputs,
            target,
            method="integrated_gradients",
            n_steps=64,
            baseline={"pixel_values": 0.5, "input_ids": torch.tensor([[3]])},
        )
        from_there = (
            y(*leaves) - y(model.embed(torch.full((2, 7), 3)), torch.full_like(leaves[1], 0.5))
        ).detach()
        assert closeness(sum(other[n].scores.sum(1) for n in other.streams), from_there) <= 1e-6
        with pytest.raises(
            OptionError,
            match=(
                r"baseline is one tensor for 2 explained inputs: give a dict by input "
                r"name \('input_ids', 'pixel_values'\)"
            ),
        ):
            relprop.explain(
                model, inputs, target, method="integrated_gradients", baseline=torch.zeros(1)
            )


def test_a_baseline_per_sample_is_cut_with_the_batch():
    model, inputs, target = towers()[:3]
    baseline = {
        "pixel_values": torch.randn(2, 3, 5, 6, dtype=torch.float64),
        "input_ids": torch.tensor([[3], [9]]),
    }
    options = {"method": "integrated_gradients", "n_steps": 3, "baseline": baseline}
    whole, parts = (
        relprop.explain(model, inputs, target, batch_size=size, **options) for size in (None, 1)
    )
    for stream in whole.streams:
        assert closeness(whole[stream].scores, parts[stream].scores) <= EXACT


@pytest.mark.parametrize("method", only((*FEW_METHODS, "deeplift", "smoothgrad"), INPUT_LEVEL))
def test_many_targets_share_the_forward_pass(method, monkeypatch):
    model, x = shared(), sample()
    targets = [
        0,
        [1, 2, 3],
        None,
        lambda y: y[0, 0] - y[0, 1],
        *([lambda y: y.softmax(-1)[0, 2]] if method != "deeplift" else []),
    ]
    calls = []
    plain = relprop.runner.run.forward
    monkeypatch.setattr(
        relprop.runner.run, "forward", lambda *args, **more: calls.append(1) or plain(*args, **more)
    )
    options = {"method": method, "keep": "input", **OPTIONS.get(method, {})}
    together = relprop.explain_many(model, x, targets, **options)
    # Each function is tried once against its negative, on one sample.
    assert len(calls) == 1 + sum(map(callable, targets))
    for target, e in zip(targets, together, strict=True):
        single = relprop.explain(model, x, target, **options)
        assert closeness(e.scores, single.scores) <= 1e-12  # several targets walk side by side
        assert closeness(e.input, single.input) <= 1e-12 and e.target == single.target


@pytest.mark.parametrize("method", only(FEW_METHODS, INPUT_LEVEL))
def test_half_precision_weights_are_explained_in_float32(method):
    model, x = shared(dtype=torch.bfloat16), sample(dtype=torch.bfloat16)
    e = relprop.explain(model, x, 1, method=method, keep="input")
    assert e.scores.dtype == e.input.dtype == torch.float32 and torch.isfinite(e.scores).all()


CONVOLUTIONS = ("ResNet", "ConvNeXt", "EfficientNet, gates", "MobileNet v3", "VGG")


@pytest.mark.parametrize("name", only(("VGG", "MLP on a table", "GRU"), WITHOUT_ATTENTION))
def test_without_attention_the_default_method_says_what_to_use(name):
    model, inputs, target = built(name)
    first, second = ("lrp_gamma", "lrp") if name in CONVOLUTIONS else ("lrp", "input_gradient")
    with pytest.raises(
        NoAttentionError,
        match=(
            rf"(?s)no softmax attention over tokens.*it has no softmax.*method='{first}' "
            rf"explains any model at its input, and so do '{second}'"
        ),
    ):
        relprop.explain(model, inputs, target)
    report = relprop.check(model, inputs)
    assert not report.ok and not report.sites and report.front_end and not report.capture_error
    assert (
        tuple(m for m in report.methods if m != "leave_one_out") == INPUT_LEVEL
        and ("leave_one_out" in report.methods) == report.texts
        and f"use method='{first}', method='{second}'" in report.rollup_error
    )
    assert str(report).startswith(
        "check: NOT OK for the default method"
    ) and "methods that apply   lrp, input_gradient" in str(report)


class Gate(nn.Module):
    """A softmax over features."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 5)

    def forward(self, x):
        x = self.a(x)
        return self.b((x.softmax(-1) * x).tanh().mean(1))


def test_the_softmaxes_seen_are_named_with_their_reasons():
    with pytest.raises(
        NoAttentionError,
        match=r"the softmax at top level: it enters no contraction over its own axis",
    ):
        relprop.explain(Gate(), torch.randn(2, 3, 4), 0)
    report = relprop.check(Gate(), torch.randn(2, 3, 4))
    assert report.softmaxes_without_site and report.methods == INPUT_LEVEL


def test_a_model_with_attention_lists_every_method():
    report = relprop.check(build(), sample())
    of_pictures = {name for name, m in relprop.methods.METHODS.items() if not m.texts}
    assert report.ok and set(report.methods) == of_pictures


def test_an_output_that_no_input_reaches_is_reported():
    class Deaf(nn.Linear):
        def forward(self, x):
            return self.weight.sum(1) + (x > 9)[:, 0, :1]

    report = relprop.check(Deaf(4, 3), torch.randn(2, 3, 4))
    assert (
        not report.ok
        and report.methods == ()
        and "no output that a target could read depends on an explained input" in str(report)
    )


def test_the_methods_page_runs(capsys):
    text = "".join(
        (Path(__file__).parents[2] / "docs" / name).read_text()
        for name in ("methods.md", "methods-input.md", "methods-relevance.md")
    )
    scope = {}
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    for block in blocks:
        exec(compile(block, "methods.md", "exec"), scope)
    assert len(blocks) >= 3 and "torch.Size([1, 32, 32])" in capsys.readouterr().out
    assert all(f"`{name}`" in text for name in relprop.methods.METHODS)


@pytest.mark.parametrize("method", only(FEW_METHODS, INPUT_LEVEL))
def test_words_and_seconds_are_those_of_the_positions(method):
    model, _, _ = built("BERT, padded")
    e = relprop.explain(
        model,
        ["w7 w9", "w5 w8 w7"],
        0,
        method=method,
        processor=tokenizer(),
        **OPTIONS.get(method, {}),
    )
    assert [[word for word, _ in e.words(i)] for i in range(2)] == [
        ["w7", "w9"],
        ["w5", "w8", "w7"],
    ]
    for i, row in enumerate(e.tokens):
        scored = dict(enumerate(e.scores[i].tolist()))
        assert math.isclose(
            sum(score for _, score in e.words(i)),
            sum(scored[k] for k in range(len(row)) if e.content[i, k]),
            rel_tol=1e-5,
            abs_tol=1e-9,
        )
    model, inputs, target = built("raw audio")
    seconds = relprop.explain(
        model, inputs, target, method=method, **OPTIONS.get(method, {})
    ).seconds(100)
    assert seconds.shape == (400, 2) and torch.allclose(
        seconds, torch.stack([torch.arange(400), torch.arange(1, 401)], 1).to(seconds.dtype) / 100
    )
