"""Functions that are recognised by their numbers alone: a softmax by running sums, a relu by
sorting, attention that is worked out in parts.

Where nothing but one tensor (or queries, keys and values) decides what comes out, the graph between
is run in double precision on numbers of our own, at its own shapes. If it gives what a softmax, an
activation or an attention gives, with the same derivatives, it is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from relprop.operations import FILLS, MOVES, Kind, kind
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    aten,
    emit,
    is_float,
    is_live,
    reshaped,
    shape_of,
    swap,
    tensor_inputs,
    val,
)
from relprop.tracer.order import Flow
from relprop.tracer.passes.functions import known_function
from relprop.tracer.passes.region import INSIDE, equal_functions, flow_of, same

MOST_NODES = 400  # in one trial
MOST_NUMBERS = 1 << 23  # in all tensors of one trial
LEVELS = 12  # how many bottlenecks above a node are tried
#: What makes more of a tensor than a linear map of it.
_CURVED = frozenset(
    {Kind.FUNCTION, Kind.PRODUCT, Kind.QUOTIENT, Kind.CHOICE, Kind.EXTREMUM, Kind.LARGEST}
    | {Kind.STATISTIC, Kind.MAX_POOL, Kind.PICK, Kind.SOFTMAX, Kind.LOG_SOFTMAX, Kind.INDEX}
    | {Kind.GATHER, Kind.WRITE, Kind.MATMUL, Kind.SCAN}
)


@dataclass(frozen=True)
class Part:
    """The part of a graph from ``sources`` to ``output``, to be run on other numbers."""

    sources: tuple[fx.Node, ...]
    output: fx.Node
    nodes: tuple[fx.Node, ...]
    constants: Constants

    def __call__(self, *tensors: Tensor) -> Tensor:
        """The output for other tensors, in double precision."""
        known: dict[fx.Node, Any] = dict(zip(self.sources, tensors, strict=True))

        def value(node: fx.Node) -> Any:
            return known[node] if node in known else _double(self.constants.value(node))

        for node in self.nodes:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
            args, kwargs = tree_map(_double, _plain(args)), tree_map(_double, _plain(kwargs))
            kwargs = {k: v for k, v in kwargs.items() if k != "device"}
            known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return known[self.output]  # type: ignore[no-any-return]

    @property
    def source(self) -> fx.Node:
        """The first source."""
        return self.sources[0]

    def draw(self, seed: int, scale: float = 1.0) -> tuple[Tensor, ...]:
        """Numbers for every source."""
        generator = torch.Generator().manual_seed(seed)
        shapes = [shape_of(s) for s in self.sources]
        return tuple(scale * _randn(shape, generator) for shape in shapes)

    @property
    def is_small(self) -> bool:
        """Whether a trial costs little."""
        return (
            len(self.nodes) <= MOST_NODES
            and sum(val(n).numel() for n in self.nodes if isinstance(val(n), Tensor))
            <= MOST_NUMBERS
        )


def _randn(shape: list[int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def _double(x: Any) -> Any:
    """Floating tensors, and types, in double precision."""
    if isinstance(x, torch.dtype):
        return torch.float64 if x.is_floating_point else x
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def _plain(part: Any) -> Any:
    if isinstance(part, dict):
        return {k: _plain(v) for k, v in part.items()}
    if isinstance(part, (list, tuple)):
        return type(part)(_plain(v) for v in part) if type(part) is tuple else [*map(_plain, part)]
    return part


Trial = Callable[[Part], "fx.Node | None"]


def raise_disguised_functions(graph: fx.Graph, constants: Constants) -> None:
    """Functions of one tensor: norms, softmax, activations, means."""
    flow = flow_of(graph)

    def tried(output: fx.Node) -> Iterator[tuple[Part, Trial]]:
        parts = list(_parts_of_one(flow, output, constants))
        yield from ((p, _norm) for p in reversed(parts) if _may_be_norm(p))
        yield from ((p, _function_of_one) for p in parts if not _is_read_by_others(p))

    _raise(flow.nodes, tried)
    graph.eliminate_dead_code()


def raise_disguised_attention(graph: fx.Graph, constants: Constants) -> None:
    """Attention, and means of what a mask leaves."""

    def tried(output: fx.Node) -> Iterator[tuple[Part, Trial]]:
        yield from _parts_of_several(output, constants)

    _raise([n for n in graph.nodes if is_live(n)], tried)
    graph.eliminate_dead_code()


def _raise(nodes: Sequence[fx.Node], tried: Callable[[fx.Node], Iterator[Any]]) -> None:
    done: set[fx.Node] = set()
    for output in reversed(nodes):
        if output in done or not is_float(output) or not output.users:
            continue
        for part, trial in tried(output):
            try:
                new = trial(part)
            except (RuntimeError, TypeError, ValueError, IndexError):
                continue
            if new is not None:
                done |= {n for n in part.nodes if n is not output}
                swap(output, new)
                break


# ---- functions of one tensor


def _parts_of_one(flow: Flow, output: fx.Node, constants: Constants) -> Iterator[Part]:
    """From a bottleneck above to ``output``, the nearest first."""
    if output not in flow.index:
        return
    source: fx.Node | None = output
    for _ in range(LEVELS):
        source = flow.dominator(source) if source is not None else None
        if source is None or not isinstance(val(source), Tensor):
            return
        nodes = flow.between(source, output)
        if len(nodes) > MOST_NODES or not _closed(nodes, constants):
            return
        if not is_float(source):
            continue
        if shape_of(source) != shape_of(output) and not _pooled(source, output):
            continue
        part = Part((source,), output, tuple(nodes), constants)
        if part.is_small:
            yield part


def _may_be_norm(part: Part) -> bool:
    kinds = {kind(n) for n in part.nodes}
    curved = bool(kinds & {Kind.FUNCTION, Kind.STATISTIC, Kind.NORM, Kind.BATCH_NORM})
    divides = kind(part.output) in (Kind.PRODUCT, Kind.QUOTIENT) or not kinds <= INSIDE
    alike = shape_of(part.source) == shape_of(part.output)
    return curved and divides and alike and kind(part.source) is not Kind.SOFTMAX


def _is_read_by_others(part: Part) -> bool:
    """Whether the passes that read the operations one by one know all of these."""
    kinds = {kind(n) for n in part.nodes}
    if shape_of(part.source) != shape_of(part.output):
        return kinds <= MOVES or (len(part.nodes) == 1 and kinds == {Kind.TOTAL})
    guarded = {Kind.TEST, Kind.SOFTMAX} <= kinds
    return (kinds <= INSIDE | {Kind.SOFTMAX} and not guarded) or not kinds & _CURVED


def _pooled(source: fx.Node, output: fx.Node) -> tuple[int, ...]:
    """The axes of ``source``, one or two beside each other, that ``output`` has no more, or as axes
    of length 1."""
    long, short = shape_of(source), shape_of(output)
    for width in (1, 2):
        for first in range(len(long) - width + 1):
            axes = tuple(range(first, first + width))
            kept = [1 if i in axes else s for i, s in enumerate(long)]
            gone = [s for i, s in enumerate(long) if i not in axes]
            if short in (kept, gone) and all(long[a] > 1 for a in axes):
                return axes
    return ()


def _closed(nodes: Sequence[fx.Node], constants: Constants) -> bool:
    """Whether the values of everything else that is read are known."""
    return all(
        is_live(i) or constants.value(i) is not None for n in nodes for i in tensor_inputs(n)
    ) and not any(kind(n) in (Kind.RANDOM, Kind.DETACH, Kind.READ) for n in nodes)


def _function_of_one(part: Part) -> fx.Node | None:
    (x,) = part.draw(0)
    y = part(x)
    if shape_of(part.source) != shape_of(part.output):
        return _pool(part, x, y)
    if not isinstance(y, Tensor) or y.shape != x.shape or bool(y.isnan().any()):
        return None
    return _softmax(part, x, y) or _activation(part, x, y)


def _softmax(part: Part, x: Tensor, y: Tensor) -> fx.Node | None:
    """softmax(c·x + m) or its logarithm along an axis, m one of 0 and −∞, c a number."""
    at, source = part.output, part.source
    for axis in (i for i in range(x.dim()) if x.shape[i] > 1):
        for logarithm in (False, True):
            weights = y.exp() if logarithm else y
            total = weights.sum(axis)
            if bool((weights < 0).any()) or not same(total, torch.ones_like(total)):
                continue
            hidden = weights == 0
            c = _slope(x, weights.log(), hidden, axis)
            if c is None:
                continue
            op = aten.log_softmax.int if logarithm else aten.softmax.int
            if not logarithm and _guards(part) and not part(x.fill_(-torch.inf)).isnan().any():
                op = aten._safe_softmax.default
            masked = bool(hidden.any())

            def canon(t: Tensor, c: float = c, hidden: Tensor = hidden, op: Any = op) -> Tensor:
                return op((c * t).masked_fill(hidden, -torch.inf), axis)  # noqa: B023

            given = [part.draw(0)[0], part.draw(1, 5.0)[0], part.draw(2, 1e-2)[0]]
            if not equal_functions(part, canon, given, 1e-10):
                continue
            scores = source if c == 1 else emit(at, aten.mul.Tensor, source, c)
            if masked:
                held = emit(at, Held(hidden.to(part.constants.device)))
                scores = emit(at, aten.masked_fill.Scalar, scores, held, -torch.inf)
            return emit(at, op, scores, axis)
    return None


def _norm(part: Part) -> fx.Node | None:
    """(x - mean)/√(variance + ε) along the last axis, or x/√(mean(x²) + ε)."""
    at, (x,) = part.output, part.draw(0)
    width, given = x.shape[-1], [x, part.draw(1, 5.0)[0], part.draw(2, 1e-2)[0]]
    if width < 2 or part(x).shape != x.shape or same(part(2 * x), 2 * part(x), 1e-6):
        return None
    for centred in (True, False):
        c = x - x.mean(-1, keepdim=True) if centred else x
        size = c.square().sum(-1, keepdim=True)
        along = (part(x) * c).sum(-1, keepdim=True) / size
        if not bool((along > 0).all()) or not same(along * c, part(x), 1e-8):
            continue
        small = 1e-4 * x
        c = small - small.mean(-1, keepdim=True) if centred else small
        mean = c.square().mean(-1, keepdim=True)
        scale = (part(small) * c).sum(-1, keepdim=True) / (width * mean)
        eps = float((scale**-2 - mean).median())
        for near in (0.0, float(f"{eps:.1e}"), float(f"{eps:.3e}"), eps):

            def usual(t: Tensor, eps: float = near, centred: bool = centred) -> Tensor:
                c = t - t.mean(-1, keepdim=True) if centred else t
                return c * (c.square().mean(-1, keepdim=True) + eps).rsqrt()

            if near >= 0 and equal_functions(part, usual, [*given, small], 1e-9):
                if centred:
                    return emit(at, aten.layer_norm.default, part.source, [width], None, None, near)
                return emit(at, aten.rms_norm.default, part.source, [width], None, near)
    return None


def _slope(x: Tensor, logs: Tensor, hidden: Tensor, axis: int) -> float | None:
    """c where ``logs`` is c·x and one number for each row, over what is not hidden."""
    seen = (~hidden).double()
    count = seen.sum(axis, keepdim=True).clamp(min=1)

    def centred(t: Tensor) -> Tensor:
        t = torch.where(hidden, 0.0, t)
        return torch.where(hidden, 0.0, t - t.sum(axis, keepdim=True) / count)

    dx, dy = centred(x), centred(logs)
    size = float((dx * dx).sum())
    return _round(float((dx * dy).sum()) / size) if size > 0 and dy.isfinite().all() else None


def _round(c: float, *likely: float) -> float:
    """``c``, or the number that it only misses by rounding."""
    for number in (1.0, *likely, round(c, 9)):
        if abs(c - number) <= 1e-12 * abs(number):
            return number
    return c


def _guards(part: Part) -> bool:
    """Whether something inside asks what the values are."""
    return any(kind(n) in (Kind.TEST, Kind.STATISTIC) for n in part.nodes)


def _pool(part: Part, x: Tensor, y: Tensor) -> fx.Node | None:
    """The mean or the sum along axes, or one position of an axis."""
    at, axes, shape = part.output, _pooled(part.source, part.output), shape_of(part.output)
    (other,) = part.draw(1, 3.0)
    ways: list[tuple[Any, Any]] = [(aten.mean.dim, list(axes)), (aten.sum.dim_IntList, list(axes))]
    for op, dims in ways:
        if all(same(part(t), op(t, dims).reshape(shape)) for t in (x, other)):
            if kind(part.source) in FILLS and _guards(part):  # NaN, where a mask left them out
                return None
            return reshaped(at, emit(at, op, part.source, dims), shape)
    if len(axes) == 1:
        rows = x.movedim(axes[0], 0).flatten(1)
        near = (rows - y.reshape(1, -1)).abs().amax(1)
        i = int(near.argmin())
        if all(same(part(t), t.select(axes[0], i).reshape(shape)) for t in (x, other)):
            return reshaped(at, emit(at, aten.select.int, part.source, axes[0], i), shape)
    return None


def _activation(part: Part, x: Tensor, y: Tensor) -> fx.Node | None:
    """A function of each element that torch has, a multiple, or the tensor itself."""
    order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(3))
    shuffled = part(x.flatten()[order].reshape(x.shape))
    if not same(shuffled.flatten(), y.flatten()[order]):
        return None
    half = torch.arange(x.numel()).reshape(x.shape) % 2 == 0
    if not same(part(torch.where(half, 2 * x + 1, x))[~half], y[~half]):
        return None

    def function(t: Tensor) -> Tensor:
        rows = F.pad(t.flatten(), (0, -t.numel() % x.numel())).reshape(-1, *x.shape)
        return torch.cat([part(r).flatten() for r in rows])[: t.numel()].reshape(t.shape)

    made = known_function(function)
    return None if made is None else made(part.output, part.source)


# ---- attention


def _parts_of_several(output: fx.Node, constants: Constants) -> Iterator[tuple[Part, Trial]]:
    """From queries, keys and values to the attention's result, where not one softmax stands between
    them; from tokens and their mask to a mean."""
    if val(output).dim() < 2 or kind(output) in (Kind.RESHAPE, Kind.PERMUTE):
        return
    if not any(_meets_weights(u, constants) for u in _below(output)):
        return
    region = _region(output, constants)
    if region is None:
        return
    kinds = [kind(n) for n in region]
    masked = not set(kinds) & {Kind.MATMUL, Kind.SOFTMAX}
    compares = set(kinds) & {Kind.FUNCTION, Kind.SOFTMAX, Kind.LOG_SOFTMAX}
    weighs = kinds.count(Kind.SOFTMAX) != 1 and set(kinds) & {Kind.MATMUL, Kind.PRODUCT}
    if not (compares and weighs) and not masked:
        return
    members = set(region)
    frontier = [i for n in region for i in tensor_inputs(n) if is_live(i) and i not in members]
    for sources in _cuts(list(dict.fromkeys(frontier)), region, output):
        part = Part(tuple(sources), output, tuple(_from(sources, region, output)), constants)
        if not part.is_small:
            continue
        if len(sources) == 3 and all(is_float(s) and val(s).dim() >= 2 for s in sources):
            yield part, _attention
        if len(sources) == 2 and masked:
            yield part, _masked_mean


def _below(node: fx.Node) -> list[fx.Node]:
    """Who reads a tensor, in whatever shape."""
    found: list[fx.Node] = []
    left = list(node.users)
    while left:
        user = left.pop()
        if kind(user) in (Kind.RESHAPE, Kind.PERMUTE, Kind.IDENTITY):
            left.extend(user.users)
        else:
            found.append(user)
    return found


def _meets_weights(node: fx.Node, constants: Constants) -> bool:
    """Whether a call reads something of the model's that is not known, or ends the graph."""
    return node.op == "output" or any(
        not is_live(i) and constants.value(i) is None for i in tensor_inputs(node)
    )


