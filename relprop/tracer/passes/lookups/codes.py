"""Tensors that are one-hot codes of whole numbers, alone or with others beside or over them, found
by trying: all that such a tensor is made of is worked out for other numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx
from torch.nn.functional import one_hot
from torch.utils._pytree import tree_map_only

from relprop.operations import Kind, Value, function_of, kind, operand
from relprop.operations.vocabulary import Held
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

#: Elements of a tensor that is worked out for some twenty other numbers.
_MOST = 1 << 24
_Columns = dict[fx.Node, tuple[int, int]]


def are_ids(x: object) -> bool:
    """Whether a tensor holds whole numbers that depend on an input."""
    return (
        is_tensor(x)
        and is_live(x)
        and not val(x).is_floating_point()
        and val(x).dtype != torch.bool
    )


def of_codes(node: fx.Node, constants: Constants) -> fx.Node | None:
    """A linear map of zeros with a 1 for each of one or several numbers (word, position, kind) →
    the sum of the rows of its matrix that they pick, what constants beside them give, and the
    bias."""
    x, weight, *bias = arguments(node)
    ids = None if is_live(weight) else ids_of(x, constants)
    if ids is not None:
        terms = [_rows(node, weight, 0, shape_of(x)[-1], ids)]
    elif is_live(weight) or (found := _codes(x, constants)) is None:
        return None
    else:
        columns, rest = found
        terms = [_rows(node, weight, *place, ids) for ids, place in columns.items()]
        if bool(rest.any()):
            some = rest.flatten(0, -2).any(0).nonzero()
            first, last = int(some[0]), int(some[-1]) + 1
            held = emit(node, Held(rest[..., first:last].to(constants.device)))
            beside = emit(node, aten.slice.Tensor, weight, 1, first, last, 1)
            terms.append(emit(node, aten.linear.default, held, beside))
    return folded(node, [(1, t) for t in (*terms, *bias) if t is not None])


def _rows(at: fx.Node, weight: fx.Node, first: int, count: int, ids: fx.Node) -> fx.Node:
    """Columns of a matrix that ids pick, counted from the ``first`` of ``count``."""
    if count < shape_of(weight)[1]:
        weight = emit(at, aten.slice.Tensor, weight, 1, first, first + count, 1)
    made = emit(at, aten.embedding.default, permuted(at, weight, [1, 0]), ids)
    return reshaped(at, made, shape_of(at))


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


def _codes(x: fx.Node, constants: Constants) -> tuple[_Columns, Tensor] | None:
    """The numbers of whose codes and of constants a tensor is the sum, each with the first column
    of its code and how many it has; and these constants."""
    sources = _sources(x)
    if not sources or not 2 < val(x).numel() <= _MOST:
        return None
    zeros = {s: torch.zeros_like(val(s), device="cpu") for s in sources}
    none = _worked_out(x, zeros, constants)
    if none is None:
        return None
    columns: _Columns = {}
    rest = none
    for source in sources:

        def change(number: int, source: fx.Node = source) -> Tensor | None:
            """What one number in all places of a source changes, in every row the same."""
            given = {**zeros, source: zeros[source] + number}
            made = _worked_out(x, given, constants)
            rows = None if made is None else (made - none).flatten(0, -2)
            return rows[0] if rows is not None and bool((rows == rows[:1]).all()) else None

        place = _place(change, shape_of(x)[-1])
        if place is None:
            return None
        columns[source] = place
        rest = rest - _code(zeros[source] + place[0], rest)
    numbers = {source: _some(source, count) for source, (_, count) in columns.items()}
    wanted = rest
    for source, (first, _) in columns.items():
        wanted = wanted + _code(numbers[source] + first, rest)
    found = _worked_out(x, numbers, constants)
    return (columns, rest) if found is not None and torch.equal(found, wanted) else None


def _place(change: Callable[[int], Tensor | None], width: int) -> tuple[int, int] | None:
    """The first column of a number's code and how many it has, by what each number changes."""
    changed = change(1)
    if changed is None or changed.is_complex():
        return None
    first = int(changed.argmin())

    def holds(number: int) -> bool:
        made = change(number)
        wanted = torch.zeros_like(changed)
        wanted[first], wanted[first + number] = -1, 1
        return made is not None and torch.equal(made, wanted)

    least, most = 0, width - 1 - first  # it holds for the least, and for none above the most
    if most < 1 or not holds(1):
        return None
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if holds(middle) else (least, middle - 1)
    return first, least + 1


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
