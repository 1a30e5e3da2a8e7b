"""Two photographs side by side in one picture: why is its embedding like the one's rather than like
the other's?

The question is a contrast of two cosines, asked of a self-supervised vision transformer (DINOv2)
about an embedding: the class token behind the last norm. The truth is the half with the photograph
asked for. Both photographs are asked for in each picture, so that a map which does not depend on
the question has half of its heat right, however it prefers a side. Compositions whose cosine with
one of their photographs is below 0.5 are left out: the model does not see that photograph in them.

A third photograph that is not in the picture is asked for as well: no half is right then.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn import functional as F

import relprop
from examples.dinov2 import PATCH, dinov2, normalised
from examples.photographs_asked import NAMES, Question, cut, embeddings, photograph
from relprop.errors import RelpropError, first_line
from tools.known_answers.rows import FLOORS, METHODS, noise, share, steadiness
from tools.known_answers.study import Column, Value

SIDE = 112  # pixels of a half: 8 x 8 patches
LEAST = 0.5
EXTRA = 22
FIRST = 10
REMOVED = 0.2
DRAWS = 5
TRUTH = "the half"
DEAR = {"integrated_gradients": "too dear: 6 s a sample with 20 steps"}
#: Methods whose map does not ask for a sign: "both ways" is not defined.
EVEN = ("rollout", "raw_attention", "partial_lrp", "lrp", "input_gradient")
#: Outlines of what a photograph is of, drawn by hand in its own pixels: (x, y) of corners.
OUTLINES: dict[str, tuple[tuple[int, int], ...]] = {
    "astronaut": (
        *((153, 71), (181, 24), (236, 16), (291, 39), (307, 87), (291, 142), (268, 158)),
        *((307, 205), (315, 236), (354, 299), (359, 365), (299, 386), (280, 457), (276, 511)),
        *((71, 511), (19, 488), (39, 425), (19, 331), (55, 260), (118, 213), (123, 165)),
        *((173, 150), (154, 110)),
    ),
    "cameraman": (
        *((165, 87), (197, 63), (236, 71), (268, 118), (323, 126), (328, 173), (300, 189)),
        *((296, 240), (280, 305), (225, 295), (157, 394), (153, 511), (0, 511), (0, 299)),
        *((24, 236), (79, 173), (165, 157)),
    ),
    "cat": (
        *((20, 60), (60, 0), (385, 0), (395, 110), (360, 200), (300, 262), (170, 275), (60, 240)),
        *((15, 160),),
    ),
    "coffee": (
        *((175, 60), (200, 25), (280, 10), (360, 20), (420, 50), (430, 110), (475, 190)),
        *((470, 270), (410, 350), (300, 395), (180, 370), (95, 290), (75, 210), (110, 130)),
        *((165, 110),),
    ),
    "flower": tuple(
        (round(308 + 138 * math.cos(k * math.pi / 8)), round(224 + 138 * math.sin(k * math.pi / 8)))
        for k in range(16)
    ),
    "motorcycle": (
        *((120, 185), (190, 155), (290, 165), (390, 140), (420, 85), (520, 75), (560, 130)),
        *((640, 210), (690, 350), (660, 450), (590, 440), (520, 350), (420, 400), (270, 420)),
        *((160, 430), (80, 370), (70, 300), (110, 240)),
    ),
    "pagoda": (
        *((201, 24), (213, 59), (276, 108), (325, 122), (291, 142), (295, 167), (325, 173)),
        *((295, 197), (295, 226), (325, 232), (339, 256), (335, 285), (364, 325), (339, 339)),
        *((345, 388), (207, 388), (75, 358), (79, 315), (65, 266), (89, 246), (89, 187)),
        *((102, 158), (98, 118), (148, 89), (193, 59)),
    ),
    "rocket": ((312, 130), (324, 110), (336, 130), (342, 425), (306, 425)),
}
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Composition:
    """Two photographs side by side, and one that is not there; of each the square that is cut out
    of it."""

    names: tuple[str, str, str]
    boxes: tuple[Box, Box, Box]

    @property
    def parts(self) -> Tensor:
        """(3, 3, SIDE, SIDE) in [0, 1]: left, right, absent."""
        named = zip(self.names, self.boxes, strict=True)
        return torch.stack([cut(photograph(name), box, SIDE) for name, box in named])

    def object(self, half: int) -> Tensor | None:
        """How much of each patch of a half is the thing that the photograph is of, (8, 8)."""
        if (outline := OUTLINES.get(self.names[half])) is None:
            return None
        drawn = Image.new("L", photograph(self.names[half]).size)
        ImageDraw.Draw(drawn).polygon(outline, fill=255)
        found: Tensor = F.avg_pool2d(cut(drawn, self.boxes[half], SIDE), PATCH)[0]
        return found


def side_by_side(parts: Tensor) -> Tensor:
    """The first two of some pictures as one, (1, 3, height, 2 width)."""
    return torch.cat([parts[0], parts[1]], -1)[None]


def box(size: tuple[int, int], drawn: random.Random) -> Box:
    """A square of a picture, its side 0.8 to 1 of the picture's shorter one."""
    side = int(min(size) * drawn.uniform(0.8, 1))
    left, top = drawn.randint(0, size[0] - side), drawn.randint(0, size[1] - side)
    return left, top, left + side, top + side


