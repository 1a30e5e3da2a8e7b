"""Draws: a recipe by its number, its module, and both rows."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Any

import torch

import relprop
from tools.rollup_graphs.by_hand import ByHand, Rows
from tools.rollup_graphs.layers import LAYERS, READ, learned
from tools.rollup_graphs.modules import Written
from tools.rollup_graphs.recipes import Recipe

STARTS = ("one input", "one input", "class token", "two inputs", "inputs joined")
#: What relprop is asked for: of one token that the module made, or else.
FORMS = ("feature", "logit", "two", "span", "all")
CLOSE = 1e-12
MOST_MAPS = 5


def started(r: Recipe, start: str, width: int) -> int:
    """The first stream: an embedding, with a class token, or joined with another's."""
    r.batch = r.pick.choice([1, 2])
    sizes = [r.pick.randint(2, 6) for _ in range(1 + start.endswith(("inputs", "joined")))]
    leaves = [r.add("input", how=k, tokens=n, width=3) for k, n in enumerate(sizes)]
    inputs = [r.linear(leaf, width) for leaf in leaves]
    r.memory = inputs[-1] if start == "two inputs" else None
    if start == "class token":
        return r.join(learned(r, inputs[0], 1), inputs[0])
    return r.join(*inputs) if start == "inputs joined" else inputs[0]


def ended(r: Recipe, end: str, x: int) -> None:
    """What the target reads of the last stream."""
    x = r.norm(x) if r.pick.random() < 0.5 else x
    a, b = sorted(r.pick.sample(range(r.tokens(x)), 2))
    one, every = [(x, a)], [(x, place) for place in range(r.tokens(x))]
    if end in READ:
        r.reads = [(READ[end](r, x), 0)]
    else:
        reads = {"feature": one, "logit": one, "all": every}
        r.form, r.reads = end, reads.get(end, [(x, a), (x, b)])


class Unclear(Exception):
    """The definition does not say what the row of a recipe is, or there is none."""


class Trial:
    """A recipe drawn by chance, its module, its inputs and what is asked; its rows by hand."""

    def __init__(self, seed: str, layers: Sequence[str], start: str, end: str) -> None:
        self.kinds = (start, *layers, f"target: {end}")
        self.recipe = recipe = Recipe(Random(seed))
        x = started(recipe, start, recipe.pick.choice([4, 6, 8]))
        for name in layers:
            recipe.stages.append(x)
            x = recipe.pick.choice(LAYERS[name])(recipe, x)
            if recipe.tokens(x) < 2:
                raise Unclear("one token is left")
        ended(recipe, end, x)
        leaves = [n for n in recipe.nodes if n.op == "input"]
        if not 1 <= len(recipe.of_kind("use")) <= MOST_MAPS:
            raise Unclear("too few or too many attentions")
        if len(recipe.of_kind("input")) < len(leaves):
            raise Unclear("an input that nothing reads")
        torch.manual_seed(Random(seed).randrange(2**31))
        self.module = Written(recipe).double().eval()
        self.inputs = tuple(torch.randn(recipe.batch, n.tokens, 3).double() for n in leaves)
        hand = ByHand(recipe, *self.module.mixing(*self.inputs))
        self.rows = hand.rows()
        if hand.unclear or not hand.in_order():
            raise Unclear("a place where a term has other tokens, or tokens moved before all maps")
        counts = [(row + identity).any(0).sum() for row, identity in self.rows]
        if min(counts) < 2 or not all(scores.any() for scores, _ in self.rows):
            raise Unclear("no attention brings anything of an input, or one token of it is all")

    def target(self) -> Any:
        """What relprop is asked for."""
        a, b = (self.recipe.reads[k][1] for k in (0, -1))
        every: dict[str, Any] = {
            "feature": (a, 1),
            "logit": (a, 1),
            "two": lambda out: out[0, a, 1] + out[0, b, 2],
            "span": relprop.targets.span(a, b),
            "all": lambda out: out[0, :, 1].mean(),
        }
        return every.get(self.recipe.form, 1)

    def compared(self) -> tuple[Rows, str]:
        """Scores and identity of every input as relprop has them, and how they differ, in words;
        nothing where they agree."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                e = relprop.explain(
                    self.module, self.inputs, self.target(), method="rollout", memory=None
                )
            except relprop.errors.RelpropError as error:
                return [], f"refused: {type(error).__name__}: {str(error).splitlines()[0]}"
        found = [(s.scores.numpy(), s.identity.numpy()) for s in e.streams.values()]
        off = distance(found, self.rows)
        return found, f"off by {off:.0e}" * (not off <= CLOSE)


def distance(found: Rows, wanted: Rows) -> float:
    """The largest difference of scores and of identities, as a share of the largest number. Where
    the first or the last tokens are read apart from the others, relprop may have these alone."""
    if len(found) != len(wanted) or any(
        f[0].shape[-1] > w[0].shape[-1] for f, w in zip(found, wanted, strict=True)
    ):
        return float("inf")
    off = 0.0
    for (one, without), (row, identity) in zip(found, wanted, strict=True):
        ends = [slice(0, one.shape[-1]), slice(row.shape[-1] - one.shape[-1], row.shape[-1])]
        of_ends = [
            max(
                float(abs(f - w[..., end]).max() / (abs(w).max() or 1.0))
                for f, w in ((one, row), (without, identity))
            )
            for end in ends
        ]
        off = max(off, min(of_ends))
    return off


def drawn(number: int, seed: int, only: Sequence[str] = ()) -> Trial:
    """The draw of a number: the first that the definition speaks of clearly. Every third has one
    layer, so that the least of what disagrees is soon among them."""
    for attempt in count():
        pick = Random(f"{seed} {number} {attempt}")
        layers = [pick.choice(list(LAYERS)) for _ in range(1 + number % 3)]
        if only:
            layers[pick.randrange(len(layers))] = pick.choice(only)
        start = pick.choice(STARTS)
        if start == "two inputs":
            layers.insert(pick.randrange(len(layers) + 1), "cross attention")
        with contextlib.suppress(Unclear):
            return Trial(f"{seed} {number} {attempt}", layers, start, pick.choice([*READ, *FORMS]))
    raise AssertionError
