"""A Study: what a method may ask of one run for one target. Over attention: maps, gradients and
relevance at the sites, and walks of the roll-up. At the input: values, gradients, relevance, and
y_t for other values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from relprop.errors import OptionError
from relprop.interpreter.forward import detached
from relprop.interpreter.ledger import Ledger
from relprop.numerics import at_least_float32
from relprop.rollup import Stream, token_axes
from relprop.runner.describe import tokens_described
from relprop.runner.fusion import fused, without_smallest
from relprop.runner.needs import Needs, reached_inputs
from relprop.runner.positions import positions, windows
from relprop.runner.relevance import relevance_of
from relprop.runner.rollup import Pairs, RollUp
from relprop.runner.run import Run
from relprop.runner.values import (
    LayerValues,
    SiteValues,
    wide,
    with_leading_one,
    without_leading_one,
)
from relprop.targets import Start
from relprop.tracer.atoms import is_token
from relprop.tracer.editing import val
from relprop.tracer.program import Site
from relprop.tracer.run import execute

Gradients = Mapping[fx.Node, Tensor]


class Study:
    """A question, the run that answers it, and where the target's relevance starts. ``gradients``:
    ∂y_t/∂ at the run's watched nodes, if they were asked for."""

    def __init__(
        self, needs: Needs, run: Run, target: Any, start: Start, gradients: Gradients
    ) -> None:
        self.needs, self.run, self.target, self.start = needs, run, target, start
        self._gradients = gradients if "gradient" in needs.question.needs else {}
        self.session, self.program = needs.session, needs.program
        self.settings: Mapping[str, Any] = run.part.cut(needs.question.settings)
        self._walk = relevance_of(needs, run, start)

    @property
    def ledger(self) -> Ledger | None:
        """The books of the relevance pass; ``None`` without one."""
        return self._walk[1]

    def relevance(self, node: fx.Node) -> Tensor | None:
        """Relevance at a node, batch first; zeros where none arrived (the target does not depend on
        it), ``None`` if it was not asked for."""
        if self.needs.plan is None:
            return None
        found = self.found_at(node)
        if found is None:
            held = self.run.forward.watched.get(node)
            found = torch.zeros_like(wide(self.run.forward.values[node]) if held is None else held)
        return found

    def found_at(self, node: fx.Node) -> Tensor | None:
        """The relevance that arrived at a node; ``None`` where none did."""
        return self._walk[0].found.get(node)

    def gradient(self, node: fx.Node) -> Tensor | None:
        """∂y_t/∂ at a watched node, batch first; ``None`` if it was not asked for."""
        found = self._gradients.get(node)
        return None if found is None else wide(found)

    def value(self, node: fx.Node) -> Tensor:
        """A kept value, batch first."""
        return detached(self.run.forward.values[node])  # type: ignore[no-any-return]

    def output_at(self, leaves: Sequence[fx.Node], values: Iterable[Tensor]) -> Tensor:
        """y_t of every sample, (batch,), if ``values`` stood at ``leaves``; attached to autograd
        where they are."""
        return output_at(self, tuple(leaves), tuple(values))

    def scalar(self, values: Mapping[fx.Node, Tensor]) -> Tensor:
        """y_t of every sample from the outputs' values, for the very index that the start names,
        also where the prediction is another."""
        if callable(self.target) and not isinstance(self.target, Tensor):
            outputs = [values[n] for n in self.program.output_nodes]
            return torch.stack(
                [
                    self.target(self.program.outputs([o[i] for o in outputs])).reshape(())
                    for i in range(self.run.inputs.batch)
                ]
            )
        parts = [
            term.coefficient * (values[n] * seed).flatten(1).sum(1)
            for term in self.start.terms
            for n, seed in term.seeds.items()
        ]
        return torch.stack(parts).sum(0)


def output_at(study: Study, leaves: tuple[fx.Node, ...], values: tuple[Tensor, ...]) -> Tensor:
    """See ``Study.output_at``."""
    if any(t.requires_grad for t in values):
        study.run.may_differentiate()
    given = {leaf: with_leading_one(t, leaf) for leaf, t in zip(leaves, values, strict=True)}
    found = execute(
        study.program,
        study.session.model,
        study.run.inputs,
        set(study.program.output_nodes),
        leaves,
        lambda node, _: given[node],
    )
    # 0, with a derivative (0) at every input, also where y_t does not depend on it
    untouched = [t.flatten(1)[:, :0].sum(1) for t in values]
    return torch.stack([study.scalar(found), *untouched]).sum(0)


