"""Columns of ids, each with a table of its own, side by side → one lookup in one table, in which
each column's rows stand behind those of the columns before."""

from __future__ import annotations

from itertools import groupby

import torch
from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_live,
    joined,
    rank,
    reshaped,
    shape_of,
    val,
)
from relprop.tracer.passes.sums.terms import position


def joined_columns(node: fx.Node, device: torch.device) -> fx.Node | None:
    """A ``cat`` in which rows of several tables, for places of one tensor of ids, are looked up
    together; ``None`` where there are none."""
    if not is_call(node, aten.cat) or arguments(node)[1] == rank(node) - 1:
        return None
    parts, dim = joined(node), arguments(node)[1]
    made: list[fx.Node] = []
    for column, run in groupby(parts, _column):
        lookups = list(run)
        tables = [operand(_lookup(p)) for p in lookups] if column else []
        made += lookups if len(set(tables)) < 2 else [_together(node, lookups, tables, dim, device)]
    if len(made) == len(parts):
        return None
    return made[0] if len(made) == 1 else emit(node, aten.cat.default, made, dim)


def _lookup(part: fx.Node) -> fx.Node:
    """What a part of a ``cat`` lays out."""
    return operand(part) if kind(part) is Kind.RESHAPE else part


def _column(part: fx.Node) -> tuple[fx.Node, int] | None:
    """Of which ids, and along which axis of them, one place is looked up in a table."""
    found = _lookup(part)
    if kind(found) is not Kind.EMBEDDING or is_live(operand(found)):
        return None
    place = position(operand(found, 1))
    if place is None or shape_of(found)[-1] != shape_of(part)[-1]:
        return None
    return place[:2] if place[0].op == "placeholder" else None


def _together(
    at: fx.Node, parts: list[fx.Node], tables: list[fx.Node], dim: int, device: torch.device
) -> fx.Node:
    """The lookups as one."""
    ahead: dict[fx.Node, int] = {}
    for table in tables:
        ahead.setdefault(table, sum(shape_of(t)[0] for t in ahead))
    pieces = [reshaped(at, operand(_lookup(p), 1), shape_of(p)[:-1]) for p in parts]
    ids = emit(at, aten.cat.default, pieces, dim)
    steps = [ahead[t] for t, p in zip(tables, pieces, strict=True) for _ in range(shape_of(p)[dim])]
    shape = [-1] + [1] * (rank(ids) - dim - 1)
    own = emit(at, Held(torch.tensor(steps, dtype=val(ids).dtype, device=device).reshape(shape)))
    table = emit(at, aten.cat.default, list(ahead), 0)
    return emit(at, aten.embedding.default, table, emit(at, aten.add.Tensor, ids, own))
