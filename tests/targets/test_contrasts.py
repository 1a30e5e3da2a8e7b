"""Why X rather than Y: methods that tell a contrast from its opposite, and what labels say."""

import pickle
import warnings

import pytest
import torch
from transformers import BertForSequenceClassification

import relprop
from relprop.demo.model import digit_scene_model
from relprop.errors import OptionError, TargetError
from relprop.runner import opposites
from relprop.targets import contrast, token
from tests.common.models import closeness
from tests.common.rows import diagonal, only
from tests.targets import models
from tests.targets.models import tokenizer

IMAGES = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
EVEN = ("transformer_attribution", "input_gradient", "smoothgrad")
WITHOUT = (
    "rollout",
    "raw_attention",
    "attention_flow",
    "attention_norm",
    "value_zeroing",
    "random",
)
ONE_SIDED = ("gae", "gradcam", "gradcam_features", "attention_times_grad", "partial_lrp")
SIGNED = [
    m.name
    for m in relprop.methods.available()
    if not m.texts and m.name not in (*EVEN, *WITHOUT, *ONE_SIDED)
]
ONLY_FOR = "what speaks against it is not shown"


def explained(target, method, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return relprop.explain(digit_scene_model(), IMAGES, target, method=method, **options)


@pytest.mark.parametrize(
    "method", only(["transformer_attribution", "input_gradient", "rollout"], [*EVEN, *WITHOUT])
)
def test_methods_that_cannot_answer_are_refused(method):
    reads = "gives the same" if method in EVEN else "reads no target, and gives the same"
    said = f"'{method}' {reads} scores for 3 rather than 5 as for 5 rather than 3.*attnlrp"
    with pytest.raises(OptionError, match=f"(?s){said}"):
        explained(contrast(3, 5), method)
    with pytest.raises(OptionError, match=f"(?s){said}"):
        explained([contrast(3, 5), 1], method)


def test_a_contrast_of_a_later_part_is_tried_there(monkeypatch):
    monkeypatch.setattr(opposites, "_KINDS", {})
    with pytest.raises(OptionError, match="3 rather than 5 as for 5 rather than 3"):
        explained([1, contrast(3, 5)], "input_gradient", batch_size=1)


@pytest.mark.parametrize(
    ("method", "dtype"),
    diagonal(["attnlrp", "gradient_x_input"], [torch.bfloat16, torch.float32]),
)
def test_signed_methods_are_signed_in_half_precision(monkeypatch, method, dtype):
    monkeypatch.setattr(opposites, "_KINDS", {})
    model, images = digit_scene_model().to(dtype), torch.cat([IMAGES, IMAGES[:1]]).to(dtype)
    found = relprop.explain(model, images, contrast(3, 5), method=method)
    assert found.labels is None and list(opposites._KINDS.values()) == ["signed"]


@pytest.mark.parametrize(
    "method", only(["attnlrp", "gradient_x_input", "lrp", "attcat", "deeplift"], SIGNED)
)
def test_signed_scores_turn_with_the_target(method):
    there, turned = explained(contrast(3, 5), method), explained(contrast(5, 3), method)
    assert closeness(turned.scores, -there.scores) < 1e-5
    assert there.target == ("3 rather than 5",) * 2
    assert not any(ONLY_FOR in str(label) for label in there.labels or ())


@pytest.mark.parametrize("method", only(["gae", "gradcam"], ONE_SIDED))
def test_one_sided_scores_say_so(method):
    found = explained(contrast(3, 5), method)
    assert found.labels == (f"3 rather than 5; {ONLY_FOR}",) * 2
    assert explained(3, method).labels is None


def test_a_comparison_goes_on_without_them():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        methods = ["transformer_attribution", "attnlrp", "rollout", "gae"]
        found = relprop.compare(digit_scene_model(), IMAGES, methods, contrast(3, 5))
    assert list(found.explanations) == ["attnlrp", "gae"]
    assert set(found.refused) == {"transformer_attribution", "rollout"}


def margin(output):
    return output[0, 3] - output[0, 5]


def many(target, method):
    return relprop.explain_many(digit_scene_model(), IMAGES, [4, target], method=method)[1]


def compared(target, method):
    return relprop.compare(digit_scene_model(), IMAGES, [method], target)[method]


ROADS = {"explain": explained, "explain_many": many, "compare": compared}


@pytest.mark.parametrize("road", only(["explain"], ROADS))
def test_functions_are_never_refused_and_their_labels_say_what_is_left_out(road):
    road = ROADS[road]
    for target in (margin, lambda output: margin(output)):
        assert road(target, "gae").labels == (f"{target.__name__}; {ONLY_FOR}",) * 2
    for method in ("input_gradient", "rollout"):
        assert road(margin, method).labels == ("margin; its sign does not matter",) * 2
    assert road(margin, "attnlrp").labels is None
    square = road(lambda output: output[0, 3].square() + output[0, 5], "transformer_attribution")
    assert square.labels != ("<lambda>; its sign does not matter",) * 2


def test_a_function_of_the_same_code_is_tried_once(monkeypatch):
    tried = []
    monkeypatch.setattr(opposites, "_tried", lambda *given: tried.append(given) or "even")
    made = [explained(lambda output: output[0, 3], "input_gradient") for _ in range(2)]
    assert len(tried) == 1
    assert all(e.labels == ("<lambda>; its sign does not matter",) * 2 for e in made)
    for k in (3, 5):  # of another class, or another function: each is tried
        explained(lambda output, k=k: output[0, k], "input_gradient")
        explained(lambda output: output[0, k], "input_gradient")  # noqa: B023
    assert len(tried) == 5


def test_a_compiled_explainer_refuses_what_explain_refuses():
    for method, said in (("input_gradient", OptionError), ("attnlrp", TargetError)):
        explainer = relprop.compile(digit_scene_model(), IMAGES, method=method, verify=False)
        for target in (contrast(3, 5), [1, contrast(3, 5)]):
            with pytest.raises(said, match="3 rather than 5"):
                explainer(IMAGES, target)
        assert torch.isfinite(explainer(IMAGES, 3).scores).all()


def test_both_sides_are_named():
    model = models.llama()
    inputs = tokenizer()("w6 w7 w8", return_tensors="pt")
    words = contrast(token("w7", tokenizer()), token("w9", tokenizer()))
    found = relprop.explain(model, inputs, words, method="attnlrp", processor=tokenizer())
    assert found.labels == ("next token 'w7' rather than 'w9'",)
    assert "rather than" in str(found.target[0])


def test_classes_are_named(tmp_path):
    model = models.bert(BertForSequenceClassification)
    inputs = tokenizer()("w6 w7 w8", return_tensors="pt")
    one, other = model.config.id2label[1], model.config.id2label[0]
    found = relprop.explain(model, inputs, contrast(one, other), method="attnlrp")
    assert found.labels == (f"{one} rather than {other}",)
    assert pickle.loads(pickle.dumps(found.target)) == found.target == ("1 rather than 0",)
    found.save(tmp_path / "why.safetensors")
    assert relprop.load(tmp_path / "why.safetensors").labels == found.labels