def _region(output: fx.Node, constants: Constants) -> list[fx.Node] | None:
    """What lies above ``output``, up to what reads weights."""
    found: dict[fx.Node, None] = {}
    left = [output]
    stops = (Kind.RANDOM, Kind.DETACH, Kind.READ, Kind.EMBEDDING, Kind.NORM, Kind.BATCH_NORM)
    while left:
        node = left.pop()
        if node in found or node.op != "call_function" or kind(node) in stops:
            continue
        if _meets_weights(node, constants):
            continue
        found[node] = None
        if len(found) > MOST_NODES:
            return None
        left.extend(i for i in tensor_inputs(node) if is_live(i))
    order = {n: i for i, n in enumerate(output.graph.nodes)}
    return sorted(found, key=order.__getitem__)


def _ways(sources: Sequence[fx.Node], region: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """By how many ways each node is reached from ``sources``."""
    ways = dict.fromkeys(sources, 1)
    for node in region:
        if node not in ways:
            ways[node] = sum(ways.get(i, 0) for i in tensor_inputs(node))
    return ways


def _from(sources: Sequence[fx.Node], region: Sequence[fx.Node], output: fx.Node) -> list[fx.Node]:
    """The nodes that are needed for ``output`` if ``sources`` are known."""
    needed, left = set(sources), [output]
    while left:
        node = left.pop()
        if node not in needed:
            needed.add(node)
            left.extend(i for i in tensor_inputs(node) if is_live(i))
    return [n for n in region if n in needed and n not in set(sources)]


def _lowered(source: fx.Node, region: Sequence[fx.Node], output: fx.Node, others: Any) -> fx.Node:
    """The last node that every way from ``source`` passes and that nothing else enters."""
    ways, mixed = _ways([source], region), _ways(others, region)
    back: dict[fx.Node, int] = {output: 1}
    for node in reversed(region):
        for i in tensor_inputs(node):
            back[i] = back.get(i, 0) + back.get(node, 0)
    every = ways.get(output, 0)
    fit = [
        n
        for n in region
        if n is not output and not mixed.get(n) and ways.get(n, 0) * back.get(n, 0) == every > 0
    ]
    return fit[-1] if fit else source


def _cuts(
    frontier: list[fx.Node], region: Sequence[fx.Node], output: fx.Node
) -> Iterator[list[fx.Node]]:
    """Three tensors each through which everything comes."""
    seen: list[list[fx.Node]] = [frontier]
    members = set(region)
    while seen:
        sources = seen.pop(0)
        sources = [_lowered(s, region, output, [o for o in sources if o is not s]) for s in sources]
        if len(sources) in (2, 3):
            yield sources
        if len(sources) >= 3:
            continue
        for s in sources:
            parts = [u for u in s.users if u in members]
            rest = [o for o in sources if o is not s]
            if 2 <= len(parts) <= 3 - len(rest) and all(kind(u) in MOVES for u in parts):
                seen.append([*rest, *parts])


def _masked_mean(part: Part) -> fx.Node | None:
    """Σ x·m / Σ m over the tokens, m one of 0 and 1."""
    at = part.output
    for one in (0, 1):
        x, mask = part.sources[one], part.sources[1 - one]
        if not is_float(x) or val(x).dim() != 3 or shape_of(x)[1] < 2:
            continue
        b, n, width = shape_of(x)
        if val(mask).numel() != b * n or shape_of(at) not in ([b, width], [b, 1, width]):
            continue
        for hides in (False, True):
            if all(_is_mean_of(part, one, hides, seed) for seed in range(3)):
                kept = reshaped(at, mask, [b, n, 1])
                if hides:
                    kept = emit(at, aten.logical_not.default, kept)
                kept = emit(at, aten._to_copy.default, kept, dtype=val(x).dtype)
                total = emit(at, aten.sum.dim_IntList, emit(at, aten.mul.Tensor, x, kept), [1])
                count = emit(at, aten.sum.dim_IntList, kept, [1])
                return reshaped(at, emit(at, aten.div.Tensor, total, count), shape_of(at))
    return None


def _is_mean_of(part: Part, one: int, hides: bool, seed: int) -> bool:
    x = part.draw(seed)[one]
    kept = torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(seed)) < 0.6
    kept[:, seed % x.shape[1]] = True
    mask = part.sources[1 - one]
    given = (kept ^ hides).reshape(shape_of(mask)).to(_double(val(mask).dtype))
    y = part(*((x, given) if one == 0 else (given, x)))
    means = (x * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)
    return same(y, means.reshape(shape_of(part.output)))


