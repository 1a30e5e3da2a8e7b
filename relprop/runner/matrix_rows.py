"""Sites whose map is never whole: their matrices a few rows at a time, made as the roll-up asks
for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from relprop.interpreter.crossing import map_rows
from relprop.interpreter.forward import detached
from relprop.plan import Plan
from relprop.runner.values import SiteValues, wide
from relprop.tracer.chunked import chunked
from relprop.tracer.program import Site

if TYPE_CHECKING:
    from relprop.runner.attention_study import AttentionStudy

#: Whether some rows are wanted, by the first of them and their number.
Wanted = Callable[[int, int], bool]


@dataclass(frozen=True)
class Chunk:
    """Rows of a matrix, (batch, *batch axes of the attention, rows, keys), from ``first`` on."""

    first: int
    count: int
    matrix: Tensor


@dataclass(frozen=True)
class MatrixRows:
    """A matrix per query and key that is never whole: ``of(wanted)`` makes its rows, some after
    others."""

    of: Callable[[Wanted], Iterator[Chunk]]


Matrix = Tensor | MatrixRows
Function = Callable[..., Mapping[Any, Any]]  # a method's own


def matrices(
    study: AttentionStudy, function: Function, options: Mapping[str, object]
) -> Mapping[Any, Any]:
    """What a method says of a study; of sites in chunks, of each some rows at a time. A matrix is
    then 0 wherever A is, so that tokens that no way joins to the target have scores of 0."""
    found = dict(function(study, **options))
    if not study.needs.in_chunks:
        return found
    for values in study.sites:
        found[values.site.contraction] = where_attended(values, found[values.site.contraction])
    for site in study.needs.chosen:
        if site.contraction in study.needs.in_chunks:
            found[site.contraction] = MatrixRows(partial(_made, study, function, options, site))
    return found


def _made(
    study: AttentionStudy,
    function: Function,
    options: Mapping[str, object],
    site: Site,
    wanted: Wanted,
) -> Iterator[Chunk]:
    """Rows of a site's matrix, by a method that sees nothing but these."""
    arrived, plan = study.found_at(site.contraction), study.needs.plan
    relevance = None if plan is None or arrived is None else (plan, arrived)
    gradient = study.gradient(site.contraction)
    for first, count, found in _found(study, site, wanted, gradient, relevance):
        view = copy(study)
        view.sites = (found,)
        made = function(view, **options)[site.contraction]
        yield Chunk(first, count, where_attended(found, made))


def where_attended(values: SiteValues, matrix: Tensor) -> Tensor:
    """A matrix where A is not 0, and 0 elsewhere."""
    return matrix.masked_fill(values.attention == 0, 0)


def _found(
    study: AttentionStudy,
    site: Site,
    wanted: Wanted,
    gradient: Tensor | None = None,
    relevance: tuple[Plan, Tensor] | None = None,
) -> Iterator[tuple[int, int, SiteValues]]:
    held = study.run.forward.values | study.run.forward.watched
    attention = study.needs.in_chunks[site.contraction]
    values = {n: detached(held[n]) for n in attention.entering}
    by = chunked(attention, values, study.program.dtype)
    for rows in map_rows(by, gradient, relevance, wanted):
        slope = None if rows.gradient is None else wide(rows.gradient)
        yield rows.first, rows.count, SiteValues(site, wide(rows.attention), slope, rows.relevance)
