"""The roll-up of one run for one target: Eq. 14's product, single sites read through skip
connections, and positions of any tensor handed down to the inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

from relprop.api.reading import readings
from relprop.api.run import Run
from relprop.errors import OptionError, RollUpError, warn
from relprop.interpreter.backward import propagate
from relprop.methods import LayerValues, SiteValues, Tokens
from relprop.methods.fusion import fused, without_smallest
from relprop.numerics import at_least_float32
from relprop.plan import Plan
from relprop.rollup import Stream, token_axes, tokens_of
from relprop.rules.fields import attended_once
from relprop.targets import Start
from relprop.tracer.axes import is_token
from relprop.tracer.editing import val
from relprop.tracer.program import Site

MATRIX_ROWS = 64
Pairs = dict[str, tuple[Tensor, Tensor]]


@dataclass
class Rolling:
    """Walks from a target's start to the token tensors of a run's streams."""

    run: Run
    start: Start
    at: tuple[SiteValues, ...]

    def __post_init__(self) -> None:
        self.plan, self.streams = self.run.session.rollup(tuple(self.start.field), self.run.sites)
        self._reads: dict[fx.Node, tuple[Tokens, Tokens]] | None = None
        if not self.streams:
            raise RollUpError(
                "the roll-up does not arrive: no explained input feeds the attention sites"
            )

    # -- Eq. 14
    # ----------------------------------------------------------------------------------------------

    def product(self, matrices: Mapping[fx.Node, Tensor]) -> Pairs:
        """Σ of all products of the matrices (C without what skip connections alone leave), and
        that, by stream, each (batch, tokens)."""
        return self._walked(matrices, self.row_scales(matrices))

    def _walked(
        self, matrices: Mapping[fx.Node, Tensor], scales: Mapping[fx.Node, Tensor]
    ) -> Pairs:
        both = {node: torch.stack([m, torch.zeros_like(m)], 1) for node, m in matrices.items()}
        found = propagate(
            self.plan,
            self._values(self.plan),
            self._field(1),
            extras={**both, **scales},
            account=False,
        ).found
        return {s.name: self._read(s, found.get(s.node), 2).unbind(1) for s in self.streams}  # type: ignore[misc]

    def connected(self) -> dict[str, Tensor]:
        """Which tokens some way through attention and skip connections joins to the target, by
        stream (batch, tokens), bool. The others (padding, what comes after a causal model's
        position) have no part in y_t."""
        held = self.run.forward.values | self.run.forward.watched
        maps = {
            s.contraction: (a := held[s.attention].detach().abs()).to(at_least_float32(a.dtype))
            for s in self.run.sites
        }
        if all(bool(m.all()) for m in maps.values()):
            like = next(iter(maps.values()))
            return {
                s.name: torch.ones(
                    len(like), math.prod(s.sizes), dtype=torch.bool, device=like.device
                )
                for s in self.streams
            }
        return {name: (a != 0) | (b != 0) for name, (a, b) in self._walked(maps, {}).items()}

    def row_scales(self, matrices: Mapping[fx.Node, Tensor]) -> dict[fx.Node, Tensor]:
        """1/(1 + Σ_j E_h M) at the merge where each site's branch meets its identity, so that the
        rows of Ā sum to 1; nothing unless asked for."""
        if not self.run.request.options.get("normalize_rows"):
            return {}
        sums: dict[fx.Node, Tensor] = {}
        for site in self.run.chosen:
            merge = self.run.session.merges.identity_of(site.contraction)
            m = matrices[site.contraction]
            rows = m.sum(-2 if site.transposed else -1)
            rows = rows.flatten(1, -2).mean(1)
            axes = self.run.program.axes[merge] if merge is not None else ()
            tokens = [i for i, axis in enumerate(axes) if is_token(axis)]
            if merge is None or len(tokens) != 1 or val(merge).shape[tokens[0]] != rows.shape[1]:
                raise OptionError(
                    f"normalize_rows: the rows of the attention at {site.path!r} are not "
                    "the positions of one residual stream"
                )
            shape = [
                self.run.inputs.batch,
                1,
                *(rows.shape[1] if i == tokens[0] else 1 for i in range(len(axes))),
            ]
            sums[merge] = sums.get(merge, 0) + rows.reshape(shape)
        return {merge: 1 / (1 + total) for merge, total in sums.items()}

    def matrix(self, matrices: Mapping[fx.Node, Tensor]) -> Tensor:
        """C of Eq. 14, (batch, s, s): the walk started from every position of the tensor in which
        the last site's result arrives."""
        stream = self._alone()
        run = self.run
        contractions = tuple(s.contraction for s in run.sites)
        top = run.session.merges.last_stream(
            tuple(self.start.field), contractions, run.program.axes, stream.sizes
        )
        if top is None:
            raise RollUpError(
                "keep='matrix' needs a token sequence of constant length from the first "
                "attention site to the last"
            )
        plan, _ = run.session.rollup((top,), run.sites)
        axes, shape = token_axes(run.program, top), val(top).shape
        count = math.prod(tokens_of(run.program, top))
        like = next(iter(matrices.values()))
        shared = {node: m.unsqueeze(1) for node, m in matrices.items()}
        rows = []
        for first in range(0, count, MATRIX_ROWS):
            some = torch.eye(count, dtype=like.dtype, device=like.device)[
                first : first + MATRIX_ROWS
            ]
            marks = some.reshape(
                len(some), *(shape[i] if i in axes else 1 for i in range(len(shape)))
            ).expand(len(some), *shape)
            field = torch.cat([marks, torch.ones_like(marks[:1])]).expand(
                run.inputs.batch, -1, *shape
            )
            found = propagate(
                plan,
                self._values(plan),
                {top: field},
                extras={**shared, **self.row_scales(matrices)},
                account=False,
            ).found
            rows.append(stream.read(found[stream.node]))
        return torch.cat(rows, 1)

    def _alone(self) -> Stream:
        if len(self.streams) > 1:
            names = ", ".join(s.name for s in self.streams)
            raise OptionError(
                "keep='matrix' is for one explained input; the target depends on "
                f"{len(self.streams)}: {names}"
            )
        return self.streams[0]

    # -- one site at a time
    # ----------------------------------------------------------------------------------------------

    def rows(self, matrices: Mapping[fx.Node, Tensor]) -> dict[str, Tensor]:
        """What the head reads through each chosen site alone: by stream (batch, sites, tokens)."""
        matrices = self.fused(matrices)
        return self._once(
            {
                s.contraction: (matrices[s.contraction].unsqueeze(1), i)
                for i, s in enumerate(self.run.chosen)
            },
            len(self.run.chosen),
        )

    def heads(self, values: SiteValues, maps: Tensor) -> dict[str, Tensor]:
        """The same through each head of one site: by stream (batch, heads, tokens)."""
        axes = self.head_axes(values)
        count = math.prod(maps.shape[i] for i in axes)
        apart = (
            torch.eye(count, dtype=maps.dtype, device=maps.device) * count
        )  # a head's own row, under a mean over heads
        apart = apart.reshape(
            1, count, *(maps.shape[i] if i in axes else 1 for i in range(1, maps.dim()))
        )
        return self._once({values.site.contraction: (maps.unsqueeze(1) * apart, 0)}, count)

    def head_means(self, values: SiteValues, maps: Tensor) -> Tensor:
        """The mean of each head's map, (batch, heads)."""
        axes = self.head_axes(values)
        others = [i for i in range(1, maps.dim()) if i not in axes]
        return maps.mean(others).flatten(1)

    def dense(self, values: SiteValues, maps: Tensor) -> Tensor:
        """A site's map with its heads fused, rows are queries: (batch, queries, keys). Raises
        ``OptionError`` where there are windows."""
        axes = self.head_axes(values)
        if math.prod(maps.shape[i] for i in axes) != math.prod(maps.shape[1:-2]):
            raise OptionError(
                f"the attention at {values.site.path!r} is over windows, not over the "
                "whole sequence: there is no one matrix of it"
            )
        how = self.run.request.options.get("head_fusion", "mean")
        found = (
            fused(maps, axes, how, values.gradient).flatten(1, -3).mean(1)
            if maps.dim() > 3
            else maps
        )
        return found.mT if values.site.transposed else found

    def reads(self, site: Site) -> tuple[Tokens, Tokens]:
        """Whose tokens a chosen site's queries and its keys are."""
        if self._reads is None:
            self._reads = readings(self.run, self.streams)
        return self._reads[site.contraction]

    def received(self, values: SiteValues, layer: LayerValues) -> Tensor | None:
        """The attention that each token of a layer receives, meaned over heads and queries;
        ``None`` where the keys are not the layer's own tokens, or its values no one's.

        A query that nothing attends to, itself neither, is padding, and counts in no mean.
        """
        site, program = values.site, self.run.program
        queries, keys = (
            {atom.group.root() for atom in axis} for axis in program.axes[site.attention][-2:]
        )
        if not queries & keys or site.values not in self.run.session.flow.members:
            return None
        attention, heads = (
            values.attention.mT if site.transposed else values.attention,
            self.head_axes(values),
        )
        attention = attention.mean(heads, keepdim=True) if heads else attention
        if attention.shape[-2] == attention.shape[-1]:
            present = (attention.amax(-2) > 0).to(attention.dtype)
            mean = (attention * present[..., None]).sum(-2) / present.sum(-1, keepdim=True)
        else:
            mean = attention.mean(-2)
        mean = mean.flatten(1)
        count = math.prod(layer.value.shape[i + 1] for i in layer.token_axes)
        in_windows = len(tokens_of(program, site.values)) > 1
        same = tokens_of(program, site.values) == tokens_of(program, layer.node)
        if same and not in_windows and mean.shape[1] == count:
            return mean
        before = [
            n
            for s, n in self.run.layers.items()
            if n is not layer.node and self.run.session.flow.reaches(n, site.values)
        ]
        nearest = (
            before[-1]
            if before
            else next(
                s.node for s in self.streams if self.run.session.flow.reaches(s.node, site.values)
            )
        )
        moved = self.move(site.values, mean, nearest)
        if moved.shape[1] == count:
            return moved
        warn(
            f"the layer at {site.path!r} is passed over: the attention that a token receives is "
            f"taken from {moved.shape[1]} tokens there, and its output holds {count} (steps of a "
            "cache, pooled queries)"
        )
        return None

    def same_tokens(self, values: SiteValues, layer: LayerValues) -> bool:
        """Whether a site's queries are the tokens of a layer's output, one for one."""
        axes = self.run.program.axes
        query = axes[values.site.attention][-1 if values.site.transposed else -2]
        tokens = [axes[layer.node][i] for i in layer.token_axes]
        same = len(tokens) == 1 and {a.group.root() for a in tokens[0]} == {
            a.group.root() for a in query
        }
        others = [
            i
            for i in range(1, values.attention.dim() - 2)
            if values.attention.shape[i] > 1 and i not in self.head_axes(values)
        ]
        return same and not others

    def head_axes(self, values: SiteValues) -> tuple[int, ...]:
        """Which axes of a site's map, batch first, are heads: neither queries and keys nor
        windows."""
        axes = self.run.program.axes[values.site.attention]
        return tuple(
            i + 1
            for i, axis in enumerate(axes[:-2])
            if val(values.site.attention).shape[i] > 1 and not is_token(axis)
        )

    def place(self, node: fx.Node, numbers: Tensor) -> dict[str, Tensor]:
        """Numbers (batch, *token positions) at ``node``, handed down to each stream's tokens by
        skip connections alone, (batch, tokens)."""
        return self._handed_down(node, numbers, self.streams)

    def _handed_down(
        self, node: fx.Node, numbers: Tensor, ends: tuple[Stream, ...]
    ) -> dict[str, Tensor]:
        plan = self.run.session.handing_down((node,), self.run.sites, ends)
        shape = val(node).shape
        tokens = token_axes(self.run.program, node)
        spread = numbers.reshape(
            len(numbers), 1, *(shape[i] if i in tokens else 1 for i in range(len(shape)))
        ).expand(-1, -1, *shape)
        found = propagate(
            plan,
            self._values(plan),
            {node: torch.cat([spread, torch.ones_like(spread)], 1)},
            account=False,
        ).found
        return {s.name: self._read(s, found.get(s.node), 1)[:, 0] for s in ends}

    def move(self, node: fx.Node, numbers: Tensor, to: fx.Node) -> Tensor:
        """The same, down to another tensor's tokens, (batch, tokens)."""
        end = Stream("", to, to, token_axes(self.run.program, to))
        return self._handed_down(node, numbers, (end,))[""]

    def identity(self) -> dict[str, Tensor]:
        """What skip connections alone leave of the target, by stream (batch, tokens)."""
        return {name: found[:, -1] for name, found in self._once({}, 0, whole=True).items()}

    def last(self) -> dict[str, int]:
        """By stream, the index of the last chosen site that reads its tokens with nothing but skip
        connections between it and the target."""
        return self.run.session.kept(
            ("last", self.run.chosen, self.run.sites, tuple(self.start.field), self.streams),
            self._last,
        )  # type: ignore[no-any-return]

    def _last(self) -> dict[str, int]:
        flow, contractions = self.run.session.flow, {s.contraction for s in self.run.sites}

        def skips(above: fx.Node, below: fx.Node) -> bool:
            return above is below or (
                flow.reaches(above, below)
                and flow.reached_by(above, below, lambda n: n not in contractions)
            )

        found: dict[str, int] = {}
        for i, site in enumerate(self.run.chosen):
            if any(e in flow.members and skips(site.contraction, e) for e in self.start.field):
                found.update({s.name: i for s in self.streams if skips(s.node, site.values)})
        return found

    def _once(
        self, extras: Mapping[fx.Node, tuple[Tensor, int]], count: int, *, whole: bool = False
    ) -> dict[str, Tensor]:
        """A walk with ``count`` channels beside the identity's, into which each site puts its
        matrix's part of the identity, from the given channel on."""
        steps = tuple(
            replace(s, rule=attended_once(extras[s.node][1])) if s.node in extras else s
            for s in self.plan.steps
        )
        found = propagate(
            replace(self.plan, steps=steps),
            self._values(self.plan),
            self._field(count),
            extras={n: m for n, (m, _) in extras.items()},
            account=False,
        ).found
        read = {s.name: self._read(s, found.get(s.node), count + 1) for s in self.streams}
        return read if whole else {name: r[:, :-1] for name, r in read.items()}

    # -- what all share
    # ----------------------------------------------------------------------------------------------

    def fused(self, matrices: Mapping[fx.Node, Tensor]) -> dict[fx.Node, Tensor]:
        """The matrices after ``head_fusion=`` and ``discard_ratio=``."""
        options = self.run.request.options
        how, ratio = options.get("head_fusion", "mean"), options.get("discard_ratio", 0.0)
        found = dict(matrices)
        for values in self.at if how != "mean" or ratio else ():
            node, axes = values.site.contraction, self.head_axes(values)
            found[node] = without_smallest(
                fused(found[node], axes, how, values.gradient), axes, ratio
            )
        return found

    def _field(self, channels: int) -> dict[fx.Node, Tensor]:
        """The start's field behind ``channels`` empty ones."""
        return {
            node: torch.cat([torch.zeros_like(f[:, :1]).expand(-1, channels, *f.shape[2:]), f], 1)
            for node, f in self.start.field.items()
        }

    def _values(self, plan: Plan) -> dict[fx.Node, Tensor]:
        return {n: v for n, v in self.run.forward.values.items() if n in plan.keep}

    def _read(self, stream: Stream, field: Tensor | None, channels: int) -> Tensor:
        """A stream's numbers, (batch, channels, tokens); zeros where no field arrives (what it
        feeds are queries and keys alone)."""
        if field is None:
            return torch.zeros(
                self.run.inputs.batch,
                channels,
                math.prod(stream.sizes),
                device=self.run.inputs.tensors[0].device,
            )
        return stream.read(field)