def _attention(part: Part) -> fx.Node | None:
    """softmax(c·q·kᵀ + m)·v, m a constant."""
    drawn = part.draw(0)
    y = part(*drawn)
    if not isinstance(y, Tensor) or list(y.shape) != shape_of(part.output) or y.isnan().any():
        return None
    for v in range(3):
        doubled = tuple(2 * t if i == v else t for i, t in enumerate(drawn))
        if not same(part(*doubled), 2 * y):
            continue
        for q, k in ((a, b) for a in range(3) for b in range(3) if len({a, b, v}) == 3):
            for letters in _letters(part, drawn, y, q, k, v):
                if (found := _fit(part, letters, (q, k, v))) is not None:
                    return _emit_attention(part, letters, (q, k, v), *found)
    return None


def _moved(part: Part, drawn: tuple[Tensor, ...], y: Tensor, i: int, at: list[int]) -> Tensor:
    """Where the output changes if source ``i`` changes in one place."""
    changed = drawn[i].clone()
    changed[tuple(at)] += 0.7
    return part(*(changed if j == i else t for j, t in enumerate(drawn))) != y


def _along(changed: Tensor, axis: int) -> list[int]:
    """The positions of an axis at which something changes."""
    others = [i for i in range(changed.dim()) if i != axis]
    return (changed.any(others) if others else changed).nonzero().flatten().tolist()  # type: ignore[no-any-return]


