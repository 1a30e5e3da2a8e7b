"""A unit inside the model as the target, beside PyTorch's own hooks."""

import pytest
import torch

import relprop
from relprop.demo.model import digit_scene_model
from relprop.errors import OptionError, TargetError
from relprop.targets import contrast, direction, unit
from tests.api.test_settings import CASES, IDS, Case
from tests.common.models import closeness
from tests.common.rows import only

pytestmark = pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")
MODEL = digit_scene_model().double()
IMAGES = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0)).double()


def inner(case, path, make):
    """A number of a module's output, of each sample, and its gradient at the embedding."""
    seen = {}
    modules = [(name, case.modules[name]) for name in (case.places[0], path)]
    handles = [
        m.register_forward_hook(lambda m, a, out, name=name: seen.__setitem__(name, out))
        for name, m in modules
    ]
    try:
        given = case.inputs
        case.model(**given) if isinstance(given, dict) else case.model(given)
    finally:
        for handle in handles:
            handle.remove()
    out = seen[path]
    y = make(out[0] if isinstance(out, tuple) else out)
    return y.detach(), torch.autograd.grad(y.sum(), seen[case.places[0]], allow_unused=True)[0]


@pytest.mark.parametrize("name", only(("vit", "t5", "unknown to all"), CASES))
def test_it_is_the_number_that_a_hook_sees(name):
    case = Case(name)
    path = case.places[1]
    for position, make in ((2, lambda v: v[:, 2, 5]), (None, lambda v: v[..., 5].mean(1))):
        y, slope = inner(case, path, make)
        target = unit(path, 5, position=position)
        e = relprop.explain(
            case.model, case.inputs, target, method="gradient_x_input", keep="input"
        )
        assert closeness(e.output, y) <= case.within
        with relprop.instrument(case.model, case.inputs, target) as probe:
            found = probe.gradient(case.places[0])[case.places[0]]
            if slope is not None:
                assert closeness(found, slope) <= case.within
            assert probe.ledger().balanced(1e-5)


@pytest.mark.parametrize(
    "method",
    only(
        ["transformer_attribution", "lrp"],
        ["transformer_attribution", "rollout", "gae", "attcat", "lrp"],
    ),
)
def test_methods_explain_it(method):
    target = unit("blocks.2.mlp", 17, position=3)
    e = relprop.explain(MODEL, IMAGES, target, method=method)
    assert e.target == ("unit 17 of blocks.2.mlp, position 3",) * 2 and bool(e.scores.any(1).all())
    for how in ({"batch_size": 1}, {"memory": 3_000_000}):
        assert (
            closeness(relprop.explain(MODEL, IMAGES, target, method=method, **how).scores, e.scores)
            <= 1e-9
        )
    if "attention_sites" in e.facts:
        assert e.facts["attention_sites"] == [f"blocks.{i}.attn" for i in range(3)]


def test_relevance_of_it_sums_to_it():
    for target in (unit("blocks.2.mlp", 17), unit("blocks.1.attn:heads", 5, position=0, head=1)):
        e = relprop.explain(MODEL, IMAGES, target, method="attnlrp", ledger=True)
        assert e.ledger.balanced() and closeness(e.ledger.totals()["started"], e.output) <= 1e-9


def test_the_axes_are_counted_by_what_they_hold():
    """Heads before positions in a map, after them where heads are gathered; channels of a
    convolution."""
    name = "blocks.2.attn:softmax"
    with relprop.instrument(MODEL, IMAGES, 3) as probe:
        maps, gathered = probe.value(name)[name], probe.value("*.2.attn:heads")
        convolved = probe.value("patch_embed.proj")["patch_embed.proj"]
    (heads,) = gathered.values()
    for target, expected in (
        (unit(name, 5, position=3, head=1), maps[:, 1, 3, 5]),
        (unit("blocks.2.attn:heads", 5, position=3, head=1), heads[:, 3, 1, 5]),
        (unit("blocks.2.attn:heads", 5, head=1), heads[:, :, 1, 5].mean(1)),
        (unit("patch_embed.proj", 7), convolved[:, 7].mean((1, 2))),
        (unit("head", 3), MODEL(IMAGES)[:, 3].detach()),
    ):
        e = relprop.explain(MODEL, IMAGES, target, method="gradient_x_input")
        assert closeness(e.output, expected) <= 1e-9, target


