"""Attention that is recognised by its numbers alone: in parts, online, key by key.

Where queries, keys and values alone decide what comes out, the graph between is run on numbers of
our own: which axes are whose is found by changing one number, the map by values that are one in one
place. If softmax(c·q·kᵀ + m)·v gives the same, with the same derivatives, it is that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import fx

from relprop.operations import MOVES, Kind, kind
from relprop.tracer.constants import Constants
from relprop.tracer.editing import is_float, is_live, tensor_inputs, val
from relprop.tracer.passes.attention.maps import attention
from relprop.tracer.passes.trials.parts import MOST_NODES, Piece, Recogniser, raise_parts


def raise_attention_by_probing(graph: fx.Graph, constants: Constants) -> None:
    """Every such attention."""

    def tried(output: fx.Node) -> Iterator[tuple[Piece, Recogniser]]:
        yield from _parts_of_several(output, constants)

    raise_parts([n for n in graph.nodes if is_live(n)], tried)


def _parts_of_several(output: fx.Node, constants: Constants) -> Iterator[tuple[Piece, Recogniser]]:
    """From queries, keys and values to the attention's result, where not one softmax stands between
    them."""
    if val(output).dim() < 2 or kind(output) in (Kind.RESHAPE, Kind.PERMUTE):
        return
    if not any(_meets_weights(u, constants) for u in _below(output)):
        return
    subgraph = _subgraph(output, constants)
    if subgraph is None or not _may_attend(subgraph):
        return
    members = set(subgraph)
    frontier = [i for n in subgraph for i in tensor_inputs(n) if is_live(i) and i not in members]
    for sources in _cuts(list(dict.fromkeys(frontier)), subgraph, output):
        part = Piece(tuple(sources), output, tuple(_from(sources, subgraph, output)), constants)
        if part.is_small and all(is_float(s) and val(s).dim() >= 2 for s in sources):
            yield part, attention


def _may_attend(subgraph: Sequence[fx.Node]) -> bool:
    """Whether nodes compare and weigh, and are more than one softmax between two products."""
    kinds = [kind(n) for n in subgraph]
    compares = not {Kind.FUNCTION, Kind.SOFTMAX, Kind.LOG_SOFTMAX}.isdisjoint(kinds)
    weighs = Kind.MATMUL in kinds or Kind.PRODUCT in kinds
    usual = kinds.count(Kind.SOFTMAX) == 1 and kinds.count(Kind.MATMUL) <= 2
    return compares and weighs and not usual


def _below(node: fx.Node) -> list[fx.Node]:
    """Who reads a tensor, in whatever shape."""
    found: list[fx.Node] = []
    left = list(node.users)
    while left:
        user = left.pop()
        if kind(user) in (Kind.RESHAPE, Kind.PERMUTE, Kind.IDENTITY):
            left.extend(user.users)
        else:
            found.append(user)
    return found


def _meets_weights(node: fx.Node, constants: Constants) -> bool:
    """Whether a call reads something of the model's that is not known, or ends the graph."""
    return node.op == "output" or any(
        not is_live(i) and constants.value(i) is None for i in tensor_inputs(node)
    )


def _subgraph(output: fx.Node, constants: Constants) -> list[fx.Node] | None:
    """What lies above ``output``, up to what reads weights."""
    found: dict[fx.Node, None] = {}
    left = [output]
    stops = (Kind.RANDOM, Kind.DETACH, Kind.READ, Kind.EMBEDDING, Kind.NORM, Kind.BATCH_NORM)
    while left:
        node = left.pop()
        if node in found or node.op != "call_function" or kind(node) in stops:
            continue
        if _meets_weights(node, constants):
            continue
        found[node] = None
        if len(found) > MOST_NODES:
            return None
        left.extend(i for i in tensor_inputs(node) if is_live(i))
    return sorted(found)


def _ways(sources: Sequence[fx.Node], subgraph: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """By how many ways each node is reached from ``sources``."""
    ways = dict.fromkeys(sources, 1)
    for node in subgraph:
        if node not in ways:
            ways[node] = sum(ways.get(i, 0) for i in tensor_inputs(node))
    return ways


def _from(
    sources: Sequence[fx.Node], subgraph: Sequence[fx.Node], output: fx.Node
) -> list[fx.Node]:
    """The nodes that are needed for ``output`` if ``sources`` are known."""
    needed, left = set(sources), [output]
    while left:
        node = left.pop()
        if node not in needed:
            needed.add(node)
            left.extend(i for i in tensor_inputs(node) if is_live(i))
    return [n for n in subgraph if n in needed and n not in set(sources)]


def _lowered(
    source: fx.Node, subgraph: Sequence[fx.Node], output: fx.Node, others: list[fx.Node]
) -> fx.Node:
    """The last node that every way from ``source`` passes and that nothing else enters."""
    ways, mixed = _ways([source], subgraph), _ways(others, subgraph)
    back: dict[fx.Node, int] = {output: 1}
    for node in reversed(subgraph):
        for i in tensor_inputs(node):
            back[i] = back.get(i, 0) + back.get(node, 0)
    every = ways.get(output, 0)
    fit = [
        n
        for n in subgraph
        if n is not output and not mixed.get(n) and ways.get(n, 0) * back.get(n, 0) == every > 0
    ]
    longer = next((i for i, n in enumerate(fit) if _gets_more(n)), len(fit))
    return fit[longer - 1] if longer else source


def _gets_more(node: fx.Node) -> bool:
    """Whether constants are laid beside a tensor: a column of ones."""
    if kind(node) is Kind.PAD:
        return True
    return kind(node) is Kind.JOIN and not all(is_live(i) for i in tensor_inputs(node))


def _cuts(
    frontier: list[fx.Node], subgraph: Sequence[fx.Node], output: fx.Node
) -> Iterator[list[fx.Node]]:
    """Three tensors each through which everything comes."""
    seen: list[list[fx.Node]] = [frontier]
    members = set(subgraph)
    while seen:
        sources = seen.pop(0)
        sources = [
            _lowered(s, subgraph, output, [o for o in sources if o is not s]) for s in sources
        ]
        if len(sources) == 3:
            yield sources
        if len(sources) >= 3:
            continue
        for s in sources:
            parts = [u for u in s.users if u in members]
            rest = [o for o in sources if o is not s]
            if 2 <= len(parts) <= 3 - len(rest) and all(kind(u) in MOVES for u in parts):
                seen.append([*rest, *parts])
