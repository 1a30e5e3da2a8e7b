"""The token tensor of every explained input: where the roll-up ends."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.errors import RollUpError
from relprop.operations import Kind, kind
from relprop.rollup.layers import token_axes, tokens_of
from relprop.rules.coarse import finer
from relprop.rules.fields import number
from relprop.tracer.draws import DRAWN
from relprop.tracer.editing import operands_first, tensor_inputs, val
from relprop.tracer.facts import is_batched
from relprop.tracer.leaves import joined_tokens, with_tokens
from relprop.tracer.order import Flow
from relprop.tracer.program import Program, Site, describe


@dataclass(frozen=True)
class Stream:
    """One input's tokens: ``node`` is the tensor whose positions are scored, ``token_axes`` which
    of its axes they are."""

    name: str
    leaf: fx.Node
    node: fx.Node
    token_axes: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The lengths of the token axes."""
        return tuple(val(self.node).shape[i] for i in self.token_axes)

    def read(self, field: Tensor) -> Tensor:
        """The numbers of a field at the token tensor, (batch, channels, tokens)."""
        shape = val(self.node).shape
        features = tuple(i for i in range(len(shape)) if i not in self.token_axes)

        def numbers(one: Tensor) -> Tensor:
            lengths = [own if i in features else shape[i] for i, own in enumerate(one.shape[1:])]
            return number(finer(one, lengths), features)[0].flatten(1)

        return torch.func.vmap(numbers)(field)  # type: ignore[no-any-return]


def streams(
    program: Program, flow: Flow, starts: tuple[fx.Node, ...], sites: tuple[Site, ...]
) -> tuple[Stream, ...]:
    """The token tensor of every leaf from which attention sites and the target descend.

    It is the last node through which every path from the leaf to the target and into any attention
    site passes, and which no other explained input has entered (where text and image tokens are
    joined to one sequence, each ends before).
    """
    found = [_stream(program, flow, name, (starts, sites)) for name in program.leaves]
    return tuple(stream for stream in found if stream is not None)


def _stream(
    program: Program,
    flow: Flow,
    name: str,
    ends: tuple[tuple[fx.Node, ...], tuple[Site, ...]],
) -> Stream | None:
    """The token tensor of one leaf; ``None`` if no attention site reads it. ``ends``: starts and
    attention sites."""
    leaf = program.leaves[name]
    below = _read_by_attention(flow, leaf, *ends)
    if not below:
        return None
    part = Flow((n for n in flow.nodes if flow.reaches(leaf, n)), {leaf})
    alone = _before_others(program, flow, part, below, leaf)
    node = alone
    while node is not None and not token_axes(program, node):
        node = part.dominator(node)
    if node is not None:
        node = _before_masks(program, part, node)
        return Stream(name, leaf, node, token_axes(program, node))
    joined = joined_tokens(leaf, program.axes)
    if [part for part, _ in joined] == [alone]:
        return Stream(name, leaf, *joined[0][:1], joined[0][1:])
    if kind(leaf) is Kind.EMBEDDING and val(leaf).dim() > 2:  # one token of one
        return Stream(name, leaf, leaf, tuple(range(1, val(leaf).dim() - 1)))
    if with_tokens({name: leaf}, (program.axes, ends[1])):
        raise _lost(leaf, name)
    raise _without_tokens(leaf, name)


def _read_by_attention(
    flow: Flow, leaf: fx.Node, starts: tuple[fx.Node, ...], sites: tuple[Site, ...]
) -> list[fx.Node]:
    """The maps and values that descend from a leaf at sites from which the target descends, and
    that target; nothing where there is no such site."""
    ends = [s for s in starts if s in flow.members and flow.reaches(leaf, s)]
    below = [
        n
        for s in sites
        if flow.reaches(leaf, s.contraction) and any(flow.reaches(s.contraction, e) for e in ends)
        for n in (s.attention, s.values)
        if n in flow.members and flow.reaches(leaf, n)
    ]
    return [*ends, *below] if below else []


def _before_others(
    program: Program, flow: Flow, part: Flow, below: list[fx.Node], leaf: fx.Node
) -> fx.Node | None:
    """The last node before all of ``below`` that no other explained input has entered, and before
    any pick of positions by chance or by the input."""
    node = part.common_dominator(below)
    others = [other for other in program.leaves.values() if other is not leaf]
    while node is not None:
        entered = any(flow.reaches(other, node) for other in others)
        if not entered and not _out_of_order(part, node):
            return node
        node = part.dominator(node)
    return None


def _without_tokens(leaf: fx.Node, name: str) -> RollUpError:
    return RollUpError(
        f"input {name!r} has no axis of tokens: methods over attention have no scores for it",
        at=describe(leaf),
        then=[
            "leave it out of explain_inputs=: it is then a constant",
            "method='lrp' and the others at the input explain every input",
        ],
    )


def _lost(leaf: fx.Node, name: str) -> RollUpError:
    return RollUpError(
        f"the attention maps cannot be followed down to input {name!r}: no tensor that all "
        "its attention descends from has an axis known to hold tokens",
        at=describe(leaf),
        then=[
            "relprop.instrument(model, inputs, target=...).relevance(...) "
            "gives relevance at any layer without a roll-up"
        ],
    )


def _before_masks(program: Program, part: Flow, node: fx.Node) -> fx.Node:
    """The tensor of the same tokens from before any of them was masked out: what stands at a masked
    position comes from others, and is not its own."""
    found, above = node, node
    while (before := part.dominator(above)) is not None and tokens_of(program, before) == tokens_of(
        program, node
    ):
        found = before if kind(above) is Kind.CHOICE else found
        above = before
    return found


def _out_of_order(part: Flow, node: fx.Node) -> bool:
    """Whether positions were picked on the way by indices that depend on the input or on chance.

    Scores are read by position, and a layout is made once for all samples: it can undo an order
    that is a constant of the graph, but none that differs from sample to sample or from run to run.
    Only the tensor before such a pick has its tokens where every sample has them.
    """
    picks = [
        n
        for n in part.between(None, node)
        if kind(n) in (Kind.INDEX, Kind.GATHER) and part.common_dominator([n, node]) is n
    ]
    indices = [i for n in picks for i in tensor_inputs(n) if i not in part.members]
    return any(is_batched(i) or _by_chance(i) for i in indices)


def _by_chance(node: fx.Node) -> bool:
    """Whether random numbers enter ``node``."""
    seen = set[fx.Node]()
    for n in operands_first(node, seen.__contains__):
        seen.add(n)
        if kind(n) is Kind.RANDOM or str(n.target).startswith(DRAWN):
            return True
    return False
