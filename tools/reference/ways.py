"""The same model in other ways: alone, in chunks, in segments, with other lengths and weights, and
as a program."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

import relprop
from relprop.errors import RelpropError
from tests.common import paths
from tools.reference.drawn import draw, numbers, restore
from tools.reference.numbers import gap
from tools.reference.sentences import sentence
from tools.reference.subjects import Built

#: Not asked of a long call.
LONG, COSTLY = "long", ("value_zeroing", "attention_norm")
CHUNK = 7
#: Ways that should give what the batch gives whole.
EQUAL = ("alone", "chunks", "segments")
Scores = dict[str, Tensor]


def together(built: Built, methods: Iterable[str], inputs: Any = None) -> dict[str, Any]:
    """The explanations by method, from one forward pass; none where one method's error ends all."""
    given = built.inputs if inputs is None else inputs
    try:
        made = relprop.compare(built.model, given, methods, built.target, verify=False)
    except RelpropError:
        return {}
    return dict(made.explanations)


def scores_of(explained: Mapping[str, Any]) -> Scores:
    """The scores by method and input."""
    return {
        f"{m}|{name}": s.scores.detach().double()
        for m, e in explained.items()
        for name, s in e.streams.items()
    }


def otherwise(built: Built, explained: Mapping[str, Any]) -> dict[str, Scores]:
    """The same model in other ways: alone, in chunks, in segments, of other lengths, and with other
    weights."""
    found: dict[str, Scores] = {}

    def add(way: str, inputs: Any = None) -> None:
        methods = [m for m in explained if way != LONG or m not in COSTLY]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[way] = scores_of(together(built, methods, inputs))

    add("alone", tree_map_only(Tensor, lambda t: t[1:], built.inputs))
    with paths.in_chunks(CHUNK):
        add("chunks")
    with paths.in_segments():
        add("segments")
    for name, call in built.calls.items():
        add(name, call)
    before = numbers(built.model)
    draw(built.model, 9)
    add("other weights")
    restore(built.model, before)
    return found


def whole_maps(built: Built) -> list[str]:
    """Why which maps are made whole where the others are made in chunks."""
    with paths.in_chunks(CHUNK):
        try:
            made = relprop.explain(built.model, built.inputs, built.target)
        except RelpropError:
            return []
    return [str(reason) for reason in made.facts.get("whole_maps", ())]


def largest_differences(found: Mapping[str, Scores]) -> dict[str, float]:
    """How far ways that should be equal are from the whole batch at once, at the most."""
    whole = found[""]
    return {
        way: max((gap(v, whole[k][-len(v) :]) for k, v in found[way].items()), default=0.0)
        for way in EQUAL
    }


def compiled(built: Built, whole: Scores) -> float | str:
    """How far the program of the default method is from the method."""
    try:
        explainer = relprop.compile(built.model, built.inputs, built.target)
        made = explainer(built.inputs, built.target)
    except RelpropError as error:
        return sentence(error)
    return max(
        gap(s.scores.detach().double(), whole[f"transformer_attribution|{name}"])
        for name, s in made.streams.items()
    )
