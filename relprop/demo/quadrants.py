"""Quadrant pictures: four coloured discs, one in each quarter of a picture, and a question that
names one colour. The answer is where that disc is ("top left"), so that it is known which part of
the picture an answer rests on. Nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE, HALF = 32, 16
COLOURS = {
    "red": (0.9, 0.1, 0.1),
    "green": (0.1, 0.7, 0.1),
    "blue": (0.1, 0.2, 0.9),
    "yellow": (0.9, 0.9, 0.1),
    "cyan": (0.1, 0.8, 0.9),
    "magenta": (0.9, 0.1, 0.9),
}
ANSWERS = ("top left", "top right", "bottom left", "bottom right")
QUESTIONS = (
    "where is the {} disc ?",
    "in which corner is the {} disc ?",
    "find the {} disc .",
)


@dataclass(frozen=True)
class Quadrants:
    """A batch of pictures with a question each. ``images`` (n, 3, 32, 32) in [0, 1]; ``discs``
    (n, 4, 32, 32), bool: each quarter's disc, quarters in reading order; ``colours`` (n, 4): which
    of ``COLOURS`` each disc has, four different ones; ``asked`` (n,): the quarter whose colour the
    question names; ``forms`` (n,): which of ``QUESTIONS`` it is."""

    images: Tensor
    discs: Tensor
    colours: Tensor
    asked: Tensor
    forms: Tensor

    @property
    def questions(self) -> list[str]:
        """Each picture's question."""
        names, named = list(COLOURS), self.colours.gather(1, self.asked[:, None])[:, 0]
        both = zip(self.forms.tolist(), named.tolist(), strict=True)
        return [QUESTIONS[form].format(names[colour]) for form, colour in both]

    @property
    def answers(self) -> list[str]:
        """Each question's answer, two words."""
        return [ANSWERS[quarter] for quarter in self.asked.tolist()]

    @property
    def quarters(self) -> Tensor:
        """The quarter of the picture that the answer names, (n, 32, 32), bool."""
        below = torch.arange(SIDE) >= HALF
        row, column = (self.asked // 2)[:, None, None], (self.asked % 2)[:, None, None]
        return (below[:, None] == row) & (below == column)

    def pictures(self) -> list[Image]:
        """The pictures as PIL images."""
        from PIL import Image

        pixels = (self.images * 255).round().byte().movedim(1, -1).numpy()
        return [Image.fromarray(one) for one in pixels]


def make_quadrants(n: int, *, seed: int, others: int = 3) -> Quadrants:
    """``n`` pictures and questions drawn from ``seed``: discs of a radius of 4 to 6 pixels inside
    their quarters, colours that vary, on a noisy ground. ``others``: how many discs there are
    beside the one asked for."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(n, *shape, generator=generator)

    colours = uniform(len(COLOURS)).topk(4).indices
    radius = 4 + 2 * uniform(4)
    middle = radius[..., None] + uniform(4, 2) * (HALF - 2 * radius[..., None])
    corner = torch.tensor([[0, 0], [0, HALF], [HALF, 0], [HALF, HALF]])
    apart = torch.arange(SIDE) + 0.5 - (middle + corner)[..., None]  # (n, 4, 2, 32)
    squared = apart[:, :, 0, :, None] ** 2 + apart[:, :, 1, None, :] ** 2
    discs = squared <= radius[..., None, None] ** 2
    asked = torch.randint(4, (n,), generator=generator)
    forms = torch.randint(len(QUESTIONS), (n,), generator=generator)
    order = uniform(4).scatter(1, asked[:, None], 2.0).argsort(1, descending=True).argsort(1)
    discs &= (order <= others)[..., None, None]
    paint = torch.tensor(list(COLOURS.values()))[colours] + 0.2 * (uniform(4, 3) - 0.5)
    ground = (0.2 + 0.5 * uniform(1, 1, 1)).expand(n, 3, SIDE, SIDE)
    drawn = torch.einsum("nqhw,nqc->nchw", discs.float(), paint)
    noise = 0.2 * (uniform(3, SIDE, SIDE) - 0.5)
    images = torch.where(discs.any(1)[:, None], drawn, ground) + noise
    return Quadrants(images.clamp(0, 1), discs, colours, asked, forms)
