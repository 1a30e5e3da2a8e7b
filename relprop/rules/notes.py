"""What a rule is told of one operation that only the whole graph can tell: one small class for each
kind of rule that asks. A rule asks by ``call.noted(Kind)``; what nobody noted has its default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Note:
    """Something noted of an operation."""


@dataclass(frozen=True)
class Constants(Note):
    """Which operand of a product counts as a constant, by position (``None``: none does): a factor
    that is one over a deviation, the attention map, the gating activation, the share of an expert
    or of a token."""

    constant: int | None = None
    attention: int | None = None
    gate: int | None = None
    routing: int | None = None


@dataclass(frozen=True)
class Folded:
    """An axis of an operand: the ``sizes`` of what is folded into it, and which of that is
    ``tokens``."""

    axis: int
    sizes: tuple[int, ...]
    tokens: tuple[bool, ...]


@dataclass(frozen=True)
class FieldNote(Note):
    """For the roll-up: which axes of the result are tokens.

    ``shape``: the result's, whose axes a field may have shorter.
    ``adds``: one token of the operand may be several of the result, so their numbers add.
    ``weighed``: the axes over which the result, a product with a mask, is summed at once.
    ``routed``: the axes along which a feature, or a head, takes a position of its own.
    ``there``: of an operation that brings tokens together, 0 where its operand was padded before.
    """

    token_axes: tuple[bool, ...] = ()
    adds: bool = False
    weighed: tuple[int, ...] | None = None
    routed: tuple[Folded, ...] = ()
    shape: tuple[int, ...] = ()
    there: Tensor | None = None


@dataclass(frozen=True)
class SiteNote(FieldNote):
    """An attention site; ``transposed``: its queries are columns. ``share``: what its values carry
    of their field, where that is not the field as it is."""

    transposed: bool = False
    share: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class LinearNote(FieldNote):
    """A linear map; ``folded``: how many tokens lie in one vector, for each of the pieces, given by
    their lengths, that were joined to it; ``mixes``: what it sums over is tokens."""

    folded: tuple[tuple[int, int], ...] = ((1, 1),)
    mixes: bool = False


@dataclass(frozen=True)
class ReductionNote(FieldNote):
    """A sum or mean over the axes ``reduced``, of which ``pooled`` tokens become one."""

    reduced: tuple[int, ...] = ()
    pooled: int = 1


@dataclass(frozen=True)
class ConvolutionNote(FieldNote):
    """How a convolution's windows lie. ``depthwise``: its channels, if they stay apart, else 1;
    ``folded``: how many tokens lie in the channels of one position."""

    convolution: Callable[..., Tensor] | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    depthwise: int = 1
    folded: int = 1


@dataclass(frozen=True)
class ProductNote(FieldNote):
    """A matrix product that is no attention site: whether it sums over tokens, which of its rows
    and columns are tokens, and which operand only says how tokens are mixed."""

    over_tokens: bool = False
    token_rows: bool = False
    token_columns: bool = False
    mixer: int | None = None

    def reads(self, operand: int) -> bool:
        """Whether the rule looks at the values of an operand."""
        return self.over_tokens and self.mixer in (None, operand)
