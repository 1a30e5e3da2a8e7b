"""Quantised models, mixtures of experts and models with a choice of attention implementations: what
their kernels stand for is explained.

What has no derivative and stands for nothing else is refused by the name of its operation or of its
module.
"""

import os
import subprocess
import sys

import pytest
import torch
import transformers
from torch import nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerGroup,
    quantize_,
)

import relprop
from relprop.errors import InputError, RelpropError, UnknownOperation
from relprop.tracer import weights
from tests.common.models import closeness
from tests.common.rows import marked
from tests.e2e.test_adapted_models import (
    SIZES,
    classifier,
    explained,
    generator,
    inputs,
    randomised,
)
from tests.e2e.test_non_invasive import snapshot

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.ao.quantization is deprecated:DeprecationWarning",
    "ignore:torch.quantize_per_tensor",
)


def mixture():
    config = transformers.MixtralConfig(**SIZES, num_key_value_heads=1, num_local_experts=4)
    return randomised(transformers.MixtralForCausalLM(config))


# quantisation


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(Int8WeightOnlyConfig(), id="int8"),
        pytest.param(Float8WeightOnlyConfig(), id="float8", marks=pytest.mark.slow),
    ],
)
def test_quantised_weights_are_explained_as_what_they_stand_for(config):
    model, plain = classifier(), classifier()
    quantize_(model, config)
    for a, b in zip(model.modules(), plain.modules(), strict=True):
        if isinstance(a, nn.Linear):
            b.weight = nn.Parameter(a.weight.dequantize())
    x = inputs()
    e, f = relprop.explain(model, x, 1, keep="input"), relprop.explain(plain, x, 1, keep="input")
    assert (
        closeness(e.output, f.output) <= 1e-5
        and closeness(e.scores, f.scores) <= 1e-3
        and closeness(e.input, f.input) <= 1e-3
    )
    assert closeness(e.output, model(**x).logits[:, 1].detach()) <= 1e-5
    assert closeness(e.output, explained(classifier()).output) > 1e-5


def test_quantised_weights_are_read_anew():
    model, x = classifier(), inputs()
    quantize_(model, Int8WeightOnlyConfig())
    program, before = relprop.trace(model, x), relprop.explain(model, x, 1).output
    model.classifier.weight.qdata.neg_()
    after = relprop.explain(model, x, 1).output
    assert relprop.trace(model, x) is program and program.constants == {}
    assert (
        closeness(after, model(**x).logits[:, 1].detach()) <= 1e-5
        and closeness(before, after) > 1e-2
    )


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(Int8WeightOnlyConfig(), id="int8", marks=pytest.mark.slow),
        pytest.param(
            IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16)), id="int4"
        ),
    ],
)
def test_quantised_weights_are_let_go_with_their_segment(config, monkeypatch):
    monkeypatch.setattr(weights, "LARGE", 1)
    model, x = classifier(), inputs()
    segments = relprop.explain(model, x, 1, memory=30_000).facts["segments"]
    quantize_(model, config)
    whole, parts = (relprop.explain(model, x, 1, memory=m) for m in (None, 30_000))
    assert parts.facts["segments"] > segments
    assert closeness(whole.scores, parts.scores) <= 1e-5
    program = relprop.trace(model, x)
    wide = sum(m.weight.numel() * 4 for m in model.modules() if isinstance(m, nn.Linear))
    assert sum(weights.fetched(program, model).values()) > wide


GROWTH = """
import sys, threading
import torch, transformers
from torchao.quantization import Int8WeightOnlyConfig, quantize_
import relprop

def model(layers, width):
    sizes = dict(num_hidden_layers=layers, hidden_size=width, intermediate_size=2 * width)
    config = transformers.LlamaConfig(**sizes, num_attention_heads=8, vocab_size=64)
    made = transformers.LlamaForCausalLM(config).eval()
    quantize_(made, Int8WeightOnlyConfig())
    return made

def read():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(l for l in lines if l.startswith("RssAnon")).split()[1]) * 1024

ids, done, most = torch.arange(3, 9)[None], threading.Event(), [0]
relprop.explain(model(2, 64), ids, (5, 3), memory=0, verify=False)
large = model(6, 1024)
before = read()

def watch():
    while not done.wait(0.001):
        most[0] = max(most[0], read())

threading.Thread(target=watch).start()
relprop.explain(large, ids, (5, 3), memory=0, verify=False)
done.set()
print(most[0] - before, sum(p.numel() * 4 for p in large.parameters()))
"""


