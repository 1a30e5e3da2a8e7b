"""What an explanation costs, in forward passes of the same batch: FLOPs, time, peak memory, and the
one-time capture.

    python benchmarks/cost.py                 # ViT-B/16 at 224², seeded random weights; about 3
    minutes on two cores python benchmarks/cost.py --model vit_tiny_patch16_224 --batches 1 8
    --device cuda

Everything is a ratio taken in one run on one machine. FLOPs are exact counts of matrix products and
convolutions (``torch.utils.flop_counter``); capture and the once-per-plan check are not in them,
and are reported apart. Peak memory on CPU is the growth of the process's resident set, each variant
in a process of its own whose allocator returns what is freed (glibc keeps most of it otherwise, and
one would measure that); on CUDA it is the allocator's peak.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import timm
import torch
from counting import flops

import relprop


def build(name: str, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False).eval().to(device)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def seconds(call: Callable[[], object], repeats: int, device: str) -> float:
    """The median of ``repeats``: of CPU time, which others on the machine change little, or of what
    passes until a GPU is done."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    times = []
    for _ in range(repeats):
        begin = clock()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(clock() - begin)
    return statistics.median(times)


def variants(model: torch.nn.Module, x: torch.Tensor) -> dict[str, Callable[[], object]]:
    def forward() -> object:
        with torch.no_grad():
            return model(x)

    def backward() -> object:
        leaf = x.clone().requires_grad_()
        model(leaf)[:, 0].sum().backward()
        return leaf.grad

    return {
        "forward": forward,
        "forward + input gradient": backward,
        "transformer_attribution": lambda: relprop.explain(model, x, 0),
        "transformer_attribution, memory=0": lambda: relprop.explain(model, x, 0, memory=0),
        "transformer_attribution, all rows of C": lambda: relprop.explain(
            model, x, 0, keep="matrix"
        ),
        "rollout": lambda: relprop.explain(model, x, 0, method="rollout"),
        "attention gradients, no relevance": lambda: relprop.explain(
            model, x, 0, method="rollout", keep="blocks"
        ),
    }


def memory(name: str, device: str, batch: int, variant: str) -> float:
    """Peak memory of one variant in MiB above the idle model, measured in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "--model",
        name,
        "--device",
        device,
        "--batches",
        str(batch),
        "--measure-memory",
        variant,
    ]
    returning = {
        **os.environ,
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "MALLOC_ARENA_MAX": "1",
    }
    return json.loads(
        subprocess.run(
            command, check=True, capture_output=True, text=True, env=returning
        ).stdout.splitlines()[-1]
    )


def measure_memory(name: str, device: str, batch: int, variant: str) -> float:
    model, x = build(name, device), torch.rand(batch, 3, 224, 224, device=device)
    calls = variants(model, x)
    calls["forward"]()
    calls[variant]()  # captures the model and checks the capture, once
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        calls[variant]()
        return (torch.cuda.max_memory_allocated() - base) / 2**20
    import psutil

    process, peak, done = psutil.Process(), [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            peak[0] = max(peak[0], process.memory_info().rss)
            time.sleep(0.002)

    base = process.memory_info().rss
    watcher = threading.Thread(target=watch)
    watcher.start()
    calls[variant]()
    done.set()
    watcher.join()
    return (peak[0] - base) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="vit_base_patch16_224")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--skip-memory", action="store_true")
    parser.add_argument("--measure-memory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.measure_memory:
        print(
            json.dumps(
                measure_memory(
                    options.model, options.device, options.batches[0], options.measure_memory
                )
            )
        )
        return
    model = build(options.model, options.device)
    print(
        f"{options.model}, {options.device}, {options.threads} thread(s), torch "
        f"{torch.__version__}, seeded random weights; all figures × one forward pass"
    )
    for batch in options.batches:
        x = torch.rand(batch, 3, 224, 224, device=options.device)
        model = build(options.model, options.device)  # a fresh one: capture is not yet cached
        calls = variants(model, x)
        calls["forward"]()
        capture = seconds(lambda x=x, model=model: relprop.trace(model, x), 1, options.device)
        calls["transformer_attribution"]()
        base_flops, base_seconds = (
            flops(calls["forward"]),
            seconds(calls["forward"], options.repeats, options.device),
        )
        base_memory = (
            0.0
            if options.skip_memory
            else memory(options.model, options.device, batch, "forward + input gradient")
        )
        print(
            f"\nbatch {batch}: forward {base_seconds:.3f} s, {base_flops / 1e9:.1f} "
            f"GFLOP; capture and check once: {capture / base_seconds:.1f} forwards"
        )
        print(f"  {'':<36}{'FLOPs':>8}{'time':>8}{'peak memory (× forward + input gradient)':>44}")
        for name, call in calls.items():
            measured = not options.skip_memory and (
                name == "forward" or name.startswith("transformer_attribution")
            )
            used = (
                f"{memory(options.model, options.device, batch, name) / max(base_memory, 1e-9):.2f}"
                if measured
                else ""
            )
            print(
                f"  {name:<36}{flops(call) / base_flops:>8.2f}{seconds(call, options.repeats, options.device) / base_seconds:>8.2f}{used:>44}",  # noqa: E501
                flush=True,
            )


if __name__ == "__main__":
    main()
