"""What a run found, as methods read it: at an attention site, at a tensor that holds tokens, at an
input. And what a method over attention may return in place of matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, fx

from relprop.errors import OptionError
from relprop.numerics import at_least_float32
from relprop.tracer.editing import val
from relprop.tracer.program import Site


def not_asked(need: str, read: str) -> OptionError:
    """The refusal of a method that reads what it did not say it needs."""
    return OptionError(
        f"a method reads {read}, which was not computed for it",
        then=[f"relprop.methods.register(..., needs=[{need!r}]), beside its other needs"],
    )


@dataclass(frozen=True)
class SiteValues:
    """What a run found at one attention site, each (batch, *heads and other batch axes of the
    attention, queries, keys): ``attention``, ``gradient``, ``relevance``. ``slope`` is the gradient
    and ``arrived`` the relevance, or ``None`` where these were not asked for."""

    site: Site
    attention: Tensor
    slope: Tensor | None
    arrived: Tensor | None

    @property
    def gradient(self) -> Tensor:
        """∂y_t/∂A. Raises ``OptionError`` if it was not asked for."""
        if self.slope is None:
            raise not_asked("gradient", "the gradient at an attention map")
        return self.slope

    @property
    def relevance(self) -> Tensor:
        """Relevance at A. Raises ``OptionError`` if it was not asked for."""
        if self.arrived is None:
            raise not_asked("relevance", "the relevance at an attention map")
        return self.arrived


@dataclass(frozen=True)
class LayerValues:
    """A tensor of the graph that holds tokens: its value and its ``gradient``, ∂y_t/∂value, each
    (batch, *one sample's shape). ``slope``: the gradient, or ``None`` if it was not asked for.

    ``token_axes``: which axes of one sample's shape are tokens. ``site``: the attention site whose
    layer it ends, if it does.
    """

    node: fx.Node
    value: Tensor
    slope: Tensor | None
    token_axes: tuple[int, ...]
    site: Site | None = None

    @property
    def gradient(self) -> Tensor:
        """∂y_t/∂value. Raises ``OptionError`` if it was not asked for."""
        if self.slope is None:
            raise not_asked("gradient", "the gradient at a layer's output")
        return self.slope

    @property
    def tokens(self) -> int:
        """How many tokens it holds."""
        return math.prod(self.value.shape[i + 1] for i in self.token_axes)

    def per_token(self, values: Tensor) -> Tensor:
        """Σ over the axes that are no tokens, (batch, tokens), of something of the tensor's
        shape."""
        features = [i + 1 for i in range(values.dim() - 1) if i not in self.token_axes]
        return values.sum(features).flatten(1) if features else values.flatten(1)


@dataclass(frozen=True)
class TokenMap:
    """Scores of one input's tokens, (batch, tokens), and, if the method has them, their parts by
    layer in forward order, (batch, layers, tokens), and what skip connections alone leave, which
    ``row`` has besides the scores (``identity``, (batch, tokens); ``None``: 0)."""

    scores: Tensor
    layers: Tensor | None = None
    identity: Tensor | None = None


Found = Mapping[fx.Node, Tensor] | Mapping[str, TokenMap]


def wide(value: Tensor) -> Tensor:
    """What a model of half precision computed, in float32: fields and relevance are at least
    that."""
    return value.to(at_least_float32(value.dtype)) if value.is_floating_point() else value


def without_leading_one(value: Tensor, node: fx.Node) -> Tensor:
    """A node's values, batch first, without the leading 1 of a single sample's call; one number per
    sample as (batch, 1)."""
    if val(node).dim() < 2:
        return value.reshape(len(value), -1)
    return value[:, 0] if val(node).shape[0] == 1 else value


def with_leading_one(value: Tensor, node: fx.Node) -> Tensor:
    """The same as the graph takes it."""
    return value.reshape(len(value), *val(node).shape)
