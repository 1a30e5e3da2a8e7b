"""What a method over attention may ask: maps, gradients and relevance at the attention sites, what
the tokens are, what the head reads, parts of the graph run again, and the roll-up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, fx

from relprop.errors import OptionError
from relprop.interpreter.forward import detached
from relprop.numerics import at_least_float32
from relprop.rollup import Stream, token_axes
from relprop.runner.describe import tokens_described
from relprop.runner.fusion import fused, without_smallest
from relprop.runner.needs import Needs
from relprop.runner.rollup import Pairs, RollUp
from relprop.runner.run import Run
from relprop.runner.study import Gradients, Study
from relprop.runner.values import (
    LayerValues,
    Matrix,
    SiteValues,
    goes_beyond,
    matrix_rows,
    wide,
    without_leading_one,
)
from relprop.targets.start import Start
from relprop.tracer.atoms import is_token
from relprop.tracer.editing import val
from relprop.tracer.program import Site

M = TypeVar("M", bound=Matrix)


class AttentionStudy(Study):
    """What a method over attention may ask.

    ``whole``: what was found at those of the chosen attention sites whose map is whole, in forward
    order. ``layers``: the outputs of the chosen sites' layers, for a method that needs
    ``"hidden"``; ``features``: the tensors that ``target_layers=`` names, or what the last site's
    queries, keys and values come from, for one that needs ``"features"``. ``inputs``: what is
    explained, (batch, *one sample's shape), by name, for one that needs ``"inputs"``.
    """

    def __init__(
        self, needs: Needs, run: Run, target: object, start: Start, gradients: Gradients
    ) -> None:
        super().__init__(needs, run, target, start, gradients)
        self.mixes_unattended = False  # whether some matrix is not 0 where A is
        self.whole = tuple(map(self._at_site, needs.whole))
        self.rollup = RollUp(self.sweep)
        self.streams = self.rollup.streams

    @property
    def sites(self) -> tuple[SiteValues, ...]:
        """What was found at the attention sites that ``layers=`` chose, in forward order.

        Raises:
            OptionError: if some map is never whole, which a method that is ``row_wise`` allows.
        """
        if not self.needs.backward.in_chunks:
            return self.whole
        raise OptionError(
            f"method {self.needs.question.method!r} reads whole attention maps (at.sites), but "
            f"is said to be row-wise, and {len(self.needs.backward.in_chunks)} of "
            f"{len(self.needs.chosen)} maps are made some rows at a time",
            then=["at.matrices(function) instead", "or leave relprop.methods.row_wise out"],
        )

    @cached_property
    def layers(self) -> list[LayerValues]:
        """The outputs of the chosen sites' layers. Raises ``OptionError`` if they were not asked
        for."""
        self.require("at.layers", "hidden", "values")
        return [self._layer(node, site) for site, node in self.needs.layers.items()]

    @cached_property
    def features(self) -> list[LayerValues]:
        """The tensors that ``target_layers=`` names. Raises ``OptionError`` if they were not asked
        for."""
        self.require("at.features", "features")
        return [self._layer(node) for node in self.needs.features]

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """What is explained, by name. Raises ``OptionError`` if it was not asked for."""
        self.require("at.inputs", "inputs")
        return {s.name: without_leading_one(self.value(s.leaf), s.leaf) for s in self.streams}

    def _at_site(self, site: Site) -> SiteValues:
        node = site.attention
        held = detached(self.run.forward.watched[node])
        return SiteValues(site, wide(held).to(self.home), self.gradient(node), self.relevance(node))

    def _layer(self, node: fx.Node, site: Site | None = None) -> LayerValues:
        value, axes = wide(self.value(node)), token_axes(self.program, node)
        return LayerValues(node, value, self.gradient(node), axes, site)

    def matrices(self, function: Callable[[SiteValues], Tensor]) -> dict[fx.Node, Matrix]:
        """A matrix per site, by a ``function`` of what was found there, whose rows are made of the
        same rows of A, ∇A and R: of a site whose map is never whole it is asked for some rows at a
        time, as they are needed."""
        found: dict[fx.Node, Matrix] = {}
        for values in self.whole:
            matrix = function(values)
            if self.needs.backward.in_chunks:
                self.mixes_unattended |= goes_beyond(matrix, values)
            found[values.site.contraction] = matrix
        for site in self.needs.chosen:
            if site.contraction in self.needs.backward.in_chunks:
                found[site.contraction] = matrix_rows(self, site, function)
        return found

    # -- what the tokens are

    @cached_property
    def described(self) -> Mapping[str, Mapping[str, Any]]:
        """What each input's tokens are, as ``TokenScores`` has it."""
        known = self.run.described
        return known or {s.name: tokens_described(self.needs, self.run, s) for s in self.streams}

    @cached_property
    def connected(self) -> dict[str, Tensor]:
        """Which tokens have a part in the target, by input (batch, tokens), bool."""
        key = ("connected", self.needs.sites, frozenset(self.needs.backward.in_chunks))
        return self.start.memo.cache(key, self._connected)

    def _connected(self) -> dict[str, Tensor]:
        held = self.run.forward.values | self.run.forward.watched
        return self.rollup.connected(
            {
                s.contraction: matrix_rows(self, s, lambda found: found.attention.abs())
                if s.contraction in self.needs.backward.in_chunks
                else wide(detached(held[s.attention]))
                for s in self.needs.sites
            }
        )

    @cached_property
    def content(self) -> dict[str, Tensor]:
        """By input, which tokens are patches or words that the target reads, (batch, tokens), bool
        (scores of tokens that it does not read become 0)."""
        found = {name: known["content"] for name, known in self.described.items()}
        return {name: c & self.connected[name].to(c.device) for name, c in found.items()}

    @cached_property
    def grids(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]] | None]:
        """By input, its patches (h, w) and its size (H, W), for an image."""
        return {
            name: (k["grid"], k["image"]) if k["grid"] and k["image"] else None
            for name, k in self.described.items()
        }

    @cached_property
    def last(self) -> dict[str, int]:
        """By input, the index in ``sites`` of the last site that reads its tokens with nothing but
        skip connections between it and the target."""
        key = ("last", self.needs.chosen, self.needs.sites, tuple(self.start.field), self.streams)
        return self.session.kept(key, self._last)

    def _last(self) -> dict[str, int]:
        found: dict[str, int] = {}
        ends = [e for e in self.start.field if e in self.session.flow.members]
        for i, site in enumerate(self.needs.chosen):
            if any(self.rollup.skips(site.contraction, e) for e in ends):
                below = [s.name for s in self.streams if self.rollup.skips(s.node, site.values)]
                found.update(dict.fromkeys(below, i))
        return found

    # -- what the head reads

    def rows(self, matrices: Mapping[fx.Node, Matrix]) -> dict[str, Tensor]:
        """What the head reads through each site alone, all others passed by their skip connections:
        by input (batch, sites, tokens), for a matrix per contraction, meaned over heads."""
        channels = {s.contraction: i for i, s in enumerate(self.needs.chosen)}
        parts = {
            n: (m.unsqueeze(1) if isinstance(m, Tensor) else m, channels[n])
            for n, m in self.fused(matrices).items()
        }
        found = self.rollup.through(parts, len(channels))
        return {name: row[:, :-1] for name, row in found.items()}

    def heads(self, values: SiteValues, maps: Tensor) -> dict[str, Tensor]:
        """The same through each head of one site: by input (batch, heads, tokens)."""
        axes = self.head_axes(values)
        count = math.prod(maps.shape[i] for i in axes)
        # under a mean of heads
        own = torch.eye(count, dtype=maps.dtype, device=maps.device) * count
        sizes = (maps.shape[i] if i in axes else 1 for i in range(1, maps.dim()))
        apart = maps.unsqueeze(1) * own.reshape(1, count, *sizes)
        found = self.rollup.through({values.site.contraction: (apart, 0)}, count)
        return {name: row[:, :-1] for name, row in found.items()}

    def identity(self) -> dict[str, Tensor]:
        """What skip connections alone leave of the target, by input (batch, tokens)."""
        return {name: row[:, -1] for name, row in self.rollup.through({}, 0).items()}

    def head_means(self, values: SiteValues, maps: Tensor) -> Tensor:
        """The mean of each head's whole map, (batch, heads)."""
        axes = self.head_axes(values)
        return maps.mean([i for i in range(1, maps.dim()) if i not in axes]).flatten(1)

    def dense(self, values: SiteValues, maps: Tensor) -> Tensor:
        """A site's map with its heads fused, rows are queries: (batch, queries, keys). Raises
        ``OptionError`` where there are windows."""
        axes = self.head_axes(values)
        if math.prod(maps.shape[i] for i in axes) != math.prod(maps.shape[1:-2]):
            raise OptionError(
                f"the attention at {values.site.path!r} is over windows, not over the "
                "whole sequence: there is no one matrix of it"
            )
        if maps.dim() > 3:
            how = self.settings.get("head_fusion", "mean")
            maps = fused(maps, axes, how, values.slope).flatten(1, -3).mean(1)
        return maps.mT if values.site.transposed else maps

    def head_axes(self, values: SiteValues) -> tuple[int, ...]:
        """Which axes of a site's map, batch first, are heads: neither queries and keys nor
        windows."""
        node = values.site.attention
        return tuple(
            i + 1
            for i, axis in enumerate(self.program.axes[node][:-2])
            if val(node).shape[i] > 1 and not is_token(axis)
        )

    def place(self, node: fx.Node, numbers: Tensor) -> dict[str, Tensor]:
        """Numbers (batch, *token positions) at a tensor of the graph, handed down to the inputs'
        tokens by skip connections, (batch, tokens)."""
        return self.rollup.place(node, numbers, self.streams)

    def move(self, node: fx.Node, numbers: Tensor, to: fx.Node) -> Tensor:
        """The same, down to another tensor's tokens, (batch, tokens)."""
        end = Stream("", to, to, token_axes(self.program, to))
        return self.rollup.place(node, numbers, (end,))[""]

    # -- the graph run again

    def replay(self, changed: fx.Node, end: fx.Node, variants: Tensor) -> Tensor:
        """The values at ``end``, (variants, batch, ...), if those at ``changed`` were
        ``variants``."""
        part, own = self.session.replay(changed, end), self.program.dtype or val(changed).dtype
        dtype = at_least_float32(own)
        if dtype != own:  # small differences are not for half precision
            part = replace(part, program=replace(self.program, dtype=dtype))
        values = self.run.values(self.session, part.extra)
        beside = {n: wide(v.detach()) if isinstance(v, Tensor) else v for n, v in values.items()}
        return part.run(beside, variants.to(dtype)).to(self.home)

    def output(self, name: str, value: Tensor) -> Tensor:
        """y_t (batch,) if input ``name`` were another."""
        leaves = self.program.leaves
        given = {
            n: value if n == name else without_leading_one(self.value(leaf), leaf)
            for n, leaf in leaves.items()
        }
        return self.output_at(tuple(leaves.values()), given.values())

    # -- Eq. 14

    def rolled_up(self, matrices: Mapping[fx.Node, Matrix]) -> Pairs:
        """By input, what attention carried and what skip connections alone leave."""
        found = self.fused(matrices)
        return self.rollup.product(found, self._scales(found))

    def matrix(self, matrices: Mapping[fx.Node, Tensor]) -> Tensor:
        """C of Eq. 14, (batch, s, s)."""
        matrices = self.fused(matrices)
        return self.rollup.matrix(matrices, self._scales(matrices))

    def _scales(self, matrices: Mapping[fx.Node, Matrix]) -> dict[fx.Node, Tensor]:
        return self.rollup.row_scales(matrices) if self.settings.get("normalize_rows") else {}

    def fused(self, matrices: Mapping[fx.Node, M]) -> dict[fx.Node, M]:
        """The matrices after ``head_fusion=`` and ``discard_ratio=``, for which all are whole."""
        how = self.settings.get("head_fusion", "mean")
        ratio = self.settings.get("discard_ratio", 0.0)
        found = dict(matrices)
        for values in self.whole if how != "mean" or ratio else ():
            node, axes = values.site.contraction, self.head_axes(values)
            fusion = fused(found[node], axes, how, values.slope)  # type: ignore[arg-type]
            found[node] = without_smallest(fusion, axes, ratio)  # type: ignore[assignment]
        return found