def test_a_unit_of_each_sample_and_one_rather_than_another():
    some = [unit("blocks.1.mlp", 3, position=0), 7]
    both = relprop.explain(MODEL, IMAGES, some, method="gae")
    for i, target in enumerate(some):
        one = relprop.explain(MODEL, IMAGES[i : i + 1], target, method="gae")
        assert closeness(both.scores[i : i + 1], one.scores) <= 1e-9
    a, b = (unit("blocks.1.mlp", k, position=0) for k in (3, 4))
    parts = [
        relprop.explain(MODEL, IMAGES, t, method="attnlrp").scores for t in (a, b, contrast(a, b))
    ]
    assert closeness(parts[2], parts[0] - parts[1]) <= 1e-9


@pytest.mark.parametrize("name", only(("bert", "gpt2"), CASES))
def test_a_direction_is_the_scalar_product_that_a_hook_sees(name):
    case = Case(name)
    path = case.places[1]
    width = case.probe().value(path)[path].shape[-1]
    vector = torch.linspace(-1, 2, width).double()
    for position, make in ((2, lambda v: v[:, 2] @ vector), (None, lambda v: (v @ vector).mean(1))):
        y, slope = inner(case, path, make)
        with relprop.instrument(
            case.model, case.inputs, direction(path, vector, position=position)
        ) as probe:
            assert closeness(probe.output(), y) <= case.within
            if slope is not None:
                found = probe.gradient(case.places[0])[case.places[0]]
                assert closeness(found, slope) <= case.within
            assert probe.ledger().balanced(1e-5)


def test_a_direction_along_one_feature_is_that_unit():
    for name, at in (
        ("blocks.2.mlp", {}),
        ("blocks.1.attn:heads", {"position": 3, "head": 1}),
        ("patch_embed.proj", {}),
    ):
        with relprop.instrument(MODEL, IMAGES, 3) as probe:
            shown = probe.value(name)[name]
        along = torch.zeros(shown.shape[1] if name == "patch_embed.proj" else shown.shape[-1])
        along[5] = 1
        before_attention = name == "patch_embed.proj"
        for method in ("attnlrp", "lrp" if before_attention else "gae"):
            pair = [
                relprop.explain(MODEL, IMAGES, t, method=method)
                for t in (unit(name, 5, **at), direction(name, along, **at))
            ]
            assert closeness(pair[0].output, pair[1].output) <= 1e-12
            assert closeness(pair[0].scores, pair[1].scores) <= 1e-9, (name, method)
    with relprop.instrument(MODEL, IMAGES, direction("blocks.2.mlp", torch.ones(96))) as probe:
        before = probe.output()
        probe.set("blocks.2.mlp", lambda v: v * 2)
        assert closeness(probe.output(), 2 * before) <= 1e-12


def test_in_a_decoder_a_unit_knows_what_stands_before_it():
    case = Case("llama")
    e = relprop.explain(case.model, {"input_ids": IDS}, unit("model.layers.0.mlp", 1, position=2))
    assert not e.scores[:, 3:].any() and bool(e.scores[:, :3].any())


def test_what_is_no_unit_is_refused():
    for target, said in (
        (unit("blocks.2.mpl", 0), r"no node is called 'blocks.2.mpl'(.|\n)*blocks.2.mlp"),
        (unit("blocks.2.mlp", 96), "there are 96 features"),
        (unit("blocks.2.mlp", 0, position=65), "there are 65 positions"),
        (unit("blocks.2.attn:heads", 0, position=0), "65 × 4 × 24 for one sample, head= is needed"),
    ):
        with pytest.raises(TargetError, match=said):
            relprop.explain(MODEL, IMAGES, target)
    with pytest.raises(OptionError, match="no one axis holds heads"):
        relprop.explain(MODEL, IMAGES, unit("blocks.2.mlp", 0, position=0, head=0))
    for vector, said in (
        (torch.ones(7), "7 entries, and 'blocks.2.mlp' 96 features"),
        (torch.ones(2, 3), r"shape \[2, 3\]"),
        (torch.zeros(96), "the vector is 0"),
    ):
        with pytest.raises(TargetError, match=said):
            relprop.explain(MODEL, IMAGES, direction("blocks.2.mlp", vector))
    with pytest.raises(TargetError, match="None stands for what the model predicts in every"):
        relprop.explain(MODEL, IMAGES, [unit("blocks.2.mlp", 0), None])
    with pytest.raises(TargetError, match="integers for the rest"):
        unit("blocks.2.mlp", 0.5)
    with pytest.raises(OptionError, match="inside"):
        relprop.compile(MODEL, IMAGES, target=unit("blocks.2.mlp", 0))
    case = Case("bert")
    with pytest.raises(OptionError, match="no value is set or read inside"):
        target = unit(case.places[1], 0, position=0)
        relprop.explain(case.model, case.inputs, target, method="leave_one_out")