def drawn_compositions(seed: int) -> Iterator[Composition]:
    """Without end: every ordered pair of photographs once, in an order drawn by chance, then again
    with other squares."""
    drawn = random.Random(seed)
    sizes = {name: photograph(name).size for name in NAMES}
    while True:
        for pair in drawn.sample([*itertools.permutations(NAMES, 2)], len(NAMES) ** 2 - len(NAMES)):
            absent = drawn.choice([name for name in NAMES if name not in pair])
            names = (*pair, absent)
            one, two, three = (box(sizes[name], drawn) for name in names)
            yield Composition(names, (one, two, three))


def patches(explanation: Any) -> Tensor:
    """A map with one score per patch, (height, width) in patches; scores of pixels are summed."""
    height, width = explanation.grid
    scores = explanation.scores[0, -height * width :].detach().double().reshape(height, width)
    size = height // (SIDE // PATCH)
    return scores.reshape(height // size, size, width // size, size).sum((1, 3))


def half(which: int, like: Tensor) -> Tensor:
    """A half of a map, bool: 0 the left one, 1 the right one."""
    left = torch.arange(like.shape[-1]) < like.shape[-1] // 2
    return (left if which == 0 else ~left).expand(like.shape)


def on_object(scores: Tensor, covered: Tensor) -> float:
    """The positive heat's share on an object, divided by the share of the area that it covers; NaN
    where nothing is positive, or the object is not there. Both of one half, (height, width)."""
    positive = scores.clamp(min=0)
    if not (positive.sum() > 0 and covered.sum() > 0):
        return math.nan
    return float((positive * covered).sum() / positive.sum() / covered.mean())


def without(picture: Tensor, gone: Tensor) -> Tensor:
    """A picture (1, 3, height, width) with its mean colour on some patches (height, width, bool of
    patches)."""
    pixels = gone.repeat_interleave(PATCH, 0).repeat_interleave(PATCH, 1)
    return torch.where(pixels, picture.mean((2, 3), keepdim=True), picture)


def best(scores: Tensor) -> Tensor:
    """The patches with the largest scores, bool."""
    order = scores.flatten().argsort(descending=True, stable=True)
    chosen = torch.zeros(scores.numel(), dtype=torch.bool)
    chosen[order[: round(REMOVED * scores.numel())]] = True
    return chosen.reshape(scores.shape)


@dataclass
class Pictures:
    """The study. A unit is a composition; its samples are the two questions."""

    count: int = 60
    seed: int = 14
    name: ClassVar[str] = "pictures"
    title: ClassVar[str] = "Two photographs in one picture (DINOv2): the one asked for"
    units: ClassVar[str] = "compositions"
    samples: ClassVar[str] = "questions"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("share", True, 100),
        Column("both ways", True, 100),
        Column("mask share", True),
        Column("third photograph", True, 100),
        Column("deletion", True),
        Column("random weights", False),
        Column("stability", False),
        Column("seconds", False),
    )

    def __post_init__(self) -> None:
        self.refused: dict[str, str] = dict(DEAR)
        self.asked = [Question() for _ in range(3)]
        self.methods: dict[str, Mapping[str, Any]] = METHODS | {
            "gradcam_features": {"method": "gradcam_features"},
        }

    @property
    def rows(self) -> tuple[str, ...]:
        return (*self.methods, *DEAR, *FLOORS, "position", TRUTH)

    @cached_property
    def model(self) -> Any:
        return dinov2()

    @cached_property
    def double(self) -> Any:
        return dinov2().double()

    @cached_property
    def untrained(self) -> Any:
        """The same architecture with weights drawn anew."""
        from transformers import Dinov2Model

        torch.manual_seed(0)
        return Dinov2Model(self.model.config).eval()

    @cached_property
    def drawn(self) -> tuple[list[Composition], int]:
        """The compositions, and how many were left out."""
        kept: list[Composition] = []
        for tried, composition in enumerate(drawn_compositions(self.seed)):
            if len(kept) == self.count:
                return kept, tried - self.count
            parts = composition.parts[:2]
            cosines = embeddings(self.model, side_by_side(parts)) @ embeddings(self.model, parts).T
            if cosines.min() >= LEAST:
                kept.append(composition)
        raise AssertionError

    def __len__(self) -> int:
        return self.count

    def key(self, unit: int) -> str:
        return " | ".join(self.drawn[0][unit].names[:2])

    def identity(self) -> dict[str, Any]:
        counts = {"count": self.count, "seed": self.seed, "side": SIDE, "extra": EXTRA}
        return {**counts, "rows": list(self.rows)}

    def __call__(self, unit: int) -> list[Value]:
        composition = self.drawn[0][unit]
        names, parts = composition.names, composition.parts
        found: list[Value] = []
        for row, maps, seconds in self.maps(parts, unit):
            if unit:  # the first one has the capture in it
                found.append(Value("", row, "seconds", seconds))
            shares = [share(m, half(k, m)) for k, m in enumerate(maps[:2])]
            for k, scores in enumerate(maps[:2]):
                covered = composition.object(k)
                inside = scores.chunk(2, -1)[k]
                ratio = math.nan if covered is None else on_object(inside, covered)
                found.append(Value(names[k], row, "share", shares[k]))
                found.append(Value(names[k], row, "mask share", ratio))
            if row in self.methods:
                both = math.nan if row in EVEN else float(min(shares) > 0.5)
                found.append(Value("", row, "both ways", both))
            if len(maps) == 3:
                left = share(maps[2], half(0, maps[2]))
                found.append(Value(names[2], row, "third photograph", left))
            if unit < EXTRA:
                for k, fall in enumerate(self.falls(parts, maps, unit)):
                    found.append(Value(names[k], row, "deletion", fall))
            if unit < FIRST and row in self.methods:
                found += self.checked(row, parts, maps[0])
        return found

    def explained(self, model: Any, row: str, parts: Tensor, questions: int) -> list[Tensor]:
        """Maps of the first of three questions: why the left photograph, why the right one, why the
        absent one?"""
        own = embeddings(model, parts)
        others = own[[1]], own[[0]], own[:2]
        asked = [q.about(own[k], others[k]) for k, q in enumerate(self.asked[:questions])]
        inputs = normalised(side_by_side(parts))
        many = relprop.explain_many(model, inputs, asked, progress=False, **self.methods[row])
        return [patches(explanation) for explanation in many]

    def maps(self, parts: Tensor, unit: int) -> Iterator[tuple[str, list[Tensor], float]]:
        """Of each row its maps of the two questions and, of the first units, of the third, and
        seconds per question."""
        questions = 3 if unit < EXTRA else 2
        for row in self.methods:
            if row in self.refused:
                continue
            start = time.process_time()
            try:
                maps = self.explained(self.model, row, parts, questions)
            except RelpropError as error:
                self.refused[row] = first_line(error)
                continue
            yield row, maps, (time.process_time() - start) / len(maps)
        high = SIDE // PATCH
        uniform = torch.ones(high, 2 * high, dtype=torch.float64)
        yield "uniform", [uniform] * questions, math.nan
        yield "random", [noise(unit, high, 2 * high).double()] * questions, math.nan
        across, down = (torch.linspace(-1, 1, n, dtype=torch.float64) for n in (2 * high, high))
        yield "position", [2 - down[:, None] ** 2 - across**2] * questions, math.nan
        yield TRUTH, [half(k, uniform).double() for k in (0, 1)], math.nan

    def falls(self, parts: Tensor, maps: list[Tensor], unit: int) -> list[float]:
        """What both contrasts lose when the best fifth of the patches takes the picture's mean
        colour, less what they lose, on average, with fifths drawn by chance."""
        picture = side_by_side(parts)
        drawn = [noise(1000 * unit + k, *maps[0].shape) for k in range(DRAWS)]
        made = torch.cat([without(picture, best(m)) for m in (*maps[:2], *drawn)])
        left, right = embeddings(self.model, parts[:2])
        contrasts = embeddings(self.model, made) @ (left - right)
        chance = contrasts[2:].mean()
        return [float(chance - contrasts[0]), float(contrasts[1] - chance)]

    def checked(self, row: str, parts: Tensor, scores: Tensor) -> Iterator[Value]:
        """How like the map is to that of a model with random weights, and how unlike to that of a
        model in float64."""
        drawn = self.explained(self.untrained, row, parts, 1)[0]
        exact = self.explained(self.double, row, parts.double(), 1)[0]
        for column, number in steadiness(scores, drawn, exact):
            yield Value("", row, column, number)
