"""Where the layer of an attention site ends: the tensor h^l that everything after it reads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import fx

from relprop.operations import MOVES, Kind, kind
from relprop.rollup.merges import is_merge, is_still
from relprop.tracer.atoms import is_token
from relprop.tracer.editing import val
from relprop.tracer.order import Flow
from relprop.tracer.program import Program, Site


def layer_outputs(
    program: Program, flow: Flow, sites: Sequence[Site], starts: Sequence[fx.Node]
) -> dict[Site, fx.Node]:
    """For each site the output of its layer, where it has one that holds the tokens of its queries.

    It is the last node through which everything passes that a site gives to later sites and to the
    target: of a block with an MLP the sum after the MLP, with norms after it the norm's output;
    what only changes place afterwards is the same layer's output still.
    After the last site nothing tells the layer from the head. A stack repeats one block, so its
    last layer ends with the operation that the one before ends with (a sum in blocks that normalise
    first, a norm in those that normalise last): it is the last such node of that operation.
    """
    found: dict[Site, fx.Node] = {}
    for i, site in enumerate(sites):
        part = Flow(
            (n for n in flow.nodes if flow.reaches(site.contraction, n)), {site.contraction}
        )
        later = [n for s in sites[i + 1 :] for n in (s.attention, s.values) if n in part.members]
        ends = [*later, *(s for s in starts if s in part.members)]
        node = part.common_dominator(ends) if ends else None
        node = _whole(program, flow, node) if later and node is not None else node
        chain = []
        while node is not None and node is not site.contraction:
            chain.append(node)
            node = part.dominator(node)
        # right after the site: what the head picks from them later has fewer
        most = next((c for n in reversed(chain) if (c := _count(program, n))), 0)
        kept = [n for n in chain if _count(program, n) == most > 0 and kind(n) not in MOVES]
        if not kept:
            continue
        before = next(reversed(found.values()), None)
        same = [n for n in kept if before is not None and kind(n) is kind(before)]
        found[site] = kept[0] if later or not same else same[0]
    return found


def last_stream(
    program: Program,
    flow: Flow,
    starts: tuple[fx.Node, ...],
    sites: Sequence[Site],
    sizes: tuple[int, ...],
) -> fx.Node | None:
    """The first node after all the sites that every path to ``starts`` passes through and that
    still has the stream's token positions."""
    for node in flow.nodes:
        whole = tokens_of(program, node) == sizes
        behind = whole and all(flow.reaches(s.contraction, node) for s in sites)
        if behind and all(flow.common_dominator([node, s]) is node for s in starts):
            return node
    return None


def skip_of(flow: Flow, site: Site) -> fx.Node | None:
    """The first merge at which the branch of a site meets what it branched off from: its skip
    connection."""
    for node in flow.nodes:
        operands = flow.inputs[node]
        if not is_merge(node, flow) or not flow.reaches(site.contraction, node):
            continue
        x = flow.common_dominator(operands)
        still = [] if x is None else [o for o in operands if is_still(x, o, flow)]
        inside = [flow.reaches(site.contraction, o) for o in still]
        if still and not any(inside):
            return node
    return None


def block_input(program: Program, flow: Flow, site: Site) -> fx.Node | None:
    """The tensor that a site's queries, keys and values are made from: in blocks that normalise
    first, the norm's output, be they projected one by one or by one map that is cut."""
    inside = [n for n in (site.attention, site.values) if n in flow.members]
    node = flow.common_dominator(inside) if inside else None
    return None if node is None else _whole(program, flow, node)


def _whole(program: Program, flow: Flow, node: fx.Node) -> fx.Node:
    """What a layer reads whose result is ``node`` and is only cut by features, as one that gives
    keys and values is: each read alone, they would read it, too. Else ``node`` itself."""
    if not all(_is_cut_from(program, u, node) for u in node.users):
        return node
    layer = node
    while kind(layer) in MOVES and len(flow.inputs[layer]) == 1:
        layer = flow.inputs[layer][0]
    above = flow.inputs[layer] if kind(layer) is Kind.LINEAR else ()
    whole = len(above) == 1 and _count(program, above[0]) == _count(program, node) > 0
    return above[0] if whole else node


def _is_cut_from(program: Program, part: fx.Node, node: fx.Node) -> bool:
    """Whether a call picks some features of a tensor, of every token."""
    picks = kind(part) in MOVES and val(part).numel() < val(node).numel()
    return picks and _count(program, part) == _count(program, node)


def token_axes(program: Program, node: fx.Node) -> tuple[int, ...]:
    """Which axes of a tensor are tokens."""
    return tuple(i for i, axis in enumerate(program.axes.get(node, ())) if is_token(axis))


def tokens_of(program: Program, node: fx.Node) -> tuple[int, ...]:
    """The lengths of a tensor's token axes."""
    return tuple(val(node).shape[i] for i in token_axes(program, node))


def _count(program: Program, node: fx.Node) -> int:
    """How many tokens a tensor holds, in windows or in one row; 0 if it holds none."""
    tokens = tokens_of(program, node)
    return math.prod(tokens) if tokens else 0
