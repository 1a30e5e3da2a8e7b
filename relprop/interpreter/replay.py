"""A part of the graph run again with other values at one node, everything beside it as it was: what
a layer would give if its values were these."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.interpreter.batch import of_each_sample
from relprop.tracer.calls import Values, call_node
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.program import Program

AT_ONCE = 16  # variants in one vmap


@dataclass(frozen=True)
class Replay:
    """The nodes on the way from ``changed`` to ``end``, in order; ``extra``: what else they
    read."""

    program: Program
    changed: fx.Node
    end: fx.Node
    nodes: tuple[fx.Node, ...]
    extra: tuple[fx.Node, ...]

    @classmethod
    def between(cls, program: Program, changed: fx.Node, end: fx.Node) -> Replay:
        """The part of ``program`` from ``changed`` (exclusive) to ``end``, choices included that
        depend on it."""
        nodes = _between(program.graph, changed, end)
        inside = {*nodes, changed}
        return cls(
            program,
            changed,
            end,
            nodes,
            tuple(dict.fromkeys(i for n in nodes for i in tensor_inputs(n) if i not in inside)),
        )

    def run(self, values: Values, variants: Tensor) -> Tensor:
        """The values at ``end``, (variants, batch, *one sample's shape), for ``variants``
        (variants, batch, *one sample's shape) at ``changed``.

        ``values`` has those of ``extra``, batch first where they depend on an input.
        """
        known = {n: values[n] for n in self.extra}

        def one_sample(given: Values, changed: Tensor) -> Tensor:
            def one(variant: Tensor) -> Tensor:
                env = {**given, self.changed: variant}
                for node in self.nodes:
                    env[node] = call_node(node, env, self.program.dtype)
                made: Tensor = env[self.end]
                return made

            return torch.func.vmap(one, randomness="same")(changed)

        each = (some.transpose(0, 1) for some in variants.split(AT_ONCE))
        found = [of_each_sample(one_sample, known, some) for some in each]
        return torch.cat(found, 1).transpose(0, 1)


def _between(graph: fx.Graph, changed: fx.Node, end: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes on any way from one node to another, whatever they hold, in order."""
    below, above = {changed}, {end}
    order = list(graph.nodes)
    order = order[order.index(changed) + 1 : order.index(end) + 1]
    for node in order:
        if not below.isdisjoint(node.all_input_nodes):
            below.add(node)
    for node in reversed(order):
        if node in above and node in below:
            above.update(node.all_input_nodes)
    return tuple(n for n in order if n in below and n in above)
