"""Models of timm and Hugging Face, unchanged, in which every function is called in another way that
is drawn by chance: the maps stay the same. Whoever writes such a model by hand calls them so."""

import functools

import pytest

from tests.spellings.rewriting import Rewritten
from tools.rewritten import CLOSE, called, drawn, explained, furthest, usual
from tools.sweep.command import chosen_subjects

FAST = ["hf/bert/BertForSequenceClassification"]
SLOW = [
    "timm/vision_transformer/vit_tiny_patch16_224",
    "hf/albert/AlbertForSequenceClassification",
    "hf/bart/BartForSequenceClassification",
    "hf/biogpt/BioGptForSequenceClassification",
    "hf/bloom/BloomForSequenceClassification",
    "hf/deberta-v2/DebertaV2ForSequenceClassification",
    "hf/diffllama/DiffLlamaForSequenceClassification",
    "hf/distilbert/DistilBertForSequenceClassification",
    "hf/electra/ElectraForSequenceClassification",
    "hf/falcon/FalconForSequenceClassification",
    "hf/gemma2/Gemma2ForSequenceClassification",
    "hf/gpt2/GPT2ForSequenceClassification",
    "hf/gpt_neox/GPTNeoXForSequenceClassification",
    "hf/llama/LlamaForSequenceClassification",
    "hf/modernbert/ModernBertForSequenceClassification",
    "hf/mpnet/MPNetForSequenceClassification",
    "hf/opt/OPTForSequenceClassification",
    "hf/phi/PhiForSequenceClassification",
    "hf/qwen3/Qwen3ForSequenceClassification",
    "hf/roberta/RobertaForSequenceClassification",
    "hf/t5/T5ForSequenceClassification",
    "hf/beit/BeitForImageClassification",
    "hf/dinov2/Dinov2ForImageClassification",
    "hf/swin/SwinForImageClassification",
    "hf/vit/ViTForImageClassification",
    "timm/deit/deit_tiny_distilled_patch16_224",
    "timm/eva/eva02_tiny_patch14_224",
    "timm/swin_transformer/swin_tiny_patch4_window7_224",
]


def draws(name, count):
    return [pytest.param(name, seed, id=f"{name.split('/')[-1]}-{seed}") for seed in range(count)]


@functools.cache
def usual_of(name):
    return usual(chosen_subjects(name.split("/")[0], name)[0])  # of its variants the first


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        *(p for name in FAST for p in draws(name, 1)),
        *(
            pytest.param(*p.values, id=p.id, marks=pytest.mark.slow)
            for name in SLOW
            for p in draws(name, 4)
        ),
    ],
)
def test_another_way_to_call_every_function_is_the_same_map(name, seed):
    one, mode = usual_of(name), Rewritten(drawn(seed))
    with called(one.model, mode):
        found = explained(one.model, one.inputs, one.target)
    assert len(mode.used) > 4
    assert max(furthest(found, one.scores).values()) < CLOSE
