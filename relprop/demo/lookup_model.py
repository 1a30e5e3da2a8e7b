"""The shipped model that generates: a small Hugging Face Llama that looks an answer up in
documents, and its tokenizer of whole words with a chat template; made by
``tools/train_lookups.py``, loaded from the package, never downloaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relprop.demo.lookups import ADJECTIVES, IDLE, NOUNS, PEOPLE, VERBS
from relprop.demo.shipped import numbers, trained, transformers_for

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

WEIGHTS = Path(__file__).with_name("lookups.safetensors")
NUMBERS = Path(__file__).with_name("lookups_numbers.json")
POSITIONS = 256
SPECIAL = ("<pad>", "<unk>", "<s>", "<|user|>", "<|assistant|>", "<|end|>")
PAD, UNKNOWN, START, USER, ASSISTANT, END = SPECIAL
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def vocabulary() -> dict[str, int]:
    """Every token the model knows, by its id: six special ones, marks, and the words of all
    lookups."""
    idle = re.findall(r"\w+", " ".join(IDLE))
    words = ("what", "and", *PEOPLE, *VERBS, *ADJECTIVES, *NOUNS, *idle)
    known = dict.fromkeys((*SPECIAL, ".", "?", *words))
    return {word: i for i, word in enumerate(known)}


def lookup_model(*, pretrained: bool = True) -> LlamaForCausalLM:
    """A Llama (4 layers, 4 heads, width 64; 0.2 M parameters) in eval mode that continues the chat
    of a ``Lookup``: logits (batch, positions, vocabulary). Raises ``OptionError`` without
    ``transformers``."""
    transformers, ids = transformers_for("lookup"), vocabulary()
    config = transformers.LlamaConfig(
        vocab_size=len(ids),
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=128,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=ids[START],
        eos_token_id=ids[END],
        pad_token_id=ids[PAD],
    )
    return trained(pretrained, WEIGHTS, transformers.LlamaForCausalLM, config)


def lookup_tokenizer() -> PreTrainedTokenizerFast:
    """The model's tokenizer (whole words and marks), with a chat template. Raises
    ``OptionError`` without ``transformers``."""
    transformers = transformers_for("lookup")
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary(), unk_token=UNKNOWN))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.decoder = tokenizers.decoders.WordPiece()  # no space in front of a mark
    tokenizer: PreTrainedTokenizerFast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=PAD,
        unk_token=UNKNOWN,
        bos_token=START,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=POSITIONS,
        padding_side="left",
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def lookup_numbers() -> dict[str, Any]:
    """How the shipped weights were trained and how often they are right on held-out lookups, as
    the training script wrote it."""
    return numbers(NUMBERS)
