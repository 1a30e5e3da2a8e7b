"""``python -m tests.behaviour.record`` writes the answers of all calls: tensors to
``recorded.safetensors``, sentences to ``recorded.json``. To be made before a change that should
change no answer, never after it. With names of calls it makes these anew: of answers that changed
on purpose, which ``mended.py`` then lists."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.behaviour.calls import BOOKS, answer, calls

TENSORS = Path(__file__).parent / "recorded.safetensors"
SENTENCES = Path(__file__).parent / "recorded.json"


def answers(names: list[str]) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
    """The answers of the named calls."""
    tensors, sentences = {}, {}
    every = calls()
    for name in names:
        found, said = answer(every[name], name.endswith(BOOKS))
        tensors |= {f"{name}|{key}": value.contiguous() for key, value in found.items()}
        sentences[name] = said
    return tensors, sentences


def recorded() -> tuple[dict[str, Tensor], dict[str, list[str]]]:
    """The record."""
    return load_file(TENSORS), json.loads(SENTENCES.read_text())


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or list(calls())
    tensors, sentences = answers(wanted)
    if sys.argv[1:]:
        before, said = recorded()
        kept = {k: v for k, v in before.items() if k.partition("|")[0] not in wanted}
        tensors, sentences = kept | tensors, said | sentences
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, TENSORS)
    SENTENCES.write_text(json.dumps(sentences, indent=1, ensure_ascii=False) + "\n")
    print(len(wanted), "calls,", len(tensors), "tensors,", TENSORS.stat().st_size, "bytes")
