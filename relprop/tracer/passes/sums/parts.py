"""Biases of some of a layer's features: what is added to a part that is cut from it (to queries and
values, not to keys, of one map that gives all three)."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_live,
    is_tensor,
    made_after,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.labels import LARGEST, Labels

CUTS = frozenset({Kind.RESHAPE, Kind.PERMUTE, Kind.SELECT, Kind.SLICE})


def bias_of_some(term: fx.Node, bias: fx.Node) -> fx.Node | None:
    """The term, cut from a linear map whose bias the other term is now; ``None`` where it is no
    bias of the features that the term shows, or another call reads these, too."""
    layer = term
    while kind(layer) in CUTS:
        layer = operand(layer)
    if not is_call(layer, aten.linear) or not is_tensor(bias) or len(term.users) != 1:
        return None
    if not is_live(operand(layer)) or any(map(is_live, filter(is_tensor, arguments(layer)[1:]))):
        return None
    if val(layer).numel() > LARGEST or val(bias).dtype != val(layer).dtype:
        return None
    found = _features(layer, term)
    places = None if found is None else _places(found, shape_of(layer)[-1], bias)
    if places is None:
        return None
    _before(layer, bias)
    zero = emit(layer, aten.new_zeros.default, bias, [1])
    own = emit(layer, aten.cat.default, [zero, reshaped(layer, bias, [val(bias).numel()])], 0)
    own = emit(layer, aten.index.Tensor, own, [emit(layer, Held(places))])
    x, weight, old = (*arguments(layer), None)[:3]
    own = own if old is None else emit(layer, aten.add.Tensor, old, own)
    swap(layer, emit(layer, layer.target, x, weight, own))
    return term


def _features(layer: fx.Node, term: fx.Node) -> Tensor | None:
    """Which feature of the layer each number of the term is; ``None`` where something else reads
    these features."""
    shape, labels = shape_of(layer), Labels()
    others = torch.zeros(shape[-1], dtype=torch.bool)
    known, left = {layer: torch.arange(shape[-1]).expand(shape)}, [layer]
    while left:
        node = left.pop()
        for user in node.users if node is not term else ():
            if kind(user) not in CUTS:
                others[known[node]] = True
                continue
            pushed = labels.push(user, known)
            if pushed is None:
                return None
            known[user] = pushed
            left.append(user)
    return None if bool(others[known[term]].any()) else known[term]


def _places(features: Tensor, width: int, bias: fx.Node) -> Tensor | None:
    """For each feature of a layer which number of the bias is added to it, counted from 1, or 0;
    ``None`` where that is not the same at all positions."""
    numbers = torch.arange(1, val(bias).numel() + 1).reshape(shape_of(bias))
    try:
        numbers = numbers.expand(features.shape)
    except RuntimeError:
        return None
    found = torch.zeros(width, dtype=torch.long)
    found[features.flatten()] = numbers.flatten()
    return found if torch.equal(found[features], numbers) else None


def _before(node: fx.Node, constant: fx.Node) -> None:
    """Put a constant, and what it is made of, before a node."""
    for one in sorted(made_after(node, constant)):
        node.prepend(one)
