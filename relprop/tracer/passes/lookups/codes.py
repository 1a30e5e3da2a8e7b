"""Tensors that are one-hot codes of whole numbers, found by trying: all that such a tensor is made
of is worked out for other numbers."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch.nn.functional import one_hot
from torch.utils._pytree import tree_map_only

from relprop.operations import Kind, Value, function_of, kind, operand
from relprop.tracer.calls import Values
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_live,
    is_tensor,
    permuted,
    reshaped,
    shape_of,
    tensor_inputs,
    val,
)
from relprop.tracer.passes.sums.terms import folded


def are_ids(x: object) -> bool:
    """Whether a tensor holds whole numbers that depend on an input."""
    return (
        is_tensor(x)
        and is_live(x)
        and not val(x).is_floating_point()
        and val(x).dtype != torch.bool
    )


def of_codes(node: fx.Node, constants: Constants) -> fx.Node | None:
    """A linear map of zeros with a 1 for each number → the rows of its matrix that they pick, and
    the bias."""
    x, weight, *bias = arguments(node)
    ids = None if is_live(weight) else ids_of(x, constants)
    if ids is None:
        return None
    rows = emit(node, aten.embedding.default, permuted(node, weight, [1, 0]), ids)
    terms = (reshaped(node, rows, shape_of(node)), *bias)
    return folded(node, [(1, t) for t in terms if t is not None])


def ids_of(x: fx.Node, constants: Constants) -> fx.Node | None:
    """The numbers whose one-hot code a tensor is."""
    if not is_live(x) or kind(x) is Kind.EMBEDDING:
        return _ids_of_identity(x, constants)
    count, sources = shape_of(x)[-1], _sources(x)
    if len(sources) != 1 or count < 2:
        return None
    numbers = _some(sources[0], count)
    found = _worked_out(x, {sources[0]: numbers}, constants)
    alike = found is not None and torch.equal(found, _code(numbers, found))
    return sources[0] if alike else None


def _ids_of_identity(x: fx.Node, constants: Constants) -> fx.Node | None:
    """Rows of the identity matrix."""
    if kind(x) is not Kind.EMBEDDING:
        return None
    table = constants.value(operand(x))
    square = isinstance(table, Tensor) and table.shape[0] == table.shape[1]
    if square and torch.equal(table, torch.eye(len(table), dtype=table.dtype)):
        return operand(x, 1)
    return None


def _some(source: fx.Node, count: int) -> Tensor:
    """Numbers below ``count`` in the shape of a source."""
    return torch.arange(val(source).numel()).reshape(shape_of(source)) * 7 % count


def _code(numbers: Tensor, like: Tensor) -> Tensor:
    """The one-hot code of numbers, in the shape of what holds it."""
    return one_hot(numbers, like.shape[-1]).to(like.dtype).reshape(like.shape)


def _sources(x: fx.Node) -> list[fx.Node]:
    """The tensors of whole numbers that everything above ``x`` comes from, ``x`` having one axis
    more, but for axes of length 1; none where some of it is made of other numbers."""
    seen, left, found = set(), [x], []
    wanted = [s for s in shape_of(x)[:-1] if s != 1]
    while left:
        node = left.pop()
        if node in seen or not is_live(node):
            continue
        seen.add(node)
        if len(seen) > 40 or (node.op != "placeholder" and node.op != "call_function"):
            return []
        if are_ids(node) and [s for s in shape_of(node) if s != 1] == wanted:
            found.append(node)
        elif node.op == "placeholder" or kind(node) in (Kind.LINEAR, Kind.MATMUL, Kind.EMBEDDING):
            return []
        else:
            left += tensor_inputs(node)
    return found


def _worked_out(x: fx.Node, numbers: dict[fx.Node, Tensor], constants: Constants) -> Tensor | None:
    """The value of ``x`` if those of its sources were ``numbers``; ``None`` where they fail."""
    env: Values = {**numbers}

    def value(node: fx.Node) -> Value:
        if node not in env:
            if not is_live(node):
                env[node] = constants.value(node)
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
                args = tree_map_only(fx.immutable_collections.immutable_list, list, args)
                kwargs = {k: v for k, v in kwargs.items() if k != "device"}
                env[node] = function_of(node)(*args, **kwargs)
        return env[node]

    try:
        made = value(x)
    except (RuntimeError, TypeError, IndexError, ValueError, KeyError):
        return None
    return made if isinstance(made, Tensor) and made.shape == val(x).shape else None
