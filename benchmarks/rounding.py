"""How much of a map is rounding: rank correlation of float32 with float64, for ``paper`` and
``stable``.

python benchmarks/rounding.py                 # ViT-Base with seeded random weights, and the
shipped trained model
"""

from __future__ import annotations

import argparse

import timm
import torch

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes


def row(name: str, model: torch.nn.Module, x: torch.Tensor) -> None:
    for rules in ("paper", "stable"):
        values = relprop.rounding_stability(model, x, rules=rules, batch_size=8)
        print(
            f"{name:<44}{rules:<10}{values.mean():>10.5f}{values.min():>10.5f}{len(values):>10}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--scenes", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"torch {torch.__version__}; Spearman's rank correlation of the content tokens' "
        "scores, float32 against float64, predicted class"
    )
    print(f"{'model':<44}{'rules':<10}{'mean':>10}{'lowest':>10}{'samples':>10}")
    images = torch.randn(options.images, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    row(
        "ViT-Base, random weights (timm default init)",
        timm.create_model("vit_base_patch16_224", pretrained=False).eval(),
        images,
    )
    torch.manual_seed(0)
    model = timm.create_model("vit_base_patch16_224", pretrained=False).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1 and "embed" not in name:
                torch.nn.init.normal_(p, std=p.shape[1] ** -0.5)
    row("ViT-Base, random weights (std 1/sqrt(fan-in))", model, images)
    row(
        "digit scenes, the shipped trained model",
        digit_scene_model(),
        make_scenes(options.scenes, seed=30_000_001).images,
    )


if __name__ == "__main__":
    main()
