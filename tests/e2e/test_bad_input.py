"""Bad and odd input, one table: each call is refused with one clear ``RelpropError``, by its
message, or gives a correct result.

``REFUSED`` rows are (error, part of its message, call); ``ACCEPTED`` rows give the explanation and
the one it must equal.
"""

import functools
import multiprocessing
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import PIL.Image
import pytest
import torch
from torch import nn

import relprop
from relprop.errors import (
    CaptureError,
    InputError,
    NoAttentionError,
    OptionError,
    RelpropError,
    RelpropWarning,
    RuleError,
    TargetError,
)
from tests.common.models import (
    CLASSES,
    FEATURES,
    TOKENS,
    Recipe,
    Transformer,
    build,
    closeness,
    randomise,
    sample,
)
from tests.common.rows import marked

IDS = Recipe(ids=True)


class Wrapped(nn.Module):
    """A transformer whose output (or input) passes through ``change``."""

    def __init__(self, change, inner=None):
        super().__init__()
        self.inner, self.change = inner or build(), change

    def forward(self, x):
        return self.change(self.inner(x))


class Masked(nn.Module):
    """A transformer's attention and mean pool with a padding mask: (batch, tokens, features),
    (batch, tokens) of 0 and 1."""

    def __init__(self, lowest=float("-inf")):
        super().__init__()
        self.embed, self.out, self.lowest = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES), lowest

    def forward(self, x, mask):
        x = self.embed(x)
        bias = torch.where(mask[:, None, :] > 0, 0.0, self.lowest).to(x.dtype)
        x = x + ((x @ x.mT) / 3 + bias).softmax(-1) @ x
        return self.out((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


class NoAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.b(self.a(x).relu().mean(1))


class NoSoftmax(NoAttention):
    """Attention weights from a sigmoid."""

    def forward(self, x):
        x = self.a(x)
        return self.b(((x @ x.mT).sigmoid() @ x).mean(1))


class Gate(NoAttention):
    """A softmax, but over features: no map over tokens."""

    def forward(self, x):
        x = self.a(x)
        return self.b((x.softmax(-1) * x).mean(1))


class Branching(nn.Module):
    """Another output for samples whose mean is negative: a branch on values."""

    def __init__(self):
        super().__init__()
        self.inner = build()

    def forward(self, x):
        y = self.inner(x)
        return y if x.mean() > 0 else 2 * y.flip(1)


@dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor
    extra: None = None


def x(**changes):
    return sample(**changes)


def spoiled(value, recipe=Recipe()):
    """A model with one weight of ``value``."""
    model = build(recipe)
    model.blocks[1].mlp[0].weight.data[0, 0] = value
    return model


def on_meta():
    with torch.device("meta"):
        return Transformer(Recipe())


@functools.cache
def plain_model():
    """One model for every row that does not change it: captured once."""
    return build()


def explain(inputs=None, target=None, model=None, **options):
    return relprop.explain(
        plain_model() if model is None else model,
        sample() if inputs is None else inputs,
        target,
        **options,
    )


def many(targets):
    return relprop.explain_many(build(), sample(), targets)


def two_float_outputs(y):
    return y, 2 * y


def scripted():
    return torch.jit.script(nn.Linear(FEATURES, CLASSES))


REFUSED = {
    # targets
    "target out of range": (
        TargetError,
        r"target 4 is out of range.*4 elements",
        lambda: explain(target=4),
    ),
    "target far below zero": (
        TargetError,
        r"target -5 is out of range",
        lambda: explain(target=-5),
    ),
    "one of the targets out of range": (
        TargetError,
        r"target 9 is out of range",
        lambda: explain(target=[0, 9, 1]),
    ),
    "target bool": (TargetError, r"target True is bool", lambda: explain(target=True)),
    "target float": (TargetError, r"target 1.5 is float", lambda: explain(target=1.5)),
    "target dict": (
        TargetError,
        r"target \{'class': 1\} is dict",
        lambda: explain(target={"class": 1}),
    ),
    "target set": (TargetError, r"is set", lambda: explain(target={1})),
    "target label, model without labels": (
        TargetError,
        r"'cat' is no label of the model; it has no labels",
        lambda: explain(target="cat"),
    ),
    "target list too short": (
        TargetError,
        r"target has 2 entries for a batch of 3",
        lambda: explain(target=[0, 1]),
    ),
    "target list empty": (
        TargetError,
        r"target has 0 entries for a batch of 3",
        lambda: explain(target=[]),
    ),
    "target list of floats": (
        TargetError,
        r"target 0.5 is float",
        lambda: explain(target=[0, 1, 0.5]),
    ),
    "target list of None": (
        TargetError,
        r"None stands for what the model predicts in every sample, and not in a list",
        lambda: explain(target=[0, None, 1]),
    ),
    "target tensor too long": (
        TargetError,
        r"target has 4 entries for a batch of 3",
        lambda: explain(target=torch.tensor([0, 1, 2, 3])),
    ),
    "target tensor of floats": (
        TargetError,
        r"float32 tensor of shape \[3\]; indices are integers",
        lambda: explain(target=torch.ones(3)),
    ),
    "target tensor of bools": (
        TargetError,
        r"bool tensor",
        lambda: explain(target=torch.ones(3, dtype=torch.bool)),
    ),
    "target tensor of rank 3": (
        TargetError,
        r"tensor of shape \[3, 1, 1\]",
        lambda: explain(target=torch.ones(3, 1, 1, dtype=torch.long)),
    ),
    "target float array": (
        TargetError,
        r"indices are integers",
        lambda: explain(target=torch.ones(3).numpy()),
    ),
    "target tuple of wrong rank": (
        TargetError,
        r"has 2 indices, output 'output' has 1 axes",
        lambda: explain(target=(0, 1)),
    ),
    "target tuple empty": (TargetError, r"target \(\) is tuple", lambda: explain(target=())),
    "target int for a sequence output": (
        TargetError,
        r"has 1 indices, output 'output' has 2 axes",
        lambda: explain(model=Wrapped(lambda y: y[:, None]), target=1),
    ),
    "no target for a sequence output": (
        TargetError,
        r"target=None needs a class head",
        lambda: explain(model=Wrapped(lambda y: y[:, None])),
    ),
    "callable returns a vector": (
        TargetError,
        r"returned float64 \[4\] for one sample, not one floating scalar",
        lambda: explain(target=lambda y: y[0]),
    ),
    "callable returns a number": (
        TargetError,
        r"returned float, not a scalar tensor",
        lambda: explain(target=lambda y: 1.0),
    ),
    "callable returns nothing": (
        TargetError,
        r"returned NoneType",
        lambda: explain(target=lambda y: None),
    ),
    "callable returns an integer": (
        TargetError,
        r"returned int64 \[\] for one sample, not one floating scalar",
        lambda: explain(target=lambda y: y[0].argmax()),
    ),
    "callable uses item": (
        TargetError,
        r"cannot be traced|does not depend",
        lambda: explain(target=lambda y: torch.tensor(y[0, 1].item())),
    ),
    "callable branches on values": (
        TargetError,
        r"cannot be traced.*branches on values",
        lambda: explain(target=lambda y: y[0, 0] if y[0, 1] > 0 else y[0, 2]),
    ),
    "callable ignores the output": (
        TargetError,
        r"does not depend on the model's output",
        lambda: explain(target=lambda y: torch.ones(())),
    ),
    "callable out of range": (
        TargetError,
        r"fails on one sample's output: IndexError",
        lambda: explain(target=lambda y: y[0, 9]),
    ),
    "targets not a list": (OptionError, r"targets is a non-empty list", lambda: many(1)),
    "targets empty": (OptionError, r"targets is a non-empty list", lambda: many([])),
    # inputs
    "wrong number of features": (
        InputError,
        r"model itself fails on these inputs.*\[2, 5, 7\]",
        lambda: explain(torch.randn(2, TOKENS, 7, dtype=torch.float64)),
    ),
    "missing axis": (
        InputError,
        r"model itself fails on these inputs",
        lambda: explain(torch.randn(2, FEATURES, dtype=torch.float64)),
    ),
    "no batch axis": (InputError, r"has no batch axis", lambda: explain(torch.tensor(1.0))),
    "wrong dtype": (
        InputError,
        r"model itself fails on these inputs.*float32",
        lambda: explain(sample().float()),
    ),
    "ints where floats belong": (
        InputError,
        r"model itself fails on these inputs.*int64",
        lambda: explain(sample(IDS)),
    ),
    "floats where ids belong": (
        InputError,
        r"model itself fails on these inputs.*float64",
        lambda: explain(sample().sum(2), model=build(IDS)),
    ),
    "ids out of range": (
        InputError,
        r"model itself fails on these inputs.*index out of range",
        lambda: explain(sample(IDS) + 50, model=build(IDS)),
    ),
    "ids out of range in a later sample": (
        InputError,
        r"index out of range",
        lambda: explain(sample(IDS) + torch.tensor([[0], [0], [50]]), model=build(IDS)),
    ),
    "empty batch": (InputError, r"empty batch, shape \[0, 5, 6\]", lambda: explain(sample()[:0])),
    "NaN in the input": (
        InputError,
        r"holds 1 values that are NaN or infinite, of 90",
        lambda: explain(torch.where(torch.arange(90).view(3, 5, 6) == 40, float("nan"), sample())),
    ),
    "inf in the input": (
        InputError,
        r"holds 90 values that are NaN or infinite",
        lambda: explain(sample() * float("inf")),
    ),
    "inputs None": (InputError, r"inputs is NoneType", lambda: relprop.explain(build(), None)),
    "inputs a string": (
        InputError,
        r"inputs is str",
        lambda: relprop.explain(build(IDS), "a text"),
    ),
    "inputs an empty dict": (InputError, r"holds no tensor", lambda: explain({})),
    "inputs a list of lists": (
        InputError,
        r"holds no tensor",
        lambda: explain([[1, 2], [3, 4]], model=build(IDS)),
    ),
    "inputs of several lengths of batch": (
        InputError,
        r"'mask' has 2 samples.*'x' has 3",
        lambda: explain({"x": sample().float(), "mask": torch.ones(2, TOKENS)}, model=Masked()),
    ),
    "a dict of tensors inside": (
        InputError,
        r"'x' is a dict of tensors",
        lambda: explain({"x": {"a": sample()}}),
    ),
    "an unknown keyword": (
        InputError,
        r"unexpected keyword argument",
        lambda: explain({"pixels": sample()}),
    ),
    "too many arguments": (
        InputError,
        r"positional arguments",
        lambda: explain((sample(), sample())),
    ),
    # weights
    "NaN in the weights": (
        InputError,
        r"parameter 'blocks.1.mlp.0.weight' holds NaN or infinite values",
        lambda: explain(model=spoiled(float("nan"))),
    ),
    "inf in the weights": (
        InputError,
        r"parameter 'blocks.1.mlp.0.weight' holds NaN or infinite values",
        lambda: explain(model=spoiled(float("inf"))),
    ),
    "overflow inside the model": (
        InputError,
        r"values overflow inside the model",
        lambda: explain(model=Wrapped(lambda y: (y + 1000).exp())),
    ),
    # options
    "unknown method": (
        OptionError,
        r"method='gradcamera' is no method; there are",
        lambda: explain(method="gradcamera"),
    ),
    "unknown rule set": (
        OptionError,
        r"rules='papers' is no rule set; there are",
        lambda: explain(rules="papers"),
    ),
    "rule set of a wrong type": (OptionError, r"is no rule set", lambda: explain(rules=1)),
    "unknown option": (
        OptionError,
        r"has no option 'layer'; it has average, gradient, head_fusion, layers",
        lambda: explain(layer=1),
    ),
    "option of another method": (
        OptionError,
        r"'rollout' has no option 'use_gradient'",
        lambda: explain(method="rollout", use_gradient=True),
    ),
    "layers out of range": (
        OptionError,
        r"layers=\[7\]: 7 is out of range for 2",
        lambda: explain(layers=[7]),
    ),
    "layers of a wrong type": (
        OptionError,
        r"layers='all': give a slice or a list",
        lambda: explain(layers="all"),
    ),
    "unknown keep": (
        OptionError,
        r"keep=\['block'\]: there are blocks, input, layers, matrix",
        lambda: explain(keep="block"),
    ),
    "unknown precision": (OptionError, r"precision='float8'", lambda: explain(precision="float8")),
    "half precision": (
        OptionError,
        r"precision=torch.float16",
        lambda: explain(precision=torch.float16),
    ),
    "batch_size 0": (
        OptionError,
        r"batch_size=0: a positive integer",
        lambda: explain(batch_size=0),
    ),
    "batch_size float": (
        OptionError,
        r"batch_size=1.5: a positive integer",
        lambda: explain(batch_size=1.5),
    ),
    "unknown on_unknown": (
        OptionError,
        r"on_unknown='ignore': 'generic' or 'error'",
        lambda: explain(on_unknown="ignore"),
    ),
    "a rule with a wrong key": (
        RuleError,
        r"'gelu'|is no key of a rule",
        lambda: relprop.rules.PAPER.with_rule(torch.relu, relprop.rules.carry),
    ),
    "a rule that is no function": (
        RuleError,
        r"a rule is a function",
        lambda: relprop.rules.PAPER.with_rule(torch.ops.aten.gelu, 1),
    ),
    "array": (
        InputError,
        r"inputs is ndarray then inputs = torch.as_tensor\(inputs, dtype=torch.float32\)",
        lambda: explain(sample().numpy()),
    ),
    "list of arrays": (
        InputError,
        r"inputs holds no tensor but ndarray then inputs = \[torch.as_tensor\(one\)",
        lambda: explain([sample().numpy()]),
    ),
    "name of a picture": (
        InputError,
        r"inputs is str then inputs are not read from files: give PIL.Image.open\(path\)",
        lambda: explain("cat.jpg"),
    ),
    "path": (
        InputError,
        r"inputs is \w*Path then inputs are not read from files: give what the file holds",
        lambda: explain(Path("words.txt")),
    ),
    "text": (InputError, r"processor=tokenizer reads texts", lambda: explain("a fine film")),
    "pictures": (
        InputError,
        r"inputs holds no tensor but Image then processor= reads pictures",
        lambda: explain([PIL.Image.new("L", (4, 4))]),
    ),
    "misspelt argument": (
        OptionError,
        r"has no option 'methd'; .* then did you mean 'method'",
        lambda: explain(methd="gae"),
    ),
    # models
    "model without attention": (
        NoAttentionError,
        r"no softmax attention over tokens.*it has no softmax",
        lambda: explain(sample().float(), model=NoAttention()),
    ),
    "attention without softmax": (
        NoAttentionError,
        r"no softmax attention over tokens.*it has no softmax",
        lambda: explain(sample().float(), model=NoSoftmax()),
    ),
    "softmax over features": (
        NoAttentionError,
        r"no softmax attention over tokens.*the softmax at",
        lambda: explain(sample().float(), model=Gate()),
    ),
    "two float outputs, none named logits": (
        TargetError,
        r"returns 2 floating outputs.*\[0\] \[1, 4\], \[1\] \[1, 4\]",
        lambda: explain(model=Wrapped(two_float_outputs)),
    ),
    "no float output": (
        TargetError,
        r"returns 0 floating outputs.*output \[1\]",
        lambda: explain(model=Wrapped(lambda y: y.argmax(-1))),
    ),
    "output without a tensor": (
        CaptureError,
        r"returned str without a tensor",
        lambda: explain(model=Wrapped(str)),
    ),
    "output without a batch axis": (
        TargetError,
        r"'output' has no batch axis \(shape \[4\] for one sample\)",
        lambda: explain(model=Wrapped(lambda y: y[0]), target=0),
    ),
    "samples mixed in the output": (
        TargetError,
        r"'output' has no batch axis \(shape \[\]",
        lambda: explain(model=Wrapped(lambda y: y.sum()), target=0),
    ),
    "a scripted model": (
        InputError,
        r"TorchScript module, which cannot be traced",
        lambda: explain(model=scripted()),
    ),
    "a scripted part": (
        InputError,
        r"TorchScript module",
        lambda: explain(
            model=nn.Sequential(build(), torch.jit.script(nn.Linear(CLASSES, 2).double()))
        ),
    ),
    "a function": (
        InputError,
        r"model is builtin_function_or_method, not a torch.nn.Module",
        lambda: explain(model=torch.relu_),
    ),
    "a class": (
        InputError,
        r"model is type, not a torch.nn.Module",
        lambda: explain(model=Transformer),
    ),
    "a model on the meta device": (
        InputError,
        r"is on the meta device: the model has no weights yet",
        lambda: explain(model=on_meta()),
    ),
    "inputs without values": (
        InputError,
        r"'input_0' is on the meta device: it has no values",
        lambda: explain(sample().to("meta")),
    ),
    "trace of no module": (
        InputError,
        r"not a torch.nn.Module",
        lambda: relprop.trace(3, sample()),
    ),
    "trace of an empty batch": (
        InputError,
        r"empty batch",
        lambda: relprop.trace(build(), sample()[:0]),
    ),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("row", REFUSED)
def test_is_refused_with_one_clear_error(row):
    kind, said, call = REFUSED[row]
    with pytest.raises(RelpropError) as caught:
        call()
    assert isinstance(caught.value, kind), type(caught.value)
    flat = " ".join(str(caught.value).split())
    assert re.search(said, flat), flat
    assert not any(
        word in flat for word in ("Traceback", "vmap", "FakeTensor", "torch.fx", "KeyError: <")
    ), flat


def under(context, **options):
    with context():
        return explain(**options)


def built_in_inference_mode():
    with torch.inference_mode():
        return build()


def inputs_of_inference_mode():
    with torch.inference_mode():
        return sample()


def frozen():
    return build().requires_grad_(False)


def compiled():
    return torch.compile(build(), backend="eager")


def as_dict(y):
    return {"features": y.sin(), "logits": y}


def as_namespace(y):
    return SimpleNamespace(logits=y)


ACCEPTED = {
    "negative target": lambda: (explain(target=-1), explain(target=CLASSES - 1)),
    "numpy target": lambda: (
        explain(target=torch.tensor([1, 2, 3]).numpy()),
        explain(target=[1, 2, 3]),
    ),
    "numpy scalar target": lambda: (explain(target=torch.tensor(2).numpy()[()]), explain(target=2)),
    "int32 target": lambda: (
        explain(target=torch.tensor([1, 2, 3], dtype=torch.int32)),
        explain(target=[1, 2, 3]),
    ),
    "column of targets": lambda: (
        explain(target=torch.tensor([[1], [2], [3]])),
        explain(target=[1, 2, 3]),
    ),
    "a tuple of inputs": lambda: (explain((sample(),)), explain()),
    "a list of inputs": lambda: (explain([sample()]), explain()),
    "a dict of inputs": lambda: (explain({"x": sample()}), explain()),
    "inputs in Fortran order": lambda: (explain(sample().mT.contiguous().mT), explain()),
    "an expanded batch": lambda: (
        explain(sample(batch=1).expand(3, -1, -1)),
        explain(sample(batch=1).repeat(3, 1, 1)),
    ),
    "int32 ids": lambda: (
        explain(sample(IDS).int(), model=build(IDS)),
        explain(sample(IDS), model=build(IDS)),
    ),
    "no_grad": lambda: (under(torch.no_grad), explain()),
    "inference_mode": lambda: (under(torch.inference_mode), explain()),
    "model built under inference_mode": lambda: (
        explain(model=built_in_inference_mode()),
        explain(),
    ),
    "inputs made under inference_mode": lambda: (explain(inputs_of_inference_mode()), explain()),
    "inference_mode for everything": lambda: (
        under(
            torch.inference_mode, model=built_in_inference_mode(), inputs=inputs_of_inference_mode()
        ),
        explain(),
    ),
    "frozen parameters": lambda: (explain(model=frozen()), explain()),
    "inputs that require grad": lambda: (explain(sample().requires_grad_()), explain()),
    "a compiled model": lambda: (explain(model=compiled()), explain()),
    "data parallel": lambda: (explain(model=nn.DataParallel(build())), explain()),
    "returns a tuple": lambda: (explain(model=Wrapped(lambda y: (y, y.argmax(-1)))), explain()),
    "returns a list": lambda: (explain(model=Wrapped(lambda y: [y])), explain()),
    "returns a dict": lambda: (explain(model=Wrapped(as_dict)), explain()),
    "returns a dataclass": lambda: (
        explain(model=Wrapped(lambda y: Output(y, y.sin()))),
        explain(),
    ),
    "returns two floats, target by callable": lambda: (
        explain(model=Wrapped(two_float_outputs), target=lambda y: y[0][0, 1]),
        explain(target=1),
    ),
    "a dict's field, by callable": lambda: (
        explain(model=Wrapped(as_dict), target=lambda y: y["logits"][0, 1]),
        explain(target=1),
    ),
    "a dataclass's field, by callable": lambda: (
        explain(model=Wrapped(lambda y: Output(y, y.sin())), target=lambda y: y.logits[0, 1]),
        explain(target=1),
    ),
    "batch_size beyond the batch": lambda: (explain(batch_size=100), explain()),
    "keep nothing, as a list": lambda: (explain(keep=[]), explain()),
    "precision as a dtype": lambda: (explain(precision=torch.float64), explain()),
    "precision of another type": lambda: (
        explain(
            sample().float(), model=build(dtype=torch.float32).double().float(), precision="float64"
        ),
        explain(sample().float().double(), model=build(dtype=torch.float32).double()),
    ),
}


@pytest.mark.parametrize("row", ACCEPTED)
def test_works_and_equals_the_plain_call(row):
    odd, plain = ACCEPTED[row]()
    assert torch.isfinite(odd.scores).all()
    assert closeness(odd.scores, plain.scores) <= 1e-9 and closeness(odd.row, plain.row) <= 1e-9
    assert closeness(odd.output, plain.output) <= 1e-12
    assert float(odd.scores.abs().max()) > 1e-6


def padded_and_bare(lowest):
    """One explanation with two pads at the end of every sample, one without."""
    model, real = randomise(Masked(lowest)).double(), sample()
    padded = torch.cat([real, torch.full((3, 2, FEATURES), 9.0).double()], 1)
    mask = torch.cat([torch.ones(3, TOKENS), torch.zeros(3, 2)], 1).double()
    e = explain({"x": padded, "mask": mask}, [1, 2, 3], model=model, keep="input")
    return e, explain({"x": real, "mask": mask[:, :TOKENS]}, [1, 2, 3], model=model, keep="input")


LOWEST = pytest.mark.parametrize(
    "lowest",
    [float("-inf"), torch.finfo(torch.float32).min, -1e9],
    ids=["-inf", "float32's least", "-1e9"],
)


@LOWEST
def test_pads_score_nothing_and_relevance_is_as_without_them(lowest):
    e, bare = padded_and_bare(lowest)
    assert not e.scores[:, TOKENS:].any() and not e.input[:, TOKENS:].any()
    assert (
        closeness(e.input[:, :TOKENS], bare.input) <= 1e-9
        and closeness(e.output, bare.output) <= 1e-12
    )
    assert e.ledger.balanced(1e-12)


@LOWEST
def test_the_row_of_a_masked_mean_pool_is_as_without_pads(lowest):
    e, bare = padded_and_bare(lowest)
    assert not e.row[:, TOKENS:].any()
    assert (
        closeness(e.row[:, :TOKENS], bare.row) <= 1e-9
        and closeness(e.scores[:, :TOKENS], bare.scores) <= 1e-9
    )


@pytest.mark.parametrize(
    "lowest", [torch.finfo(torch.float32).min, -1e9], ids=["float32's least", "-1e9"]
)
def test_all_tokens_masked_is_finite(lowest):
    model = randomise(Masked(lowest)).float()
    e = relprop.explain(model, {"x": sample().float(), "mask": torch.zeros(3, TOKENS)}, 1)
    assert torch.isfinite(e.scores).all() and torch.isfinite(e.ledger.totals()["lost"]).all()


def test_all_tokens_masked_by_minus_infinity_is_the_models_own_nan():
    with pytest.raises(InputError, match="output 'output' holds NaN"):
        relprop.explain(
            randomise(Masked()), {"x": sample().float(), "mask": torch.zeros(3, TOKENS)}, 1
        )


@pytest.mark.parametrize(
    "end",
    [lambda y: y.softmax(-1), lambda y: y.log_softmax(-1), lambda y: y.sigmoid()],
    ids=["softmax", "log_softmax", "sigmoid"],
)
def test_an_output_that_ends_in_a_probability_warns(end):
    with pytest.warns(RelpropWarning, match="explained value is a probability"):
        e = explain(model=Wrapped(end), target=1)
    assert torch.isfinite(e.scores).all()


@pytest.mark.parametrize("dtype", marked([torch.bfloat16, torch.float16], ("torch.bfloat16",)))
def test_half_precision_weights_give_finite_float32_scores(dtype):
    e = relprop.explain(build(dtype=dtype), sample(dtype=dtype), 1, keep=("matrix", "input"))
    full = relprop.explain(build(dtype=dtype).double(), sample(dtype=dtype).double(), 1)
    assert (
        e.scores.dtype == torch.float32
        and torch.isfinite(e.scores).all()
        and torch.isfinite(e.input).all()
    )
    assert e.ledger.balanced(1e-5)
    assert closeness(e.output.double(), full.output) <= 64 * torch.finfo(dtype).eps


def test_a_branch_on_values_is_explained_sample_by_sample():
    """The concrete front end captures it; the graph holds for its own sample only, and the result
    says so."""
    model, x = Branching(), sample()
    x = x - x.mean((1, 2), keepdim=True) + torch.tensor([0.3, -0.3, 0.3]).view(3, 1, 1)
    with pytest.warns(RelpropWarning, match="mixes the samples of a batch"):
        e = relprop.explain(model, x, 1)
    assert e.facts["front_end"] == "concrete" and e.facts["decisions"]
    assert (
        closeness(e.output, torch.cat([model(x[i : i + 1])[:, 1] for i in range(3)]).detach())
        <= 1e-12
    )
    for i in range(3):
        assert (
            closeness(e.scores[i : i + 1], relprop.explain(model, x[i : i + 1], 1).scores) <= 1e-9
        )
    positive = relprop.explain(model.inner, x[[0, 2]], 1)
    assert closeness(e.scores[[0, 2]], positive.scores) <= 1e-9


def test_a_model_without_parameters_is_explained():
    class Plain(nn.Module):
        def forward(self, x):
            return (x + (x @ x.mT).softmax(-1) @ x).mean(1)

    e = relprop.explain(Plain(), sample(), 1)
    assert torch.isfinite(e.scores).all() and e.ledger.balanced(1e-12)


def over_the_batch(y):
    return y / y.sum(0, keepdim=True)


def saturated(y):
    return (1e6 + y).sigmoid()


@pytest.mark.filterwarnings("ignore:the model mixes the samples of a batch")
def test_one_sample_of_a_value_that_is_normalised_over_the_batch_is_always_1():
    with pytest.raises(TargetError, match="is 1 whatever the input is"):
        relprop.explain(Wrapped(over_the_batch), sample(), 1)


@pytest.mark.filterwarnings("ignore:output 'output' ends in a sigmoid")
def test_scores_that_are_all_0_are_said_with_their_cause():
    with pytest.warns(
        RelpropWarning,
        match=(
            r"(?s)all scores of 3 of 3 samples are 0: y_t does not change with any "
            r"attention map.*a logit"
        ),
    ):
        e = relprop.explain(Wrapped(saturated), sample(), 1)
    assert not e.scores.any()


MODEL = build()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: torch.vmap(lambda y: relprop.explain(MODEL, y[None], 1).scores)(x), "vmap"),
        (
            lambda x: torch.func.grad(lambda y: relprop.explain(MODEL, y, 1).scores.sum())(x),
            r"torch\.func(?s:.*)explain outside of it",
        ),
    ],
    ids=["vmap", "grad"],
)
def test_inside_of_what_transforms_functions_it_is_refused_by_name(call, said):
    with pytest.raises(InputError, match=said):
        call(sample())


