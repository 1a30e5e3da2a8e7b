"""How a question passes the end of the graph before the outputs that it explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx

from relprop.interpreter.reading import Reading, reading_of
from relprop.plan import Plan
from relprop.runner.question import Question
from relprop.targets import is_callable
from relprop.tracer.readout import Readout, readout_of


@dataclass(frozen=True)
class Heads:
    """By output: ``readings``, how relevance passes where few elements are explained; ``readouts``,
    how the gradient does. ``few``: nothing but single elements is explained of any output."""

    readings: Mapping[fx.Node, Reading] = field(default_factory=dict)
    readouts: Mapping[fx.Node, Readout] = field(default_factory=dict)
    few: bool = False

    @classmethod
    def of(
        cls,
        question: Question,
        plan: Plan | None,
        starts: Sequence[fx.Node],
        targets: Sequence[object],
        *,
        differentiated: bool = False,
    ) -> Heads:
        """Those of the possible starts of some targets. ``differentiated``: relevance is one
        gradient."""
        read = {n: reading_of(plan, n, question.hooks) for n in plan.starts} if plan else {}
        differentiated |= "gradient" in question.needs
        made = {n: readout_of(n) for n in starts} if differentiated else {}
        return cls(
            {n: reading for n, reading in read.items() if reading is not None},
            {n: r for n, r in made.items() if r is not None and r.can_be_made},
            not any(map(is_callable, targets)),
        )
