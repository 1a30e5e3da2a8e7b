"""What the sweep feeds its models, and what it does when they do not take it."""

import pytest
import torch
from torch import nn

from tools.sweep import build, subjects
from tools.sweep.examine import examine
from tools.sweep.record import NOT_BUILT, Record
from tools.sweep.snapshot import differences, snapshot
from tools.sweep.subject import Subject
from tools.sweep.targets import element
from tools.sweep.weights import enliven


def built(name):
    return build(next(s for s in subjects("hf", name) if s.name == name))


def test_texts_have_different_padding_and_no_stray_special_ids():
    b = built("hf/roberta/RobertaForSequenceClassification")
    ids, mask, config = b.inputs["input_ids"], b.inputs["attention_mask"].bool(), b.model.config
    assert (
        mask.sum(1).tolist() == [12, 9, 7]
        and (ids[~mask] == config.pad_token_id).all()
        and torch.equal(b.pads["input_ids"], ~mask)
    )
    last = mask.sum(1) - 1
    assert (ids[torch.arange(3), last] == config.eos_token_id).all()
    inner = mask.clone()
    inner[torch.arange(3), last] = False
    assert not torch.isin(
        ids[inner], torch.tensor([config.pad_token_id, config.bos_token_id, config.eos_token_id])
    ).any()
    assert not torch.equal(b.inputs["input_ids"], b.another["input_ids"]) and torch.equal(
        b.inputs["attention_mask"], b.another["attention_mask"]
    )


def test_padding_is_on_the_left_where_the_tokenizer_puts_it_there():
    assert built("hf/xlnet/XLNetForSequenceClassification").pads["input_ids"].sum(1).tolist() == [
        0,
        3,
        5,
    ]
    assert built("hf/xlnet/XLNetForSequenceClassification").pads["input_ids"][1, 0]


@pytest.mark.parametrize(
    "name, inputs",
    [
        ("hf/clip/CLIPModel", {"input_ids", "attention_mask", "pixel_values"}),
        (
            "hf/t5/T5ForConditionalGeneration",
            {"input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask"},
        ),
        (
            "hf/whisper/WhisperForConditionalGeneration",
            {"input_features", "attention_mask", "decoder_input_ids", "decoder_attention_mask"},
        ),
        (
            "hf/lxmert/LxmertForQuestionAnswering",
            {"input_ids", "attention_mask", "visual_feats", "visual_pos"},
        ),
        ("hf/layoutlm/LayoutLMForTokenClassification", {"input_ids", "attention_mask", "bbox"}),
        ("hf/detr/DetrForObjectDetection", {"pixel_values", "pixel_mask"}),
        ("hf/patchtst/PatchTSTForPrediction", {"past_values"}),
    ],
)
def test_each_kind_of_model_gets_its_inputs(name, inputs):
    b = built(name)
    assert set(b.inputs) == inputs and all(len(t) == 3 for t in b.inputs.values())
    assert {k: v.shape for k, v in b.inputs.items()} == {k: v.shape for k, v in b.another.items()}


def test_masked_sound_is_silent():
    b = built("hf/wav2vec2/Wav2Vec2ForCTC")
    assert (
        b.inputs["input_values"][~b.inputs["attention_mask"].bool()] == 0
    ).all() and not b.inputs["attention_mask"].all()


def test_building_twice_gives_the_same_model():
    one, two = built("hf/bert/BertForMaskedLM"), built("hf/bert/BertForMaskedLM")
    assert all(
        torch.equal(p, q)
        for p, q in zip(
            one.model.state_dict().values(), two.model.state_dict().values(), strict=True
        )
    )
    assert all(torch.equal(one.inputs[k], two.inputs[k]) for k in one.inputs)


def test_constant_parameters_come_to_life_and_tied_ones_stay_tied():
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16))
    nn.init.zeros_(model[2].weight)
    nn.init.normal_(model[0].weight, std=1e-3)
    enliven(model)
    assert (
        model[2].weight.std() > 0.05
        and model[1].weight.std() > 0.05
        and 0.15 < model[0].weight.std() < 0.35
    )
    shared = nn.Linear(4, 4)
    both = nn.ModuleList([shared, shared])
    enliven(both)
    assert both[0].weight is both[1].weight


def test_an_element_is_at_a_position_that_is_real_in_every_sample():
    pads = torch.tensor([[False, False, True], [False, False, False]])
    logits = torch.arange(12.0).reshape(1, 3, 4)
    assert str(element({"logits": logits, "other": logits}, pads)) == "logits[1, 3]"
    assert str(element({"logits": logits[:, :2]}, pads)) == "logits[1, 3]"
    assert str(element({"pooled": logits[:, 0], "hidden": logits}, pads)) == "pooled[3]"
    assert str(element({"maps": logits.reshape(1, 3, 2, 2)})) == "maps[2, 1, 1]"
    with pytest.raises(ValueError, match="no floating output with a batch axis among ids"):
        element({"ids": torch.ones(1, 3, dtype=torch.long)})


def test_a_change_is_named():
    model = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    before = snapshot(model, x)
    assert differences(before, snapshot(model, x)) == []
    with torch.no_grad():
        model.weight.add_(1)
    model.register_forward_hook(lambda module, args, out: None)
    assert differences(before, snapshot(model, x)) == [": module", ".weight"]


def test_what_cannot_be_built_says_why():
    record = examine(Subject("hf", "bert", "BertForNothing"))
    assert record.status == NOT_BUILT and record.cause == "transformers has no class BertForNothing"
    assert Record.of(record.as_dict()) == record
