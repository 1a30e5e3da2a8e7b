"""Pairs of real numbers, which complex ones are written as: their parts, and how they are put
together."""

from __future__ import annotations

import torch
from torch import fx

from relprop.errors import CaptureError
from relprop.operations import Value, is_call
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_number,
    is_tensor,
    rank,
    reshaped,
    shape_of,
    val,
)
from relprop.tracer.facts import Facts, know, place, refusal


def read_as_pair(node: fx.Node) -> fx.Node:
    """Complex numbers that a graph begins with, as pairs."""
    with node.graph.inserting_after(node):
        made = node.graph.call_function(aten.view_as_real.default, (node,))
    know(made, Facts(torch.view_as_real(val(node).resolve_conj()), place(node)))
    return made


def refused(node: fx.Node, why: str) -> CaptureError:
    """What is raised where complex numbers have no form in real ones."""
    fact = f"the model computes with complex numbers, and {why}"
    return refusal(node, fact, "write that part in real numbers")


def parts_of(
    node: fx.Node, x: Value, pairs: dict[fx.Node, fx.Node]
) -> tuple[fx.Node | float, fx.Node | float]:
    """The real and the imaginary part of an operand; of a real one the latter is 0."""
    if x in pairs:
        pair = pairs[x]
        only_real = is_call(pair, aten.cat) and is_number(arguments(pair)[0][1], 0)
        return part_of(node, pair, 0), 0.0 if only_real else part_of(node, pair, 1)
    return (x, 0.0) if is_tensor(x) else (complex(x).real, complex(x).imag)


def pair_of(node: fx.Node, x: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """A tensor as real numbers with a last axis of two."""
    if x in pairs:
        return pairs[x]
    return stacked(node, x, emit(node, aten.zeros_like.default, x))


def stacked(node: fx.Node, real: fx.Node, imaginary: fx.Node) -> fx.Node:
    """The pair of a real and an imaginary part."""
    parts = [reshaped(node, t, [*shape_of(t), 1]) for t in (real, imaginary)]
    return emit(node, aten.cat.default, parts, rank(parts[0]) - 1)


def part_of(node: fx.Node, pair: fx.Node, which: int) -> fx.Node:
    """The real (0) or the imaginary (1) part of a pair."""
    return emit(node, aten.select.int, pair, rank(pair) - 1, which)


def mirrored(node: fx.Node, pair: fx.Node) -> fx.Node:
    """The conjugate of a pair."""
    real = part_of(node, pair, 0)
    return stacked(node, real, emit(node, aten.neg.default, part_of(node, pair, 1)))
