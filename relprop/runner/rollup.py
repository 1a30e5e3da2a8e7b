"""The roll-up of one run for one target: Eq. 14's product, single sites read through skip
connections, and positions of any tensor handed down to the inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType

import torch
from torch import Tensor, fx

from relprop.errors import OptionError, RollUpError
from relprop.interpreter.batch import Hook, Passage, Passing, pending_at
from relprop.interpreter.points import Points, Seed, behind
from relprop.interpreter.reading import begun as passed_in
from relprop.interpreter.reading import reading_of
from relprop.interpreter.walk import Pending, Walk
from relprop.plan import Plan, Step
from relprop.rollup import (
    Stream,
    last_stream,
    skip_of,
    token_axes,
    tokens_of,
)
from relprop.rules.fields import attended, of_queries, of_values, taken_through
from relprop.rules.notes import SiteNote
from relprop.runner.beginning import begun, in_parts, parts_of
from relprop.runner.study import Sweep
from relprop.runner.values import Matrix, MatrixRows
from relprop.tracer.calls import Values, per_sample
from relprop.tracer.chunked import Chunk
from relprop.tracer.editing import val
from relprop.tracer.program import Site

MATRIX_ROWS = 64
Pairs = dict[str, tuple[Tensor, Tensor]]
Matrices = Mapping[fx.Node, Tensor]


class RollUp:
    """Walks from a target's start to the token tensors of a run's streams."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.needs, self.run, self.start = sweep.needs, sweep.run, sweep.start
        self.session, self.program = self.needs.session, self.needs.program
        self.plan, self.streams = self.session.rollup(tuple(self.start.field), self.needs.sites)
        if not self.streams:
            raise RollUpError(
                "no explained input feeds the attention that the target depends on",
                then=["explain_inputs=   # another input", "method='lrp'   # needs no attention"],
            )

    # -- Eq. 14

    def product(self, matrices: Mapping[fx.Node, Matrix], scales: Matrices) -> Pairs:
        """Σ of all products of the matrices (C without what skip connections alone leave), and
        that, by stream, each (batch, tokens). ``scales``: a factor at each merge that has one."""
        found = self.walked(self.plan, self._field(1), {**matrices, **scales})
        return {s.name: self._read(s, found.get(s.node), 2).unbind(1) for s in self.streams}  # type: ignore[misc]

    def connected(self, maps: Mapping[fx.Node, Matrix]) -> dict[str, Tensor]:
        """Which tokens some way through attention and skip connections joins to the target, by
        stream (batch, tokens), bool. The others (padding, what comes after a causal model's
        position) have no part in y_t."""
        if self.run.described is None and all(
            isinstance(m, Tensor) and bool(m.all()) for m in maps.values()
        ):
            batch, device = self.run.inputs.batch, self.run.inputs.tensors[0].device
            return {
                s.name: torch.ones(batch, math.prod(s.sizes), dtype=torch.bool, device=device)
                for s in self.streams
            }
        sizes = {n: m.abs() if isinstance(m, Tensor) else m for n, m in maps.items()}
        return {name: (a != 0) | (b != 0) for name, (a, b) in self.product(sizes, {}).items()}

    def row_scales(self, matrices: Mapping[fx.Node, Matrix]) -> dict[fx.Node, Tensor]:
        """1/(1 + Σ_j E_h M) at the merge where each site's branch meets its identity, so that the
        rows of Ā sum to 1."""
        sums: dict[fx.Node, Tensor] = {}
        for site in self.needs.chosen:
            merge, rows = self._rows_at_merge(site, matrices[site.contraction])
            sums[merge] = sums.get(merge, 0) + rows
        return {merge: 1 / (1 + total) for merge, total in sums.items()}

    def _rows_at_merge(self, site: Site, matrix: Matrix) -> tuple[fx.Node, Tensor]:
        """Where a site's branch meets its identity, and the sums of its rows, (batch, 1, ...), as
        they lie there."""
        assert isinstance(matrix, Tensor)  # ``normalize_rows`` needs every map whole
        merge = skip_of(self.session.flow, site)
        rows = matrix.sum(-2 if site.transposed else -1).flatten(1, -2).mean(1)
        tokens = () if merge is None else token_axes(self.program, merge)
        if merge is None or len(tokens) != 1 or val(merge).shape[tokens[0]] != rows.shape[1]:
            raise OptionError(
                f"normalize_rows: the rows of the attention at {site.path!r} are not "
                "the positions of one residual stream"
            )
        rank = val(merge).dim()
        return merge, rows.reshape(
            len(rows), 1, *(-1 if i == tokens[0] else 1 for i in range(rank))
        )

    def matrix(self, matrices: Matrices, scales: Matrices) -> Tensor:
        """C of Eq. 14, (batch, s, s): the walk started from every position of the tensor in which
        the last site's result arrives."""
        stream, top = self._only_stream(), self._top()
        plan, _ = self.session.rollup((top,), self.needs.sites)
        shared = {node: m.unsqueeze(1) for node, m in matrices.items()}
        like = next(iter(matrices.values()))
        rows = []
        for marks in self._positions_of(top, like):
            field = torch.cat([marks, torch.ones_like(marks[:1])])
            field = field.expand(self.run.inputs.batch, *field.shape)
            found = self.walked(plan, {top: in_parts(plan, top, field)}, {**shared, **scales})
            rows.append(stream.read(found[stream.node]))
        return torch.cat(rows, 1)

    def _only_stream(self) -> Stream:
        if len(self.streams) > 1:
            names = ", ".join(s.name for s in self.streams)
            raise OptionError(
                "keep='matrix' is for one explained input; the target depends on "
                f"{len(self.streams)}: {names}"
            )
        return self.streams[0]

    def _top(self) -> fx.Node:
        """The tensor in which the last site's result arrives."""
        starts, sizes = tuple(self.start.field), self.streams[0].sizes
        top = last_stream(self.program, self.session.flow, starts, self.needs.sites, sizes)
        if top is None:
            raise RollUpError(
                "keep='matrix' needs a token sequence of constant length from the first "
                "attention site to the last"
            )
        return top

    def _positions_of(self, node: fx.Node, like: Tensor) -> Iterator[Tensor]:
        """Fields of 1 at one position of ``node`` each, the same for all its features: (at most
        MATRIX_ROWS, *its token axes in place)."""
        axes, shape = token_axes(self.program, node), val(node).shape
        count = math.prod(tokens_of(self.program, node))
        sizes = [shape[i] if i in axes else 1 for i in range(len(shape))]
        for some in torch.eye(count, dtype=like.dtype, device=like.device).split(MATRIX_ROWS):
            yield some.reshape(len(some), *sizes)

    # -- one site at a time

    def through(
        self, extras: Mapping[fx.Node, tuple[Matrix, int]], count: int
    ) -> dict[str, Tensor]:
        """What the head reads through single sites, all others passed by their skip connections,
        and last what these alone leave: by stream (batch, ``count`` + 1, tokens). Each site's
        matrix fills the channels from the given one on, a matrix of rows that one alone."""
        steps = tuple(
            replace(s, rule=attended(extras[s.node][1])) if s.node in extras else s
            for s in self.plan.steps
        )
        plan, starts = replace(self.plan, steps=steps), self._field(count)
        first = {n: channel for n, (_, channel) in extras.items()}
        found = self.walked(plan, starts, {n: m for n, (m, _) in extras.items()}, first)
        return {s.name: self._read(s, found.get(s.node), count + 1) for s in self.streams}

    def place(self, node: fx.Node, numbers: Tensor, ends: tuple[Stream, ...]) -> dict[str, Tensor]:
        """Numbers (batch, *token positions) at ``node``, handed down to each stream's tokens by
        skip connections alone, (batch, tokens)."""
        plan, _ = self.session.rollup((node,), self.needs.sites, ends)
        shape, tokens = val(node).shape, token_axes(self.program, node)
        sizes = [shape[i] if i in tokens else 1 for i in range(len(shape))]
        spread = numbers.reshape(len(numbers), 1, *sizes)
        field = in_parts(plan, node, torch.cat([spread, torch.ones_like(spread)], 1))
        found = self.walked(plan, {node: field}, {})
        return {s.name: self._read(s, found.get(s.node), 1)[:, 0] for s in ends}

    # -- what all share

    def walked(
        self,
        plan: Plan,
        starts: Mapping[fx.Node, Seed],
        matrices: Mapping[fx.Node, Matrix],
        first: Mapping[fx.Node, int] = MappingProxyType({}),
        hooks: Mapping[fx.Node, Hook] = MappingProxyType({}),
    ) -> Mapping[fx.Node, Tensor]:
        """What arrives at the token tensors of fields that start somewhere, through a plan.
        ``first``: the channel that a matrix of rows alone fills, if it is one alone."""
        extras = {n: m for n, m in matrices.items() if isinstance(m, Tensor)}
        rows = ((n, m) for n, m in matrices.items() if isinstance(m, MatrixRows))
        passages = {n: _passage(plan.step_at[n], m, first.get(n)) for n, m in rows}
        points = [n for n, seed in starts.items() if isinstance(seed, Points)]
        known = ((n, reading_of(plan, n)) for n in points)
        readings = {n: r for n, r in known if r is not None and extras.keys().isdisjoint(r.nodes)}
        whole, begins = passed_in(starts, readings, account=False)
        passing = Passing(plan, pending_at(whole), extras, False, hooks, passages | begins)
        found: dict[fx.Node, Tensor] = {}
        for part in self.sweep.backward():
            here = [n for n in plan.order if n in part.nodes]
            values = {n: v for n, v in part.values.items() if n in plan.keep}
            found |= passing.through(here, values).found
            del part, values  # before the next segment is loaded
        return found

    def _field(self, channels: int) -> dict[fx.Node, Seed]:
        """The start's field behind ``channels`` empty ones."""
        plan = self.plan
        return {n: behind(f, channels * parts_of(plan, n)) for n, f in self.begun.items()}

    @cached_property
    def begun(self) -> dict[fx.Node, Seed]:
        """The identity's fields where the target reads."""
        return begun(self.plan, self.start.field)

    def _read(self, stream: Stream, field: Tensor | None, channels: int) -> Tensor:
        """A stream's numbers, (batch, channels, tokens); zeros where no field arrives (what it
        feeds are queries and keys alone)."""
        if field is not None:
            return stream.read(field)
        inputs = self.run.inputs
        return torch.zeros(
            inputs.batch, channels, math.prod(stream.sizes), device=inputs.tensors[0].device
        )

    def skips(self, above: fx.Node, below: fx.Node) -> bool:
        """Whether skip connections alone lead from one node to another, past every site."""
        flow, contractions = self.session.flow, {s.contraction for s in self.needs.sites}
        return above is below or (
            flow.reaches(above, below)
            and flow.reached_by(above, below, lambda n: n not in contractions)
        )


def _passage(step: Step, rows: MatrixRows, first: int | None) -> Passage:
    """How the field passes a site whose matrix is made some rows at a time, ``taken_through``
    them."""
    assert isinstance(step.note, SiteNote)
    note = step.note
    at, queries = (0, -1) if note.transposed else (1, -2)
    values = tuple(val(step.operands[at]).shape)

    def passage(field: Tensor, _: Values) -> tuple[Walk, Pending]:
        numbers, there = per_sample(lambda f: of_queries(f, note), field)

        def present(chunk: Chunk) -> bool:
            return bool(numbers.narrow(queries, *chunk).any())

        count = numbers.shape[1]
        received = there.new_zeros(len(there), count, *there.shape[2:])
        for chunk, matrix in rows.of(present):
            through = partial(taken_through, transposed=note.transposed, first=first)
            here = numbers.narrow(queries, *chunk).to(matrix.device)
            received = received + per_sample(through, here, matrix).to(received.device)
        made = per_sample(lambda r, t: of_values(r, t, values, note, count), received, there)
        edge = step.edges[at]
        return Walk(), {} if edge is None else {edge: [made]}

    return passage
