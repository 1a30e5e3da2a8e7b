"""How a question passes the end of the graph before the outputs that it explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from relprop.interpreter.reading import Reading
from relprop.runner.session import Session
from relprop.targets.resolve import places_read
from relprop.targets.start import has_batch_axis
from relprop.tracer.binding import Inputs
from relprop.tracer.facts import shape
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


def own_readout(output: fx.Node) -> Readout | None:
    """How an output is made of less than all that is before it; ``None`` where it cannot be."""
    found = readout_of(output)
    return found if found is not None and found.can_be_made else None


def cuts_of(session: Session, inputs: Inputs, targets: Sequence[object], processor: object) -> Cuts:
    """Of each output that can be made in parts, and that targets read at some places alone, which
    places these are in any sample."""
    read = places_read(targets, session.context(inputs, {}, processor))
    own = [n for n in read if n in session.program.output_nodes]
    return {n: _cut(n, read[n]) for n in own if own_readout(n) is not None}


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
