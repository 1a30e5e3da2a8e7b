"""What a run found, as methods read it: at an attention site, at a tensor that holds tokens, at an
input. And what a method over attention may return: the matrices of sites whose map is never whole,
a few rows at a time, made as the roll-up asks for them, or scores in place of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor, fx

from relprop.errors import OptionError
from relprop.interpreter.crossing import map_rows
from relprop.numerics import at_least_float32
from relprop.tracer.chunked import Chunk, chunked
from relprop.tracer.editing import val
from relprop.tracer.program import Site

if TYPE_CHECKING:
    from relprop.runner.attention_study import AttentionStudy


T = TypeVar("T")


def asked(value: T | None, need: str, read: str) -> T:
    """A value that a method reads. Raises ``OptionError`` where it did not say that it needs it."""
    if value is None:
        raise OptionError(
            f"a method reads {read}, which was not computed for it",
            then=[f"relprop.methods.register(..., needs=[{need!r}]), beside its other needs"],
        )
    return value


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
        return asked(self.slope, "gradient", "the gradient at an attention map")

    @property
    def relevance(self) -> Tensor:
        """Relevance at A. Raises ``OptionError`` if it was not asked for."""
        return asked(self.arrived, "relevance", "the relevance at an attention map")


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
        return asked(self.slope, "gradient", "the gradient at a layer's output")

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


Wanted = Callable[[Chunk], bool]


@dataclass(frozen=True)
class MatrixRows:
    """A matrix per query and key that is never whole: ``of(wanted)`` makes the rows of those chunks
    that are wanted, (batch, *batch axes of the attention, rows, keys), one chunk after another."""

    of: Callable[[Wanted], Iterator[tuple[Chunk, Tensor]]]


Matrix = Tensor | MatrixRows


def matrix_rows(
    study: AttentionStudy, site: Site, function: Callable[[SiteValues], Tensor]
) -> MatrixRows:
    """A site's matrix, by a ``function`` of what was found at some rows of its map."""

    def rows(wanted: Wanted) -> Iterator[tuple[Chunk, Tensor]]:
        for chunk, found in _found(study, site, wanted):
            matrix = function(found)
            study.mixes_unattended |= goes_beyond(matrix, found)
            yield chunk, matrix

    return MatrixRows(rows)


def goes_beyond(matrix: Tensor, found: SiteValues) -> bool:
    """Whether a matrix is not 0 somewhere where A is: scores may then be given to tokens that no
    way joins to the target."""
    return bool((matrix.bool() > found.attention.bool()).any())


def _found(study: AttentionStudy, site: Site, wanted: Wanted) -> Iterator[tuple[Chunk, SiteValues]]:
    attention, end = study.needs.backward.in_chunks[site.contraction], site.contraction
    by = chunked(attention, study.sweep.holding(end).values, study.program.dtype)
    arrived, plan = study.sweep.found(end), study.needs.backward.plan
    relevance = None if plan is None or arrived is None else (plan, arrived)
    gradient = study.sweep.gradient(end)
    factor = study.needs.backward.forms.at_maps.get(end, 1.0)
    gradient = None if gradient is None else wide(gradient) * factor
    for chunk, rows in map_rows(by, wanted, gradient, relevance):
        slope = wide(rows["gradient"]) if "gradient" in rows else None
        yield chunk, SiteValues(site, wide(rows["attention"]), slope, rows.get("relevance"))
