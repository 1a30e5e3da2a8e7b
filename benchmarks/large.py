"""A language model of 1.2 billion parameters (the shape of Llama 3.2 1B, random weights, bfloat16)
explained on one machine: two prompts, the shorter one padded, by the default method.

    python benchmarks/large.py                            # 2,048 tokens; about an hour on one core
    python benchmarks/large.py --tokens 256
    python benchmarks/large.py --offloaded --limit 3e9 --batch-size 1    # on disk, data of 3 GB
    python benchmarks/large.py --model mixtral            # as many, in experts

The model's files are made at the first call, in ``--folder``. What is printed as JSON is of the
process that explains: the growth of its memory over the loaded model, the time as a multiple of one
forward pass of the model, and the largest residual of the ledger as a part of all relevance.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

SIZES: dict[str, dict[str, Any]] = {
    "llama": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "mixtral": {
        "vocab_size": 32000,
        "hidden_size": 1024,
        "intermediate_size": 1024,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "tie_word_embeddings": True,
    },
}
EVERY = 0.01  # seconds between two looks at the memory


def made(kind: str, folder: Path) -> None:
    """The model's file, with seeded random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES[kind], dtype="bfloat16")
    module = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    module.save_pretrained(folder, max_shard_size="300MB")


def loaded(kind: str, folder: Path, offloaded: bool) -> torch.nn.Module:
    """The model of a folder, whole or with all weights on disk."""
    from transformers import AutoModelForCausalLM

    where: dict[str, Any] = {}
    if offloaded:
        placed = dict.fromkeys(("model.embed_tokens", "model.norm", "lm_head"), "disk")
        placed |= {f"model.layers.{n}": "disk" for n in range(SIZES[kind]["num_hidden_layers"])}
        placed["model.rotary_emb"] = "cpu"
        where = {"device_map": placed, "offload_folder": str(folder / "offloaded")}
    module = AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16", **where)
    return module.eval().requires_grad_(False)  # type: ignore[no-any-return]


def prompts(words: int, tokens: int) -> dict[str, Any]:
    """Two prompts, the second of three quarters of the tokens, padded on its left."""
    ids = torch.randint(3, words, (2, tokens))
    mask = torch.ones_like(ids)
    mask[1, : tokens // 4] = 0
    return {"input_ids": ids, "attention_mask": mask, "logits_to_keep": 1}


def anonymous() -> int:
    """Bytes of this process in memory that are no mapped file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status says no RssAnon")


class Most:
    """The most memory that was taken since it was made."""

    def __init__(self) -> None:
        self.before, self.seen, self.done = anonymous(), 0, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self.done.wait(EVERY):
            self.seen = max(self.seen, anonymous())

    def growth(self) -> int:
        """In bytes, over what was there."""
        self.done.set()
        return self.seen - self.before


def measured(settings: argparse.Namespace) -> dict[str, Any]:
    """One explanation, its memory and its time."""
    import relprop

    torch.set_num_threads(1)
    module = loaded(settings.model, settings.folder, settings.offloaded)
    if settings.limit:  # from here on: to open the files, transformers maps all of them
        resource.setrlimit(resource.RLIMIT_DATA, (int(settings.limit), int(settings.limit)))
    inputs = prompts(SIZES[settings.model]["vocab_size"], settings.tokens)
    began = time.process_time()
    with torch.no_grad():
        module(**inputs)
    forward = time.process_time() - began
    most, began = Most(), time.process_time()
    explanation = relprop.explain(
        module, inputs, (-1, 3), memory=settings.memory, batch_size=settings.batch_size
    )
    spent = time.process_time() - began
    return {
        "model": settings.model,
        "tokens": settings.tokens,
        "offloaded": settings.offloaded,
        "batch_size": settings.batch_size,
        "growth_mb": round(most.growth() / 1e6),
        "forward_seconds": round(forward, 1),
        "times_forward": round(spent / forward, 1),
        "segments": explanation.facts["segments"],
        "residual": explanation.ledger.worst(),
        "finite": bool(explanation.scores.isfinite().all()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=SIZES, default="llama")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--folder", type=Path, help="where its files lie: build/large/MODEL")
    parser.add_argument("--offloaded", action="store_true", help="all weights on disk")
    parser.add_argument("--limit", type=float, default=0, help="bytes of data the process may have")
    parser.add_argument("--memory", default="auto", help="as explain's: auto, or bytes")
    parser.add_argument("--batch-size", type=int, help="prompts at a time: both, or 1")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.memory != "auto":
        settings.memory = int(float(settings.memory))
    settings.folder = settings.folder or Path("build/large") / settings.model
    if settings.inside:
        print(json.dumps(measured(settings)))
        return
    if not (settings.folder / "config.json").exists():
        made(settings.model, settings.folder)
    # A process of its own: making the model must not count, nor what is freed and not given back.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    subprocess.run([sys.executable, __file__, *sys.argv[1:], "--inside"], check=True, env=env)


if __name__ == "__main__":
    main()
