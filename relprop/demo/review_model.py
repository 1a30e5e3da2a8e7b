"""The shipped text model: a small Hugging Face BERT and its own WordPiece tokenizer, made by
``examples/train_reviews.py``; loaded from the package, never downloaded. The tokenizer knows 500
pieces: nine in ten sentiment words are several tokens, and scores of words are not scores of
tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from relprop.demo.reviews import LABELS
from relprop.demo.shipped import numbers, trained, transformers_for

if TYPE_CHECKING:
    from transformers import BertForSequenceClassification, PreTrainedTokenizerFast

WEIGHTS = Path(__file__).with_name("reviews.safetensors")
TOKENIZER = Path(__file__).with_name("reviews_tokenizer.json")
NUMBERS = Path(__file__).with_name("reviews_numbers.json")
PIECES, POSITIONS = 500, 128


def review_model(*, pretrained: bool = True) -> BertForSequenceClassification:
    """A BERT (4 layers, 4 heads, width 64; 0.18 M parameters) in eval mode that reads a review:
    logits (batch, 2), negative and positive.

    Its input is what ``review_tokenizer`` makes of ``Reviews``' texts: (batch, tokens), at
    most 128. Raises ``OptionError`` without ``transformers``.
    """
    transformers = transformers_for("review")
    config = transformers.BertConfig(
        vocab_size=PIECES,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=POSITIONS,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(LABELS)),
        label2id={label: i for i, label in enumerate(LABELS)},
    )
    return trained(pretrained, WEIGHTS, transformers.BertForSequenceClassification, config)


def review_tokenizer(path: Path = TOKENIZER) -> PreTrainedTokenizerFast:
    """The model's tokenizer (lower case, WordPiece), from one ``tokenizer.json``. Raises
    ``OptionError`` without ``transformers``."""
    return transformers_for("review").PreTrainedTokenizerFast(
        tokenizer_file=str(path),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=POSITIONS,
    )


def review_numbers() -> dict[str, Any]:
    """How the shipped weights were trained and how often they are right on held-out reviews, as the
    training script wrote it."""
    return numbers(NUMBERS)
