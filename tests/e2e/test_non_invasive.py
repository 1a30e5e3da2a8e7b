"""The user's model and process are the same before and after, also when something raises half way;
and what the user changes is seen.

``Snapshot`` writes down everything that could be disturbed; two of them are compared item by item,
so a failure names the item.
"""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import relprop
from relprop.errors import CaptureError, InputError, RelpropError, RuleError
from tests.common.models import Recipe, build, closeness, sample
from tests.common.rows import marked

RECIPE = Recipe(ids=True, tied=True, depth=2, shared=True)


class Loud(nn.Module):
    """A model whose forward can be told to raise half way."""

    def __init__(self, inner, raising=False):
        super().__init__()
        self.inner, self.raising = inner, raising

    def forward(self, x):
        y = self.inner(x)
        if self.raising:
            raise KeyError("half way")
        return y


def lively_model(**changes):
    """A model in every kind of state: train flags mixed, a frozen parameter, gradients, hooks, a
    buffer."""
    model = build(RECIPE, **changes)
    model(sample(RECIPE)).sum().backward()
    model.blocks[0].norm1.weight.requires_grad_(False)
    model.train()
    model.blocks[0].mlp.eval()
    model.head.register_forward_hook(lambda module, args, out: None)
    model.norm.register_full_backward_hook(lambda module, before, after: None)
    return model


def snapshot(model, inputs):
    """Everything that could be disturbed, by name; tensors as their bits."""
    seen = {}
    for name, module in model.named_modules(remove_duplicate=False):
        seen[f"{name}: attributes"] = sorted(vars(module))
        seen[f"{name}: training"] = module.training
        seen[f"{name}: class"] = type(module)
        for hooks in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_state_dict_hooks",
        ):
            seen[f"{name}: {hooks}"] = {k: id(v) for k, v in getattr(module, hooks).items()}
        for kind in ("_parameters", "_buffers"):
            for key, t in getattr(module, kind).items():
                seen[f"{name}.{key}"] = (
                    None
                    if t is None
                    else (
                        id(t),
                        id(t.grad),
                        t.requires_grad,
                        t.dtype,
                        t._version,
                        t.data_ptr(),
                        bits(t),
                        bits(t.grad),
                        t.grad_fn,
                    )
                )
    seen["inputs"] = [(id(t), t._version, t.requires_grad, id(t.grad), bits(t)) for t in inputs]
    return seen | process()


def process():
    """The flags of this process and its random state."""
    return {
        "rng": bits(torch.get_rng_state()),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "threads": torch.get_num_threads(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "matmul precision": torch.get_float32_matmul_precision(),
        "default device": torch.get_default_device(),
        "anomaly": torch.is_anomaly_enabled(),
        "sdpa": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
        ),
    }


def bits(t):
    return (
        None
        if t is None
        else t.detach().contiguous().view(torch.uint8).numpy().tobytes()
        if t.numel()
        else b""
    )


def assert_undisturbed(before, after):
    assert sorted(before) == sorted(after)
    changed = [name for name in before if before[name] != after[name]]
    assert not changed, changed


CALLS = {
    "explain": lambda model, x: relprop.explain(model, x),
    "explain, everything kept": lambda model, x: relprop.explain(
        model, x, 1, keep=("blocks", "matrix", "input"), normalize_rows=True
    ),
    "explain, precision": lambda model, x: relprop.explain(model, x, precision="float32"),
    "explain, callable": lambda model, x: relprop.explain(model, x, lambda y: y.softmax(-1)[0, 1]),
    "explain_many": lambda model, x: relprop.explain_many(
        model, x, [0, 1, lambda y: y[0, 0] - y[0, 1]], batch_size=2
    ),
    "rollout": lambda model, x: relprop.explain(model, x, method="rollout"),
    "trace": relprop.trace,
    "check": relprop.check,
    "rounding_stability": relprop.rounding_stability,
}


@pytest.mark.parametrize("name", CALLS)
def test_everything_is_the_same_after_a_success(name):
    model, x = lively_model(), sample(RECIPE)
    before = snapshot(model, [x])
    for _ in range(2):
        CALLS[name](model, x)
        assert_undisturbed(before, snapshot(model, [x]))


def raising_rule(relevance, call):
    raise RuntimeError("a rule raises")


def raising_target(output):
    raise KeyError("a target raises")


FAILURES = {
    "rule on an op": (
        RuleError,
        lambda m, x: relprop.explain(
            m, x, rules=relprop.rules.PAPER.with_rule(torch.ops.aten.gelu, raising_rule)
        ),
    ),
    "rule deep down": (
        RuleError,
        lambda m, x: relprop.explain(
            m, x, keep="input", rules=relprop.rules.PAPER.with_rule("blocks.0.norm1", raising_rule)
        ),
    ),
    "target": (RelpropError, lambda m, x: relprop.explain(m, x, raising_target)),
    "target, second": (RelpropError, lambda m, x: relprop.explain_many(m, x, [0, raising_target])),
    "target out of range": (RelpropError, lambda m, x: relprop.explain(m, x, 99)),
    "ids out of range": (InputError, lambda m, x: relprop.explain(m, x + 1000)),
}


