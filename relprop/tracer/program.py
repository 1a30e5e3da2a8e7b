"""Program: the captured model. A canonical, frozen view of its fx graph; it holds names of
parameters, never the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, fx

from relprop.tracer.atoms import Axes
from relprop.tracer.facts import (
    Facts,
    Place,
    Role,
    describe,
    facts_of,
    is_floating,
    place,
    role,
    shape,
)
from relprop.tracer.guards import Guards
from relprop.tracer.memo import Memo

__all__ = [
    "FrontEnd",
    "OutputTree",
    "Place",
    "Program",
    "Role",
    "Site",
    "describe",
    "is_floating",
    "place",
    "role",
    "shape",
]

FrontEnd = Literal["export", "concrete"]


@dataclass(frozen=True)
class Site:
    """One attention site: the contraction of A (``attention``) with ``values``.

    ``transposed``: A enters as the right operand, its queries are columns. ``softmax`` is where A
    descends from.
    """

    contraction: fx.Node
    attention: fx.Node
    values: fx.Node
    softmax: fx.Node
    transposed: bool = False

    @property
    def path(self) -> str:
        """The module call that holds the contraction."""
        return place(self.contraction).call


@dataclass(frozen=True)
class OutputTree:
    """How to put output tensors back into what the model returns; ``names`` in the order of the
    graph's outputs."""

    names: tuple[str, ...]
    rebuild: Callable[[Iterator[Tensor]], object]

    def __call__(self, tensors: list[Tensor]) -> object:
        """What the model returns, from its tensors."""
        return self.rebuild(iter(tensors))


@dataclass(frozen=True, eq=False)
class Program:
    """A captured model, for inputs of one shape.

    ``graph`` has one ``placeholder`` per input tensor (``inputs``: their names in the user's call)
    and returns a tuple of tensors (``outputs``). ``constants`` are tensors that belong to no
    module. ``leaves`` are where explanation starts: float inputs, and the output of the embedding
    that an integer input feeds. ``front_end`` says which tracer captured it; ``input_specialised``
    that it holds only for inputs that make the same ``decisions``, of which ``guards`` tell whether
    others do (``None``: that cannot be told); ``choices``: those made on what the model has
    computed. ``draws``: where the model draws random numbers, which are always those of the
    captured run. ``stored``: whether an earlier process captured it. ``dtype``: compute in this
    type, on copies, whatever the model's own. ``constant_inputs``: the inputs that are not
    explained, and why. ``inside``: the nodes before its end that targets read. ``changed``: the
    program as it was captured, where values are set in this one, which the model does not have.
    ``labels``: nodes by name, if anyone asked for names (``tracer.names``). ``axes``: what the axes
    of each tensor hold that depends on a leaf. ``memo``: what others worked out about this program;
    a variation of it begins with a memo of its own. ``kin``: what holds for all programs of a model
    that differ in lengths, and for their variations.
    """

    graph: fx.Graph
    inputs: tuple[str, ...]
    outputs: OutputTree
    constants: Mapping[str, Tensor]
    leaves: Mapping[str, fx.Node]
    sites: tuple[Site, ...]
    no_sites: tuple[tuple[fx.Node, str], ...]
    axes: Mapping[fx.Node, Axes]
    front_end: FrontEnd
    decisions: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    draws: tuple[str, ...] = ()
    guards: Guards | None = None
    stored: bool = False
    dtype: torch.dtype | None = None
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    constant_inputs: Mapping[str, str] = field(default_factory=dict)
    inside: tuple[fx.Node, ...] = ()
    changed: Program | None = None
    labels: Mapping[str, fx.Node] = field(default_factory=dict)
    kin: Memo = field(default_factory=Memo, repr=False)
    memo: Memo = field(init=False, default_factory=Memo, repr=False)

    @cached_property
    def facts(self) -> Mapping[fx.Node, Facts]:
        """What is known of each node."""
        return {node: facts_of(node) for node in self.graph.nodes}

    @property
    def input_specialised(self) -> bool:
        """Whether the graph is valid only for inputs that make the same branch decisions."""
        return bool(self.decisions)

    @property
    def placeholders(self) -> tuple[fx.Node, ...]:
        """The input nodes, in the order of ``inputs``."""
        return tuple(n for n in self.graph.nodes if n.op == "placeholder")

    @property
    def output_nodes(self) -> tuple[fx.Node, ...]:
        """The nodes the model returns, in the order of ``outputs.names``."""
        return tuple(next(n for n in reversed(self.graph.nodes) if n.op == "output").args[0])

    @property
    def ends(self) -> tuple[fx.Node, ...]:
        """The nodes at which targets start: those the model returns, and those ``inside``."""
        return (*self.output_nodes, *self.inside)

    @property
    def softmaxes_without_site(self) -> list[str]:
        """Where a softmax is that is no attention over tokens, each with the reason."""
        return [f"{place(n).call or 'top level'}: {why}" for n, why in self.no_sites]

    def __repr__(self) -> str:
        calls = sum(n.op == "call_function" for n in self.graph.nodes)
        return (
            f"Program({calls} operations, {len(self.sites)} attention sites, inputs "
            f"{', '.join(self.inputs)}, captured by {self.front_end})"
        )
