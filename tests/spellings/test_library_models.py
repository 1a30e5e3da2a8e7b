"""Models of timm and Hugging Face, unchanged, in which every function is called in another way that
is drawn by chance: the maps stay the same. Whoever writes such a model by hand calls them so."""

import functools
import random

import pytest
import torch

import relprop
from tests.spellings.rewriting import Rewritten, by_function
from tools.sweep.command import chosen_subjects
from tools.sweep.subjects import build

METHODS = ["transformer_attribution", "rollout", "gae", "attnlrp", "lrp"]
FAST = ["hf/bert/BertForSequenceClassification", "timm/vision_transformer/vit_tiny_patch16_224"]
SLOW = [
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


def in_double(x):
    if isinstance(x, dict):
        return {k: in_double(v) for k, v in x.items()}
    return x.double() if x.is_floating_point() else x


def drawn(seed):
    """For each function one of its ways."""
    chosen = random.Random(seed)
    return [chosen.choice(names) for names in by_function().values()]


def rewritten(model, mode):
    """The model's class, but for what its forward pass calls."""
    own = type(model)

    @functools.wraps(own.forward)
    def forward(self, *args, **kwargs):
        with mode:
            return own.forward(self, *args, **kwargs)

    return type(own.__name__, (own,), {"forward": forward, "__module__": own.__module__})


@functools.cache
def usual(name):
    subject = chosen_subjects(name.split("/")[0], name)[0]  # of its variants the first
    built = build(subject, 2)
    model, inputs = built.model.double().eval(), in_double(built.inputs)
    return model, inputs, built.target, explained(model, inputs, built.target)


def explained(model, inputs, target):
    comparison = relprop.compare(model, inputs, METHODS, target=target)
    return {method: comparison[method].scores for method in METHODS}


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        *(p for name in FAST for p in draws(name, 2)),
        *(
            pytest.param(*p.values, id=p.id, marks=pytest.mark.slow)
            for name in SLOW
            for p in draws(name, 4)
        ),
    ],
)
def test_another_way_to_call_every_function_is_the_same_map(name, seed):
    model, inputs, target, wanted = usual(name)
    own, mode = type(model), Rewritten(drawn(seed))
    model.__class__ = rewritten(model, mode)
    try:
        found = explained(model, inputs, target)
    finally:
        model.__class__ = own
    assert len(mode.used) > 4
    for method, scores in wanted.items():
        most = float(scores.abs().max())
        torch.testing.assert_close(found[method], scores, rtol=0, atol=1e-6 * most)
