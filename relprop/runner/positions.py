"""Which axes of an explained input are positions (pixels, time steps, tokens), one score each; the
others are features, summed over.

Worked out from the graph: a convolution says which axes it slides over, attention which are its
tokens. Where neither does, the convention of PyTorch's layers holds: (batch, channels, height,
width), (batch, time, features), (batch, samples).

And what position terms receive, as scores of their tokens: positional LRP (Bakish et al. 2025).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, fx

from relprop.errors import OptionError
from relprop.interpreter.accounts import added
from relprop.interpreter.batch import shares_of
from relprop.interpreter.ledger import Ledger
from relprop.layout import Places, places_of
from relprop.operations import Kind, argument, kind, of
from relprop.plan import POSITIONS, Plan, factors_of_scores
from relprop.runner.session import Session
from relprop.tracer.atoms import Axis, Group, is_token
from relprop.tracer.editing import val
from relprop.tracer.program import Program

if TYPE_CHECKING:
    from relprop.runner.input_study import InputStudy


def positions(program: Program, leaf: fx.Node) -> tuple[int, ...]:
    """The position axes of one sample's value at ``leaf``, in order. Axis 0 is one only where a
    sample holds several rows (choices of an answer)."""
    return program.memo.cache(("positions", leaf), lambda: _positions(program, leaf))


def _positions(program: Program, leaf: fx.Node) -> tuple[int, ...]:
    axes, rank = program.axes[leaf], val(leaf).dim()
    tokens = {i for i, axis in enumerate(axes) if is_token(axis)}
    slid = _slid_over(program, leaf)
    if leaf.op != "placeholder":
        found = set(range(rank - 1))
    elif slid is not None and not tokens & slid[1]:  # its channels are no tokens to an attention
        over, channels = slid
        found = (_conventional(rank) | over) - channels
    else:
        found = tokens or _conventional(rank)
    return tuple(i for i in sorted(found) if i > 0 or val(leaf).shape[0] > 1)


def _conventional(rank: int) -> set[int]:
    """(1, N), (1, T, F), (1, C, ...)."""
    return {1} & set(range(rank)) if rank <= 3 else set(range(2, rank))


def _slid_over(program: Program, leaf: fx.Node) -> tuple[set[int], set[int]] | None:
    """The leaf's axes that its first convolution slides over (or treats as a batch), and those it
    takes for channels; ``None`` without one."""
    found = _first_convolution(program, leaf)
    if found is None:
        return None
    _, own, entering = found
    slid = {
        i
        for i, mine in enumerate(own)
        for k, theirs in enumerate(entering)
        if k != 1 and mine & theirs
    }
    return slid, {i for i, mine in enumerate(own) if mine & entering[1]} - slid


def _first_convolution(
    program: Program, leaf: fx.Node
) -> tuple[fx.Node, list[set[Group]], list[set[Group]]] | None:
    """The first convolution over what the leaf's axes hold, and the groups of the leaf's and of its
    own operand's axes."""
    own = [_groups(axis) for axis in program.axes[leaf]]
    for node in program.graph.nodes:
        axes = program.axes.get(node.args[0], ()) if kind(node) is Kind.CONVOLUTION else ()
        entering = [_groups(axis) for axis in axes]
        if any(mine & theirs for mine in own for theirs in entering):
            return node, own, entering
    return None


def windows(program: Program, leaf: fx.Node) -> tuple[int, ...]:
    """How many positions are hidden together along each position axis, unless a user says
    otherwise.

    The patch, where the first convolution over the input cuts it into patches that do not overlap;
    8 along the axes of a grid of pixels, and of a signal's samples; else 1: time steps, tokens, the
    channels of a series, which each have a map of their own.
    """
    axes, shape = positions(program, leaf), val(leaf).shape
    found = _first_convolution(program, leaf)
    if leaf.op != "placeholder":
        return (1,) * len(axes)
    signal = found is not None and math.prod(shape) == math.prod(shape[i] for i in axes)
    grid = set(axes) if len(shape) > 3 else set[int]()
    if found is not None:
        _, own, entering = found
        grid = {i for i in axes if any(own[i] & over for over in entering[2:])}
    sizes = {i: 8 if i in grid and (len(axes) > 1 or signal) else 1 for i in axes}
    sizes |= _patch(*found) if found is not None else {}
    return tuple(min(sizes[i], shape[i]) for i in axes)


