"""Which inputs are explained, and where explanation starts in each; why the others are constants.

A floating input can be explained itself, an integer one at the output of the embedding it feeds.
Unless they are named, those are explained whose positions attention mixes: not masks, not segments
or places that are only added to another input's tokens, and not side inputs without tokens of their
own (timesteps, scalars, conditioning vectors, labels, one vector beside a sequence).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import torch
from torch import Tensor, fx

from relprop.operations import ELEMENTWISE, MOVES, Kind, argument, kind, operand
from relprop.tracer.atoms import Axes, Axis
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.facts import decide_liveness, place
from relprop.tracer.follow import depending, reached
from relprop.tracer.program import Site

NOT_CHOSEN = "is not among the inputs to explain"
ADDED = "is only added to another input's tokens (segments, places)"
NOT_MIXED = "has no positions that attention mixes (a mask, side features)"
NO_TOKENS = "has no axis of tokens (a timestep, a conditioning vector, a label)"

Leaves = dict[str, fx.Node]
Structure = tuple[Mapping[fx.Node, Axes], tuple[Site, ...]]


#: Why whole numbers are constants.
NO_EMBEDDING = "feed no embedding"


def candidates(placeholders: Mapping[str, fx.Node]) -> tuple[Leaves, dict[str, str]]:
    """The inputs that can be explained, each with the node where it would start; and why the others
    cannot."""
    leaves: Leaves = {}
    cannot: dict[str, str] = {}
    for name, node in placeholders.items():
        if val(node).is_floating_point():
            leaves[name] = node
        elif lookups := _lookups(node):
            embedding = lookups[0]
            moved = [n for n in _out_of_order(same_ids(node)) if _leads(n, embedding)]
            if moved:
                op = f"{moved[0].target} at {place(moved[0])}"
                cannot[name] = f"is looked up out of order, in a way that is not followed ({op})"
            else:
                leaves[name] = embedding
        else:
            kinds = str(val(node).dtype).removeprefix("torch.")
            cannot[name] = f"holds {kinds} numbers that {NO_EMBEDDING}"
    return leaves, cannot


def only_added(placeholders: Mapping[str, fx.Node], leaves: Leaves) -> set[str]:
    """The inputs whose embedding is side information: added, position by position, to that of
    another input of ids before it (segments, places), and nothing else."""
    found: set[str] = set()
    ids = [name for name in leaves if not val(placeholders[name]).is_floating_point()]
    for i, name in enumerate(ids):
        before = [leaves[n] for n in ids[:i] if n not in found]
        if _only_added(leaves[name], before):
            found.add(name)
    return found


def _only_added(embedding: fx.Node, leaves: list[fx.Node]) -> bool:
    """Whether an embedding only ever enters sums with other inputs' tokens, and until then passes
    nothing but ``POSITIONWISE`` calls."""
    below = depending(embedding.graph.nodes, leaves)
    met = False
    for node in reached(embedding.users, lambda node: () if node in below else node.users):
        if kind(node) not in ({Kind.SUM} if node in below else POSITIONWISE):
            return False
        met |= node in below
    return met


#: Calls that treat every position for itself. Such a call commutes with any reordering of the
#: positions, so what it makes of an embedding still says of each position what the embedding said
#: of it, and nothing of others: added to a token, it is a property of that token (its segment, its
#: place). What mixes positions, and what is not added, makes tokens of its own.
POSITIONWISE = ELEMENTWISE | {
    Kind.RESHAPE,
    Kind.PERMUTE,
    Kind.EXPAND,
    Kind.SELECT,
    Kind.SLICE,
    Kind.NORM,
}


def _lookups(ids: fx.Node) -> list[fx.Node]:
    """The embeddings whose indices are ``ids``."""
    seen = same_ids(ids)
    return [n for n in ids.graph.nodes if kind(n) is Kind.EMBEDDING and n.args[1] in seen]


def looked_up_elsewhere(ids: fx.Node, leaf: fx.Node) -> list[fx.Node]:
    """Other lookups of what is ``ids`` that an output depends on: what they give is a constant to
    an explanation that starts at ``leaf``."""
    needed = set(reached(ids.graph.find_nodes(op="output")))
    return [n for n in _lookups(ids) if n is not leaf and n in needed]


def same_ids(ids: fx.Node) -> set[fx.Node]:
    """What is ``ids``: moved, joined with others, clamped, shifted or cast, but never compared or
    counted (positions are)."""

    def still(node: fx.Node) -> bool:
        return kind(node) in SAME_IDS and _is_whole(val(node))

    return depending(ids.graph.nodes, [ids], still) if _is_whole(val(ids)) else {ids}


def _is_whole(value: object) -> bool:
    """Whether a value is a tensor of whole numbers."""
    if not isinstance(value, Tensor):
        return False
    return not (value.is_floating_point() or value.dtype == torch.bool)


def _leads(ids: fx.Node, embedding: fx.Node) -> bool:
    """Whether these are the numbers, or made into the numbers, that are looked up."""
    return ids in reached([operand(embedding, 1)])


def _out_of_order(ids: set[fx.Node]) -> list[fx.Node]:
    """Those that change places; what picks from a table of numbers by ids gives each of them
    another number (TabTransformer's kinds, whose columns share one embedding)."""
    return [n for n in ids if kind(n) in OUT_OF_ORDER and operand(n) in ids]


#: What the passes leave of ids that change places.
OUT_OF_ORDER = frozenset({Kind.SHIFT, Kind.GATHER, Kind.INDEX, Kind.SHUFFLE})
#: What ids may pass and still be ids: comparisons and counts (of positions) make something else.
SAME_IDS = (ELEMENTWISE - {Kind.TEST}) | MOVES | {Kind.PAD, Kind.FILL}


def mixed(leaves: Leaves, structure: Structure) -> Leaves:
    """The inputs whose positions attention mixes: some site's values come from them other than
    through attention maps."""
    _, sites = structure
    maps = {s.attention for s in sites}

    def reaches_values(leaf: fx.Node) -> bool:
        reached = _below(leaf, maps)
        return any(s.values in reached for s in sites)

    return {name: leaf for name, leaf in leaves.items() if reaches_values(leaf)}


def with_tokens(leaves: Leaves, structure: Structure) -> Leaves:
    """The inputs that have tokens: something made of one alone has an axis of them, or several
    positions made of it are joined to others along such an axis. Repeating one thing makes none."""
    axes, _ = structure

    def has(leaf: fx.Node) -> bool:
        made = any(_tokens(axis) for node in _own(leaf) for axis in axes.get(node, ()))
        joined = joined_tokens(leaf, axes)
        counts = [1 if _repeats(n, dim, axes) else val(n).shape[dim] for n, dim in joined]
        return made or sum(counts) > 1

    return {name: leaf for name, leaf in leaves.items() if has(leaf)}


def joined_tokens(leaf: fx.Node, axes: Mapping[fx.Node, Axes]) -> list[tuple[fx.Node, int]]:
    """What is made of this input alone and joined to other things along an axis of tokens: the
    tensors, each with that axis."""
    own, found = _own(leaf), dict[fx.Node, int]()
    for node in _below(leaf):
        if kind(node) is Kind.JOIN and node in axes:
            dim = argument(node, "dim") % val(node).dim()
            parts = set(tensor_inputs(node))
            if any(atom.kind == "token" for atom in axes[node][dim]) and not parts <= own:
                found |= dict.fromkeys(parts & own, dim)
    return list(found.items())


def _tokens(axis: Axis) -> bool:
    return any(atom.kind == "token" and not atom.repeated for atom in axis)


def _repeats(node: fx.Node, dim: int, axes: Mapping[fx.Node, Axes]) -> bool:
    axis = axes[node][dim] if node in axes else ()
    return bool(axis) and all(atom.repeated for atom in axis)


def _own(leaf: fx.Node) -> set[fx.Node]:
    """What depends on this input and on no other."""
    inputs = leaf.graph.find_nodes(op="placeholder")
    others = [_below(node) for node in inputs]
    return _below(leaf).difference(*(below for below in others if leaf not in below))


def side_inputs(constant: Leaves, sites: Iterable[Site]) -> Leaves:
    """Those constant inputs that do more than change attention maps, as masks do: what they give to
    an output passes beside the maps, too."""
    maps = {s.attention for s in sites}
    outputs = {o for node in constant.values() for o in node.graph.find_nodes(op="output")}
    return {name: node for name, node in constant.items() if outputs & _below(node, maps)}


def hold_still(graph: fx.Graph, constant: Iterable[fx.Node]) -> None:
    """Make the passes take these inputs for constants, as they take parameters: a scale that is
    made of a timestep is then the scale of a norm. Their values still come with every call."""
    for node in graph.nodes:
        decide_liveness(node, None)
    for node in constant:
        decide_liveness(node, False)


def _below(node: fx.Node, but: Container[fx.Node] = ()) -> set[fx.Node]:
    """The nodes that depend on one, other than through ``but``."""
    return depending(node.graph.nodes, [node], lambda n: n not in but)


#: Of the inputs that can be explained those that are, unless they are named: what one needs, by
#: why it is a constant without it.
USUAL = {NOT_MIXED: mixed, NO_TOKENS: with_tokens}
