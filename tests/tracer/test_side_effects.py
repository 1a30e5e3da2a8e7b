"""What a model's code and its hooks keep while they run is taken back; what they do to the numbers
is in the graph."""

import functools
from collections import defaultdict

import pytest
import torch
from torch import nn

import relprop
from tests.common.models import build, closeness, sample
from tests.common.rows import marked
from tests.e2e.test_non_invasive import assert_undisturbed, snapshot

SEEN = []


class Recorder:
    """What people write to look inside a model."""

    def __init__(self):
        self.calls, self.seen, self.by_name, self.last = 0, [], defaultdict(list), None

    def save(self, module, args, output):
        self.calls += 1
        self.seen.append(output)
        self.by_name[type(module).__name__].append(output.detach())
        self.last = output

    def __call__(self, module, args, output):
        self.save(module, args, output)

    def state(self):
        return self.calls, list(self.seen), {k: list(v) for k, v in self.by_name.items()}, self.last


def method(recorder):
    return recorder.save


def callable_object(recorder):
    return recorder


def closure(recorder):
    count = 0

    def hook(module, args, output):
        nonlocal count
        count += 1
        recorder.calls = count
        recorder.by_name["closure"].append(output)

    return hook


def partially(recorder):
    return functools.partial(lambda kept, module, args, output: kept.append(output), recorder.seen)


def of_the_module(recorder):
    return lambda module, args, output: SEEN.append(output)


def numbers(recorder):
    return lambda module, args, output: recorder.seen.append(float(output.detach().mean()))


def arrays(recorder):
    return lambda module, args, output: recorder.seen.append(output.detach().numpy())


@pytest.mark.parametrize(
    "kind",
    marked(
        [method, callable_object, closure, partially, of_the_module, numbers, arrays],
        ("callable_object", "closure", "arrays"),
        lambda f: f.__name__,
    ),
)
def test_what_a_hook_keeps_is_taken_back(kind):
    model, x, recorder = build(), sample(), Recorder()
    expected = relprop.explain(build(), x, 1).scores
    model.blocks[0].register_forward_hook(kind(recorder))
    before, state = snapshot(model, [x]), recorder.state()
    assert closeness(relprop.explain(model, x, 1).scores, expected) <= 1e-12
    assert recorder.state() == state and SEEN == []
    assert_undisturbed(before, snapshot(model, [x]))
    model(x)
    assert recorder.state() != state or len(SEEN) == 1  # the hook is still there
    SEEN.clear()


def test_what_was_kept_before_stays():
    model, x, recorder = build(), sample(), Recorder()
    model.blocks[0].register_forward_hook(recorder)
    model(x)
    calls, seen, _, last = recorder.state()
    relprop.explain(model, x, 1)
    assert (
        recorder.calls == calls == 1
        and recorder.seen[0] is seen[0]
        and recorder.last is last
        and len(recorder.by_name["Block"]) == 1
    )


def test_a_hook_that_changes_values_is_part_of_the_graph():
    model, x = build(), sample()
    plain = relprop.explain(model, x, 1)
    model.blocks[0].register_forward_hook(lambda module, args, output: 3 * output)
    model.blocks[1].register_forward_pre_hook(
        lambda module, args, kwargs: ((args[0].tanh(),), kwargs), with_kwargs=True
    )
    e = relprop.explain(model, x, 1)
    assert closeness(e.output, model(x)[:, 1].detach()) <= 1e-12
    assert closeness(e.scores, plain.scores) > 1e-3


def test_a_hook_at_the_address_of_an_old_one_is_a_new_hook():
    model, x = build(), sample()
    for factor in range(1, 12):
        handle = model.blocks[0].register_forward_hook(
            lambda module, args, output, k=factor: k * output
        )
        e = relprop.explain(model, x, 1)
        assert closeness(e.output, model(x)[:, 1].detach()) <= 1e-12, factor
        handle.remove()


