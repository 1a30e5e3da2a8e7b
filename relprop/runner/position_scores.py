"""What position terms receive, as scores of their tokens: positional LRP (Bakish et al. 2025)."""

from __future__ import annotations

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
from relprop.plan import POSITIONS, Plan, factors_of_scores
from relprop.runner.positions import positions
from relprop.runner.session import Session
from relprop.tracer.editing import val

if TYPE_CHECKING:
    from relprop.runner.input_study import InputStudy


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
            raise _none()
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


def _none() -> OptionError:
    fact = (
        "positions=True: relevance passes no position terms of this model: it adds no tensor to "
        "its tokens, or to attention's scores, that has their axis, and turns no queries and keys"
    )
    then = ["leave positions= out: what else absorbs relevance is in e.ledger.absorbed()"]
    return OptionError(fact, then=then)
