"""Many settings of a run at once: the graph from what is changed on, for several settings of one
node as one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, fx

from relprop.api.settings import applied
from relprop.operations import Value
from relprop.runner.memory import SHARE, free_memory
from relprop.runner.session import Session
from relprop.tracer.binding import Inputs
from relprop.tracer.calls import Values
from relprop.tracer.changes import Change
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.facts import is_batched
from relprop.tracer.follow import depending
from relprop.tracer.offloaded import runs_on
from relprop.tracer.run import execute
from relprop.tracer.surroundings import undisturbed

#: y_t of every sample from the values of the outputs.
Amount = Callable[[Mapping[fx.Node, Tensor]], Tensor]


def outcomes(
    session: Session, inputs: Inputs, held: Values, changes: Sequence[Change], amount: Amount
) -> list[Tensor]:
    """y_t of every sample, (batch,), under each of the changes alone; ``held``: the values of all
    nodes without any."""
    found, free = dict[int, Tensor](), free_memory(runs_on(session.model, inputs.tensors[0]))
    ends = set(session.program.ends)

    def run(node: fx.Node, value: Tensor, below: set[fx.Node]) -> list[Tensor]:
        """For each block of ``value``: those of a node for several settings, one behind the
        other."""
        times = len(value) // inputs.batch
        read = {i for n in below for i in tensor_inputs(n)} | ends
        there: dict[fx.Node, Value] = {node: value}
        for n in read - below - {node}:
            there[n] = _repeated(held[n], times) if is_batched(n) else held[n]
        with undisturbed(session.model), torch.no_grad():
            made = execute(session.program, session.model, inputs, ends, known=there)
            blocks = {
                n: made[n].split(inputs.batch) if is_batched(n) else [made[n]] * times for n in ends
            }
            return [amount({n: b[k] for n, b in blocks.items()}).detach() for k in range(times)]

    for node in dict.fromkeys(change.node for change in changes):
        mine = [i for i, change in enumerate(changes) if change.node is node]
        below = depending(session.program.graph.nodes, [node])
        values = [held[n] for n in below if n in held]
        taken = sum(v.nbytes for v in values if isinstance(v, Tensor))
        size = max(1, int(SHARE * free / max(1, taken)))
        for first in range(0, len(mine), size):
            some = mine[first : first + size]
            given = torch.cat([applied(changes[i], held[node]) for i in some])
            found |= dict(zip(some, run(node, given, below), strict=True))
    return [found[i] for i in range(len(changes))]


def _repeated(value: Value, times: int) -> Value:
    """A value of a batch, so many times one behind the other; of several tensors each."""
    if isinstance(value, tuple | list):
        return tuple(_repeated(v, times) for v in value)
    return torch.cat([value] * times) if isinstance(value, Tensor) else value