def _axes(part: Part, drawn: Any, y: Tensor, i: int, place: int) -> tuple[list[int | None], set]:
    """For each axis of source ``i`` the axis of the output that it is, and the axes along which one
    number of it spreads. ``place``: where it is changed, 0 (the first) or -1 (the last)."""
    shape = drawn[i].shape
    base = [0 if place == 0 else s - 1 for s in shape]
    first = _moved(part, drawn, y, i, base)
    spread = {a for a in range(y.dim()) if len(_along(first, a)) > 1}
    if not bool(first.any()):
        raise ValueError("nothing changes")
    found: list[int | None] = []
    for axis, size in enumerate(shape):
        if size == 1:
            found.append(None)
            continue
        other = list(base)
        other[axis] += 1 if place == 0 else -1
        second = _moved(part, drawn, y, i, other)
        went = [
            a
            for a in range(y.dim())
            if a not in spread and second.any() and _along(second, a) != _along(first, a)
        ]
        found.append(went[0] if len(went) == 1 else None)
    return found, spread


Letters = tuple[str, str, str, str]


def _letters(
    part: Part, drawn: tuple[Tensor, ...], y: Tensor, q: int, k: int, v: int
) -> Iterator[Letters]:
    """A letter for every axis of queries, keys, values and of the result; ``n`` the queries', ``m``
    the keys', ``d`` and ``e`` what they hold, capitals for all else."""
    v_axes, v_spread = _axes(part, drawn, y, v, 0)
    q_axes, q_spread = _axes(part, drawn, y, q, -1)
    k_axes, _ = _axes(part, drawn, y, k, 0)
    if len(v_spread) != 1 or len(q_spread) != 1:
        return
    (n,), (e,) = v_spread, q_spread
    if n == e:
        return
    names = ["n" if a == n else "e" if a == e else chr(ord("A") + a) for a in range(y.dim())]

    def named(i: int, axes: list[int | None], own: str) -> Iterator[str]:
        given = ["" if a is None else names[a] for a in axes]
        left = [c for c in names if c not in given and c not in "ne"]
        for j, size in enumerate(drawn[i].shape):
            fits = [c for c in left if size == 1 and y.shape[names.index(c)] == 1]
            if given[j] == "" and fits:
                given[j] = fits[0]
                left.remove(fits[0])
        free = [j for j, c in enumerate(given) if c == ""]
        if len(free) == len(own):
            for order in {own, own[::-1]}:
                for j, c in zip(free, order, strict=True):
                    given[j] = c
                yield "".join(given)

    for q_name in named(q, q_axes, "d"):
        for v_name in named(v, v_axes, "m"):
            for k_name in named(k, k_axes, "md"):
                if "n" in q_name and "e" in v_name and not {"n", "e"} & set(k_name):
                    yield q_name, k_name, v_name, "".join(names)


