"""Attention, and means of what a mask leaves, that are recognised by their numbers alone: in parts,
online, key by key.

Where queries, keys and values alone decide what comes out, the graph between is run on numbers of
our own: which axes are whose is found by changing one number, the map by values that are one in one
place. If softmax(c·q·kᵀ + m)·v gives the same, with the same derivatives, it is that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from relprop.operations import MOVES, Kind, kind
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    aten,
    emit,
    is_float,
    is_live,
    reshaped,
    shape_of,
    tensor_inputs,
    val,
)
from relprop.tracer.passes.parts import (
    MOST_NODES,
    Part,
    Recogniser,
    in_double,
    raise_parts,
    rounded,
    slope_of,
)
from relprop.tracer.passes.region import same


def raise_disguised_attention(graph: fx.Graph, constants: Constants) -> None:
    """Attention, and means of what a mask leaves."""

    def tried(output: fx.Node) -> Iterator[tuple[Part, Recogniser]]:
        yield from _parts_of_several(output, constants)

    raise_parts([n for n in graph.nodes if is_live(n)], tried)
    graph.eliminate_dead_code()


def _parts_of_several(output: fx.Node, constants: Constants) -> Iterator[tuple[Part, Recogniser]]:
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
    usual = kinds.count(Kind.SOFTMAX) == 1 and kinds.count(Kind.MATMUL) <= 2
    weighs = not usual and set(kinds) & {Kind.MATMUL, Kind.PRODUCT}
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
    return sorted(found)


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
    longer = next((i for i, n in enumerate(fit) if _gets_more(n)), len(fit))
    return fit[longer - 1] if longer else source


def _gets_more(node: fx.Node) -> bool:
    """Whether constants are laid beside a tensor: a column of ones."""
    if kind(node) is Kind.PAD:
        return True
    return kind(node) is Kind.JOIN and not all(is_live(i) for i in tensor_inputs(node))


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
    x = part.draw(seed, 100.0**seed)[one]
    kept = torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(seed)) < 0.6
    kept[:, seed % x.shape[1]] = True
    mask = part.sources[1 - one]
    given = (kept ^ hides).reshape(shape_of(mask)).to(in_double(val(mask).dtype))
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
    c = slope_of(scores.expand_as(logs), torch.where(hidden, 0.0, logs), hidden, -1)
    if c is None:
        return None
    c = rounded(c, q.shape[-1] ** -0.5, 1 / q.shape[-1])
    top = bias.amax(-1, keepdim=True)
    bias = torch.where((bias - top).abs() < 1e-12, 0.0, bias - top)

    def whole(*tensors: Tensor) -> Tensor:
        q, k, v = canon(tensors)
        found = F.softmax(c * (q @ k.mT) + bias, -1) @ v
        wide = batch + "ne"
        return found.permute([wide.index(a) for a in o_name])

    if not part.agrees(whole, (1.0, 2.0), 1e-9, far=10.0):
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
