"""Program: the captured model. A canonical, frozen view of its fx graph; it holds names of
parameters, never the parameters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, fx

from relprop.tracer.atoms import Axes
from relprop.tracer.facts import describe as describe
from relprop.tracer.facts import is_floating as is_floating
from relprop.tracer.facts import place as place
from relprop.tracer.facts import role as role
from relprop.tracer.guards import Guards

T = TypeVar("T")
FrontEnd = Literal["export", "concrete"]


class Memo:
    """What is worked out once and read at every later call: a table of results under keys. Several
    threads that ask for one key get one result.

    It hangs on the object it is about, so that both are freed together: most of what is kept
    refers to that object, and a table elsewhere, weak or not, would hold it for ever.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, object] = {}
        self._said: set[Hashable] = set()

    def __contains__(self, key: Hashable) -> bool:
        """Whether something was worked out under a key."""
        return key in self._known

    def cache(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` gives, worked out at the first call with ``key``."""
        if key not in self._known:
            self._known.setdefault(key, make())
        return cast(T, self._known[key])

    def forget(self, key: Hashable) -> None:
        """Let go of what was worked out under ``key``, if anything was."""
        self._known.pop(key, None)

    def first_time(self, key: Hashable) -> bool:
        """Whether this is the first call with ``key``: for what is said once."""
        if key in self._said:
            return False
        self._said.add(key)
        return True


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
class Captured:
    """What a front end says of a model, for inputs of one shape.

    ``graph`` has one ``placeholder`` per input tensor and returns a tuple of tensors (``outputs``:
    how they are put together). ``constants`` are tensors that belong to no module. ``front_end``
    says which tracer captured it; ``decisions``: where values decided what it is, of which
    ``guards`` tell whether others do the same (``None``: that cannot be told); ``choices``: those
    made on what the model has computed. ``draws``: where the model draws random numbers, which are
    always those of the captured run. ``stored``: whether an earlier process captured it.
    """

    graph: fx.Graph
    constants: dict[str, Tensor]
    outputs: OutputTree
    front_end: FrontEnd
    decisions: tuple[str, ...] = ()
    draws: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    guards: Guards | None = None
    stored: bool = False

    def captured(self) -> dict[str, Any]:
        """All of this by name, without what is known beyond it."""
        return {f.name: getattr(self, f.name) for f in fields(Captured)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Program(Captured):
    """A captured model, for inputs of one shape.

    ``inputs``: the names of the graph's placeholders in the user's call. ``leaves`` are where
    explanation starts: float inputs, and the output of the embedding that an integer input feeds.
    ``input_specialised`` says that it holds only for inputs that make the same ``decisions``.
    ``dtype``: compute in this type, on copies, whatever the model's own. ``constant_inputs``: the
    inputs that are not explained, and why. ``inside``: the nodes before its end that targets read.
    ``changed``: the program as it was captured, where values are set in this one, which the model
    does not have. ``labels``: nodes by name, if anyone asked for names (``tracer.names``).
    ``axes``: what the axes of each tensor hold that depends on a leaf. ``made``: how, if its graph
    was not captured but made of those of other lengths. ``memo``: what others worked
    out about this program; a variation of it begins with a memo of its own. ``kin``: what holds for
    all programs of a model that differ in lengths, and for their variations.
    """

    inputs: tuple[str, ...]
    leaves: Mapping[str, fx.Node]
    sites: tuple[Site, ...]
    no_sites: tuple[tuple[fx.Node, str], ...]
    axes: Mapping[fx.Node, Axes]
    dtype: torch.dtype | None = None
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    constant_inputs: Mapping[str, str] = field(default_factory=dict)
    inside: tuple[fx.Node, ...] = ()
    changed: Program | None = None
    labels: Mapping[str, fx.Node] = field(default_factory=dict)
    made: str = ""
    kin: Memo = field(default_factory=Memo, repr=False)
    memo: Memo = field(init=False, default_factory=Memo, repr=False)

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
