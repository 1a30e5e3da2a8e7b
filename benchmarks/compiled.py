"""What a compiled explainer costs: time ÷ that of the model's own forward pass, on one thread.

    python benchmarks/compiled.py                     # the demo's model, batch 1 and 4
    python benchmarks/compiled.py --backend inductor  # compiled, too: some minutes more

Ratios of one run, best of ``--repeats``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

import relprop
from relprop.demo.model import digit_scene_model


def best(call: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest call, after two."""
    call(), call()
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--backend", help="of torch.compile")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = digit_scene_model()
    example = torch.rand(2, 1, 32, 32)
    calls = {"explain": lambda x: relprop.explain(model, x, 3)}
    for name, ledger in (("flat", False), ("flat, with books", True)):
        calls[name] = lambda x, run=relprop.compile(model, example, ledger=ledger): run(x, 3)
    if given.backend:
        compiled = relprop.compile(model, example, backend=given.backend)
        calls[f"flat, {given.backend}"] = lambda x: compiled(x, 3)
    for batch in (1, 4):
        pictures = torch.rand(batch, 1, 32, 32)
        with torch.no_grad():
            forward = best(lambda x=pictures: model(x), given.repeats)
        for name, call in calls.items():
            ratio = best(lambda x=pictures, call=call: call(x), given.repeats) / forward
            print(f"batch {batch}  {name:20s} {ratio:6.1f} × forward", flush=True)


if __name__ == "__main__":
    main()
