"""What a run gives of fixed numbers is a part of its identity: what was changed without a trace in
weights and settings does not go on with it."""

import json
import warnings
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import relprop
from relprop import methods
from relprop.errors import InputError, ZeroScoresWarning
from relprop.rules import PAPER
from relprop.runs import ExplainWork, fingerprints, probing, run
from tests.common.rows import only
from tests.runs.sources import Pictures, Texts, bert, patches, tokenizer

WARMTH = 1.0


class Warm(torch.nn.Module):
    """Attention over patches whose scores are divided by a plain attribute."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Conv2d(1, 8, 8, 8), torch.nn.Linear(8, 10)
        self.temperature = 2.0

    def forward(self, images):
        x = self.embed(images).flatten(2).mT
        scores = x @ x.mT / (self.temperature * WARMTH)
        return self.head((scores.softmax(-1) @ x).mean(1))


def hotter(model):
    model.temperature = 1.99


def hooked(model):
    model.embed.register_forward_hook(lambda module, args, out: out * 1.01)


def pre_hooked(model):
    model.head.register_forward_pre_hook(lambda module, args: (args[0].tanh(),))


def replaced(model):
    model.head.forward = lambda x: torch.nn.functional.linear(x, model.head.weight)


def another_function(model):
    model.__class__ = type("Warm", (Warm,), {"forward": lambda self, x: -Warm.forward(self, x)})
    model.__class__.__module__, model.__class__.__qualname__ = Warm.__module__, "Warm"


def read_elsewhere(model):
    """A variable that the forward reads."""
    model.__class__ = type(
        "Warm", (Warm,), {"forward": lambda self, x: FACTOR * Warm.forward(self, x)}
    )
    model.__class__.__module__, model.__class__.__qualname__ = Warm.__module__, "Warm"


FACTOR = 1.5


@pytest.mark.parametrize(
    "change",
    only(
        [hotter, hooked, read_elsewhere],
        [hotter, hooked, pre_hooked, replaced, another_function, read_elsewhere],
    ),
)
def test_a_model_that_computes_something_else_does_not_go_on_with_a_run(tmp_path, change):
    """Weights, settings and the way it prints are the same: only what it computes is not."""
    model, source = Warm(), Pictures(3)
    before = fingerprints.of_model(model)
    run(ExplainWork(model, source, limit=3), tmp_path, batch_size=2, progress=False)
    changed = Warm()
    change(changed)
    assert fingerprints.of_model(changed) == before
    with pytest.raises(InputError, match=r"computes something else.*'output' is off by(?s:.*)undo"):
        run(ExplainWork(changed, source, limit=3), tmp_path, resume=True, progress=False)
    assert run(ExplainWork(Warm(), source), tmp_path, resume=True, progress=False).complete


def without_a_gradient(monkeypatch):
    """The model's own class is changed: the same values, but nothing flows back to the input."""
    before = Warm.forward
    monkeypatch.setattr(Warm, "forward", lambda self, x: before(self, x.detach()))


def hotter_for_all(monkeypatch):
    monkeypatch.setitem(globals(), "WARMTH", 2.0)


def another_method(monkeypatch):
    methods.remove("of_a_user")
    methods.register("of_a_user", lambda at: {v.site.contraction: v.attention**2 for v in at.sites})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_a_gradient, "scores of gradient_x_input for input_0 are off by"),
        (hotter_for_all, "output 'output' is off by"),
        (another_method, "scores of of_a_user for input_0 are off by"),
    ],
)
def test_what_is_changed_in_this_process_does_not_go_on_either(tmp_path, monkeypatch, change, said):
    """The graph of the model was captured before, and its weights, settings and values are as they
    were."""
    methods.register("of_a_user", lambda at: {v.site.contraction: v.attention for v in at.sites})
    try:
        work = ExplainWork(Warm(), Pictures(3), methods=["gradient_x_input", "of_a_user"])
        run(work, tmp_path, batch_size=2, progress=False)
        change(monkeypatch)
        with pytest.raises(InputError, match=f"computes something else.*{said}"):
            run(work, tmp_path, resume=True, progress=False)
    finally:
        methods.remove("of_a_user")


def weighed(by):
    """A rule for linear layers, which prints as any other of these."""
    own = PAPER.for_op(torch.ops.aten.linear.default)
    return lambda relevance, call: own(by * relevance, call)


@pytest.mark.parametrize("way", ["in a rule set", "registered"])
def test_another_rule_of_the_same_name_does_not_go_on(tmp_path, way):
    def done(by, **options):
        rule, linear = weighed(by), torch.ops.aten.linear
        rules = PAPER.with_rule(linear, rule) if way == "in a rule set" else "paper"
        work = ExplainWork(Warm(), Pictures(3), methods=[("lrp", {"rules": rules})])
        with nullcontext() if way == "in a rule set" else relprop.register_rule(linear)(rule):
            return run(work, tmp_path, progress=False, **options)

    done(1)
    assert done(1, resume=True).complete
    with pytest.raises(InputError, match="the scores of lrp for input_0 are off by"):
        done(2, resume=True)


