"""A Method: a named way to turn one run (attention, its gradient, its relevance) into Eq. 13's matrices, which the roll-up multiplies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from relprop.errors import OptionError
from relprop.tracer.program import Site

Layers = slice | Sequence[int] | None


@dataclass(frozen=True)
class SiteValues:
    """What a run found at one attention site, each (batch, *batch axes of the attention, queries, keys); ``None`` if not asked for."""

    site: Site
    attention: Tensor
    gradient: Tensor | None
    relevance: Tensor | None


@dataclass(frozen=True)
class Method:
    """``function(sites, **options)`` returns a matrix per contraction node; ``needs`` says what must be computed for it."""

    name: str
    function: Callable[..., Mapping[fx.Node, Tensor]]
    needs: frozenset[str]
    class_specific: bool

    def options(self) -> dict[str, Any]:
        """The options it takes, with their defaults."""
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        return {p.name: p.default for p in parameters} | {"normalize_rows": False, "layers": None}

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options with their values; an unknown one is refused, with the list."""
        known = self.options()
        for name in given:
            if name not in known:
                raise OptionError(f"method {self.name!r} has no option {name!r}; it has {', '.join(sorted(known))}")
        return {**known, **given}


def chosen_layers(layers: Layers, count: int) -> tuple[int, ...]:
    """The indices that ``layers`` names among ``count`` attention sites in forward order; Python indexing, −1 is nearest the output."""
    if layers is None:
        return tuple(range(count))
    if isinstance(layers, slice):
        return tuple(range(count)[layers])
    if not isinstance(layers, Sequence) or isinstance(layers, str) or not all(isinstance(i, int) and not isinstance(i, bool) for i in layers):
        raise OptionError(f"layers={layers!r}: give a slice or a list of integers, in forward order")
    bad = [i for i in layers if not -count <= i < count]
    if bad:
        raise OptionError(f"layers={list(layers)}: {bad[0]} is out of range for {count} attention sites")
    return tuple(i % count for i in layers)
