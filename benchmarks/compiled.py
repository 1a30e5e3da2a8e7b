"""What a compiled explainer costs: CPU time ÷ that of the model's own forward pass, on one thread.

    python benchmarks/compiled.py                                     # the demo's model
    python benchmarks/compiled.py --backend inductor --ahead-of-time  # compiled, too: some minutes
    python benchmarks/compiled.py --model vit --backend inductor      # ViT-B/16: half an hour
    python benchmarks/compiled.py --saved                             # files of a ViT-Tiny

Ratios of one run, medians of ``--repeats``. By default an explainer looks at each call whether its
model was changed, which has a row of its own; all others are with ``verify=False``. With a backend
the forward pass that it compiles is measured, too, and what it compiles is also given as a multiple
of that.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import relprop

Call = Callable[[Tensor], Any]
METHODS = ("transformer_attribution", "attnlrp")


def demo() -> tuple[nn.Module, tuple[int, ...]]:
    from relprop.demo.model import digit_scene_model

    return digit_scene_model(), (1, 32, 32)


def vit() -> tuple[nn.Module, tuple[int, ...]]:
    import timm

    return timm.create_model("vit_base_patch16_224").eval(), (3, 224, 224)


MODELS = {"demo": demo, "vit": vit}


def seconds(call: Call, pictures: Tensor, repeats: int) -> float:
    """CPU time of a call, the median of several after two."""
    found = []
    for _ in range(repeats + 2):
        begin = time.process_time()
        call(pictures)
        found.append(time.process_time() - begin)
    return statistics.median(found[2:])


def calls(model: nn.Module, example: Tensor, given: argparse.Namespace) -> Iterator[Any]:
    """What is measured: a name, whether it is compiled, and the call."""
    for method in METHODS:
        how: dict[str, Any] = {"method": method}
        yield f"{method}, explain", False, lambda x, how=how: relprop.explain(model, x, 3, **how)
        checked = relprop.compile(model, example, **how)
        yield f"{method}, flat, verify=True", False, lambda x, flat=checked: flat(x, 3)
        for ledger in (False, True):
            flat = relprop.compile(model, example, ledger=ledger, verify=False, **how)
            name = f"{method}, flat" + ", with a ledger" * ledger
            yield name, False, lambda x, flat=flat: flat(x, 3)
            if ledger:
                continue
            if given.backend:
                made = relprop.compile(model, example, verify=False, backend=given.backend, **how)
                yield f"{name}, {given.backend}", True, lambda x, made=made: made(x, 3)
            if given.ahead_of_time:
                path = Path(tempfile.mkdtemp()) / "explainer.pt2"
                read = relprop.load_explainer(flat.save(path, ahead_of_time=True))
                yield f"{name}, ahead of time", True, lambda x, read=read: read(x, 3)


def saved() -> None:
    """CPU seconds to make, save and read an explainer of a ViT-Tiny, and its files' sizes."""
    import timm

    def timed(call: Callable[[], Any]) -> tuple[Any, float]:
        began = time.process_time()
        return call(), time.process_time() - began

    model, x = timm.create_model("vit_tiny_patch16_224").eval(), torch.randn(1, 3, 224, 224)
    explainer, made = timed(lambda: relprop.compile(model, x, 1))
    with torch.no_grad():
        forward = seconds(model, x, 5)
    print(f"forward pass {forward:.2f} s, compile {made:.1f} s")
    for ending in (".safetensors", ".pt2"):
        path = Path(tempfile.mkdtemp()) / f"explainer{ending}"
        _, written = timed(lambda path=path: explainer.save(path))  # type: ignore[misc]
        loaded, read = timed(lambda path=path: relprop.load_explainer(path))  # type: ignore[misc]
        call = seconds(lambda x, loaded=loaded: loaded(x, 1), x, 5)  # type: ignore[misc]
        size = path.stat().st_size / 1e6
        print(f"{ending}: save {written:.1f}, load {read:.1f}, call {call:.2f} s, {size:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--saved", action="store_true", help="files, and how long they take")
    parser.add_argument("--model", choices=MODELS, default="demo")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--backend", help="of torch.compile")
    parser.add_argument("--ahead-of-time", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if given.saved:
        return saved()
    model, size = MODELS[given.model]()
    batches = {n: torch.rand(n, *size) for n in given.batches}

    def measured(call: Call) -> dict[int, float]:
        return {n: seconds(call, x, given.repeats) for n, x in batches.items()}

    with torch.no_grad():
        forward = measured(model)
        fast = measured(torch.compile(model, backend=given.backend)) if given.backend else forward
    if given.backend:
        print_row(f"forward, {given.backend}", fast, forward)
    for name, compiled, call in calls(model, torch.rand(2, *size), given):
        found = measured(call)
        print_row(name, found, forward)
        if compiled and given.backend:
            print_row(f"{name} ÷ compiled forward", found, fast)


def print_row(name: str, found: dict[int, float], base: dict[int, float]) -> None:
    """A call as multiples of another, by batch."""
    ratios = "   ".join(f"batch {n} {t / base[n]:7.2f} ×" for n, t in found.items())
    print(f"{name:68s} {ratios}", flush=True)


if __name__ == "__main__":
    main()