class AttentionStudy(Study):
    """What a method over attention may ask.

    ``sites``: the attention sites that ``layers=`` chose, in forward order. ``layers``: the outputs
    of their layers, for a method that needs ``"hidden"``; ``features``: the tensors that
    ``target_layers=`` names, or what the last site's queries, keys and values come from, for one
    that needs ``"features"``. ``inputs``: what is explained, (batch, *one sample's shape), by name,
    for one that needs ``"inputs"``.
    """

    def __init__(
        self, needs: Needs, run: Run, target: Any, start: Start, gradients: Gradients
    ) -> None:
        super().__init__(needs, run, target, start, gradients)
        self.sites = tuple(self._at_site(s) for s in needs.chosen)
        self.rollup = RollUp(needs, run, start)
        self.streams = self.rollup.streams
        self.layers = [self._layer(node, site) for site, node in needs.layers.items()]
        self.features = [self._layer(node) for node in needs.features]
        wanted = self.streams if "inputs" in needs.question.needs else ()
        self.inputs = {s.name: without_leading_one(self.value(s.leaf), s.leaf) for s in wanted}

    def _at_site(self, site: Site) -> SiteValues:
        node = site.attention
        held = detached(self.run.forward.watched[node])
        return SiteValues(site, wide(held), self.gradient(node), self.relevance(node))

    def _layer(self, node: fx.Node, site: Site | None = None) -> LayerValues:
        value, axes = wide(self.value(node)), token_axes(self.program, node)
        return LayerValues(node, value, self.gradient(node), axes, site)

    # -- what the tokens are

    @cached_property
    def described(self) -> Mapping[str, Mapping[str, Any]]:
        """What each input's tokens are, as ``TokenScores`` has it."""
        return {s.name: tokens_described(self.needs, self.run, s) for s in self.streams}

    @cached_property
    def connected(self) -> dict[str, Tensor]:
        """Which tokens have a part in the target, by input (batch, tokens), bool."""
        held = self.run.forward.values | self.run.forward.watched
        return self.rollup.connected(
            {s.contraction: wide(detached(held[s.attention]).abs()) for s in self.needs.sites}
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

    def rows(self, matrices: Mapping[fx.Node, Tensor]) -> dict[str, Tensor]:
        """What the head reads through each site alone, all others passed by their skip connections:
        by input (batch, sites, tokens), for a matrix per contraction, meaned over heads."""
        matrices, sites = self.fused(matrices), self.needs.chosen
        parts = {
            s.contraction: (matrices[s.contraction].unsqueeze(1), i) for i, s in enumerate(sites)
        }
        found = self.rollup.through(parts, len(sites))
        return {name: row[:, :-1] for name, row in found.items()}

    def heads(self, values: SiteValues, maps: Tensor) -> dict[str, Tensor]:
        """The same through each head of one site: by input (batch, heads, tokens)."""
        axes = self.head_axes(values)
        count = math.prod(maps.shape[i] for i in axes)
        own = (
            torch.eye(count, dtype=maps.dtype, device=maps.device) * count
        )  # under a mean of heads
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
            maps = fused(maps, axes, how, values.gradient).flatten(1, -3).mean(1)
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
        segment, own = self.session.segment(changed, end), self.program.dtype or val(changed).dtype
        dtype = at_least_float32(own)
        if dtype != own:  # small differences are not for half precision
            segment = replace(segment, program=replace(self.program, dtype=dtype))
        beside = {n: detached(self.run.forward.values[n]) for n in segment.beside}
        beside = {n: wide(v) if isinstance(v, Tensor) else v for n, v in beside.items()}
        return segment.run(beside, variants.to(dtype))

    def output(self, name: str, value: Tensor) -> Tensor:
        """y_t (batch,) if input ``name`` were another."""
        leaves = self.program.leaves
        given = {
            n: value if n == name else without_leading_one(self.value(leaf), leaf)
            for n, leaf in leaves.items()
        }
        return self.output_at(tuple(leaves.values()), given.values())

    # -- Eq. 14

    def rolled_up(self, matrices: Mapping[fx.Node, Tensor]) -> Pairs:
        """By input, what attention carried and what skip connections alone leave."""
        matrices = self.fused(matrices)
        return self.rollup.product(matrices, self._scales(matrices))

    def matrix(self, matrices: Mapping[fx.Node, Tensor]) -> Tensor:
        """C of Eq. 14, (batch, s, s)."""
        matrices = self.fused(matrices)
        return self.rollup.matrix(matrices, self._scales(matrices))

    def _scales(self, matrices: Mapping[fx.Node, Tensor]) -> dict[fx.Node, Tensor]:
        return self.rollup.row_scales(matrices) if self.settings.get("normalize_rows") else {}

    def fused(self, matrices: Mapping[fx.Node, Tensor]) -> dict[fx.Node, Tensor]:
        """The matrices after ``head_fusion=`` and ``discard_ratio=``."""
        how = self.settings.get("head_fusion", "mean")
        ratio = self.settings.get("discard_ratio", 0.0)
        found = dict(matrices)
        for values in self.sites if how != "mean" or ratio else ():
            node, axes = values.site.contraction, self.head_axes(values)
            fusion = fused(found[node], axes, how, values.gradient)
            found[node] = without_smallest(fusion, axes, ratio)
        return found


class InputStudy(Study):
    """What a method at the input may ask, by name of the explained input, each (batch, *one
    sample's shape): at pixels, features, or the embeddings of ids.

    ``gradients`` and ``relevances`` are empty if not asked for. ``positions`` are the axes of each
    value, the batch being axis 0, that have a score each; the others are summed over. ``window`` is
    how many of them lie together along each, as ``occlusion`` hides them.
    """

    def __init__(
        self, needs: Needs, run: Run, target: Any, start: Start, gradients: Gradients
    ) -> None:
        super().__init__(needs, run, target, start, gradients)
        ends = tuple(start.field) or self.program.output_nodes
        self.leaves = reached_inputs(self.session, ends)
        self.values = self._by_name(self.value)
        self.gradients = self._by_name(self.gradient)
        self.relevances = self._by_name(self.relevance)
        self.positions = {n: self._axes(leaf) for n, leaf in self.leaves.items()}
        self.window = {n: windows(self.program, leaf) for n, leaf in self.leaves.items()}

    def _by_name(self, at: Callable[[fx.Node], Tensor | None]) -> dict[str, Tensor]:
        found = {name: (leaf, at(leaf)) for name, leaf in self.leaves.items()}
        return {n: without_leading_one(v, leaf) for n, (leaf, v) in found.items() if v is not None}

    def _axes(self, leaf: fx.Node) -> tuple[int, ...]:
        """The axes of the leaf's value, batch first and without a leading 1, that are positions."""
        moved = val(leaf).shape[:1] != (1,)
        return tuple(i + moved for i in positions(self.program, leaf))

    def forward(self, *tensors: Tensor) -> Tensor:
        """y_t of every sample, (batch,), for other values of the inputs (one tensor each, in the
        order of ``values``), attached to autograd."""
        return self.output_at(tuple(self.leaves.values()), tensors)

    def embed(self, name: str, ids: Tensor) -> Tensor:
        """The embeddings of other ids of input ``name``. Raises ``OptionError`` if the input is not
        one of ids of that shape."""
        inputs = self.run.inputs
        given = inputs.tensors[inputs.names.index(name)]
        if given.is_floating_point():
            raise OptionError(f"baseline for {name!r} holds integers; the input is floating")
        try:
            replaced = ids.to(given.device, given.dtype).expand(given.shape)
        except RuntimeError:
            raise OptionError(
                f"baseline for {name!r} has shape {list(ids.shape)}; the input is "
                f"{list(given.shape)}, batch first"
            ) from None
        tensors = tuple(replaced if t is given else t for t in inputs.tensors)
        leaf = self.program.leaves[name]
        other = replace(inputs, tensors=tensors)
        found = execute(self.program, self.session.model, other, {leaf})
        return without_leading_one(found[leaf], leaf)
