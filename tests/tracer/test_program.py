"""What a ``Program`` is and is not: cached, free of the model's tensors, and able to say where each
node comes from; and the second front end."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop
from relprop.operations import name_of
from relprop.tracer.program import place

WIDTH, TOKENS = 8, 5


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v)[:, 0])


class Model(nn.Module):
    """One attention, called ``calls`` times."""

    def __init__(self, calls=2):
        super().__init__()
        self.attention, self.norm, self.head, self.calls = (
            Attention(),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4),
            calls,
        )
        self.register_buffer("offset", torch.randn(WIDTH))

    def forward(self, x):
        x = x + self.offset
        for _ in range(self.calls):
            x = x + self.attention(self.norm(x))
        return self.head(x.mean(1))


class Branching(Model):
    """Its graph depends on the values: ``torch.export`` refuses it."""

    def forward(self, x):
        if x.sum() > 0:
            x = x + self.attention(x)
        return self.head(self.attention(x).mean(1))


def sample(sign=1):
    return sign * torch.rand(2, TOKENS, WIDTH)


def tensors_in(x, seen=None):
    """Every tensor reachable from a Program's fields and its graph's nodes."""
    seen = set() if seen is None else seen
    if id(x) in seen or isinstance(x, (str, int, float, bool, type(None), type)):
        return
    seen.add(id(x))
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, torch.fx.Node):
        yield from tensors_in([x.args, x.kwargs, x.meta], seen)
    elif isinstance(x, torch.fx.Graph):
        yield from tensors_in(list(x.nodes), seen)
    elif isinstance(x, dict):
        yield from tensors_in([*x.keys(), *x.values()], seen)
    elif isinstance(x, (list, tuple, set, frozenset)):
        for item in x:
            yield from tensors_in(item, seen)
    elif hasattr(x, "__dict__"):
        yield from tensors_in(vars(x), seen)


def test_a_program_is_made_once_per_shape():
    model = Model()
    program = relprop.trace(model, sample())
    assert relprop.trace(model, torch.rand(7, TOKENS, WIDTH)) is program
    assert relprop.trace(model, torch.rand(2, TOKENS + 1, WIDTH)) is not program
    assert relprop.trace(model, sample()) is program


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "calls", 1),
        lambda m: setattr(m, "head", nn.Linear(WIDTH, 3)),
        lambda m: m.double(),
        lambda m: m.norm.register_forward_hook(lambda module, args, output: output * 2),
    ],
    ids=["a setting", "another module", "another type", "a hook"],
)
def test_a_change_of_structure_makes_a_new_program(change):
    model = Model()
    program = relprop.trace(model, sample())
    change(model)
    assert relprop.trace(model, sample().to(model.head.weight.dtype)) is not program


def test_new_weights_need_no_new_program_and_are_read_live():
    model, x = Model(), sample()
    program, before = relprop.trace(model, x), relprop.explain(model, x, target=1).output
    with torch.no_grad():
        model.head.weight.mul_(3)
    assert relprop.trace(model, x) is program
    after = relprop.explain(model, x, target=1).output
    expected = model(x)[:, 1].detach()
    assert (after - expected).abs().max() <= 1e-6 * expected.abs().max()
    assert (after - before).abs().max() > 1e-3 * before.abs().max()


def test_a_program_keeps_neither_the_model_nor_its_tensors():
    model = Model()
    relprop.explain(model, sample(), target=1)
    program = relprop.trace(model, sample())
    storages = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    held = [
        t
        for t in tensors_in(program)
        if t.device.type != "meta" and t.untyped_storage().data_ptr() in storages
    ]
    assert held == []
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_parameters_are_named_as_in_the_model():
    model = Model()
    program = relprop.trace(model, sample())
    names = {
        str(n.target).removeprefix("model.") for n in program.graph.nodes if n.op == "get_attr"
    }
    assert names == {*dict(model.named_parameters()), *dict(model.named_buffers())}
    assert program.constants == {}


def test_every_node_says_where_it_comes_from():
    program = relprop.trace(Model(), sample())
    calls = [place(n).call for n in program.graph.nodes if name_of(n) == "layer_norm"]
    assert calls == ["norm", "norm@1"]
    assert [s.path for s in program.sites] == ["attention", "attention@1"]
    first = next(n for n in program.graph.nodes if name_of(n) == "linear")
    assert place(first).path == "attention.qkv"
    softmax = next(n for n in program.graph.nodes if "softmax" in name_of(n))
    assert (
        place(softmax).source.startswith("test_program.py:")
        and "scaled_dot_product_attention" in place(softmax).source
    )


def test_both_samples_of_a_shared_module_share_its_parameters():
    program = relprop.trace(Model(), sample())
    weights = [
        n.args[1]
        for n in program.graph.nodes
        if name_of(n) == "linear" and place(n).path == "attention.out"
    ]
    assert len(weights) == 2 and weights[0].target == weights[1].target


def test_a_branch_on_values_is_traced_for_its_own_input_and_says_so():
    model = Branching()
    program = relprop.trace(model, sample())
    assert program.front_end == "concrete"
    assert program.input_specialised
    assert len(program.decisions) == 1
    assert "test_program.py:" in program.decisions[0] and "if x.sum() > 0" in program.decisions[0]
    assert relprop.trace(model, sample()) is program, "Python reads the same"
    assert relprop.trace(model, sample(-1)) is not program
    assert len(program.sites) == 2
    assert len(relprop.trace(model, sample(-1)).sites) == 1


def test_samples_that_branch_apart_are_each_explained_in_their_own_way():
    model, x = Branching().double(), torch.cat([sample()[:1], sample(-1)[:1]]).double()
    with pytest.warns(relprop.errors.RelpropWarning, match="mixes the samples of a batch"):
        e = relprop.explain(model, x, target=1)
    assert e.facts["front_end"] == "concrete" and len(e.facts["decisions"]) == 1
    alone = [relprop.explain(model, x[i : i + 1], target=1) for i in range(2)]
    for i in range(2):
        assert (e.scores[i] - alone[i].scores[0]).abs().max() <= 1e-9 * e.scores.abs().max()
        assert (e.output[i] - model(x[i : i + 1])[0, 1]).abs() <= 1e-12


def test_the_second_front_end_knows_modules_and_parameters_too():
    program = relprop.trace(Branching(), sample())
    assert [s.path for s in program.sites] == ["attention", "attention@1"]
    names = {
        str(n.target).removeprefix("model.") for n in program.graph.nodes if n.op == "get_attr"
    }
    assert "attention.qkv.weight" in names and "head.bias" in names


class Outside(Model):
    """Piece of it is computed by numpy, which no graph can record."""

    def forward(self, x):
        return super().forward(x + torch.from_numpy(x.detach().numpy() ** 2))


def test_values_computed_outside_of_pytorch_hold_for_their_own_input_only():
    model, x = Outside().double(), sample().double()
    program = relprop.trace(model, x)
    assert (
        len(program.decisions) == 2
        and "x.detach().numpy()" in program.decisions[0]
        and "made outside the graph" in program.decisions[1]
        and "test_program.py:" in program.decisions[1]
    )
    e = relprop.explain(model, x, target=1)
    expected = model(x)[:, 1].detach()
    assert (e.output - expected).abs().max() <= 1e-12 * expected.abs().max()


def test_a_model_that_cannot_be_captured_says_what_both_front_ends_said():
    class Lengths(nn.Module):
        def forward(self, x):
            return list(x[0].tolist())

    with pytest.raises(
        relprop.errors.CaptureError, match="the model returned list without a tensor"
    ):
        relprop.trace(Lengths(), sample())


def test_modules_and_tensors_are_gone_through_as_pytorch_goes():
    """What is shared stands once, under its first name; a missing module or buffer nowhere."""
    from relprop.tracer import modules

    model = nn.Module()
    model.first = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.ReLU()))
    model.again, model.none = model.first[0], None
    model.first[0].register_buffer("missing", None)
    model.tied = nn.Linear(2, 2)
    model.tied.weight = model.first[0].weight
    assert modules.named_modules(model) == list(model.named_modules())
    assert modules.modules_of(model) == list(model.modules())
    tensors = [*model.named_parameters(), *model.named_buffers()]
    found = modules.named_tensors(model)
    assert [name for name, _ in found] == [name for name, _ in tensors]
    assert all(a is b for (_, a), (_, b) in zip(found, tensors, strict=True))
    assert modules.setting(model.first, "nothing") is None and modules.setting(model, "training")
