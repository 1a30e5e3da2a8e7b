"""What other libraries are handed has their shapes, and the numbers of the explanation."""

import sys
import types

import numpy as np
import pytest
import torch
from captum.attr import Attribution

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.review_model import review_model, review_tokenizer
from relprop.errors import OptionError
from relprop.interop import (
    attributions,
    cam,
    captum_attribution,
    quantus_explainer,
    shap_explanation,
)
from tests.targets.models import gpt2

MODEL = digit_scene_model()
IMAGES = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))


def test_captum_takes_a_method_at_the_input_as_it_is():
    found = captum_attribution(MODEL, method="gradient_x_input")
    assert isinstance(found, Attribution)
    mine = found.attribute(IMAGES, target=torch.tensor([3, 8]))
    e = relprop.explain(MODEL, IMAGES, [3, 8], method="gradient_x_input", keep="input")
    assert torch.equal(mine, e.input)
    assert isinstance(found.attribute((IMAGES,), target=3), tuple)


def test_a_method_over_attention_is_spread_over_pixels_with_the_same_sum():
    mine = captum_attribution(MODEL).attribute(IMAGES, target=3)
    e = relprop.explain(MODEL, IMAGES, 3)
    patches = e.scores[:, e.source >= 0]
    assert torch.allclose(mine.sum((1, 2, 3)), patches.sum(1), rtol=1e-4)
    heat = e.heatmap()
    assert torch.allclose(mine[:, 0] / mine[:, 0].amax((1, 2), keepdim=True),
                          heat / heat.amax((1, 2), keepdim=True), atol=1e-5)  # fmt: skip


def test_captums_metrics_run_on_it():
    from captum.metrics import sensitivity_max

    explain = captum_attribution(MODEL, method="gradient_x_input").attribute
    assert sensitivity_max(explain, IMAGES, target=3, n_perturb_samples=2).shape == (2,)


def test_texts_have_a_number_per_id_and_further_arguments():
    ids = review_tokenizer()(["great acting", "a dull plot"], padding=True, return_tensors="pt")
    given = (ids["input_ids"],)
    found = captum_attribution(review_model()).attribute(
        given, target=1, additional_forward_args=(ids["attention_mask"],)
    )
    assert (
        found[0].shape == given[0].shape and found[0][0, ids["attention_mask"][0] == 0].eq(0).all()
    )


def test_quantus_is_handed_arrays():
    found = quantus_explainer(method="gae")(MODEL, IMAGES.numpy(), np.array([3, 8]))
    assert isinstance(found, np.ndarray) and found.shape == (2, 1, 32, 32)
    assert np.allclose(found, captum_attribution(MODEL, method="gae").attribute(IMAGES, [3, 8]))


def test_a_callable_like_grad_cams():
    class ClassifierOutputTarget:
        def __init__(self, category):
            self.category = category

    targets = [ClassifierOutputTarget(3), ClassifierOutputTarget(8)]
    found = cam(MODEL)(input_tensor=IMAGES, targets=targets)
    assert found.shape == (2, 32, 32) and found.min() >= 0 and (found.max((1, 2)) == 1).all()
    assert np.array_equal(found, cam(MODEL)(IMAGES, [3, 8]))
    assert cam(MODEL)(IMAGES).shape == (2, 32, 32)


def test_inputs_that_are_not_explained_are_refused():
    e = relprop.explain(MODEL, IMAGES, 3)
    with pytest.raises(OptionError, match="2 inputs are given, and 1 are explained"):
        attributions(e, IMAGES, IMAGES)
    with pytest.raises(OptionError, match="its input"):
        attributions(e, torch.rand(2, 7))


def wrapper(package, attribute):
    """A class as ``package`` would define it: a module that holds another as ``attribute``, and
    whose own forward is not the model's."""

    def forward(self, *given, **named):
        raise AssertionError("the wrapper itself is called")

    def init(self, inside):
        torch.nn.Module.__init__(self)
        setattr(self, attribute, inside)

    body = {"__module__": f"{package}.inside", "__init__": init, "forward": forward}
    return type("Wrapper", (torch.nn.Module,), body)


@pytest.mark.parametrize(
    "package, attribute", [("nnsight", "_module"), ("transformer_lens", "original_model")]
)
def test_tools_that_look_into_a_model_are_taken_off(package, attribute):
    """By stand-ins with the attributes that nnsight 0.8 and TransformerLens 4.3 have;
    test_the_libraries_themselves is of the real ones, where they are installed."""
    wrapped = wrapper(package, attribute)(MODEL)
    assert torch.equal(relprop.explain(wrapped, IMAGES, 3).scores,
                       relprop.explain(MODEL, IMAGES, 3).scores)  # fmt: skip
    with pytest.raises(Exception, match="the wrapper itself is called"):
        relprop.explain(wrapper("elsewhere", attribute)(MODEL), IMAGES, 3)


@pytest.mark.slow
def test_the_libraries_themselves():
    """nnsight's wrapper of the shipped model, TransformerLens' bridge of a small GPT-2."""
    nnsight = pytest.importorskip("nnsight")
    mine = relprop.explain(nnsight.NNsight(MODEL), IMAGES, 3).scores
    assert torch.equal(mine, relprop.explain(MODEL, IMAGES, 3).scores)


@pytest.mark.slow
def test_the_bridge_of_transformer_lens():
    pytest.importorskip("transformer_lens")
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    model, ids = gpt2(), torch.tensor([[1, 2, 3, 4]])
    before = relprop.explain(model, ids, 5).scores
    bridge = build_bridge_from_module(model, "GPT2LMHeadModel", hf_config=model.config)
    assert torch.allclose(relprop.explain(bridge, ids, 5).scores, before, atol=1e-6)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_shap_takes_scores(monkeypatch):
    """By a stand-in where shap is not installed, which keeps what it is given."""
    try:
        import shap  # noqa: F401
    except ImportError:
        kept = types.ModuleType("shap")
        kept.Explanation = lambda values, base_values, data, **named: types.SimpleNamespace(
            values=values, base_values=base_values, data=data, **named
        )
        monkeypatch.setitem(sys.modules, "shap", kept)
    e = relprop.explain(
        review_model(), ["great acting", "a dull plot"], 1, processor=review_tokenizer()
    )
    found = shap_explanation(e)
    assert np.allclose(found.values, e.scores) and found.output_names == ["1", "1"]
    assert list(found.data[1]) == e.tokens[1] and found.base_values.tolist() == [0, 0]
    maps = shap_explanation(relprop.explain(MODEL, IMAGES, [3, 8]))
    assert maps.values.shape == (2, 32, 32)


def test_without_shap(monkeypatch):
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(OptionError, match="pip install shap"):
        shap_explanation(relprop.explain(MODEL, IMAGES, 3))


@pytest.mark.slow
def test_quantus_finds_maps_where_the_digit_is():
    pytest.importorskip("quantus")
    from tools.outside_judges import table

    found = table(8)
    for metric in ("RelevanceMassAccuracy", "RelevanceRankAccuracy"):
        best, blind = found["transformer_attribution"][metric], found["random"][metric]
        assert best > 2 * blind and best > found["rollout"][metric]
    assert all(row["RelevanceMassAccuracy"] <= 1 for row in found.values())
    left = {method: row["PixelFlipping"] for method, row in found.items()}
    assert max(left, key=left.get) == "random" and 0 <= left["attnlrp"] < left["random"] / 2
