"""Sites whose map is never whole: their matrices a few rows at a time, made as the roll-up asks
for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from relprop.interpreter.crossing import map_rows
from relprop.runner.values import SiteValues, wide
from relprop.tracer.chunked import Chunk, chunked
from relprop.tracer.program import Site

if TYPE_CHECKING:
    from relprop.runner.attention_study import AttentionStudy

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
