"""How a question passes the end of the graph before the outputs that it explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from relprop.interpreter.reading import Reading, reading_of
from relprop.plan import Plan
from relprop.runner.question import Question
from relprop.runner.session import Session
from relprop.targets.outputs import has_batch_axis
from relprop.targets.resolve import places_read, reads_more
from relprop.targets.start import Context
from relprop.tracer.binding import Inputs
from relprop.tracer.facts import shape
from relprop.tracer.program import Program
from relprop.tracer.readout import Cut, Cuts, Readout, readout_of


@dataclass(frozen=True)
class Heads:
    """By output: ``readings``, how relevance passes where few elements are explained; ``readouts``,
    how the gradient does, and how those outputs are made of which only the places of ``cuts`` are.
    ``few``: nothing is read of any output but the elements at which relevance starts."""

    readings: Mapping[fx.Node, Reading] = field(default_factory=dict)
    readouts: Mapping[fx.Node, Readout] = field(default_factory=dict)
    cuts: Cuts = field(default_factory=dict)
    few: bool = False

    @classmethod
    def of(
        cls,
        program: Program,
        question: Question,
        plan: Plan | None,
        starts: Sequence[fx.Node],
        targets: Sequence[object],
        cuts: Cuts,
        *,
        differentiated: bool = False,
    ) -> Heads:
        """Those of the possible starts of some targets. ``differentiated``: relevance is one
        gradient."""
        own = set(program.output_nodes)  # what is inside has other readers
        begun = [n for n in plan.starts if n in own] if plan else []
        read = {n: reading_of(plan, n, question.hooks) for n in begun} if plan else {}
        ends = starts if differentiated or "gradient" in question.needs else cuts
        ends = [n for n in ends if n in own]
        return cls(
            {n: reading for n, reading in read.items() if reading is not None},
            {n: r for n in ends if (r := _readout(n)) is not None},
            cuts,
            not any(reads_more(target, program) for target in targets),
        )


def _readout(output: fx.Node) -> Readout | None:
    found = readout_of(output)
    return found if found is not None and found.can_be_made else None


def cuts_of(session: Session, inputs: Inputs, targets: Sequence[object], processor: object) -> Cuts:
    """Of each output that can be made in parts, and that targets read at some places alone, which
    places these are in any sample."""
    context = Context(
        session.program,
        session.model,
        session.adapter,
        inputs,
        {},
        session.rules,
        processor=processor,
    )
    read = places_read(targets, context)
    own = [n for n in read if n in session.program.output_nodes]
    return {n: _cut(n, read[n]) for n in own if _readout(n) is not None}


def _cut(output: fx.Node, places: Sequence[tuple[int, ...]]) -> Cut:
    """What is made of an output: all of its last axis at some places of those before, one at
    least."""
    sizes, first = shape(output), int(has_batch_axis(output))
    axes = [{p[i] for p in places} or {0} for i in range(len(sizes) - 1 - first)]
    few = (
        None if len(a) == n else torch.tensor(sorted(a))
        for a, n in zip(axes, sizes[first:-1], strict=True)
    )
    return (*[None] * first, *few, None)
