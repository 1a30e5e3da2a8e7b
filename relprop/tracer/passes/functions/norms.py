"""Norms that are written out: the values, or the values less their mean, times one number for each
row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.operations import STOPS, Kind, Operator, kind
from relprop.operations.vocabulary import WrittenNorm
from relprop.tracer.editing import arguments, aten, emit, permuted, rank, shape_of
from relprop.tracer.passes.functions.affine import axes_of, laid
from relprop.tracer.passes.trials.comparison import Trial, equal_functions, same, trials
from relprop.tracer.passes.trials.recipes import Recipe
from relprop.tracer.passes.trials.subgraphs import Subgraph


@dataclass(frozen=True)
class FoundNorm:
    """What a subgraph was found to be. ``core`` takes the tensor and the other parameters; weights,
    biases and others are the places of the subgraph's parameters. ``centred`` is ``None`` for a
    function of a row that is no norm."""

    core: Callable[..., Tensor]
    weights: tuple[int, ...]
    biases: tuple[int, ...]
    others: tuple[int, ...]
    centred: bool | None
    eps: float | None


@dataclass(frozen=True)
class _Core:
    """A subgraph without its scale and its bias."""

    recipe: Recipe
    weights: tuple[int, ...]
    biases: tuple[int, ...]

    def __call__(self, x: Tensor, *rest: Tensor) -> Tensor:
        left, one = iter(rest), torch.ones((), dtype=x.dtype, device=x.device)
        full = [
            one * 0 if i in self.biases else one if i in self.weights else next(left)
            for i in range(self.recipe.inputs - 1)
        ]
        return self.recipe(x, *full)


def norm_in(subgraph: Subgraph) -> FoundNorm | None:
    """The norm that a subgraph computes: which parameters scale it, which are added, whether the
    mean is taken away, and ε if the deviation is the usual one."""
    given, places = trials(subgraph), range(len(subgraph.parameters))
    biases = tuple(i for i in places if _is_added(subgraph, given, i))
    left = [i for i in places if i not in biases]
    weights = tuple(i for i in left if _is_factor(subgraph, given, i, biases))
    others = tuple(i for i in left if i not in weights)
    core = _Core(subgraph.recipe, weights, biases)
    xs, rest = [t.x for t in given], [tuple(t.parameters[i] for i in others) for t in given]
    centred = _centring(core, subgraph.axes, xs, rest)
    if centred is not None and not all(
        same(core(2 * x, *r), 2 * core(x, *r), 1e-6) for x, r in zip(xs, rest, strict=True)
    ):
        eps = None if others else _usual_eps(subgraph, core, centred, xs)
        return FoundNorm(core, weights, biases, others, centred, eps)
    scaled = kind(subgraph.output) in (Kind.PRODUCT, Kind.QUOTIENT)
    if scaled and not _is_masked(subgraph) and subgraph.axes == (rank(subgraph.source) - 1,):
        return FoundNorm(subgraph.recipe, (), (), tuple(places), None, None)
    return None


def _is_masked(subgraph: Subgraph) -> bool:
    """Whether a factor hangs on the row by tests alone, as a mask of its largest value does."""
    sloped = {subgraph.source}
    for node in subgraph.nodes:
        if kind(node) not in STOPS and not sloped.isdisjoint(node.all_input_nodes):
            sloped.add(node)
    return any(n in subgraph.nodes and n not in sloped for n in subgraph.output.all_input_nodes)


def _is_added(subgraph: Subgraph, given: list[Trial], i: int) -> bool:
    for t in given:
        change = torch.linspace(1.0, 2.0, t.parameters[i].numel(), dtype=torch.float64)
        change = change.reshape(t.parameters[i].shape)
        moved = [p + change if j == i else p for j, p in enumerate(t.parameters)]
        before, after = subgraph(t.x, *t.parameters), subgraph(t.x, *moved)
        if not same(after - before, change.expand(before.shape), 1e-7):
            return False
    return True


def _is_factor(subgraph: Subgraph, given: list[Trial], i: int, biases: tuple[int, ...]) -> bool:
    for t in given:
        plain = [torch.zeros_like(p) if j in biases else p for j, p in enumerate(t.parameters)]
        factor = torch.linspace(1.5, 2.5, plain[i].numel(), dtype=torch.float64).reshape(
            plain[i].shape
        )
        scaled = [p * factor if j == i else p for j, p in enumerate(plain)]
        if not same(subgraph(t.x, *scaled), factor * subgraph(t.x, *plain), 1e-9):
            return False
    return True


def _centring(
    core: Callable[..., Tensor],
    axes: tuple[int, ...],
    xs: list[Tensor],
    rest: list[tuple[Tensor, ...]],
) -> bool | None:
    """Whether the core is parallel, row by row, to the values less their mean (``True``), or to the
    values (``False``)."""
    for centred in (True, False):
        if all(_parallel(core(x, *r), x, axes, centred) for x, r in zip(xs, rest, strict=True)):
            return centred
    return None


def _parallel(y: Tensor, x: Tensor, axes: tuple[int, ...], centred: bool) -> bool:
    if y.shape != x.shape or not y.isfinite().all():
        return False
    x = x - x.mean(axes, keepdim=True) if centred else x
    size = x.square().sum(axes, keepdim=True)
    along = (y * x).sum(axes, keepdim=True) / size
    return bool((along != 0).all()) and same(along * x, y, 1e-8)


def _usual_eps(
    subgraph: Subgraph, core: Callable[..., Tensor], centred: bool, xs: list[Tensor]
) -> float | None:
    """ε, if the core is x/√(mean(x²) + ε) of the values less their mean, or of the values."""
    given = [a for n in subgraph.nodes for a in (*arguments(n), *n.kwargs.values())]
    numbers = {float(a) for a in given if isinstance(a, (int, float))}
    for eps in sorted(e for e in numbers | {0.0} if 0 <= e <= 1e-2):

        def usual(x: Tensor, eps: float = eps) -> Tensor:
            c = x - x.mean(subgraph.axes, keepdim=True) if centred else x
            return c * (c.square().mean(subgraph.axes, keepdim=True) + eps).rsqrt()

        if equal_functions(core, usual, xs, 1e-10):
            return eps
    return None


def emit_norm(subgraph: Subgraph, norm: FoundNorm) -> fx.Node:
    """``layer_norm`` or ``rms_norm`` with the axes last, or the subgraph as one operation."""
    at, x, axes = subgraph.output, subgraph.source, subgraph.axes
    weights, biases, others = (
        [subgraph.parameters[i] for i in part] for part in (norm.weights, norm.biases, norm.others)
    )
    weight, bias = _joined(at, aten.mul.Tensor, weights), _joined(at, aten.add.Tensor, biases)
    lying = all(n is None or set(axes_of(n, x)) <= set(axes) for n in (weight, bias))
    usual = norm.eps is not None and lying and (norm.centred or bias is None)
    if not usual:
        op = WrittenNorm(norm.core, tuple(a - rank(x) for a in axes), norm.centred)
        return emit(at, op, x, weight, bias, *others)
    kept = [i for i in range(rank(x)) if i not in axes]
    order = [*kept, *axes]
    shape = [shape_of(x)[i] for i in axes]
    weight, bias = (n and laid(at, n, x, axes) for n in (weight, bias))
    turned = permuted(at, x, order)
    if norm.centred:
        made = emit(at, aten.layer_norm.default, turned, shape, weight, bias, norm.eps)
    else:
        made = emit(at, aten.rms_norm.default, turned, shape, weight, norm.eps)
    return permuted(at, made, [order.index(i) for i in range(len(order))])


def _joined(at: fx.Node, op: Operator, nodes: list[fx.Node]) -> fx.Node | None:
    made = nodes[0] if nodes else None
    for node in nodes[1:]:
        made = emit(at, op, made, node)
    return made
