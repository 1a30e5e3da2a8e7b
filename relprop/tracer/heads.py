"""Heads that are laid after one another along the queries of one map get an axis of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, fx

from relprop.operations import Kind, Value, is_call, kind, operand
from relprop.tracer.atoms import Atom, Axes
from relprop.tracer.constants import Constants
from relprop.tracer.editing import aten, emit, is_live, permuted, rank, reshaped, shape_of, swap
from relprop.tracer.program import Site

#: What is added to a score so that its weight is 0; were it none, verification would see it.
HIDES = -1e4


def split_heads(
    graph: fx.Graph, axes: dict[fx.Node, Axes], sites: Sequence[Site], constants: Constants
) -> bool:
    """Write a product whose rows are the queries of several heads, one head after another, with the
    heads on an axis of their own; where the keys are all heads', too, only if each query sees none
    but its own head's. Whether there was one."""
    beside = _summed_with_features(graph, axes)
    found = False
    for site in sites:
        last = axes[site.attention][-2:]
        over, rows = last if site.transposed else last[::-1]
        apart = [a.group.root().kind == "feature" for a in rows]
        heads = [a in beside and is_one for a, is_one in zip(rows, apart, strict=True)]
        keys = [a.group.root().kind == "feature" for a in over]
        if not any(heads) or not any(a.group.root().kind == "token" for a in rows):
            continue
        sizes = [a.size for a in rows]
        if any(keys) and (sizes != [a.size for a in over] or heads != keys):
            continue
        new = _with_heads(site, sizes, heads, any(keys), constants)
        if new is not None:
            swap(site.contraction, new)
            found = True
    return found


def _summed_with_features(graph: fx.Graph, axes: dict[fx.Node, Axes]) -> set[Atom]:
    """The features that a linear map sums over beside others: heads, and what each of them
    holds."""
    found: set[Atom] = set()
    for node in graph.nodes:
        if kind(node) is Kind.LINEAR and node.args[0] in axes:
            last = [a for a in axes[node.args[0]][-1] if a.group.root().kind == "feature"]
            found |= set(last) if len(last) > 1 else set()
    return found


def _with_heads(
    site: Site, sizes: list[int], heads: list[bool], both: bool, constants: Constants
) -> fx.Node | None:
    """A site's product with those parts of its rows (of ``both`` axes of its map) as batches, and
    its result as it was; ``None`` where a query sees other heads."""
    if both and not _sees_its_own(site, sizes, heads, constants):
        return None
    at, given, values = site.contraction, site.attention, site.values
    if site.transposed:
        given, values = _turned(at, given), _turned(at, values)
    first = rank(given) - 2
    rows = _heads_first(at, given, first, sizes, heads)
    if both:
        rows = _heads_first(at, rows, first + 2, sizes, heads)
        rows = emit(at, aten.diagonal.default, rows, 0, first, first + 2)
        rows = permuted(at, rows, [*range(first), first + 2, first, first + 1])
        values = _heads_first(at, values, rank(values) - 2, sizes, heads)
    else:
        shape = shape_of(values)
        values = reshaped(at, values, [*shape[:-2], 1, *shape[-2:]])
    made = _in_order(at, emit(at, aten.matmul.default, rows, values), sizes, heads)
    return _turned(at, made) if site.transposed else made


def _in_order(at: fx.Node, made: fx.Node, sizes: list[int], heads: list[bool]) -> fx.Node:
    """A result with its heads first, its rows as they were."""
    order = sorted(range(len(sizes)), key=lambda i: not heads[i])
    wide, width = shape_of(made)[:-3], shape_of(made)[-1]
    made = reshaped(at, made, [*wide, *(sizes[i] for i in order), width])
    back = [len(wide) + order.index(i) for i in range(len(sizes))]
    made = permuted(at, made, [*range(len(wide)), *back, rank(made) - 1])
    return reshaped(at, made, [*wide, math.prod(sizes), width])


def _turned(at: fx.Node, x: fx.Node) -> fx.Node:
    return permuted(at, x, [*range(rank(x) - 2), rank(x) - 1, rank(x) - 2])


def _heads_first(
    at: fx.Node, x: fx.Node, axis: int, sizes: list[int], heads: list[bool]
) -> fx.Node:
    """An axis made of parts as two: the heads, and all else."""
    before, after = shape_of(x)[:axis], shape_of(x)[axis + 1 :]
    cut = reshaped(at, x, [*before, *sizes, *after])
    order = [axis + i for i in sorted(range(len(sizes)), key=lambda i: not heads[i])]
    cut = permuted(at, cut, [*range(axis), *order, *range(axis + len(sizes), rank(cut))])
    count = math.prod(s for s, head in zip(sizes, heads, strict=True) if head)
    return reshaped(at, cut, [*before, count, math.prod(sizes) // count, *after])


def _hides(number: object) -> bool:
    return isinstance(number, (int, float)) and number <= HIDES


def _sees_its_own(site: Site, sizes: list[int], heads: list[bool], constants: Constants) -> bool:
    """Whether constants hide all keys but those of a query's own head."""
    x: Value = site.softmax.args[0]
    seen = torch.ones(shape_of(x), dtype=torch.bool)
    while site.attention is site.softmax and is_live(x):
        mask = None
        if is_call(x, aten.masked_fill) and _hides(x.args[2]):
            mask, x = constants.value(operand(x, 1)), operand(x)
        elif kind(x) is Kind.SUM and not is_live(x.args[-1]):
            added = constants.value(x.args[-1])
            added = -added if is_call(x, aten.sub) and isinstance(added, Tensor) else added
            mask, x = added <= HIDES if isinstance(added, Tensor) else None, x.args[0]
        if mask is None:
            break
        seen &= ~mask.cpu()
    cut = torch.arange(math.prod(sizes)).reshape(sizes)
    for i, head in reversed(list(enumerate(heads))):
        cut = cut if head else cut.narrow(i, 0, 1).expand(sizes)
    own = cut.flatten()
    return not bool((seen & (own[:, None] != own)).any())
