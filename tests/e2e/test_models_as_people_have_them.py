"""Models as people have them: compiled, wrapped, checkpointed, hooked, parametrized, in any mode.
Each is explained as the plain model it stands for.

A row is (what is done to the plain model, what undoes it for the comparison); the odd model is left
exactly as it was.
"""

import re

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import relprop
from relprop.errors import InputError, RelpropError
from relprop.runs.fingerprints import of_model
from tests.common.models import Recipe, build, closeness, sample
from tests.common.rows import marked
from tests.e2e.test_non_invasive import assert_undisturbed, snapshot

RECIPE = Recipe()


def never(module, example):
    """A compiler that fails when it is used: an explanation compiles nothing."""
    raise AssertionError("relprop compiled a model")


def in_place(model):
    model.compile(backend=never)
    return model


def compiled_part(model):
    model.blocks[0] = torch.compile(model.blocks[0], backend=never)
    return model


def part_compiled_in_place(model):
    model.blocks[1].mlp.compile(backend=never)
    return model


def compiled_forward(model):
    model.forward = torch.compile(model.forward, backend=never)
    return model


def run_before(model):
    model.compile(backend="eager")
    model(sample())
    return model


def deep(model):
    return nn.DataParallel(torch.compile(nn.DataParallel(model), backend=never))


