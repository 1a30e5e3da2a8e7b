"""Does a process grow that explains for a long time? Many calls, lengths, models and threads, and
the resident set after every round of them.

    python -m tools.soak

Each model lives for its share of the calls, each call has a length of its own, four threads call at
once. After a round, in which each thread is done with one model, garbage is collected, the
allocator gives back what it holds free, and the resident set is read. The exit code is 1 if after
``FIRST`` calls it is ever more than ``LIMIT`` above what it was then.

Two things that grow are no part of relprop, and are switched off: oneDNN keeps the last 1024
matrix products that it compiled, one for each shape (25 MB, then no more), and glibc has a heap for
each thread, whose holes the others cannot fill.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import os
import queue
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psutil
import torch
import transformers
from torch import Tensor, nn

import relprop

FIRST, LIMIT = 500, 20e6
M_ARENA_MAX = -8  # of glibc's malloc.h
VOCABULARY, SHORTEST = 97, 8
METHODS = ("transformer_attribution", "lrp", "rollout", "attnlrp", "gradcam")


class Encoder(nn.Module):
    """PyTorch's own encoder behind an embedding, read at its mean."""

    def __init__(self, width: int, heads: int, layers: int, longest: int, **how: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True, **how)
        self.embed = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(torch.randn(1, longest, width))
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(batch, tokens) ids to (batch, 3) logits."""
        x = self.embed(input_ids) + self.place[:, : input_ids.shape[1]]
        return self.head(self.encoder(x).mean(1))


def a_model(number: int, longest: int) -> nn.Module:
    """One of three kinds, of another size each."""
    draw = random.Random(number)
    torch.manual_seed(number)
    heads, layers = draw.choice([1, 2, 4]), draw.choice([1, 2])
    width = heads * draw.choice([4, 6, 8])
    if number % 3 == 0:
        activation = draw.choice(["relu", "gelu"])
        return Encoder(
            width, heads, layers, longest, norm_first=number % 2 == 0, activation=activation
        )
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 2 * width,
        "max_position_embeddings": longest,
        "pad_token_id": 0,
    }
    if number % 3 == 1:
        return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**sizes, num_key_value_heads=1, bos_token_id=1, eos_token_id=2)
    )


Call = Callable[[], object]


def calls_of(number: int, count: int, lengths: int) -> Iterator[Call]:
    """So many calls of one model, which is let go with the last of them."""
    model = a_model(number, SHORTEST + lengths)
    for i in range(count):
        at = number * count + i
        length, method = SHORTEST + at * 7 % lengths, METHODS[(number + i) % len(METHODS)]
        ids = torch.randint(3, VOCABULARY, (1 + at % 2, length))
        yield partial(relprop.explain, model, ids, 1, method=method)


def one_heap() -> None:
    """Switch off what grows and is no part of relprop, before anything is computed."""
    os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "0"
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_ARENA_MAX, 1)


def resident() -> int:
    """The resident set in bytes, without what the allocator holds free."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    return psutil.Process().memory_info().rss


def rounds(
    calls: int, lengths: int, models: int, threads: int, size: int
) -> Iterator[tuple[int, int]]:
    """How many calls have been made, and the resident set, after every ``size`` of them."""
    each = calls // models
    turns = [
        itertools.chain.from_iterable(
            calls_of(number, each, lengths) for number in range(first, models, threads)
        )
        for first in range(threads)
    ]
    waiting: queue.SimpleQueue[Iterator[Call]] = queue.SimpleQueue()
    for turn in turns:
        waiting.put(turn)

    def one_call(_: int) -> None:
        turn = waiting.get()  # a thread has the turn of one model at a time
        try:
            call = next(turn, None)
            if call is not None:
                call()
        finally:
            waiting.put(turn)

    with ThreadPoolExecutor(threads) as pool:
        for done in range(size, calls + 1, size):
            for _ in pool.map(one_call, range(size)):
                pass
            gc.collect()
            yield done, resident()


def main() -> int:
    """Print a line per round and the verdict."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("calls", 5000), ("lengths", 300), ("models", 100), ("threads", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    one_heap()
    torch.set_num_threads(1)
    began, start, most = time.monotonic(), 0, 0
    size = asked.calls // asked.models * asked.threads
    for done, now in rounds(asked.calls, asked.lengths, asked.models, asked.threads, size):
        start = now if done <= FIRST else start
        most = max(most, now - start)
        seconds = time.monotonic() - began
        print(f"{done:6} calls {now / 1e6:8.1f} MB {seconds:7.0f} s", flush=True)
    print(f"after {FIRST} calls at most {most / 1e6:+.1f} MB")
    return int(most > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
