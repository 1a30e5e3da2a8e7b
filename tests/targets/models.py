"""Tiny models of every kind of head, built from configs with seeded weights in float64, and their
inputs."""

import functools

import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn

from tests.common.models import build, randomise

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 31,
    "max_position_embeddings": 32,
}
NAMES = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}
PAD, START, END, MASK = 0, 1, 2, 4
SPECIAL = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}


def ready(model: nn.Module) -> nn.Module:
    return randomise(model).double().eval()


def labelled(names=NAMES):
    return {"id2label": names, "label2id": {v: k for k, v in names.items()}}


@functools.cache
def bert(kind, **settings):
    names = labelled() if kind is hf.BertForTokenClassification else {}
    return ready(kind(hf.BertConfig(**SMALL, pad_token_id=PAD, **names, **settings)))


@functools.cache
def gpt2():
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 31, "n_positions": 32}
    return ready(hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **SPECIAL)))


@functools.cache
def llama():
    return ready(hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, num_key_value_heads=1, **SPECIAL)))


@functools.cache
def t5():
    sizes = {"vocab_size": 31, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1}
    tokens = {"pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": END}
    return ready(hf.T5ForConditionalGeneration(hf.T5Config(**sizes, num_heads=2, **tokens)))


def of_both(size, layers, inner):
    """The fields of an encoder and of a decoder."""
    sizes = {"layers": layers, "attention_heads": 2, "ffn_dim": inner}
    both = {f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in sizes.items()}
    return {"vocab_size": 31, "d_model": size, "decoder_start_token_id": START, **both, **SPECIAL}


@functools.cache
def bart():
    config = hf.BartConfig(
        **of_both(16, 1, 24), max_position_embeddings=32, forced_eos_token_id=None
    )
    return ready(hf.BartForConditionalGeneration(config))


@functools.cache
def whisper(layers=1, size=16, frames=10):
    heard = {"num_mel_bins": 8, "max_source_positions": frames, "max_target_positions": 32}
    free = {"suppress_tokens": None, "begin_suppress_tokens": None}
    config = hf.WhisperConfig(**of_both(size, layers, 2 * size), **heard, **free)
    return ready(hf.WhisperForConditionalGeneration(config))


VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "patch_size": 8,
}


@functools.cache
def detr():
    """Queries read by cross-attention; one class more than labels, for "no object"."""
    backbone = hf.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )
    config = hf.DetrConfig(
        use_timm_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        num_queries=5,
        **labelled(),
    )
    return ready(hf.DetrForObjectDetection(config))


@functools.cache
def yolos():
    """Queries among the tokens of one sequence."""
    config = hf.YolosConfig(**VISION, image_size=[32, 32], num_detection_tokens=5, **labelled())
    return ready(hf.YolosForObjectDetection(config))


@functools.cache
def segformer():
    """Class maps of 16 × 16."""
    config = hf.SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[3, 3],
        strides=[2, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
        **labelled(),
    )
    return ready(hf.SegformerForSemanticSegmentation(config))


@functools.cache
def clip():
    text = SMALL | SPECIAL | {"eos_token_id": 30, "projection_dim": 8}
    vision = VISION | {"image_size": 32, "projection_dim": 8}
    config = hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    return ready(hf.CLIPModel(config))


def tokenizer():
    """31 words; "a b" is two of them."""
    words = {"[PAD]": PAD, "<s>": START, "</s>": END, "[UNK]": 3, "[MASK]": MASK} | {
        f"w{i}": i for i in range(5, 31)
    }
    inner = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = Whitespace()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="[UNK]",
        mask_token="[MASK]",
        pad_token="[PAD]",
        bos_token="<s>",
        eos_token="</s>",
    )


def words(batch=3, length=7, seed=3):
    return torch.randint(5, 30, (batch, length), generator=torch.Generator().manual_seed(seed))


def pictures(batch=3, size=32, seed=4):
    return torch.randn(
        batch, 3, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


class Heads(nn.Module):
    """A plain transformer whose output is changed by ``change``."""

    def __init__(self, change, **settings):
        super().__init__()
        self.inner, self.change = build(**settings), change

    def forward(self, x):
        return self.change(self.inner(x))
