"""Rotary positions: pairs of features turned by an angle, however they are written."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, fx

from relprop.operations import MOVES, Kind, is_call, kind
from relprop.operations.vocabulary import Held, grouped_linear
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    before_reshapes,
    emit,
    expanded,
    is_float,
    is_live,
    joined,
    rank,
    reshaped,
    shape_of,
    swap,
    tensor_inputs,
    val,
)
from relprop.tracer.passes.sums.terms import is_sum, terms_of
from relprop.tracer.passes.trials.comparison import same
from relprop.tracer.passes.trials.parts import Piece


def join_rotations(graph: fx.Graph, constants: Constants) -> None:
    """Pairs turned one by one, (a·c − b·s, a·s + b·c) side by side → x·C + J(x)·S of the tensor x
    that holds them: the same sum for every way of writing a rotation."""
    for node in list(graph.nodes):
        if is_call(node, grouped_linear) and (new := _by_matrices(node, constants)) is not None:
            swap(node, new)
    for node in list(graph.nodes):
        if node._erased or not is_call(node, aten.cat) or not is_live(node):
            continue
        parts, dim = joined(node), arguments(node)[1]
        found = [_turned_part(p) for p in parts]
        there = [i for i, turned in enumerate(found) if turned is not None]
        if not 2 <= len(there) <= 4 or there[-1] - there[0] >= len(there):
            continue
        first, last = there[0], there[-1] + 1
        alone = last - first == len(parts)  # else others stay beside them
        inner = node if alone else emit(node, aten.cat.default, parts[first:last], dim)
        new = _turned(inner, [t for t in found if t is not None], constants)
        if new is not None:
            beside = [*parts[:first], new, *parts[last:]]
            swap(node, new if alone else emit(node, aten.cat.default, beside, dim))
        if not alone:
            graph.erase_node(inner)


def _turned(
    node: fx.Node, parts: list[tuple[fx.Node, list[_Scaled]]], constants: Constants
) -> fx.Node | None:
    """What lies side by side as one rotation; ``None`` where it is none."""
    for order in itertools.product((0, 1), repeat=len(parts)):
        straight, other = (
            [(p[0], p[1][o ^ side]) for p, o in zip(parts, order, strict=True)] for side in (0, 1)
        )
        if (whole := _whole(node, straight, constants)) is not None:
            return _rotation(node, whole, straight, other)
    return None


def _by_matrices(node: fx.Node, constants: Constants) -> fx.Node | None:
    """Features times matrices that turn pairs of them, one matrix for each position → x·C + J(x)·S,
    J the other feature of each pair."""
    x, matrix = arguments(node)[:2]
    size = shape_of(matrix)[-1]
    if len(node.args) > 2 or size < 2 or shape_of(matrix)[-2] != size:
        return None
    other = _pairs(_tried(matrix, constants))
    if other is None:
        return None

    def held(numbers: Tensor) -> fx.Node:
        return emit(node, Held(numbers.to(constants.device)))

    own, ahead = held(torch.arange(size)), [None] * (rank(matrix) - 2)
    cos, sin = (
        emit(node, aten.unsqueeze.default, emit(node, aten.index.Tensor, matrix, at), -2)
        for at in ([*ahead, own, own], [*ahead, own, held(other)])
    )
    alone = other == torch.arange(size)
    if bool(alone.any()):
        sin = emit(node, aten.mul.Tensor, sin, held((~alone).to(val(matrix).dtype)))
    turned = emit(node, aten.index.Tensor, x, [*[None] * (rank(x) - 1), held(other)])
    products = (emit(node, aten.mul.Tensor, *p) for p in ((x, cos), (turned, sin)))
    return emit(node, aten.add.Tensor, *products)


def _pairs(matrices: Tensor | None) -> Tensor | None:
    """The other feature of each feature's pair, where (..., d, d) matrices are ((c, −s), (s, c))
    for pairs of features and 1 for the rest."""
    if matrices is None or not bool(matrices.isfinite().all()):
        return None
    m = matrices.reshape(-1, *matrices.shape[-2:])
    own = torch.arange(m.shape[-1])
    apart = (m != 0).any(0) & ~torch.eye(len(own), dtype=torch.bool)
    other = torch.where(apart.any(1), apart.int().argmax(1), own)
    if bool((apart.sum(1) > 1).any()) or not torch.equal(other[other], own) or not apart.any():
        return None
    cos, sin = m[:, own, own], m[:, own, other]
    turns = same(cos, cos[:, other]) and same(sin[:, other != own], -sin[:, other][:, other != own])
    return other if turns else None


def _tried(matrix: fx.Node, constants: Constants) -> Tensor | None:
    """The matrices for other numbers in the model's tensors that they are made of; ``None`` if they
    are these."""
    above, left = {matrix: None}, [matrix]
    while left:
        for i in tensor_inputs(left.pop()):
            if i not in above and constants.value(i) is None:
                above[i] = None
                left.append(i)
    held = tuple(n for n in above if n.op == "get_attr")
    part = Piece(held, matrix, tuple(n for n in sorted(above) if n not in held), constants)
    if is_live(matrix) or matrix in held or not part.is_small:
        return None
    try:
        return part(*part.draw(0))
    except (RuntimeError, TypeError):
        return None


_Part = tuple[fx.Node, "_Scaled"]
_Scaled = tuple[int, fx.Node, fx.Node]  # sign, what is scaled, what it is scaled with


def _turned_part(part: fx.Node) -> tuple[fx.Node, list[_Scaled]] | None:
    """A part that is a sum of two scaled tensors: the part itself, and the two."""
    inner = before_reshapes(part, alone=True)
    if not is_sum(inner) or len(inner.users) != 1:
        return None
    terms = terms_of(inner)
    scaled = [s for sign, n in terms if (s := _scaled(sign, n)) is not None]
    if not len(terms) == len(scaled) == 2:
        return None
    return part, scaled


def _scaled(sign: int, node: fx.Node) -> _Scaled | None:
    if kind(node) is not Kind.PRODUCT or len(node.users) != 1 or len(node.args) != 2:
        return None
    a, b = arguments(node)
    if is_float(a) and is_float(b) and is_live(a) != is_live(b):
        return (sign, a, b) if is_live(a) else (sign, b, a)
    return None


def _whole(node: fx.Node, straight: list[_Part], constants: Constants) -> fx.Node | None:
    """The tensor whose numbers the straight terms are, each once, as these are joined."""
    if any(sign < 0 or val(x).numel() != val(p).numel() for p, (sign, x, _) in straight):
        return None
    terms = [x for _, (_, x, _) in straight]
    source = next((n for n in _moved_from(terms[0]) if _holds(n, terms, constants)), None)
    if source is None:
        return None
    pieces = [reshaped(node, x, shape_of(part)) for part, (_, x, _) in straight]
    joined = torch.cat(
        [
            _places(source, x, constants).reshape(shape_of(p))
            for p, x in zip(pieces, terms, strict=True)
        ],
        arguments(node)[1],
    )
    whole = joined.numel() == val(source).numel()
    if whole and bool((joined.flatten() == torch.arange(joined.numel())).all()):
        return reshaped(node, source, shape_of(node))
    return emit(node, aten.cat.default, pieces, arguments(node)[1])


def _moved_from(x: fx.Node) -> list[fx.Node]:
    """A tensor, and those of which it shows numbers in other places, the nearest first."""
    found = [x]
    while kind(found[-1]) in MOVES:
        live = [n for n in tensor_inputs(found[-1]) if is_live(n)]
        if len(live) != 1 or live[0] is not found[-1].args[0]:
            break
        found.append(live[0])
    return found


def _holds(source: fx.Node, terms: list[fx.Node], constants: Constants) -> bool:
    """Whether the terms show numbers of a tensor, none of them twice."""
    if any(source not in _moved_from(x) for x in terms):
        return False
    if val(source).numel() < sum(val(x).numel() for x in terms):
        return False
    places = torch.cat([_places(source, x, constants).flatten() for x in terms])
    return bool((places.sort().values.diff() > 0).all())


def _places(source: fx.Node, x: fx.Node, constants: Constants) -> Tensor:
    """Where in ``source`` each number of ``x`` lies."""
    above = _moved_from(x)
    moves = above[: above.index(source)][::-1]
    places = torch.arange(val(source).numel()).reshape(shape_of(source))
    return Piece((source,), x, tuple(moves), constants)(places) if moves else places


def _factor_like(at: fx.Node, factor: fx.Node, x: fx.Node, part: fx.Node) -> fx.Node:
    wide = expanded(at, factor, shape_of(x))
    return reshaped(at, wide, shape_of(part))


def _rotation(node: fx.Node, whole: fx.Node, straight: list[_Part], other: list[_Part]) -> fx.Node:
    dim = arguments(node)[1]
    first = emit(
        node, aten.cat.default, [_factor_like(node, c, x, p) for p, (_, x, c) in straight], dim
    )
    turned = []
    for part, (sign, x, _) in other:
        piece = reshaped(node, x, shape_of(part))
        turned.append(piece if sign > 0 else emit(node, aten.neg.default, piece))
    second = emit(
        node, aten.cat.default, [_factor_like(node, c, x, p) for p, (_, x, c) in other], dim
    )
    sides = (
        emit(node, aten.mul.Tensor, whole, first),
        emit(node, aten.mul.Tensor, emit(node, aten.cat.default, turned, dim), second),
    )
    return emit(node, aten.add.Tensor, *sides)