@pytest.mark.parametrize(
    ("threads", "said"),
    [(1, "gradient cannot be taken"), (2, "was forked from (?s:.*)2 threads are not in it")],
)
def test_a_process_that_was_forked_is_told_that_threads_are_missing(threads, said):
    """Those of autograd, and those of every operator, for which it would wait for ever; the process
    that is forked is a fresh one, since what other tests have run decides what PyTorch sees."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_explained_and_forked, args=(queue, threads))
    process.start()
    assert re.search(rf"{said}(?s:.*)get_context\('spawn'\)", queue.get(timeout=300))
    process.join()


def _explained_and_forked(queue, threads):
    torch.set_num_threads(threads)
    relprop.explain(MODEL, sample(), 1)  # starts the threads
    process = multiprocessing.get_context("fork").Process(target=_explained, args=(queue,))
    process.start()
    process.join()


def _explained(queue):
    try:
        queue.put(str(relprop.explain(MODEL, sample(), 1)))
    except Exception as error:
        queue.put(str(error))


class Policy(nn.Module):
    """Attention, and a head that rules out actions; or a number of its own beside them."""

    def __init__(self):
        super().__init__()
        self.body, self.value = build(Recipe()), nn.Linear(CLASSES, 1)

    def forward(self, x, ruled_out):
        logits = self.body(x)
        return logits.masked_fill(ruled_out, -torch.inf), self.value(logits)


RULED_OUT = torch.zeros(len(sample()), CLASSES, dtype=torch.bool)
RULED_OUT[:, 0] = True


@pytest.mark.parametrize(
    ("target", "method"),
    [
        pytest.param(relprop.targets.output("[0]")[1], "rollout", id="class"),
        pytest.param(relprop.targets.output("[1]")[0], "attnlrp", id="value"),
        pytest.param(lambda o: o[0][0, 2], "transformer_attribution", id="function"),
    ],
)
def test_classes_that_a_model_rules_out_do_not_matter_to_others(method, target):
    model = randomise(Policy()).double().eval()
    found = relprop.explain(model, (sample(), RULED_OUT), target, method=method)
    plain = relprop.explain(model, (sample(), RULED_OUT & False), target, method=method)
    assert torch.equal(found.scores, plain.scores)


@pytest.mark.parametrize("method", ["transformer_attribution", "attnlrp"])
def test_a_class_that_the_model_rules_out_is_no_target(method):
    model, target = randomise(Policy()).double().eval(), relprop.targets.output("[0]")[0]
    with pytest.raises(InputError, match="is not finite for sample 0: the model may rule"):
        relprop.explain(model, (sample(), RULED_OUT), target, method=method)


def test_a_saved_explainer_explains_beside_what_is_ruled_out(tmp_path):
    model, target = randomise(Policy()).double().eval(), relprop.targets.output("[0]")[1]
    inputs = (sample(), RULED_OUT)
    file = relprop.compile(model, inputs, target).save(tmp_path / "policy.safetensors")
    found = relprop.load_explainer(file)(inputs, target)
    assert torch.equal(found.scores, relprop.explain(model, inputs, target).scores)