class Shifted(torch.nn.Module):
    """A transform that prints nothing of its setting."""

    def __init__(self):
        super().__init__()
        self.register_buffer("by", torch.tensor(0.5))

    def forward(self, image):
        return image - self.by


class Turned(Pictures):
    """Pictures whose transform is changed in a way that no identity tells."""

    turned = False

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return replace(sample, inputs=sample.inputs.flip(1)) if self.turned else sample


def test_a_transform_that_makes_something_else_does_not_go_on(tmp_path):
    work = ExplainWork(Warm(), Turned(3), normalize=Shifted())
    run(work, tmp_path, batch_size=2, progress=False)
    work.preparation.normalize.by.fill_(0.1)
    with pytest.raises(InputError, match="its output 'output' is off by"):
        run(work, tmp_path, resume=True, progress=False)
    work.preparation.normalize.by.fill_(0.5)
    work.source.turned = True
    with pytest.raises(InputError, match="the picture of sample 0 is off by"):
        run(work, tmp_path, resume=True, progress=False)
    work.source.turned = False
    assert run(work, tmp_path, resume=True, progress=False).complete


def test_warnings_are_not_of_the_fixed_numbers():
    """They are for the samples, of which they are said still."""
    model = Warm()
    model.head.weight.data.zero_()
    work = ExplainWork(model, Pictures(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert work.probe()
    with pytest.warns(ZeroScoresWarning):
        work([0])


def test_a_folder_from_before_goes_on_by_the_outputs_alone(tmp_path):
    work = ExplainWork(Warm(), Pictures(3))
    run(work, tmp_path, batch_size=2, progress=False)
    manifest = json.loads((tmp_path / "run.json").read_text())
    manifest["probe"] = {"output": manifest["probe"]["output"]}
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    assert run(work, tmp_path, resume=True, progress=False).complete


@pytest.mark.slow
def test_attention_of_timm_with_another_scale_does_not_go_on(tmp_path):
    import timm

    sizes = {"img_size": 32, "patch_size": 8, "in_chans": 1, "embed_dim": 16, "num_heads": 2}
    torch.manual_seed(0)
    model = timm.models.VisionTransformer(**sizes, depth=2, num_classes=10).eval()
    for block in model.blocks:
        block.attn.fused_attn = False  # PyTorch's fused kernel has a scale of its own
    work = ExplainWork(model, Pictures(2))
    run(work, tmp_path, progress=False)
    model.blocks[0].attn.scale *= 1.5
    with pytest.raises(InputError, match="computes something else"):
        run(work, tmp_path, resume=True, progress=False)


def test_what_a_model_computes_is_the_same_whoever_computes_it():
    """In float64 whatever the threads, and near enough on a device that has no such type; of texts,
    too, and of a data set whose first samples cannot be read."""
    model = patches()
    probes = list[dict[str, list[float]]]()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        probes.append(ExplainWork(model, Pictures(2)).probe())
    assert probing.apart(*probes) == ""
    scores = "scores of transformer_attribution for input_0"
    assert sorted(probes[0]) == ["output", "picture of sample 0", scores]
    name, numbers = "output", probes[0]["output"]
    noisy = {name: [1.0, *(v * (1 + 1e-5) for v in numbers[1:])]}
    assert probing.apart(probes[0], noisy) == ""
    assert probing.apart(probes[0], {name: [0.0, *noisy[name][1:]]})
    assert probing.apart(probes[0], {"other": numbers}) == "its outputs were output and are other"
    assert probing.apart(None, probes[0]) == probing.apart(probes[0], None) == ""
    texts = ExplainWork(bert(), Texts(2), processor=tokenizer())
    assert len(texts.probe()) == 2 and "logits" in texts.probe()
    assert probing.apart(texts.probe(), texts.probe()) == ""
    other = ExplainWork(model, Unreadable(3)).probe()
    assert other.pop("picture of sample 1") and probes[0].pop("picture of sample 0")
    assert other == probes[0]


class Unreadable(Pictures):
    """Its first sample cannot be read."""

    def __getitem__(self, index):
        if not index:
            raise InputError("no picture")
        return super().__getitem__(index)


class Dice(torch.nn.Module):
    """Draws a number anew in every call."""

    def forward(self, images):
        return images.flatten(1)[:, :10] * torch.rand(10)


def test_a_model_that_draws_is_not_told_by_what_it_computes():
    assert ExplainWork(Dice(), Pictures(2)).probe() is None
