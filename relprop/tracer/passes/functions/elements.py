"""Functions of every element of one tensor, however they are written out: x·Φ(x), hard forms by
clamps, choices by sign. One that torch has is that; another is one operation all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.operations.vocabulary import Written
from relprop.tracer.editing import (
    arguments,
    aten,
    drop_unused,
    emit,
    is_float,
    is_live,
    is_number,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.functions.known import (
    emit_line,
    known_by_torch,
    line_of,
    line_of_known,
)
from relprop.tracer.passes.trials.comparison import same, trials
from relprop.tracer.passes.trials.recipes import Recipe, recipe_of
from relprop.tracer.passes.trials.subgraphs import Subgraph, candidates

_CHAIN = frozenset({Kind.FUNCTION, Kind.AFFINE, Kind.SUM, Kind.PRODUCT, Kind.QUOTIENT})


def raise_functions(graph: fx.Graph) -> bool:
    """Subgraphs without a sum in them, then chains of functions → one call each; whether one was
    written anew."""
    taken: set[fx.Node] = set()
    for subgraph in list(candidates(graph)):
        if subgraph.axes or taken & set(subgraph.nodes):
            continue
        if _stops_gradient(subgraph.nodes):
            continue
        if subgraph.parameters and _is_affine(subgraph):
            continue
        new = _call(subgraph.output, subgraph.source, subgraph.recipe, subgraph.parameters)
        taken |= set(subgraph.nodes)
        swap(subgraph.output, new)
    drop_unused(graph)
    shorter = _raise_chains(graph)
    _turn_sigmoids(graph)
    return shorter or bool(taken)


def _turn_sigmoids(graph: fx.Graph) -> None:
    """1 − σ(x) → σ(−x), where σ(x) has other readers, too: what a gate leaves is a gate."""
    for node in list(graph.nodes):
        if not is_call(node, aten.rsub) or not is_number(arguments(node)[1], 1):
            continue
        gate = operand(node)
        if is_call(gate, aten.sigmoid) and is_live(gate):
            turned = emit(node, aten.neg.default, operand(gate))
            swap(node, emit(node, aten.sigmoid.default, turned))


def _stops_gradient(nodes: Sequence[fx.Node]) -> bool:
    return any(kind(n) is Kind.DETACH for n in nodes)


def _call(at: fx.Node, x: fx.Node, recipe: Recipe, parameters: Sequence[fx.Node]) -> fx.Node:
    """The function as torch has it, as a multiple of x if it is one, or as one that is written
    out."""
    if not parameters:
        if (line := line_of(recipe)) is not None:
            return emit_line(at, x, *line)
        if (known := known_by_torch(recipe)) is not None:
            return known(at, x)
        if (known := line_of_known(recipe)) is not None:
            return known(at, x)
    return emit(at, Written(recipe), x, *parameters)


def _is_affine(subgraph: Subgraph) -> bool:
    """Whether a subgraph with parameters is a·x + b for all of them: no activation, but sums."""
    for t in trials(subgraph):
        zero, one, two = (subgraph(k * t.x, *t.parameters) for k in (0.0, 1.0, 2.0))
        if not same(two - one, one - zero, 1e-9):
            return False
    return True


def _raise_chains(graph: fx.Graph) -> bool:
    """Functions of functions: what torch has a name for, from the longest chain on; else from the
    first function to the last as one."""
    done: set[fx.Node] = set()
    shorter = False
    for node in reversed(list(graph.nodes)):
        if node in done or node._erased or not _links(node):
            continue
        chain = [node]
        while _links(above := operand(chain[0])) and len(above.users) == 1:
            chain.insert(0, above)
        done |= set(chain)
        shorter |= _shorten(chain)
    drop_unused(graph)
    return shorter


def _links(node: object) -> TypeGuard[fx.Node]:
    """Whether a call is a function of one tensor and of numbers."""
    if not isinstance(node, fx.Node) or kind(node) not in _CHAIN or not is_float(node):
        return False
    x = arguments(node)[0]
    single = len(node.all_input_nodes) == 1 and is_float(x) and is_live(x)
    return single and shape_of(x) == shape_of(node) and val(x).dtype == val(node).dtype


def _shorten(chain: list[fx.Node]) -> bool:
    curved = [i for i, n in enumerate(chain) if kind(n) is Kind.FUNCTION]
    if not curved or len(chain) < 2:
        return False
    for length in range(len(chain), 1, -1):
        for first in range(len(chain) - length + 1):
            part = chain[first : first + length]
            if not any(kind(n) is Kind.FUNCTION for n in part):
                continue
            known = known_by_torch(recipe_of(part, [operand(part[0])]))
            if known is not None:
                swap(part[-1], known(part[-1], operand(part[0])))
                return True
    if len(curved) > 1:
        part = chain[curved[0] : curved[-1] + 1]
        recipe = recipe_of(part, [operand(part[0])])
        swap(part[-1], _call(part[-1], operand(part[0]), recipe, ()))
    return len(curved) > 1
