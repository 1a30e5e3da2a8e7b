"""Rows of a table by their numbers, however they are fetched: ``W[ids]``, one-hot @ W → embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

from relprop.operations import Kind, is_call, kind
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    aten,
    emit,
    is_live,
    is_tensor,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    tensor_inputs,
    val,
)
from relprop.tracer.passes.products import repeats


def raise_lookups(graph: fx.Graph, constants: Constants) -> None:
    """Every lookup in a table that depends on no input → ``embedding``."""
    for node in list(graph.nodes):
        if node._erased or not is_live(node):
            continue
        new = None
        if kind(node) is Kind.INDEX:
            new = _of_index(node)
        elif kind(node) is Kind.GATHER:
            new = _of_gather(node)
        elif is_call(node, aten.linear):
            new = _of_one_hot(node, constants)
        if new is not None:
            swap(node, reshaped(node, new, shape_of(node)))


def _is_table(x: Any) -> bool:
    return is_tensor(x) and not is_live(x) and rank(x) == 2 and val(x).is_floating_point()


def _are_ids(x: Any) -> bool:
    return (
        is_tensor(x)
        and is_live(x)
        and not val(x).is_floating_point()
        and val(x).dtype != torch.bool
    )


def _of_index(node: fx.Node) -> fx.Node | None:
    table, indices = node.args[0], list(node.args[1])  # type: ignore[arg-type]
    if not _is_table(table) or not _are_ids(indices[0]) or any(i is not None for i in indices[1:]):
        return None
    return emit(node, aten.embedding.default, table, indices[0])


def _of_gather(node: fx.Node) -> fx.Node | None:
    """Whole rows: the index is the same along the row, and along every other axis the table is."""
    table, dim, index = node.args[:3]
    if not is_tensor(table) or is_live(table) or not val(table).is_floating_point():
        return None
    if not _are_ids(index) or rank(table) < 2:
        return None
    lengths, axis = shape_of(table), dim % rank(table)  # type: ignore[operator]
    alike = [s == 1 or r == 0 for s, r in zip(lengths, repeats(table), strict=True)]  # type: ignore[arg-type]
    row = [i for i in range(rank(table)) if i != axis and not alike[i]]
    if len(row) != 1 or repeats(index)[row[0]] or shape_of(index)[row[0]] != lengths[row[0]]:  # type: ignore[arg-type]
        return None
    rows, ids = table, emit(node, aten.select.int, index, row[0], 0)
    for i in reversed(range(len(lengths))):
        rows = rows if i in (axis, row[0]) else emit(node, aten.select.int, rows, i, 0)
    rows = rows if axis < row[0] else permuted(node, rows, [1, 0])  # type: ignore[arg-type]
    made = emit(node, aten.embedding.default, rows, ids)
    order = [*range(rank(ids))]
    return permuted(node, made, [*order[: row[0]], rank(ids), *order[row[0] :]])


def _of_one_hot(node: fx.Node, constants: Constants) -> fx.Node | None:
    """A linear map of zeros with one 1 each → a row of its matrix, and the bias."""
    x, weight, *bias = node.args
    ids = _ids_of(x, constants)  # type: ignore[arg-type]
    if ids is None or is_live(weight):
        return None
    made = emit(node, aten.embedding.default, permuted(node, weight, [1, 0]), ids)  # type: ignore[arg-type]
    made = reshaped(node, made, shape_of(node))
    return emit(node, aten.add.Tensor, made, *bias) if bias else made


def _ids_of(x: fx.Node, constants: Constants) -> fx.Node | None:
    """The numbers whose one-hot code a tensor is, found by trying: all the tensor is made of is
    worked out for other numbers."""
    if not is_live(x) or kind(x) is Kind.EMBEDDING:
        return _ids_of_identity(x, constants)
    count = shape_of(x)[-1]
    source = _only_source(x)
    if source is None or count < 2:
        return None
    numbers = torch.arange(val(source).numel()).reshape(shape_of(source)) * 7 % count
    found = _worked_out(x, source, numbers, constants)
    if not isinstance(found, Tensor) or found.shape != val(x).shape:
        return None
    wanted = torch.nn.functional.one_hot(numbers, count).to(found.dtype)
    return source if wanted.shape == found.shape and torch.equal(found, wanted) else None


def _ids_of_identity(x: fx.Node, constants: Constants) -> fx.Node | None:
    """Rows of the identity matrix."""
    if kind(x) is not Kind.EMBEDDING:
        return None
    table = constants.value(x.args[0])  # type: ignore[arg-type]
    square = isinstance(table, Tensor) and table.shape[0] == table.shape[1]
    if square and torch.equal(table, torch.eye(len(table), dtype=table.dtype)):
        return x.args[1]  # type: ignore[return-value]
    return None


def _only_source(x: fx.Node) -> fx.Node | None:
    """The tensor of whole numbers that everything above ``x`` comes from, ``x`` having one axis
    more; ``None`` if there are several, or floating ones."""
    seen, left, found = set(), [x], set()
    wanted = shape_of(x)[:-1]
    while left:
        node = left.pop()
        if node in seen or not is_live(node):
            continue
        seen.add(node)
        if len(seen) > 40 or (node.op != "placeholder" and node.op != "call_function"):
            return None
        if _are_ids(node) and shape_of(node) == wanted:
            found.add(node)
        elif node.op == "placeholder" or kind(node) in (Kind.LINEAR, Kind.MATMUL, Kind.EMBEDDING):
            return None
        else:
            left += tensor_inputs(node)
    return found.pop() if len(found) == 1 else None


def _worked_out(x: fx.Node, source: fx.Node, numbers: Tensor, constants: Constants) -> Any:
    """The value of ``x`` if that of ``source`` were ``numbers``."""
    env: dict[fx.Node, Any] = {source: numbers}

    def value(node: fx.Node) -> Any:
        if node not in env:
            if not is_live(node):
                env[node] = constants.value(node)
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
                args = tree_map_only(fx.immutable_collections.immutable_list, list, args)
                kwargs = {k: v for k, v in kwargs.items() if k != "device"}
                env[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return env[node]

    try:
        return value(x)
    except (RuntimeError, TypeError, IndexError, ValueError, KeyError):
        return None
