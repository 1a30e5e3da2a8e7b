"""What each method costs, in forward passes of the same picture: FLOPs and time of the first
target, and of one more.

    python benchmarks/methods.py    # ViT-S/16 at 112² (50 tokens), seeded random weights; about 5
                                    # minutes on two cores
    python benchmarks/methods.py --model vit_base_patch16_224 --size 224 --methods rollout gae

Ratios of one run on one machine. FLOPs are exact counts of matrix products and convolutions
(``torch.utils.flop_counter``) of a call whose model is captured already, with
``verify=False``; methods that only sort, sum or run max-flows cost more time than FLOPs. A further
target shares the forward pass (``explain_many``).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import timm
import torch
from counting import flops

import relprop


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument(
        "--methods",
        nargs="*",
        default=[m for m in relprop.methods.METHODS if m != "attention_flow"],
    )
    settings = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = timm.create_model(settings.model, img_size=settings.size).eval().requires_grad_(False)
    x = torch.rand(1, 3, settings.size, settings.size)

    def forward() -> object:
        with torch.no_grad():
            return model(x)

    forward()
    one, duration = flops(forward), min(seconds(forward) for _ in range(5))
    print(
        f"{settings.model} at {settings.size}²: one forward pass is {one / 1e9:.2f} "
        f"GFLOPs; torch {torch.__version__}"
    )
    print(
        f"{'method':<24} {'first target':>14} {'further':>10} {'time, first':>14} {'further':>10}"
    )
    for name in settings.methods:

        def explain(targets: list[int], name: str = name) -> object:
            return relprop.explain_many(model, x, targets, method=name, verify=False)

        explain([0])
        first, both = (
            flops(lambda explain=explain: explain([0])),
            flops(lambda explain=explain: explain([0, 1])),
        )
        alone, two = (
            min(seconds(lambda explain=explain, t=t: explain(t)) for _ in range(2))
            for t in ([0], [0, 1])
        )
        print(
            (
                f"{name:<24} {first / one:>14.2f} {(both - first) / one:>10.2f} "
                f"{alone / duration:>14.1f} {(two - alone) / duration:>10.1f}"
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
