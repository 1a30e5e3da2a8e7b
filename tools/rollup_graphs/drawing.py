"""Draws: a recipe by its number, its module, and both rows."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from random import Random
from typing import Any

import torch

import relprop
from tools.rollup_graphs.by_hand import READINGS, ByHand, Rows
from tools.rollup_graphs.layers import LAYERS
from tools.rollup_graphs.modules import OneInput, TwoInputs
from tools.rollup_graphs.recipes import Recipe

STARTS = ("one input", "one input", "class token", "two inputs", "inputs joined")
ENDS = (
    "token",
    "token",
    "mean",
    "beside",
    "query",
    "sum",
    "feature",
    "logit",
    "two",
    "span",
    "all",
)
CLOSE = 1e-12
MOST_MAPS = 5


@dataclass(frozen=True)
class Draw:
    """How a recipe is drawn: each layer by a name and a seed of its own, so that some may be left
    out."""

    seed: str
    start: str
    layers: tuple[tuple[str, int], ...]
    end: str

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its parts."""
        return (self.start, *(name for name, _ in self.layers), f"target: {self.end}")

    @cached_property
    def recipe(self) -> Recipe:
        """The operations."""
        r = Recipe(Random(self.seed))
        width = r.pick.choice([4, 6, 8])
        x = started(r, self.start, width)
        for name, seed in self.layers:
            r.stages.append(x)
            r.pick = Random(seed)
            x = LAYERS[name](r, x)
        r.pick = Random(self.seed)
        ended(r, self.end, x)
        return r


def started(r: Recipe, start: str, width: int) -> int:
    """The first stream: an embedding, with a class token, or joined with another's."""
    r.batch = r.pick.choice([1, 2])
    inputs = []
    for which in range(1 + start.endswith(("inputs", "joined"))):
        leaf = r.add("input", how=which, tokens=r.pick.randint(2, 6), width=3)
        inputs.append(r.linear(leaf, width))
    if start == "class token":
        return r.join(r.add("learned", tokens=1, width=width), inputs[0])
    if start == "inputs joined":
        return r.join(*inputs)
    r.memory = inputs[-1] if start == "two inputs" else None
    return inputs[0]


def ended(r: Recipe, end: str, x: int) -> None:
    """What the target reads of the last stream."""
    x = r.add("norm", x) if r.pick.random() < 0.5 else x
    n = r.tokens(x)
    a, b = sorted(r.pick.sample(range(n), 2))
    if end in ("feature", "logit", "two", "span", "all"):
        r.form, one = end, [a]
        places = {"feature": one, "logit": one, "all": range(n)}.get(end, [a, b])
        r.reads = [(x, place) for place in places]
        return
    if end == "mean":
        x = r.windows(x, "mean")
    elif end == "beside":
        x = r.cat(r.move(x, "slice", 0, 1, 1), r.windows(r.move(x, "slice", 1, n, 1), "mean"))
    elif end == "query":
        x = r.attention(r.add("learned", tokens=1, width=r.width(x)), x)
    elif end == "sum":
        x = r.sum(r.move(x, "slice", a, a + 1, 1), r.move(x, "slice", b, b + 1, 1))
    r.reads = [(x, a if end == "token" else 0)]


class Unclear(Exception):
    """The definition does not say what the row of a recipe is, or there is none."""


class Trial:
    """A recipe's module, its inputs and what is asked; its rows by hand."""

    def __init__(self, draw: Draw) -> None:
        self.draw, self.recipe = draw, draw.recipe
        recipe, leaves = self.recipe, [n for n in self.recipe.nodes if n.op == "input"]
        if not 1 <= len(recipe.of_kind("use")) <= MOST_MAPS:
            raise Unclear("too few or too many attentions")
        if len(recipe.of_kind("input")) < len(leaves):
            raise Unclear("an input that nothing reads")
        torch.manual_seed(Random(draw.seed).randrange(2**31))
        self.module = (OneInput, TwoInputs)[len(leaves) - 1](recipe).double().eval()
        self.inputs = tuple(torch.randn(recipe.batch, n.tokens, 3).double() for n in leaves)
        self.maps, self.weights = self.module.mixing(*self.inputs)
        hand = ByHand(recipe, self.maps, self.weights)
        if not hand.in_order():
            raise Unclear("tokens moved before all attention")
        self.rows = hand.rows()
        if not all(scores.any() for scores, _ in self.rows):
            raise Unclear("no attention brings anything of an input")
        for reading in READINGS:
            if distance(ByHand(recipe, self.maps, self.weights, reading).rows(), self.rows) > CLOSE:
                raise Unclear(f"read otherwise: {reading}")

    @cached_property
    def target(self) -> Any:
        """What relprop is asked for."""
        places = [place for _, place in self.recipe.reads]
        match self.recipe.form:
            case "feature" | "logit":
                return places[0], 1
            case "two":
                return lambda out: out[0, places[0], 1] + out[0, places[1], 2]
            case "span":
                return relprop.targets.span(*places)
            case "all":
                return lambda out: out[0, :, 1].mean()
        return 1

    def found(self) -> Rows:
        """Scores and identity of every input, as relprop has them."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            e = relprop.explain(self.module, self.inputs, self.target, method="rollout")
        return [(s.scores.numpy(), s.identity.numpy()) for s in e.streams.values()]

    @cached_property
    def wrong(self) -> str:
        """How relprop differs, in words; empty where it agrees."""
        try:
            off = distance(self.found(), self.rows)
        except relprop.errors.RelpropError as error:
            return f"refused: {type(error).__name__}: {str(error).splitlines()[0]}"
        return f"off by {off:.0e}" * (not off <= CLOSE)


def distance(found: Rows, wanted: Rows) -> float:
    """The largest difference of scores and of identities, as a share of the largest number."""
    if [f[0].shape for f in found] != [w[0].shape for w in wanted]:
        return float("inf")
    return max(
        float(abs(f - w).max() / (abs(w).max() or 1.0))
        for one, other in zip(found, wanted, strict=True)
        for f, w in zip(one, other, strict=True)
    )


def drawn(number: int, seed: int, only: Sequence[str] = ()) -> Trial:
    """The draw of a number: the first that the definition speaks of clearly. Every third is
    small."""
    for attempt in count():
        pick = Random(f"{seed} {number} {attempt}")
        names = [pick.choice(list(LAYERS)) for _ in range(1 + number % 3)]
        if only:
            names[pick.randrange(len(names))] = pick.choice(only)
        start = pick.choice(STARTS)
        if start == "two inputs":
            names.insert(pick.randrange(len(names) + 1), "cross attention")
        layers = tuple((name, pick.randrange(10**6)) for name in names)
        draw = Draw(f"{seed} {number} {attempt}", start, layers, pick.choice(ENDS))
        with contextlib.suppress(Unclear):
            return Trial(draw)
    raise AssertionError


def shrunk(trial: Trial) -> Trial:
    """The same with so few layers that relprop agrees if another is left out."""
    for k in reversed(range(len(trial.draw.layers))):
        layers = trial.draw.layers
        try:
            less = Trial(replace(trial.draw, layers=layers[:k] + layers[k + 1 :]))
        except (Unclear, ValueError):
            continue
        if less.wrong:
            trial = less
    return trial
