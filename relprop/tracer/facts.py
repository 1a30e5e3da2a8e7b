"""What is known of each node of a graph: one frozen object per node, read and written here alone.

While a graph is captured and rewritten a node has a value without numbers, a place in the user's
model and, once somebody has asked, whether it depends on an input. A finished program adds what
the node is to relevance (``decide_role``, ``decide_books``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, fx, nn

from relprop.errors import CaptureError, message
from relprop.operations import Value

Role = Literal["activation", "parameter", "constant"]

_KEY = "relprop"


@dataclass(frozen=True)
class Place:
    """Where a node comes from in the user's model: the modules around it (outermost first, paths
    with ``@1`` on second calls), the source line, and the device that it ran on."""

    modules: tuple[tuple[str, str], ...] = ()
    source: str = ""
    device: torch.device | None = None

    @property
    def path(self) -> str:
        """The innermost module's path, without call numbers; "" is the model itself."""
        return self.modules[-1][0].split("@")[0] if self.modules else ""

    @property
    def call(self) -> str:
        """The innermost module call: its path, with ``@1``, ``@2`` on later calls of the same
        module."""
        return self.modules[-1][0] if self.modules else ""

    def __str__(self) -> str:
        where = self.call or "the model itself"
        return f"{where}  ({self.source})" if self.source else where


@dataclass(frozen=True)
class Facts:
    """What is known of one node.

    ``value``: what it gives for one sample, as tensors on the meta device. ``live``: whether it
    depends on an input that is not held still (``None``: nobody has asked). ``body``: the graph
    that a node holds for an operator which runs it, and ``casts_to``: the type of the autocast
    subgraph around that operator. The rest is of a finished program. ``role``: what the node is to
    relevance. ``batched``: whether its value differs from sample to sample. ``side``: whether it
    is an input that is no explained one and still reaches an output other than through attention
    maps. ``booked_as``: the name under which the ledger books what it absorbs.
    """

    value: Value = None
    place: Place = Place()
    live: bool | None = None
    body: nn.Module | None = None
    casts_to: torch.dtype | None = None
    role: Role | None = None
    batched: bool = False
    side: bool = False
    booked_as: str = ""


_NOTHING = Facts()


def facts_of(node: fx.Node) -> Facts:
    """All that is known of a node."""
    known: Facts = node.meta.get(_KEY, _NOTHING)
    return known


def know(node: fx.Node, known: Facts) -> None:
    """``known`` and nothing else is known of a node from now on."""
    node.meta = {_KEY: known}


def decide_liveness(node: fx.Node, live: bool | None) -> None:
    """Whether a node depends on an input; ``None``: to be asked again."""
    know(node, replace(facts_of(node), live=live))


def decide_role(node: fx.Node, role: Role, batched: bool) -> None:
    """What a node is to relevance, and whether its value differs from sample to sample."""
    know(node, replace(facts_of(node), role=role, batched=batched))


def decide_books(node: fx.Node, booked_as: str, side: bool) -> None:
    """Under which name the ledger books what a node absorbs, and whether it is a side input."""
    know(node, replace(facts_of(node), booked_as=booked_as, side=side))


def place(node: fx.Node) -> Place:
    """Where ``node`` comes from in the user's model."""
    return facts_of(node).place


def role(node: fx.Node) -> Role | None:
    """What ``node`` is to relevance; ``None`` before its program is finished."""
    return facts_of(node).role


def is_batched(node: fx.Node) -> bool:
    """Whether the value of ``node`` differs from sample to sample."""
    return facts_of(node).batched


def booked_as(node: fx.Node) -> str:
    """The name under which the ledger books what ``node`` absorbs."""
    return facts_of(node).booked_as


def shape(node: fx.Node) -> tuple[int, ...]:
    """The shape of ``node``'s value for one sample (leading 1)."""
    return tuple(facts_of(node).value.shape)


def is_floating(node: fx.Node) -> bool:
    """Whether ``node``'s value is one floating tensor."""
    value = facts_of(node).value
    return isinstance(value, Tensor) and value.is_floating_point()


def describe(node: fx.Node) -> str:
    """``module path  (file:line: `code`), dtype [shape]``: the place line of an error."""
    value = facts_of(node).value
    if not isinstance(value, Tensor):
        return str(place(node))
    return f"{place(node)}, {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def refusal(node: fx.Node, fact: str, *then: str) -> CaptureError:
    """The error for what cannot be captured at a call, with its place in the model."""
    return CaptureError(message(fact, at=str(place(node)), then=then))
