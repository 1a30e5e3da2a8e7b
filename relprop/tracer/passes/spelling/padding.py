"""Padding: with a number by one operator, with the tensor's own values by positions that are
picked. Triangles: a fill where nothing is kept."""

from __future__ import annotations

import torch
from torch import fx

from relprop.operations import argument, is_call, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.editing import arguments, aten, emit, is_live, rank, shape_of


def as_padding(node: fx.Node, device: torch.device) -> fx.Node | None:
    """Padding with a number, whichever operator does it; with the tensor's own values → positions
    picked."""
    mode = argument(node, "mode")
    if mode not in (None, "constant"):
        return _padded_by_itself(node, mode, device)
    value = argument(node, "value")
    return emit(
        node, aten.constant_pad_nd.default, *arguments(node)[:2], 0 if value is None else value
    )


def _padded_by_itself(node: fx.Node, mode: str, device: torch.device) -> fx.Node:
    x = operand(node)
    amounts = list(arguments(node)[1])
    for i, around in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        axis = rank(x) - 1 - i
        if any(around):
            own = torch.arange(shape_of(x)[axis], dtype=torch.float64)
            places = torch.nn.functional.pad(own[None, None], around, mode)[0, 0].long()
            held = emit(node, Held(places.to(device)))
            x = emit(node, aten.index.Tensor, x, [*[None] * axis, held])
    return x


def as_fill(node: fx.Node, device: torch.device) -> fx.Node | None:
    """The lower or upper triangle of what depends on an input → zeros put into the other one."""
    if not is_live(node):
        return None
    ones = torch.ones(shape_of(node)[-2:], dtype=torch.bool)
    part = torch.tril if is_call(node, aten.tril) else torch.triu
    hidden = ~part(ones, argument(node, "diagonal") or 0)
    held = emit(node, Held(hidden.to(device)))
    return emit(node, aten.masked_fill.Scalar, operand(node), held, 0)
