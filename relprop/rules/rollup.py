"""The rule set of the roll-up: Eq. 13–14 as rules on fields, one line per kind of operations."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from relprop.operations import FILLS, MOVES, STOPS, Kind
from relprop.rules import coarse
from relprop.rules.call import Call
from relprop.rules.coarse import finer
from relprop.rules.fields import (
    Field,
    Fields,
    Inverse,
    attended,
    expanded,
    meet,
    merge,
    moved,
    moved_back,
    number,
    pooled,
    projected,
    spread,
)
from relprop.rules.mixing import contracted, convolved, sampled, spread_evenly
from relprop.rules.notes import FieldNote, Folded, SiteNote
from relprop.rules.presets import CARRIED, PRODUCTS, stop, table
from relprop.rules.rule import Rule, rule
from relprop.rules.ruleset import Key, RuleSet

aten = torch.ops.aten


FIELD_MOVE = "field: move"
ATTENDED = attended()


def _back_through(inverse: Inverse) -> Rule:
    def function(field: Field, call: Call) -> Fields:
        return moved(field, call, inverse)

    return Rule(function, FIELD_MOVE, "rollup", frozenset(), row_wise=True)


def _routed(field: Field, call: Call) -> Fields:
    """Maxima, and what is picked: to where it was found; over tokens, the features and heads of
    those that were not are there, too, with nothing."""
    found = moved(field, call, moved_back)
    routed = call.noted(FieldNote).routed
    if not routed:
        return found  # type: ignore[return-value]
    return tuple(
        torch.cat([f[:-1], _everywhere(f[-1:] > 0, routed).to(f.dtype)]) if f is not None else None
        for f in (f if o.flows else None for f, o in zip(found, call.operands, strict=True))
    )


def _everywhere(present: Tensor, along: tuple[Folded, ...]) -> Tensor:
    """At all tokens along some axes what is present at one of them."""
    for folded in along:
        axis = folded.axis + 1
        if present.shape[axis] > 1:
            apart = present.unflatten(axis, folded.sizes)
            over = [axis + i for i, tokens in enumerate(folded.tokens) if tokens]
            whole = apart.amax(over, keepdim=True).expand(apart.shape)
            present = whole.flatten(axis, axis + len(folded.sizes) - 1)
    return present


def _shuffled(field: Field, call: Call) -> Fields:
    """pixel_shuffle: one token becomes k² that were folded into its features; their numbers add, as
    over any tokens."""
    field = spread(*number(finer(field, call.noted(FieldNote).shape), ()))
    found = moved(field, call, moved_back)[0]
    assert found is not None
    folded = found.shape[-3] // field.shape[-3]
    parts = found.unflatten(-3, (-1, folded))
    there = parts[-1:].amax(-3, keepdim=True).expand(parts[-1:].shape)
    return (torch.cat([parts[:-1] * folded, there]).flatten(-4, -3),)


@rule(family="rollup", reads="", name="field: attention site or product")
def either_matmul(field: Field, call: Call) -> Fields:
    """The one at a site, the other elsewhere."""
    here = ATTENDED if isinstance(call.note, SiteNote) else contracted
    shares: Fields = here.function(field, call)
    return shares


same_shape = replace(
    merge, name="field: of an unlisted operation that keeps the shape", row_wise=False
)

INVERSES: tuple[tuple[Key, Inverse], ...] = (
    (Kind.RESHAPE, coarse.reshaped),
    (aten.permute, coarse.permuted),
    (Kind.SELECT, coarse.selected),
    (aten.slice, coarse.sliced),
    (aten.cat, coarse.joined),
    (aten.roll, coarse.rolled),
    (aten.flip, coarse.flipped),
)
REDUCED = (Kind.TOTAL, Kind.STATISTIC)
ROUTED = (Kind.LARGEST, Kind.MAX_POOL, Kind.PICK)
EVEN = (Kind.SCAN, Kind.AVERAGE_POOL, Kind.RESAMPLE, Kind.FOLD, Kind.INDEXED_SUM)

ROLLUP = RuleSet(
    "rollup",
    table(
        (
            (STOPS, stop),
            ((*CARRIED, *PRODUCTS, Kind.SUM, Kind.EXTREMUM), merge),
            ((Kind.EXPAND,), expanded),
            ((Kind.GATHER, Kind.INDEX), Rule(_routed, FIELD_MOVE, "rollup", frozenset())),
            ((aten.pixel_shuffle,), Rule(_shuffled, FIELD_MOVE, "rollup", frozenset())),
            *(((key,), _back_through(inverse)) for key, inverse in INVERSES),
            ((*MOVES, *FILLS), _back_through(moved_back)),
            (
                (*ROUTED, aten.scatter_reduce),
                Rule(_routed, FIELD_MOVE, "rollup", frozenset({"inputs"})),
            ),
            ((Kind.LINEAR,), projected),
            (REDUCED, pooled),
            ((Kind.CONVOLUTION,), convolved),
            (EVEN, spread_evenly),
            ((Kind.SAMPLE,), sampled),
            ((Kind.MATMUL,), either_matmul),
        )
    ),
    same_shape,
    fan_out=meet,  # type: ignore[arg-type]
    fixed=True,
)