class Checkpointed(nn.Module):
    """A model that computes its blocks anew in the backward pass."""

    def __init__(self, inner, reentrant):
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Cast(nn.Module):
    """A model that enters an autocast region which casts nothing."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return self.inner(x)


def halfway_frozen(model):
    for i, p in enumerate(model.parameters()):
        p.requires_grad_(i % 2 == 0)
    return model


def mixed_modes(model):
    model.train()
    model.blocks[0].eval()
    return model


def with_gradients(model):
    model(sample()).sum().backward()
    return model


SAME = {
    "torch.compile(model)": lambda m: torch.compile(m, backend=never),
    "torch.compile(model), the default compiler": torch.compile,
    "torch.compile of torch.compile": lambda m: torch.compile(
        torch.compile(m, backend=never), backend=never
    ),
    "torch.compile(model.forward)": lambda m: torch.compile(m.forward, backend=never),
    "model.forward": lambda m: m.forward,
    "model.compile()": in_place,
    "model.compile(), run before": run_before,
    "a compiled part": compiled_part,
    "a part compiled in place": part_compiled_in_place,
    "model.forward replaced by a compiled one": compiled_forward,
    "DataParallel": nn.DataParallel,
    "wrapped three times": deep,
    "checkpointed": lambda m: Checkpointed(m, False).train(),
    "checkpointed, reentrant": lambda m: Checkpointed(m, True).train(),
    "an autocast region that is off": Cast,
    "train mode": lambda m: m.train(),
    "mixed modes": mixed_modes,
    "frozen": lambda m: m.requires_grad_(False),
    "half frozen": halfway_frozen,
    "gradients from before": with_gradients,
}


@pytest.fixture(scope="module")
def expected():
    return relprop.explain(build(), sample(), [0, 1, 2], keep="input")


def core(model):
    """The module under whatever is around it."""
    while True:
        inner = (
            getattr(model, "_orig_mod", None)
            or getattr(model, "_torchdynamo_orig_callable", None)
            or getattr(model, "__self__", None)
        )
        if inner is None:
            return model
        model = inner


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("name", SAME)
def test_is_explained_as_the_plain_model(name, expected):
    model, x = SAME[name](build()), sample()
    before = snapshot(core(model), [x])
    for _ in range(2):
        e = relprop.explain(model, x, [0, 1, 2], keep="input")
        assert (
            closeness(e.scores, expected.scores) <= 1e-12
            and closeness(e.input, expected.input) <= 1e-9
        )
        assert closeness(e.output, expected.output) <= 1e-12
        assert_undisturbed(before, snapshot(core(model), [x]))


def test_distributed_data_parallel(tmp_path, expected):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    try:
        model = nn.parallel.DistributedDataParallel(build())
        for odd in (model, torch.compile(model, backend=never)):
            before = snapshot(model, [])
            assert (
                closeness(relprop.explain(odd, sample(), [0, 1, 2]).scores, expected.scores)
                <= 1e-12
            )
            assert_undisturbed(before, snapshot(model, []))
    finally:
        torch.distributed.destroy_process_group()


def test_sharded_parameters_are_refused(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    try:
        model = build()
        fully_shard(model)
        with pytest.raises(
            InputError,
            match=r"parameter 'position' is sharded \(DTensor\)\s+then\s+explain the whole model",
        ):
            relprop.explain(model, sample(), 1)
    finally:
        torch.distributed.destroy_process_group()


def test_a_model_on_several_devices_is_refused():
    far = nn.Linear(4, 4)
    far.weight = nn.Parameter(
        FakeTensor(FakeTensorMode(), torch.empty(4, 4, device="meta"), torch.device("mps:0"))
    )
    with pytest.raises(
        InputError,
        match=(
            r"the model is on several devices: '0.weight' on cpu, '1.weight' on "
            r"mps:0\s+then\s+put it on one: model.to\('cpu'\)"
        ),
    ):
        relprop.explain(nn.Sequential(nn.Linear(6, 4), far), torch.randn(2, 5, 6), 1)


def test_a_wrapper_with_hooks_of_its_own_keeps_them():
    wrapped, x = nn.DataParallel(build()), sample()
    wrapped.register_forward_hook(lambda module, args, output: 2 * output)
    e = relprop.explain(wrapped, x, 1)
    assert closeness(e.output, wrapped(x)[:, 1].detach()) <= 1e-12
    assert closeness(e.output, 2 * relprop.explain(build(), x, 1).output) <= 1e-12


@pytest.mark.parametrize("dtype", marked([torch.bfloat16, torch.float16], ("torch.float16",)))
def test_half_precision_is_finite_throughout(dtype):
    e = relprop.explain(build(dtype=dtype), sample(dtype=dtype), 1, keep=("blocks", "input"))
    assert e.scores.dtype == e.input.dtype == torch.float32 and e.scores.any()
    for block in e.blocks:
        assert block.relevance.dtype == torch.float32
        for t in (block.attention, block.gradient, block.relevance):
            assert torch.isfinite(t).all() and t.any()
    exact = relprop.explain(build(dtype=dtype).double(), sample(dtype=dtype).double(), 1)
    assert closeness(e.output.double(), exact.output) <= 64 * torch.finfo(dtype).eps


def test_what_overflows_in_float16_is_refused_and_precision_helps():
    model, x = build(dtype=torch.float16), sample(dtype=torch.float16)
    model.head.weight.data.mul_(2e4)
    with pytest.raises(RelpropError, match=r"(?s)scores of 2 samples are not finite.*precision="):
        relprop.explain(model, x, 1)
    e = relprop.explain(model, x, 1, precision="float32", keep="blocks")
    assert (
        torch.isfinite(e.scores).all()
        and max(float(b.gradient.abs().max()) for b in e.blocks) > torch.finfo(torch.float16).max
    )


@pytest.mark.parametrize(
    "kind",
    marked(
        [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal],
        ("spectral_norm",),
        lambda f: f.__name__,
    ),
    ids=lambda f: f.__name__,
)
def test_a_parametrized_model_is_the_model_of_the_weights_it_makes(kind):
    def parametrized():
        torch.manual_seed(0)
        model = build()
        for module in (
            *(b.attention.qkv for b in model.blocks),
            *(b.mlp[0] for b in model.blocks),
            model.head,
        ):
            kind(module, "weight")
        return model.eval()

    model, plain, x = parametrized(), parametrized(), sample()
    for module in [m for m in plain.modules() if parametrize.is_parametrized(m)]:
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    before = snapshot(model, [x])
    e = relprop.explain(model, x, 1)
    assert_undisturbed(before, snapshot(model, [x]))
    assert closeness(e.scores, relprop.explain(plain, x, 1).scores) <= 1e-9
    assert closeness(e.output, model(x)[:, 1].detach()) <= 1e-12
    with torch.no_grad():
        next(model.head.parametrizations.weight.parameters()).mul_(0.5)
    assert closeness(relprop.explain(model, x, 1).output, model(x)[:, 1].detach()) <= 1e-12


@pytest.mark.parametrize(
    "before", [True, False], ids=["scaled, then multiplied", "multiplied, then scaled"]
)
def test_integer_weights_that_are_dequantised_in_the_model(before):
    """Weight-only quantisation written out: explained as the model of the dequantised weights, its
    bias and all."""

    class Stored(nn.Module):
        def __init__(self, linear):
            super().__init__()
            w = linear.weight.detach()
            self.register_buffer("scale", w.abs().amax(1) / 127)
            self.register_buffer("stored", (w / self.scale[:, None]).round().to(torch.int8))
            self.bias = linear.bias

        def forward(self, x):
            flat = x.flatten(0, -2)
            if before:
                return torch.addmm(
                    self.bias, flat, (self.stored.to(x.dtype) * self.scale[:, None]).t()
                ).unflatten(0, x.shape[:-1])
            return (flat @ self.stored.to(x.dtype).t() * self.scale).unflatten(
                0, x.shape[:-1]
            ) + self.bias

    model, plain, x = build(), build(), sample()
    for odd, usual in zip(model.blocks, plain.blocks, strict=True):
        for at in (0, 2):
            odd.mlp[at] = Stored(odd.mlp[at])
            usual.mlp[at].weight.data = odd.mlp[at].stored * odd.mlp[at].scale[:, None]
    e, f = relprop.explain(model, x, 1, keep="input"), relprop.explain(plain, x, 1, keep="input")
    assert (
        closeness(e.output, f.output) <= 1e-12
        and closeness(e.scores, f.scores) <= 1e-9
        and closeness(e.input, f.input) <= 1e-9
    )


REFUSED = {
    "a compiled function": (
        lambda: torch.compile(lambda x: x, backend=never),
        r"model is function, not a torch.nn.Module then explain the module it calls",
    ),
    "a number": (lambda: 3, r"model is int, not a torch.nn.Module"),
    "lazy parameters": (
        lambda: nn.Sequential(nn.LazyLinear(4), nn.Softmax(-1)),
        r"parameter '0.weight' has no shape yet then call the model once",
    ),
    "weights that change when they are used": (
        lambda: nn.Sequential(nn.Embedding(9, 4, max_norm=1.0)),
        r"module '0' \(Embedding\) rewrites its weights.*max_norm=1.0",
    ),
    "a part without values": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4, device="meta")),
        r"parameter '1.weight' is on the meta device: the model has no weights yet then load them",
    ),
    "a buffer without values": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, affine=False, device="meta")),
        r"'1.running_mean' is on the meta device",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_is_refused_with_one_sentence(name):
    make, said = REFUSED[name]
    with pytest.raises(InputError) as caught:
        relprop.explain(make(), torch.randn(2, 5, 6), 1)
    assert re.search(said, " ".join(str(caught.value).split())), str(caught.value)


class Settings(dict):
    """A config whose attributes are its entries: of what it lacks it raises ``KeyError``."""

    __getattr__ = dict.__getitem__


def test_a_config_may_raise_what_it_likes():
    """Graphs are compared, texts that are too long refused, and a run knows the model again."""
    model, plain = build(Recipe(ids=True)), build(Recipe(ids=True))
    model.config = model.blocks[0].config = Settings(width=8)
    found, expected = (relprop.explain(m, sample(Recipe(ids=True)), 1) for m in (model, plain))
    assert torch.equal(found.scores, expected.scores)
    assert str(relprop.check(model, sample(Recipe(ids=True))))
    with pytest.raises(InputError, match="has 11"):
        relprop.explain(model, sample(Recipe(ids=True)) + 50, 1)
    assert of_model(model) == of_model(model)