@pytest.mark.parametrize("name", FAILURES)
def test_everything_is_the_same_after_an_error(name):
    kind, call = FAILURES[name]
    model, x = lively_model(), sample(RECIPE)
    before = snapshot(model, [x])
    with pytest.raises(kind):
        call(model, x)
    assert_undisturbed(before, snapshot(model, [x]))


def test_a_registered_rule_that_raises_leaves_no_trace():
    model, x = lively_model(), sample(RECIPE)
    before = snapshot(model, [x])
    expected = relprop.explain(model, x).scores
    with (
        relprop.register_rule(torch.ops.aten.gelu)(raising_rule),
        pytest.raises(RuleError, match="a rule raises"),
    ):
        relprop.explain(model, x)
    assert_undisturbed(before, snapshot(model, [x]))
    assert relprop.explain(model, x).scores.equal(expected)


@pytest.mark.parametrize("call", [relprop.explain, relprop.trace], ids=["explain", "trace"])
def test_a_forward_that_raises_leaves_the_model_as_it_was(call):
    model, x = Loud(lively_model(), raising=True), sample(RECIPE)
    before = snapshot(model, [x])
    with pytest.raises(InputError, match="half way"):
        call(model, x)
    assert_undisturbed(before, snapshot(model, [x]))


def test_the_snapshot_can_tell():
    model, x = lively_model(), sample(RECIPE)
    for disturb in (
        lambda: model.eval(),
        lambda: model.norm.weight.data.add_(1),
        lambda: torch.rand(1),
        lambda: setattr(model, "mark", 1),
    ):
        before = snapshot(model, [x])
        disturb()
        with pytest.raises(AssertionError):
            assert_undisturbed(before, snapshot(model, [x]))


def test_inputs_that_require_grad_get_none():
    model, x = build(), sample().requires_grad_()
    before = snapshot(model, [x])
    e = relprop.explain(model, x, keep="input")
    assert_undisturbed(before, snapshot(model, [x]))
    assert not e.scores.requires_grad and not e.input.requires_grad and not e.output.requires_grad


def test_a_model_in_train_mode_is_explained_as_in_eval_mode():
    recipe, x = Recipe(), sample()
    expected = relprop.explain(build(recipe), x).scores
    model = build(recipe).train()
    assert closeness(relprop.explain(model, x).scores, expected) <= 1e-12
    assert model.training and model.blocks[1].mlp[3].training


def test_grad_mode_does_not_matter():
    model, x = build(), sample()
    expected = relprop.explain(model, x).scores
    with torch.no_grad():
        assert relprop.explain(model, x).scores.equal(expected)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        inside = relprop.explain(model, x).scores
        assert torch.is_inference_mode_enabled()
    assert inside.equal(expected) and not inside.is_inference()


def other_weights(model):
    model.load_state_dict(build(seed=7).state_dict())


def optimizer_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(sample()).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def replaced_parameter(model):
    model.head.weight = nn.Parameter(build(seed=7).head.weight.detach())


def replaced_by_assignment(model):
    model.load_state_dict(build(seed=7).state_dict(), assign=True)


def changed_data(model):
    model.blocks[0].attention.qkv.weight.data = (
        build(seed=7).blocks[0].attention.qkv.weight.detach().clone()
    )


@pytest.mark.parametrize(
    "change",
    marked(
        [other_weights, optimizer_step, replaced_parameter, replaced_by_assignment, changed_data],
        ("optimizer_step", "replaced_by_assignment"),
        lambda f: f.__name__,
    ),
)
def test_new_weights_are_used_by_the_next_call(change):
    """The captured program is kept (weights are no part of it) and reads the weights of the
    moment."""
    model, x = build(), sample()
    program, old = relprop.trace(model, x), relprop.explain(model, x, 1)
    change(model)
    new = relprop.explain(model, x, 1)
    fresh = build()
    fresh.load_state_dict(model.state_dict())
    assert relprop.trace(model, x) is program
    assert closeness(old.scores, new.scores) > 1e-3
    assert closeness(new.scores, relprop.explain(fresh, x, 1).scores) <= 1e-12
    assert closeness(new.output, model(x)[:, 1].detach()) <= 1e-12


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def added_module(model):
    model.blocks.append(build(seed=7).blocks[0])


def replaced_submodule(model):
    model.blocks[0].mlp[1] = nn.Tanh()


def forward_hook(model):
    model.blocks[0].attention.register_forward_hook(lambda module, args, out: 2 * out)


def forward_pre_hook(model):
    model.blocks[0].attention.register_forward_pre_hook(lambda module, args: (2 * args[0],))


def patched_forward(model):
    model.blocks[0].mlp.forward = lambda x: x.tanh()


