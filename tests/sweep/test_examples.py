"""A part of the sweep that runs with every test run: architectures of all kinds, from their
configs, every column good."""

import functools

import pytest
import torch

from tests.common.rows import only
from tools.reference.__main__ import by_chance, commit
from tools.sweep import subjects
from tools.sweep.examine import examine
from tools.sweep.record import EXPLAINED, MEASURED, NO_ATTENTION, NOT_BUILT

EXAMPLES = (
    "timm/vision_transformer/vit_tiny_patch16_224 (map pool)",
    "timm/deit/deit_tiny_distilled_patch16_224",
    "timm/swin_transformer/swin_tiny_patch4_window7_224",
    "timm/cait/cait_xxs24_224",
    "timm/pvt_v2/pvt_v2_b0",
    "timm/maxxvit/test_maxvit",
    "timm/volo/volo_d1_224",
    "timm/crossvit/crossvit_tiny_240",
    "timm/xcit/xcit_nano_12_p8_224",
    "timm/resnet/test_resnet",
    "hf/bert/BertForSequenceClassification",
    "hf/deberta-v2/DebertaV2ForMaskedLM",
    "hf/xlnet/XLNetForSequenceClassification",
    "hf/longformer/LongformerForMaskedLM",
    "hf/gpt2/GPT2LMHeadModel",
    "hf/gemma3_text/Gemma3ForCausalLM",
    "hf/mixtral/MixtralForCausalLM",
    "hf/bloom/BloomForTokenClassification",
    "hf/t5/T5ForConditionalGeneration",
    "hf/swin/SwinForImageClassification",
    "hf/segformer/SegformerForSemanticSegmentation",
    "hf/clip/CLIPModel",
    "hf/lilt/LiltForSequenceClassification",
    "hf/vilt/ViltForQuestionAnswering",
    "hf/lxmert/LxmertForQuestionAnswering",
    "hf/detr/DetrForObjectDetection",
    "hf/wav2vec2/Wav2Vec2ForCTC",
    "hf/whisper/WhisperForConditionalGeneration",
    "hf/patchtst/PatchTSTForPrediction",
    "hf/mamba/MambaForCausalLM",
)
#: In the fast suite: an encoder of pictures, one without attention, texts, two inputs.
DAILY = (
    "timm/vision_transformer/vit_tiny_patch16_224 (map pool)",
    "timm/resnet/test_resnet",
    "hf/bert/BertForSequenceClassification",
    "hf/gpt2/GPT2LMHeadModel",
    "hf/clip/CLIPModel",
)
NOT_YET: dict[
    str, str
    # name: the first cause that a later change will remove; the test asserts that it is still that
] = {}


@functools.cache
def known():
    return {s.name: s for source in ("timm", "hf") for s in subjects(source)}


@pytest.mark.parametrize("name", only(DAILY, EXAMPLES))
def test_every_column_is_good(name):
    threads = torch.get_num_threads()
    record = examine(known()[name])
    assert torch.get_num_threads() == threads
    if name in NOT_YET:
        assert record.status == "failed" and NOT_YET[name] in record.cause, (
            record.status,
            record.failures,
        )
    else:
        assert record.status in (EXPLAINED, NO_ATTENTION), record.failures


def test_what_is_not_yet_is_among_the_examples():
    assert set(NOT_YET) <= set(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("place", range(60))
def test_gradients_of_models_that_the_commit_draws(place):
    """One gradient, and a balanced one, beside the walk."""
    name = by_chance(known(), commit())[place]
    record = examine(known()[name], gradient_alone=True)
    assert record.status in (MEASURED, NOT_BUILT), (record.name, record.failures)
