"""A Method: a named way to turn one run into what is shown. At the attention level it gives Eq. 13's matrices, which the roll-up multiplies;
at the input level it gives one number per element of every explained input, and there is nothing to roll up."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from relprop.errors import OptionError
from relprop.tracer.program import Site

Layers = slice | Sequence[int] | None
Level = Literal["attention", "input"]


@dataclass(frozen=True)
class SiteValues:
    """What a run found at one attention site, each (batch, *batch axes of the attention, queries, keys); ``None`` if not asked for."""

    site: Site
    attention: Tensor
    gradient: Tensor | None
    relevance: Tensor | None


@dataclass(frozen=True)
class InputValues:
    """What a run found at the explained inputs, by name, each (batch, *one sample's shape): at pixels, features, or the embeddings of ids.

    ``gradients`` and ``relevances`` are empty if not asked for. ``forward(*tensors)`` gives y_t of every sample, (batch,), for other
    values of the inputs (one tensor each, in the order of ``values``), attached to autograd. ``embed(name, ids)`` gives the embeddings of other ids.
    ``contributions(*references)`` is DeepLIFT's: one tensor per input, given x′ of each, then y_t(x) and y_t(x′). ``positions`` are the axes of each value, the batch being
    axis 0, that have a score each; the others are summed over. ``window`` is how many of them lie together along each, as ``occlusion`` hides them.
    """

    values: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    relevances: Mapping[str, Tensor]
    forward: Callable[..., Tensor]
    embed: Callable[[str, Tensor], Tensor]
    contributions: Callable[..., tuple[tuple[Tensor, ...], Tensor, Tensor]]
    positions: Mapping[str, tuple[int, ...]]
    window: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Method:
    """``function(sites, **options)`` returns a matrix per contraction node; at the input level, ``function(at, **options)`` an attribution per input.

    ``needs`` says what must be computed for it: ``"gradient"``, ``"relevance"``. ``rules`` is the rule set it takes by default. ``whole`` are its options whose
    tensors have no entry per sample along their first axis: they are handed on as tuples, and never cut with the batch.
    """

    name: str
    function: Callable[..., Mapping[Any, Tensor]]
    needs: frozenset[str]
    class_specific: bool
    level: Level = "attention"
    rules: str = "paper"
    whole: frozenset[str] = frozenset()

    def options(self) -> dict[str, Any]:
        """The options it takes, with their defaults."""
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        shared = {"normalize_rows": False, "layers": None} if self.level == "attention" else {}
        return {p.name: p.default for p in parameters} | shared

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options with their values; an unknown one is refused, with the list."""
        known = self.options()
        for name in given:
            if name not in known:
                has = f"it has {', '.join(sorted(known))}" if known else "it has none"
                raise OptionError(f"method {self.name!r} has no option {name!r}; {has}")
        return {**known, **{name: _entries(value) if name in self.whole else value for name, value in given.items()}}


def _entries(value: Any) -> Any:
    """A tensor as the tuple of its entries, each with a first axis of 1; so are those in a dict."""
    if isinstance(value, Mapping):
        return {name: _entries(v) for name, v in value.items()}
    return value.split(1) if isinstance(value, Tensor) and value.dim() else value


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
