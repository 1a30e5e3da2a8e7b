"""The shipped model of pictures and words: a small Hugging Face LLaVA that says in which quarter of
a picture the disc of a colour is, and its processor; made by ``tools/train_quadrants.py``, loaded
from the package, never downloaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relprop.demo.quadrants import ANSWERS, COLOURS, QUESTIONS, SIDE
from relprop.demo.shipped import numbers, trained, transformers_for

if TYPE_CHECKING:
    from transformers import LlavaForConditionalGeneration, LlavaProcessor

WEIGHTS = Path(__file__).with_name("quadrants.safetensors")
NUMBERS = Path(__file__).with_name("quadrants_numbers.json")
PATCH = 8
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<image>")


def vocabulary() -> dict[str, int]:
    """Every token the model knows, by its id: five special ones, and the words of all questions and
    answers."""
    words = re.findall(r"[a-z]+|[?.]", " ".join((*QUESTIONS, *COLOURS, *ANSWERS)))
    return {word: i for i, word in enumerate(dict.fromkeys((*SPECIAL, *words)))}


def quadrant_model(*, pretrained: bool = True) -> LlavaForConditionalGeneration:
    """A LLaVA (a CLIP vision tower of one block over 4 × 4 patches, a Llama of 3 blocks, width 64;
    0.2 M parameters) in eval mode that answers the question of a ``Quadrants`` picture in two
    words: logits (batch, positions, vocabulary).

    Its input is what ``quadrant_processor`` makes of ``{"images": ..., "text": "<image>" +
    question}``. Raises ``OptionError`` without ``transformers``.
    """
    transformers, ids = transformers_for("quadrant"), vocabulary()
    width = {"num_attention_heads": 4, "intermediate_size": 128}
    vision = transformers.CLIPVisionConfig(
        image_size=SIDE, patch_size=PATCH, hidden_size=48, num_hidden_layers=1, **width
    )
    text = transformers.LlamaConfig(
        vocab_size=len(ids),
        hidden_size=64,
        num_hidden_layers=3,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=ids["<pad>"],
        bos_token_id=ids["<s>"],
        eos_token_id=ids["</s>"],
        **width,
    )
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=ids["<image>"],
        vision_feature_layer=-1,
    )
    return trained(pretrained, WEIGHTS, transformers.LlavaForConditionalGeneration, config)


def quadrant_processor() -> LlavaProcessor:
    """The model's processor: pictures of any size and words, of which it knows those of
    ``vocabulary``. Raises ``OptionError`` without ``transformers``."""
    transformers = transformers_for("quadrant")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    ids = vocabulary()
    words = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        "<s> $0", special_tokens=[("<s>", ids["<s>"])]
    )
    names = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), SPECIAL, strict=False))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words,
        padding_side="left",
        additional_special_tokens=["<image>"],
        **names,
    )
    pictures = transformers.CLIPImageProcessor(
        size={"height": SIDE, "width": SIDE},
        do_center_crop=False,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return transformers.LlavaProcessor(
        pictures,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def quadrant_numbers() -> dict[str, Any]:
    """How the shipped weights were trained and how often they are right on other pictures, as the
    training script wrote it."""
    return numbers(NUMBERS)
