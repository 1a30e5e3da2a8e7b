"""The rule set of the roll-up: Eq. 13–14 as rules on fields, one line per list of operators."""

from __future__ import annotations

from dataclasses import replace

import torch

from relprop.rules import moves
from relprop.rules import operations as ops
from relprop.rules.call import Call
from relprop.rules.families import move
from relprop.rules.fields import (
    Field,
    Fields,
    attended,
    expanded,
    meet,
    merge,
    moved,
    number,
    pooled,
    projected,
)
from relprop.rules.mixing import contracted, convolved, sampled, spread_evenly
from relprop.rules.presets import stop, table
from relprop.rules.rule import Rule
from relprop.rules.ruleset import RuleSet


def _inverse(rule_of_move: Rule) -> Rule:
    def function(field: Field, call: Call) -> Fields:
        return moved.function(field, replace(call, notes={**call.notes, "inverse": rule_of_move}))

    return Rule(function, moved.name, "rollup", rule_of_move.reads)


def _routed(field: Field, call: Call) -> Fields:
    """Maxima, and what is picked per feature: to where it was found; over tokens, the features of
    those that lost are there, too, with nothing."""
    found = _inverse(move).function(field, call)
    axes = tuple(i + 1 for i in call.notes.get("routed", ()))
    if not axes:
        return found  # type: ignore[return-value]
    return tuple(
        f
        if f is None
        else torch.cat(
            [f[:-1], (f[-1:] > 0).to(f.dtype).amax(axes, keepdim=True).expand(f[-1:].shape)]
        )
        for f in found
    )


def _shuffled(field: Field, call: Call) -> Fields:
    """pixel_shuffle: one token becomes k² that were folded into its features; their numbers add, as
    over any tokens."""
    numbers, present = number(field, ())
    found = _inverse(move).function(torch.cat([numbers * present, present]), call)[0]  # type: ignore[index]
    folded = found.shape[-3] // field.shape[-3]
    parts = found.unflatten(-3, (-1, folded))
    there = parts[-1:].amax(-3, keepdim=True).expand(parts[-1:].shape)
    return (torch.cat([parts[:-1] * folded, there]).flatten(-4, -3),)


def _product(field: Field, call: Call) -> Fields:
    return (attended if "transposed" in call.notes else contracted).function(field, call)  # type: ignore[return-value]


either_matmul = Rule(_product, "field: attention site or product", "rollup", frozenset())

same_shape = Rule(
    merge.function, "field: of an unlisted operation that keeps the shape", "rollup", frozenset()
)

MOVE_LINES = tuple(
    (packets, _inverse(inverse))
    for packets, inverse in (
        (ops.RESHAPE, moves.reshape),
        (ops.PERMUTE, moves.permute),
        (ops.TRANSPOSE, moves.transpose),
        (ops.SELECT, moves.select),
        (ops.SLICE, moves.slice_),
        (ops.CAT, moves.cat),
    )
)

ROLLUP = RuleSet(
    "rollup",
    table(
        (
            (ops.STOP, stop),
            (ops.CARRY + ops.ADD + ops.SUBTRACT + ops.PRODUCT, merge),
            (ops.EXPAND, expanded),
            (ops.GATHER, Rule(_routed, moved.name, "rollup", frozenset())),
            (ops.SHUFFLE, Rule(_shuffled, moved.name, "rollup", frozenset())),
            *MOVE_LINES,
            (ops.MOVE + ops.FILL, _inverse(move)),
            (ops.ROUTE, Rule(_routed, moved.name, "rollup", frozenset({"inputs"}))),
            (ops.LINEAR, projected),
            (ops.REDUCE, pooled),
            (ops.CONV, convolved),
            (ops.SHARE + ops.GATHERED_SUM, spread_evenly),
            (ops.SAMPLE, sampled),
            (ops.MATMUL, either_matmul),
        )
    ),
    same_shape,
    fan_out=meet,
    fixed=True,
)  # type: ignore[arg-type]