@pytest.mark.slow
def test_a_quantised_model_is_never_there_in_floats():
    exact = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "100000"}  # what is freed is given back
    command = [sys.executable, "-W", "ignore", "-c", GROWTH]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=exact)
    growth, floats = map(int, said.stdout.split())
    assert growth < floats / 3


def test_quantised_activations_are_refused_by_the_operations_name():
    model = classifier()
    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    with pytest.raises(RelpropError, match=r"torchao\.\w*(affine|quant)\w*"):
        relprop.explain(model, inputs(), 1)


def test_packed_weights_are_refused_by_the_modules_name():
    model = torch.ao.quantization.quantize_dynamic(classifier(), {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(
        InputError,
        match=(
            r"module 'bert.encoder.layer.0.attention.self.query._packed_params' "
            r"\(LinearPackedParams\) keeps quantised weights packed"
        ),
    ):
        relprop.explain(model, inputs(), 1)


@torch.library.custom_op("relprop_tests::four_bit_product", mutates_args=())
def four_bit_product(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A kernel as quantisation libraries have them: no derivative."""
    return x @ (weight.to(x.dtype) * scale).T


@four_bit_product.register_fake
def _(x, weight, scale):
    return x.new_empty(*x.shape[:-1], weight.shape[0])


class FourBit(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.scale = nn.Parameter(linear.weight.detach().abs().amax() / 7, requires_grad=False)
        self.weight = nn.Parameter(
            (linear.weight.detach() / self.scale).round().to(torch.int8), requires_grad=False
        )

    def forward(self, x):
        return four_bit_product(x, self.weight, self.scale)


def test_a_kernel_of_another_library_is_refused_by_its_name():
    model = classifier()
    model.bert.encoder.layer[1].intermediate.dense = FourBit(
        model.bert.encoder.layer[1].intermediate.dense
    )
    with pytest.raises(UnknownOperation, match=r"relprop_tests.four_bit_product.default") as caught:
        relprop.explain(model, inputs(), 1)
    assert "bert.encoder.layer.1.intermediate.dense" in str(caught.value)


class OneLibrarys(nn.Module):
    """A layer with integer parameters that only its library's own kernel can read: nothing can
    trace it."""

    def __init__(self, linear):
        super().__init__()
        self.weight = nn.Parameter(
            linear.weight.detach().mul(64).round().to(torch.int8), requires_grad=False
        )

    def forward(self, x):
        if get_proxy_mode() is not None:
            raise TypeError("the kernel takes no such tensor")
        return nn.functional.linear(x, self.weight.to(x.dtype) / 64)


def test_weights_that_only_their_library_can_read_are_named():
    model = classifier()
    model.bert.encoder.layer[1].intermediate.dense = OneLibrarys(
        model.bert.encoder.layer[1].intermediate.dense
    )
    with pytest.raises(RelpropError) as caught:
        relprop.explain(model, inputs(), 1)
    assert "could not be captured" in str(caught.value)
    assert (
        "module 'bert.encoder.layer.1.intermediate.dense' (OneLibrarys) keeps its "
        "weights as Parameter of int8: explain the model before quantisation"
    ) in str(caught.value)


# implementations that a model offers


@pytest.mark.parametrize(
    "implementation", marked(["grouped_mm", "batched_mm", "eager"], ("grouped_mm",))
)
def test_experts_are_explained_whatever_runs_them(implementation):
    reference = mixture()
    reference.set_experts_implementation("batched_mm")
    model = mixture()
    model.set_experts_implementation(implementation)
    e = explained(model, target=None)
    assert model.config._experts_implementation == implementation and not e.facts["generic"]
    assert closeness(e.scores, explained(reference, target=None).scores) <= 1e-5


def test_experts_are_put_back_after_an_error():
    model = mixture()
    before = snapshot(model, [])
    model.lm_head.register_forward_hook(lambda module, args, output: output.no_such_attribute)
    with pytest.raises(InputError, match="no_such_attribute"):
        relprop.explain(model, inputs())
    assert model.get_experts_implementation() == {"": "grouped_mm"}
    assert before.keys() == snapshot(model, []).keys()


def test_flexible_attention_is_explained_as_the_attention_it_computes():
    model = generator()
    model.set_attn_implementation("flex_attention")
    x = inputs()
    e = relprop.explain(model, x)
    assert model.config._attn_implementation == "flex_attention"
    assert closeness(e.scores, explained(generator(), target=None).scores) <= 1e-6