def test_hooks_on_every_module_are_part_of_the_graph():
    model, x = build(), sample()
    plain = relprop.explain(model, x, 1)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, output: 2 * output if isinstance(module, nn.GELU) else None
    )
    try:
        e = relprop.explain(model, x, 1)
        assert (
            closeness(e.output, model(x)[:, 1].detach()) <= 1e-12
            and closeness(e.output, plain.output) > 1e-3
        )
    finally:
        handle.remove()
    assert relprop.explain(model, x, 1).scores.equal(plain.scores)


class Keeping(nn.Module):
    """A model that keeps what it sees, counts, builds tables once and collects features by
    hooks."""

    def __init__(self):
        super().__init__()
        self.inner, self.kept, self.last, self.features = build(), [], None, {}
        self.register_buffer("count", torch.zeros(1))
        self.factor, self.act = torch.tensor(2.0, dtype=torch.float64), torch.tanh
        for i, block in enumerate(self.inner.blocks):
            block.register_forward_hook(
                lambda module, args, output, i=i: self.features.__setitem__(i, output)
            )
        self.head = nn.Linear(2 * self.inner.recipe.width, 4).double()

    def forward(self, x):
        self.inner(x)
        y = torch.cat([self.features[0], self.features[1]], -1)
        self.kept.append(y)
        self.last = y
        self.count += 1
        if not hasattr(self, "table"):
            self.table = self.inner.norm.weight.exp().mean()
        return self.head(self.act(y.mean(1)) * self.table * self.factor)


def fresh():
    torch.manual_seed(0)
    return Keeping().eval()


def test_what_the_model_keeps_is_taken_back():
    model, x = fresh(), sample()
    expected = fresh()(x)[:, 1].detach()
    names = {name: sorted(vars(m)) for name, m in model.named_modules()}
    e = relprop.explain(model, x, 1)
    assert closeness(e.output, expected) <= 1e-12 and e.scores.any()
    assert names == {name: sorted(vars(m)) for name, m in model.named_modules()}
    assert model.kept == [] and model.last is None and model.features == {} and model.count == 0


class Writing(nn.Module):
    """A model that registers a buffer when it is first called and counts in a tensor that is no
    buffer: ``torch.export`` refuses it."""

    def __init__(self):
        super().__init__()
        self.inner, self.count = build(), torch.ones(1, dtype=torch.float64)

    def forward(self, x):
        if not hasattr(self, "offset"):
            self.register_buffer("offset", torch.full((1,), 0.5, dtype=torch.float64))
        y = self.inner(x) * self.count + self.offset
        self.count.add_(1)
        return y


def test_what_the_concrete_trace_leaves_is_taken_back():
    model, x = Writing(), sample()
    program = relprop.trace(model, x)
    e = relprop.explain(model, x, 1)
    assert program.front_end == "concrete" and not program.input_specialised
    assert list(model._buffers) == [] and model.count == 1
    assert closeness(e.output, Writing()(x)[:, 1].detach()) <= 1e-12
    model.count.add_(2)
    assert closeness(relprop.explain(model, x, 1).output, model(x)[:, 1].detach()) <= 1e-12


def test_a_table_built_on_the_first_call_follows_the_weights():
    model, x = fresh(), sample()
    relprop.explain(model, x, 1)
    with torch.no_grad():
        model.inner.norm.weight.mul_(0.5)
    other = fresh()
    other.load_state_dict(model.state_dict())
    assert closeness(relprop.explain(model, x, 1).output, other(x)[:, 1].detach()) <= 1e-12


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "factor", torch.tensor(5.0, dtype=torch.float64)),
        lambda m: m.factor.mul_(3),
        lambda m: setattr(m, "act", torch.sin),
    ],
    ids=["another tensor", "a tensor changed in place", "another function"],
)
def test_a_changed_attribute_is_seen(change):
    model, x = fresh(), sample()
    relprop.explain(model, x, 1)
    change(model)
    e = relprop.explain(model, x, 1)
    assert closeness(e.output, model(x)[:, 1].detach()) <= 1e-12


def test_a_model_that_keeps_things_is_captured_once():
    model, x = build(), sample()
    model.blocks[0].register_forward_hook(Recorder())
    assert relprop.trace(model, x) is relprop.trace(model, x)
    assert relprop.trace(fresh(), x).front_end == "export"
