"""Tokens that a mask brings to the places of an expert, by a product of matrices (GShard's and
Switch Transformer's einsums, DeepSpeed's): tokens times zeros with one 1 are the token that stands
there.

That a mask is true in one place at most is proved by trying: the scores by which a router chooses
are drawn many times. A mask of several is a sum, and stays."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from relprop.operations import Kind, is_call, kind
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_float,
    is_live,
    is_tensor,
    rank,
    shape_of,
    swap,
    tensor_inputs,
)
from relprop.tracer.passes.lookups.sources import part_above
from relprop.tracer.passes.trials.parts import Piece

DRAWS = 60

#: A mask, and the axis of it, counted from the last, along which tokens lie.
Mask = tuple[fx.Node, int]


def pick_tokens(graph: fx.Graph, constants: Constants) -> None:
    """Every product with a mask that is true in one place → what stands there."""
    for node in list(graph.nodes):
        if not node._erased and is_live(node) and _brings_rows(node):
            for x, (codes, axis) in _operands(node):
                mask = _mask(codes, constants) if shape_of(codes)[axis] > 1 else None
                if mask is not None and (empty := _leaves_none(mask, axis)) is not None:
                    swap(node, _picked(node, x, (codes, axis), empty))
                    break


def _brings_rows(node: fx.Node) -> bool:
    """Whether a call brings several numbers to several places: tokens to experts. One number that
    is picked, as an expert's share, stays a sum."""
    matrices = kind(node) is Kind.MATMUL and is_float(node)
    matrices = matrices and all(is_tensor(a) and rank(a) > 1 for a in arguments(node))
    return matrices and min(shape_of(node)[-2:]) > 1


def _operands(node: fx.Node) -> Iterator[tuple[fx.Node, Mask]]:
    """The tensor that a product may pick from, and by which mask."""
    a, b = arguments(node)
    if shape_of(a)[:-2] == shape_of(b)[:-2]:
        yield b, (a, -1)
        yield a, (b, -2)


def _mask(codes: fx.Node, constants: Constants) -> Piece | None:
    """A tensor as a function of the model's scores, if these are compared in it and nothing else
    that is not known decides it."""
    part = part_above(codes, constants, lambda node: not _are_scores(node, constants))
    compares = any(kind(n) is Kind.TEST or is_call(n, aten.one_hot) for n in part.nodes)
    if not compares or not part.is_small or any(s.op == "placeholder" for s in part.sources):
        return None
    still = {i for n in part.nodes for i in tensor_inputs(n) if not is_live(i)}
    return part if all(constants.value(i) is not None for i in still) else None


def _are_scores(node: fx.Node, constants: Constants) -> bool:
    """Whether numbers are the model's own: of a softmax (these are above 0), a norm, a layer."""
    layer = kind(node) is Kind.LINEAR and constants.value(arguments(node)[1]) is None
    return layer or kind(node) in (Kind.SOFTMAX, Kind.NORM)


def _leaves_none(mask: Piece, axis: int) -> bool | None:
    """Whether there are draws in which a mask is 1 nowhere; ``None``: in some it is 1 more than
    once, or is no mask."""
    empty = False
    for seed in range(DRAWS):
        scores = mask.draw(seed)
        pairs = zip(mask.sources, scores, strict=True)
        try:
            found = mask(*(x.exp() if kind(s) is Kind.SOFTMAX else x for s, x in pairs))
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None
        count = found.sum(axis)
        if bool((count > 1).any()) or not bool(((found == 0) | (found == 1)).all()):
            return None
        empty = empty or bool((count == 0).any())
    return empty


def _picked(at: fx.Node, x: fx.Node, mask: Mask, empty: bool) -> fx.Node:
    """What stands where a mask is 1; ``empty``: zeros where it is 1 nowhere."""
    codes, axis = emit(at, aten._to_copy.default, mask[0], dtype=torch.int64), mask[1]
    places = expanded(at, emit(at, aten.argmax.default, codes, axis, True), shape_of(at))
    made = emit(at, aten.gather.default, x, rank(x) - 3 - axis, places)
    if not empty:
        return made
    return emit(at, aten.mul.Tensor, made, emit(at, aten.any.dim, codes, axis, True))
