"""An attention site run for some of its queries at a time, forward and backward: what is held of a
map is that of one chunk, and the backward pass makes it again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, fx
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.utils._pytree import tree_map

from relprop.operations import Value
from relprop.operations.looking import is_recorded
from relprop.tracer.calls import Values, per_sample
from relprop.tracer.editing import val
from relprop.tracer.facts import is_batched
from relprop.tracer.forms import PLAIN, Factors, Forms
from relprop.tracer.kernel import Kernel, KernelCall, added, causal_alone, kernel_of
from relprop.tracer.program import Program
from relprop.tracer.queries import Attention, attention_of, map_bytes

#: How large the maps of one chunk are, all samples of the batch together: so large that Python's
#: part is small, and so small that an allocator hands out the same memory again and again.
CHUNK_BYTES = 2**21


class Chunk(NamedTuple):
    """Some queries: the first, and how many."""

    first: int
    size: int


@dataclass(frozen=True)
class Chunked:
    """One site for a whole batch. ``size``: how many queries a chunk has; ``fixed``: what enters
    that is the same for all samples; ``batched``: what is not, and its values, ``entering``.
    ``kernel``: how its result is made, if PyTorch's fused kernel can. ``forms``: what stands in
    place of some calls."""

    attention: Attention
    size: int
    fixed: Values
    batched: tuple[fx.Node, ...]
    entering: tuple[Tensor, ...]
    dtype: torch.dtype | None
    kernel: Kernel | None = None
    forms: Forms = PLAIN

    @property
    def axis(self) -> int:
        """Along which axis of the result the queries lie, counted from the last."""
        return self.attention.from_last(self.attention.site.contraction)

    def chunks(self) -> Iterator[Chunk]:
        """All chunks, in order."""
        whole = self.attention.queries
        return (Chunk(first, min(self.size, whole - first)) for first in range(0, whole, self.size))

    def part(self, chunk: Chunk) -> tuple[Values, tuple[Tensor, ...]]:
        """A chunk of everything that enters: what is the same for all samples, and what is not."""
        fixed = {n: self.attention.cut(n, v, *chunk) for n, v in self.fixed.items()}
        both = zip(self.batched, self.entering, strict=True)
        return fixed, tuple(self.attention.cut(node, value, *chunk) for node, value in both)

    def each(
        self,
        function: Callable[[Values, Value, Value, Chunk], Value],
        along: Value,
        beside: Value = (),
        wanted: Callable[[Chunk], bool] = lambda chunk: True,
    ) -> Iterator[tuple[Chunk, Value]]:
        """What a ``function`` of one sample makes of each chunk that is ``wanted``, batch first. It
        is given all values in the site, the chunk of ``along`` (tensors like the site's result),
        all of ``beside``, and which chunk it is."""

        def one_sample(whole: Values, chunk: Chunk, own: Values, here: Value, rest: Value) -> Value:
            return function(whole | own, here, rest, chunk)

        for chunk in filter(wanted, self.chunks()):
            inside = self.inside(chunk)
            own = {n: v for n, v in inside.items() if is_batched(n)}
            here = tree_map(lambda t, chunk=chunk: t.narrow(self.axis, *chunk), along)
            yield chunk, per_sample(partial(one_sample, inside, chunk), own, here, beside)

    def inside(self, chunk: Chunk) -> Values:
        """All values in the site for a chunk, batch first where they differ from sample to sample;
        those that are kept are not made again."""
        kept, key = self.attention.kept, (self.attention.site.contraction, chunk)
        if kept is not None and key in kept.found:
            return kept.found[key]
        fixed, given = self.part(chunk)
        nodes = [n for n in self.attention.nodes if is_batched(n)]
        fixed = self._run([n for n in self.attention.nodes if not is_batched(n)], fixed, chunk.size)

        def one_sample(*given: Tensor) -> tuple[Value, ...]:
            known = self.values(fixed, given, chunk.size)
            return tuple(known[n] for n in nodes)

        entering = fixed | dict(zip(self.batched, given, strict=True))
        made = entering | dict(zip(nodes, per_sample(one_sample, *given), strict=True))
        return made if kept is None else kept.keep(key, made, entering.keys() & made.keys())

    def values(self, fixed: Values, given: tuple[Tensor, ...], count: int) -> Values:
        """All values in the site for one sample and ``count`` queries."""
        known = fixed | dict(zip(self.batched, given, strict=True))
        return self._run([n for n in self.attention.nodes if n not in known], known, count)

    def _run(self, nodes: list[fx.Node], known: Values, count: int) -> Values:
        """What is ``known``, and the values of some more nodes, for ``count`` queries."""
        for node in nodes:
            sizes = self.attention.sizes(node, count)
            known[node] = self.forms.call(node, known, self.dtype, sizes)
        return known

    def result(self, fixed: Values, given: tuple[Tensor, ...], chunk: Chunk) -> Tensor:
        """The contraction's value for one chunk, batch first."""
        if self.kernel is not None:
            return self._call(self.kernel, fixed, given, chunk).made()
        end = self.attention.site.contraction

        def one_sample(*given: Tensor) -> Tensor:
            made: Tensor = self.values(fixed, given, chunk.size)[end]
            return made

        made: Tensor = per_sample(one_sample, *given)
        return made

    def at_once(self, seen: dict[str, bool | None]) -> Tensor | None:
        """The result of all queries by one call of PyTorch's kernel; ``None`` where that would make
        a map, or needs a mask of its size, of more bytes than a chunk may have. ``seen``: what is
        known of other sites' masks in this run (``causal_alone``)."""
        kernel = self.kernel
        if kernel is None:
            return None
        if kernel.masks and not kernel.causal:
            if kernel.masking not in seen:
                seen[kernel.masking] = self._causal_alone(kernel)
            causal = seen[kernel.masking]
            if causal is not None:
                kernel = replace(kernel, masks=(), causal=causal)
            elif self.forms is PLAIN or self._mask_bytes > CHUNK_BYTES:
                return None
        call = self._call(kernel, self.fixed, self.entering, Chunk(0, self.attention.queries))
        return call.made() if call.is_fused else None

    def _causal_alone(self, kernel: Kernel) -> bool | None:
        """The same of the masks at these inputs. A run that is recorded looks at no values."""
        if is_recorded():
            return None
        size = max(1, CHUNK_BYTES * self.attention.queries // self._mask_bytes)

        def rows() -> Iterator[tuple[int, Tensor]]:
            for chunk in replace(self, size=size).chunks():
                fixed, given = self.part(chunk)
                made = partial(self._added, kernel, fixed, chunk.size)
                yield chunk.first, per_sample(made, *given)

        return causal_alone(kernel, rows())

    @property
    def _mask_bytes(self) -> int:
        """The size of one mask for all heads."""
        given = val(self.attention.site.attention)
        rows, columns = given.shape[-2:]
        return int(len(self.entering[0]) * rows * columns * given.dtype.itemsize)

    def _call(
        self, kernel: Kernel, fixed: Values, given: tuple[Tensor, ...], chunk: Chunk
    ) -> KernelCall:
        batch = len(given[0])
        whole = {n: v.unsqueeze(0).expand(batch, *v.shape) for n, v in fixed.items()}
        known = whole | dict(zip(self.batched, given, strict=True))
        causal = kernel.causal and chunk.size == self.attention.queries
        mask = None
        if kernel.masks and not causal:
            mask = per_sample(partial(self._added, kernel, fixed, chunk.size), *given)
        forms, site = self.forms, self.attention.site
        by = forms.kernels.get(site.contraction, Factors())
        queries = forms.scaled(known[kernel.queries], by.queries)
        keys = forms.scaled(known[kernel.keys], by.keys)
        values = forms.scaled(known[site.values], by.values)
        mask = mask if mask is None else forms.scaled(mask, by.mask)
        return KernelCall(queries, keys, values, mask, kernel.scale, causal)

    def _added(self, kernel: Kernel, fixed: Values, count: int, *given: Tensor) -> Tensor:
        known = fixed | dict(zip(self.batched, given, strict=True))
        return added(kernel, self.attention, known, known[kernel.queries], count, self.dtype)


def chunked(attention: Attention, values: Values, dtype: torch.dtype | None) -> Chunked:
    """A site with ``values`` of what enters it, in chunks."""
    batched = tuple(n for n in attention.entering if is_batched(n))
    fixed = {n: values[n] for n in attention.entering if n not in batched}
    entering = tuple(values[n] for n in batched)
    size = chunk_rows(attention, len(entering[0]))
    return Chunked(attention, size, fixed, batched, entering, dtype)


def chunk_rows(attention: Attention, batch: int) -> int:
    """How many queries make a chunk of ``CHUNK_BYTES``: at least one."""
    return max(1, CHUNK_BYTES * attention.queries // (map_bytes(attention.site) * batch))


class _Chunks(torch.autograd.Function):
    """``Chunked`` with a gradient that is worked out chunk by chunk."""

    @staticmethod
    def forward(ctx: FunctionCtx, by: Chunked, *entering: Tensor) -> Tensor:
        """The contraction's value."""
        ctx.by = by  # type: ignore[attr-defined]
        made = [by.result(*by.part(chunk), chunk) for chunk in by.chunks()]
        return torch.cat(made, by.axis)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient at everything that enters and may have one."""
        by: Chunked = ctx.by  # type: ignore[attr-defined]
        wanted = [i for i, w in enumerate(ctx.needs_input_grad[1:]) if w]  # type: ignore[attr-defined]
        sums = {i: torch.zeros_like(by.entering[i]) for i in wanted}
        for chunk in by.chunks():
            fixed, given = by.part(chunk)
            leaves = tuple(given[i].detach().requires_grad_() for i in wanted)
            own = dict(enumerate(given)) | dict(zip(wanted, leaves, strict=True))
            with torch.enable_grad():
                made = by.result(fixed, tuple(own.values()), chunk)
            arrived = gradients[0].narrow(by.axis, *chunk)
            found = torch.autograd.grad(made, leaves, arrived, allow_unused=True)
            for i, gradient in zip(wanted, found, strict=True):
                if gradient is not None:
                    by.attention.cut(by.batched[i], sums[i], *chunk).add_(gradient)
        return (None, *(sums.get(i) for i in range(len(by.entering))))


@dataclass(frozen=True)
class ByQueries:
    """A site whose map is never whole, in the forward pass: by PyTorch's fused kernel where there
    is one, else by products. ``seen``: what is known of masks, for all sites of one run."""

    attention: Attention
    kernel: Kernel | None
    forms: Forms = PLAIN
    seen: dict[str, bool | None] = field(default_factory=dict)

    @property
    def entering(self) -> tuple[fx.Node, ...]:
        """What it reads: queries, keys, values, masks and biases."""
        return self.attention.entering

    def run(self, values: Values, dtype: torch.dtype | None) -> Tensor:
        """The value of the site's contraction, batch first."""
        by = chunked(self.attention, values, dtype)
        by = replace(by, kernel=self.kernel, forms=self.forms)
        made = by.at_once(self.seen)
        if made is None:
            own = replace(by, entering=tuple(t.detach() for t in by.entering))
            made = _Chunks.apply(own, *by.entering)  # type: ignore[no-untyped-call]
        return made


def by_queries(
    program: Program, needed: Collection[fx.Node], forms: Forms = PLAIN
) -> Mapping[fx.Node, ByQueries]:
    """The sites of a forward pass that run in chunks: large ones, of which nothing but the result
    is ``needed``; of a pass by ``forms`` small ones, too, that the fused kernel can run."""
    needed, plain = set(needed), forms is PLAIN
    found, seen = {}, dict[str, bool | None]()
    for end, a in large_attentions(program, None if plain else 0).items():
        kernel = kernel_at(program, a) if plain or end in forms.kernels else None
        small = kernel is None and map_bytes(a.site) <= CHUNK_BYTES
        if needed.isdisjoint(a.inside) and end not in forms.whole and not small:
            found[end] = ByQueries(a, kernel, forms, seen)
    return found


def kernel_at(program: Program, attention: Attention) -> Kernel | None:
    """A site as PyTorch's fused kernel has it, worked out once per program."""
    return program.memo.cache(("kernel", attention.site.contraction), partial(kernel_of, attention))


def large_attentions(program: Program, least: int | None = None) -> Mapping[fx.Node, Attention]:
    """The sites whose map has more than ``least`` bytes, or those of a chunk, and can be cut by
    queries."""
    found = _large(program, least).items()
    return {end: a for end, a in found if isinstance(a, Attention)}


def large_and_whole(program: Program, least: int | None = None) -> Mapping[fx.Node, str]:
    """The sites whose map has more than ``least`` bytes, or those of a chunk, and must be whole,
    and why."""
    return {end: why for end, why in _large(program, least).items() if isinstance(why, str)}


def _large(program: Program, least: int | None) -> dict[fx.Node, Attention | str]:
    least = CHUNK_BYTES if least is None else least
    return {
        s.contraction: program.memo.cache(("attention", s), partial(attention_of, program, s))
        for s in program.sites
        if map_bytes(s) > least
    }