def changed_setting(model):
    model.blocks[0].attention.fused, model.blocks[0].attention.heads = False, 4


def another_class(model):
    model.blocks[0].mlp[1].__class__ = Doubled


def parametrized(model):
    parametrize.register_parametrization(model.head, "weight", Doubled())


def untied(model):
    model.blocks[1] = build(seed=7).blocks[1]


def nested_setting(model):
    from dataclasses import replace

    model.recipe = replace(model.recipe, pool="last")


@pytest.mark.parametrize(
    "change",
    marked(
        [
            added_module,
            replaced_submodule,
            forward_hook,
            forward_pre_hook,
            patched_forward,
            changed_setting,
            another_class,
            parametrized,
            untied,
            nested_setting,
        ],
        "replaced_submodule forward_hook patched_forward parametrized nested_setting".split(),
        lambda f: f.__name__,
    ),
)
def test_a_changed_structure_is_captured_anew(change):
    model, x = build(), sample()
    relprop.explain(model, x, 1)
    change(model)
    e = relprop.explain(model, x, 1)
    assert closeness(e.output, model(x)[:, 1].detach()) <= 1e-12


class Stopping(nn.Module):
    """Its gradient can be taken away while its values stay."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = build()

    def forward(self, x):
        return self.inner(between(self.kept(x)))

    def kept(self, x):
        return x


def between(x):
    return x


def on_the_class(monkeypatch):
    before = Stopping.forward
    monkeypatch.setattr(Stopping, "forward", lambda self, x: before(self, (x + x.detach()) / 2))


def in_a_method(monkeypatch):
    monkeypatch.setattr(Stopping, "kept", lambda self, x: (x + x.detach()) / 2)


def in_a_function(monkeypatch):
    monkeypatch.setitem(globals(), "between", lambda x: (x + x.detach()) / 2)


@pytest.mark.parametrize("change", [on_the_class, in_a_method, in_a_function])
def test_other_gradients_at_the_same_values_are_seen(change, monkeypatch):
    model, x = Stopping(), sample()
    whole = relprop.explain(model, x, 1, method="gradient_x_input").scores
    change(monkeypatch)
    half = relprop.explain(model, x, 1, method="gradient_x_input").scores
    assert closeness(half, whole / 2) <= 1e-12


def test_backward_hooks_that_change_gradients_are_named_and_others_change_nothing():
    model, x = build(), sample()
    scores = relprop.explain(model, x, 1).scores
    looking = model.blocks[0].register_full_backward_hook(lambda module, into, out: None)
    assert relprop.explain(model, x, 1).scores.equal(scores)
    looking.remove()
    model.blocks[1].register_full_backward_hook(lambda module, into, out: (2 * into[0],))
    with pytest.raises(CaptureError, match=r"backward hooks(?s:.*)blocks\.1\n(?s:.*)remove them"):
        relprop.explain(model, x, 1)
    assert relprop.explain(model, x, 1, verify=False).scores.equal(scores)


MADE = set()


class Drawing(nn.Module):
    """Its forward makes a tensor where the user's default says."""

    def __init__(self):
        super().__init__()
        self.inner = build()

    def forward(self, x):
        MADE.add(torch.empty(1).device.type)
        return self.inner(x)


@pytest.mark.parametrize(
    "method", marked(["transformer_attribution", "smoothgrad", "occlusion"], ("smoothgrad",))
)
def test_a_default_device_is_the_models_own(method):
    """What relprop makes for itself is on the CPU; what the model makes is where it would be
    ("meta" stands for a GPU)."""
    model, x = Drawing(), sample()
    scores = relprop.explain(build(), x, method=method).scores
    MADE.clear()
    torch.set_default_device("meta")
    try:
        assert relprop.explain(model, x, method=method).scores.equal(scores)
        assert list(MADE) == ["meta"] and torch.get_default_device().type == "meta"
    finally:
        torch.set_default_device(None)


def test_removing_a_hook_is_seen_too():
    model, x = build(), sample()
    expected = relprop.explain(model, x, 1).scores
    hook = model.blocks[0].register_forward_hook(lambda module, args, out: 3 * out)
    assert closeness(relprop.explain(model, x, 1).scores, expected) > 1e-3
    hook.remove()
    assert relprop.explain(model, x, 1).scores.equal(expected)


@pytest.mark.parametrize(
    "name",
    marked(
        ["explain, everything kept", "explain_many", "trace", "check"],
        ("explain, everything kept",),
    ),
)
def test_a_used_model_can_be_collected(name):
    model, x = build(RECIPE), sample(RECIPE)
    result = CALLS[name](model, x)
    gone, weight = weakref.ref(model), weakref.ref(model.head.weight)
    del model
    gc.collect()
    assert gone() is None and weight() is None, name
    assert result is not None


def test_a_model_that_failed_can_be_collected():
    model = Loud(build(RECIPE), raising=True)
    with pytest.raises(InputError):
        relprop.explain(model, sample(RECIPE))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
