"""What the chunks of attention sites are made of, kept from one target to the next."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from torch import Tensor, fx

from relprop.operations import Value


@dataclass
class KeptChunks:
    """Values by chunk. ``read``: the nodes at which anybody looks; the others keep their shapes
    alone. ``left``: how many bytes may still be taken."""

    read: frozenset[fx.Node]
    left: int
    found: dict[Hashable, dict[fx.Node, Value]] = field(default_factory=dict)

    def keep(
        self, key: Hashable, made: dict[fx.Node, Value], given: set[fx.Node]
    ) -> dict[fx.Node, Value]:
        """These values, kept if there is room. ``given``: those that are there anyway."""
        own = {n: v for n, v in made.items() if isinstance(v, Tensor) and n not in given}
        size = sum(v.nbytes for n, v in own.items() if self._looked_at(n, v))
        if size > self.left:
            return made
        self.left -= size
        shapes = {n: _nothing(v) for n, v in own.items() if not self._looked_at(n, v)}
        self.found[key] = made | shapes
        return self.found[key]

    def _looked_at(self, node: fx.Node, value: Tensor) -> bool:
        return node in self.read or not value.is_floating_point()


def _nothing(value: Tensor) -> Tensor:
    """Zeros of a value's shape that take no memory."""
    return value.new_zeros(()).expand(value.shape)
