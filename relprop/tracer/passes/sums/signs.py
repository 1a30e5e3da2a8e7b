"""The sign of what enters or leaves a linear map is its weight's."""

from __future__ import annotations

from torch import fx

from relprop.operations import is_call, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_float,
    is_live,
    is_tensor,
    swap,
)
from relprop.tracer.passes.simplify.numbers import factor_of, multiple, taken_back
from relprop.tracer.passes.sums.terms import added, is_sum, is_top, terms_of


def join_signs(graph: fx.Graph) -> None:
    """W(−x) and −(Wx) → (−W)x, u − Wx → u + (−W)x, once functions that turn a sign themselves are
    recognised; −u − v → −(u + v), as a stream that is carried with the other sign."""
    _turn_sums(graph)
    for node in list(graph.nodes):
        if node._erased or not is_float(node) or not is_live(node):
            continue
        new = None
        if is_call(node, aten.linear):
            new = _of_turned(node)
        elif (found := multiple(node)) is not None and found[1] < 0:
            layer, c = _turned(node, found[0]), -found[1]
            new = layer if layer is None or c == 1 else emit(node, aten.mul.Tensor, layer, c)
        elif is_call(node, aten.sub) and all(map(is_tensor, node.args)):
            layer = _turned_multiple(node, arguments(node)[1])
            new = layer and emit(node, aten.add.Tensor, operand(node), layer)
        if new is not None:
            swap(node, new)


def _turn_sums(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if is_call(node, aten.neg) and is_call(operand(node), aten.neg):
            swap(node, operand(operand(node)))
        elif not node._erased and is_sum(node) and is_top(node):
            terms = [_bare(sign, term) for sign, term in terms_of(node)]
            if all(sign < 0 for sign, _ in terms):
                whole = added(node, [(1, term) for _, term in terms])
                swap(node, emit(node, aten.neg.default, whole))


def _bare(sign: int, term: fx.Node) -> tuple[int, fx.Node]:
    while is_call(term, aten.neg):
        sign, term = -sign, operand(term)
    return sign, term


def _of_turned(node: fx.Node) -> fx.Node | None:
    """W(c·x) of a number c below 0 → (−W)(−c·x)."""
    x, weight, *bias = arguments(node)
    found = multiple(x)
    if found is None or found[1] >= 0 or is_live(weight):
        return None
    x, c = found
    if (back := taken_back(node, weight, -c)) is not None:
        weight = back
    elif c != -1:
        x = emit(node, aten.mul.Tensor, x, -c)
    return emit(node, aten.linear.default, x, emit(node, aten.neg.default, weight), *bias)


def _turned_multiple(at: fx.Node, x: fx.Node) -> fx.Node | None:
    """−c·(Wx + b) of a number c above 0, or 1 → c·((−W)x − b)."""
    found = factor_of(x) if len(x.users) == 1 else None
    if found is None:
        return _turned(at, x)
    layer = _turned(at, found[0]) if found[1] > 0 else None
    return layer and emit(at, aten.mul.Tensor, layer, found[1])


def _turned(at: fx.Node, layer: fx.Node) -> fx.Node | None:
    """−(Wx + b) of a linear map that nothing else reads → (−W)x − b."""
    if not is_call(layer, aten.linear) or len(layer.users) != 1 or is_live(arguments(layer)[1]):
        return None
    given = [w if w is None else emit(at, aten.neg.default, w) for w in arguments(layer)[1:]]
    return emit(at, aten.linear.default, operand(layer), *given)
