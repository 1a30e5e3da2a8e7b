"""Why some orders in docs/evaluation.md differ from the papers': two experiments on digit scenes.

    python benchmarks/evaluation_causes.py --scenes 100      # about 2 minutes on one core

1. Maps of pixels against the same maps as means over the model's patches: perturbation removes
   single pixels, and finer maps can choose among them.
2. Segmentation of *both* digits, of which a map that knows no class has both, against that of the
   explained one.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import avg_pool2d

import relprop
from relprop.data import Sample
from relprop.evaluation import ImageTask, digit_scenes, evaluate

PATCH = 4
PIXELS = ("attnlrp", "gradient_x_input", "lrp")
METHODS = ("rollout", "raw_attention", "gradcam", "partial_lrp", "transformer_attribution")


def by_patches(method: str) -> tuple[str, Callable[..., torch.Tensor]]:
    """The method's heat map, meaned over the model's patches."""

    def coarse(model: torch.nn.Module, images: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return avg_pool2d(
            relprop.explain(model, images, target, method=method).heatmap()[:, None], PATCH
        )[:, 0]

    return f"{method}, meaned over patches", coarse


class BothDigits:
    """Digit scenes whose mask has the pixels of both digits."""

    kind, labels = "image", None

    def __init__(self, source: Any) -> None:
        self.source, self.name = source, "both digits"

    def identity(self) -> dict[str, Any]:
        return {"both digits of": self.source.identity()}

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Sample:
        scenes = self.source.scenes
        return dataclasses.replace(
            self.source[index], mask=(scenes.pixels(0)[index] | scenes.pixels(1)[index]).int()
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenes", type=int, default=100)
    options = parser.parse_args()
    task = digit_scenes(options.scenes)
    print(
        evaluate(
            task,
            [row for name in PIXELS for row in (name, by_patches(name))],
            title="Pixels and patches",
        ),
        "\n",
    )
    print(
        evaluate(
            ImageTask(task.model, task.source, ("segmentation",)),
            METHODS,
            title="The explained digit",
        ),
        "\n",
    )
    print(
        evaluate(
            ImageTask(task.model, BothDigits(task.source), ("segmentation",)),
            METHODS,
            title="Both digits",
        )
    )


if __name__ == "__main__":
    main()
