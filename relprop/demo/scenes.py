"""Digit scenes: a small, real, multi-label vision problem whose right answer is known pixel by
pixel.

Two different handwritten digits (8×8, 1,797 of them: UCI's optical recognition of handwritten
digits, by E. Alpaydin and C. Kaynak, 1998, CC BY 4.0, as scikit-learn bundles them) are doubled to
16×16 and placed without overlap on a 4-pixel grid in a 32×32 scene, among noise. Because
the place of each digit is known, "does the explanation of class 3 fall on the 3, and not on the 8
beside it?" is a measurement. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

DIGITS = Path(__file__).with_name("digits.safetensors")
SCENE, DIGIT, GRID, CLASSES = 32, 16, 4, 10
# what the noise adds to a pixel at most (speckles aside); a pixel with more ink than that is the
# digit's
NOISE = 0.25


def as_scene(picture: Any) -> Tensor:
    """A PIL picture as the shipped digit model reads it: grey, (1, 32, 32), in [0, 1]."""
    import numpy as np
    from PIL import Image

    grey = picture.convert("L").resize((SCENE, SCENE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(grey, copy=True)).float().div(255)[None]


@dataclass(frozen=True)
class Scenes:
    """A batch of scenes: ``images`` (n, 1, 32, 32) in [0, 1]; ``digits`` (n, 2) the two classes;
    ``corners`` (n, 2, 2) their top-left (row, column); ``ink`` (n, 2, 32, 32) each digit alone,
    before the noise."""

    images: Tensor
    digits: Tensor
    corners: Tensor
    ink: Tensor

    def mask(self, which: int) -> Tensor:
        """Where digit number ``which`` (0 or 1) of each scene stands, (n, 32, 32), bool."""
        row, column = self.corners[:, which, 0, None, None], self.corners[:, which, 1, None, None]
        y, x = torch.arange(SCENE)[None, :, None], torch.arange(SCENE)[None, None, :]
        return (y >= row) & (y < row + DIGIT) & (x >= column) & (x < column + DIGIT)

    def pixels(self, which: int) -> Tensor:
        """The pixels of digit number ``which`` (0 or 1) itself, (n, 32, 32), bool: those with more
        ink than the noise can add, 0.25 of full ink."""
        return self.ink[:, which] > NOISE


@lru_cache(maxsize=2)
def digit_bank(held_out: bool) -> tuple[Tensor, Tensor]:
    """The digits used for training, or the 297 never seen in training: images (n, 1, 8, 8) in [0,
    1] and classes (n,)."""
    from safetensors.torch import load_file

    part, data = "held_out" if held_out else "training", load_file(DIGITS)
    return data[f"{part}.images"].float() / 16, data[f"{part}.classes"].long()


def _place(n: int, generator: torch.Generator) -> Tensor:
    """Top-left corners of two boxes that do not overlap: they differ by a whole box along one axis,
    and are free along the other."""
    steps = (SCENE - DIGIT) // GRID + 1
    corners = torch.randint(steps, (n, 2, 2), generator=generator) * GRID
    axis = torch.randint(2, (n,), generator=generator)
    first = torch.randint(2, (n,), generator=generator) * DIGIT
    rows = torch.arange(n)
    corners[rows, 0, axis], corners[rows, 1, axis] = first, DIGIT - first
    return corners


def enlarged(small: Tensor, theta: Tensor) -> Tensor:
    """8×8 digits (n, 1, 8, 8) doubled to 16×16, moved by the affine maps ``theta`` (n, 2, 3)."""
    grid = F.affine_grid(theta, [len(small), 1, DIGIT, DIGIT], align_corners=False)
    return F.grid_sample(small, grid, align_corners=False)


def _as_they_are(small: Tensor, generator: torch.Generator) -> Tensor:
    return enlarged(small, torch.eye(2, 3).repeat(len(small), 1, 1))


def make_scenes(
    n: int,
    *,
    seed: int,
    held_out: bool = True,
    enlarge: Callable[[Tensor, torch.Generator], Tensor] = _as_they_are,
) -> Scenes:
    """``n`` scenes drawn from ``seed``, of held-out digits unless ``held_out=False``. ``enlarge``:
    how 8×8 digits are drawn at 16×16."""
    generator = torch.Generator().manual_seed(seed)
    bank, classes = digit_bank(held_out)
    scores = torch.rand(n, CLASSES, generator=generator)
    digits = scores.topk(2).indices
    draw = torch.rand(n, 2, len(classes), generator=generator)
    chosen = draw.masked_fill(classes != digits[..., None], -1.0).argmax(-1)
    corners = _place(n, generator)
    large = enlarge(bank[chosen.flatten()], generator).unflatten(0, (n, 2))[:, :, 0]
    ink = torch.zeros(n, 2, SCENE, SCENE)
    scene = torch.arange(n)[:, None, None]
    inside = torch.arange(DIGIT)
    for which in range(2):
        rows = corners[:, which, 0, None, None] + inside[None, :, None]
        columns = corners[:, which, 1, None, None] + inside[None, None, :]
        ink[scene, which, rows, columns] = large[:, which]
    noise, where, speckles = (torch.rand(n, 1, SCENE, SCENE, generator=generator) for _ in range(3))
    drawn = ink.sum(1, keepdim=True) + noise * NOISE + (where < 0.03) * speckles
    return Scenes(drawn.clamp(0, 1), digits, corners, ink)