def _canon(t: Tensor, letters: str, batch: str, last: str) -> Tensor:
    """Axes in the order of ``batch``, then ``last``; one of length 1 where a letter is missing."""
    t = t.permute([letters.index(c) for c in batch + last if c in letters])
    for i, c in enumerate(batch):
        t = t if c in letters else t.unsqueeze(i)
    return t


def _fit(
    part: Part, letters: Letters, order: tuple[int, int, int]
) -> tuple[float, Tensor | None] | None:
    """The scale, and what is added to the scores."""
    q_name, k_name, v_name, o_name = letters
    batch = "".join(c for c in o_name if c not in "ne")

    def canon(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (tensors[i] for i in order)
        return (
            _canon(q, q_name, batch, "nd"),
            _canon(k, k_name, batch, "md"),
            _canon(v, v_name, batch, "me"),
        )

    def weights(tensors: Sequence[Tensor]) -> Tensor:
        """The map itself: what comes out for values that are one in one place."""
        given = list(tensors)
        v = given[order[2]] = torch.zeros_like(given[order[2]])
        keys, width = v.shape[v_name.index("m")], v.shape[v_name.index("e")]
        if -(-keys // width) > 64:
            raise ValueError("too many keys for one trial")
        columns = []
        for first in range(0, keys, width):
            v.zero_()
            view = _canon(v, v_name, batch, "me")
            some = range(first, min(first + width, keys))
            for j, m in enumerate(some):
                view[..., m, j] = 1
            columns.append(_canon(part(*given), o_name, batch, "ne")[..., : len(some)])
        return torch.cat(columns, -1)

    drawn = part.draw(1)
    still = tuple(torch.zeros_like(t) if i == order[0] else t for i, t in enumerate(drawn))
    bias = weights(still).log()
    if bias.isnan().any() or (bias == -torch.inf).all(-1).any():
        return None
    q, k, _ = canon(drawn)
    if q.shape[-1] != k.shape[-1]:
        return None
    scores = q @ k.mT
    logs, hidden = weights(drawn).log() - bias, bias == -torch.inf
    c = _slope(scores.expand_as(logs), torch.where(hidden, 0.0, logs), hidden, -1)
    if c is None:
        return None
    c = _round(c, q.shape[-1] ** -0.5, 1 / q.shape[-1])
    top = bias.amax(-1, keepdim=True)
    bias = torch.where((bias - top).abs() < 1e-12, 0.0, bias - top)

    def whole(*tensors: Tensor) -> Tensor:
        q, k, v = canon(tensors)
        found = F.softmax(c * (q @ k.mT) + bias, -1) @ v
        wide = batch + "ne"
        return found.permute([wide.index(a) for a in o_name])

    for seed, scale in ((2, 1.0), (3, 2.0)):
        given = part.draw(seed, scale)
        a, pull_a = torch.func.vjp(part, *given)
        b, pull_b = torch.func.vjp(whole, *given)
        if not same(a, b, 1e-9):
            return None
        ones = torch.linspace(0.5, 1.5, a.numel(), dtype=a.dtype).reshape(a.shape)
        if not all(same(s, t, 1e-8) for s, t in zip(pull_a(ones), pull_b(ones), strict=True)):
            return None
    return c, bias if bool((bias != 0).any()) else None


def _emit_attention(
    part: Part, letters: Letters, order: tuple[int, int, int], c: float, bias: Tensor | None
) -> fx.Node:
    at, device = part.output, part.constants.device
    batch = "".join(a for a in letters[3] if a not in "ne")

    def canon(node: fx.Node, name: str, last: str) -> fx.Node:
        dims = [name.index(a) for a in batch + last if a in name]
        node = emit(at, aten.permute.default, node, dims)
        for i, a in enumerate(batch):
            node = node if a in name else emit(at, aten.unsqueeze.default, node, i)
        return node

    q, k, v = (part.sources[i] for i in order)
    q, k = canon(q, letters[0], "nd"), canon(k, letters[1], "dm")
    scores = emit(at, aten.matmul.default, q, k)
    scores = scores if c == 1 else emit(at, aten.mul.Tensor, scores, c)
    if bias is not None:
        only_hides = bool(((bias == 0) | (bias == -torch.inf)).all())
        held = (bias == -torch.inf) if only_hides else bias.to(val(scores).dtype)
        given = emit(at, Held(held.to(device)))
        scores = (
            emit(at, aten.masked_fill.Scalar, scores, given, -torch.inf)
            if only_hides
            else emit(at, aten.add.Tensor, scores, given)
        )
    weights = emit(at, aten.softmax.int, scores, -1)
    found = emit(at, aten.matmul.default, weights, canon(v, letters[2], "me"))
    wide = batch + "ne"
    return emit(at, aten.permute.default, found, [wide.index(a) for a in letters[3]])