def _patch(node: fx.Node, own: list[set[Group]], entering: list[set[Group]]) -> dict[int, int]:
    """The kernel's size along each axis of the leaf, if the kernel moves by just that; else
    nothing."""
    kernel = tuple(val(node.args[1]).shape[2:])
    stride, dilation = (tuple(argument(node, name)) for name in ("stride", "dilation"))
    if (
        kernel != (stride * len(kernel) if len(stride) == 1 else stride)
        or set(dilation) != {1}
        or max(kernel) == 1
        or of(node).transposed
    ):
        return {}
    first = len(entering) - len(kernel)
    return {
        i: kernel[k - first]
        for i, mine in enumerate(own)
        for k, theirs in enumerate(entering)
        if k >= first and mine & theirs
    }


def _groups(axis: Axis) -> set[Group]:
    return {atom.group.root() for atom in axis}


@dataclass(frozen=True)
class PositionScores:
    """The position terms of a ``plan``, and at which positions of each input, by name, the elements
    of the sums and products are that they enter: in two places those of attention's scores."""

    plan: Plan
    places: Mapping[fx.Node, Sequence[Mapping[str, Places]]]

    @classmethod
    def of(cls, session: Session, plan: Plan | None, leaves: Mapping[str, fx.Node]) -> Self:
        """Those of a relevance pass. Raises ``OptionError`` where there are none."""
        if plan is None or not plan.positions:
            raise OptionError(
                "positions=True: relevance passes no position terms of this model: it adds no "
                "tensor to its tokens, or to attention's scores, that has their axis, and turns no "
                "queries and keys",
                then=[
                    "leave positions= out: what else absorbs relevance is in e.ledger.absorbed()"
                ],
            )
        program, entering = session.program, tuple(plan.positions)
        axes = {name: (leaf, positions(program, leaf)) for name, leaf in leaves.items()}
        pairs = factors_of_scores(program, session.flow)
        attention = frozenset(site.contraction for site in program.sites)
        places = session.kept(
            ("places", entering, tuple(axes)),
            lambda: places_of(entering, axes, session.flow, attention, pairs),
        )
        return cls(plan, places)

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """The sums and products."""
        return tuple(self.plan.positions)

    @property
    def read(self) -> set[fx.Node]:
        """What must be kept of the forward pass."""
        return self.plan.read_at(self.nodes)

    def scores(self, study: InputStudy) -> tuple[dict[str, Tensor], Tensor]:
        """What position terms receive at each position of each explained input, (batch, positions),
        by name; and what those of the model's own tokens do (a class token, which is at no position
        of an input), (batch,)."""
        batch, like = len(study.start.scalars), next(iter(study.relevances.values()))
        counts = {n: _count(study, leaf) for n, leaf in study.leaves.items()}
        found = {name: like.new_zeros(batch, count) for name, count in counts.items()}
        whole = like.new_zeros(batch)
        for node, terms in self.plan.positions.items():
            arrived = study.relevance(node)
            assert arrived is not None
            values = study.run.values(study.session, self.plan.read_at([node]))
            share = shares_of(self.plan, values, node, arrived, terms)
            whole = whole + share.flatten(1).sum(1)
            for places in self.places[node]:  # of two tokens: half to each
                for name, there in places.items():
                    found[name] = found[name] + there.brought(share) / len(self.places[node])
        return found, whole - torch.stack([part.sum(1) for part in found.values()]).sum(0)


def apart(ledger: Ledger, own: Tensor) -> Ledger:
    """Books in which what the positions of the model's own tokens received, (batch,), is an entry
    of its own."""
    part = own.to(ledger.started)
    moved = {POSITIONS: -part, "positions of the model's own tokens": part}
    return replace(ledger, reached=added(ledger.reached, moved))


def _count(study: InputStudy, leaf: fx.Node) -> int:
    sizes = [val(leaf).shape[i] for i in positions(study.program, leaf)]
    return torch.Size(sizes).numel()
