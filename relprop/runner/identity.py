"""The identity of each input, checked: it sums to 1 at most, whatever the model's residual
connections; where it does not, at which operation that begins."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, fx

from relprop.errors import RollUpWarning, warn
from relprop.interpreter.points import whole
from relprop.rollup import level_of
from relprop.rules.coarse import finer
from relprop.rules.notes import FieldNote
from relprop.rules.shares import levelled
from relprop.runner.rollup import Pairs, RollUp
from relprop.tracer.atoms import Axes
from relprop.tracer.calls import per_sample
from relprop.tracer.editing import val
from relprop.tracer.program import describe

#: How far rounding takes a sum of shares from 1.
TOO_MUCH = 1e-3


def warn_of_more_than_all(pairs: Pairs, rollup: RollUp | None) -> None:
    """Say of which input more than 1 is left, and where that begins, if a ``rollup`` can tell."""
    for name, (_, identity) in pairs.items():
        most = float(identity.flatten(1).sum(1).max()) if identity.numel() else 0.0
        if most > 1 + TOO_MUCH:
            then = ["method='lrp' and the others at the input do not roll up"]
            by, at = "somewhere", ""
            if rollup is None:
                then += ["relprop.explain says at which operation"]
            elif (node := counted_again(rollup, name)) is not None:
                by, at = f"first by {rollup.plan.step_at[node].op}", describe(node)
            fact = (
                f"what residual connections alone leave of input {name!r} sums to {most:.4g}, at "
                f"most 1 is right: tokens were taken for features, {by}"
            )
            warn(RollUpWarning(fact, at=at, then=then))


def counted_again(rollup: RollUp, name: str) -> fx.Node | None:
    """From an input on, the first operation that has more than one token of it at one place, all
    shares summed: the slope of what arrives at the input by the field at that place."""
    stream, met = next(s for s in rollup.streams if s.name == name), dict[fx.Node, Tensor]()
    hooks = {n: partial(met.__setitem__, n) for n in rollup.plan.order}
    with torch.enable_grad():
        starts = {n: whole(seed).requires_grad_() for n, seed in rollup.begun.items()}
        found = rollup.walked(rollup.plan, starts, {}, hooks=hooks)[stream.node]
        slopes = torch.autograd.grad(stream.read(found).sum(), [*met.values()], allow_unused=True)
    fields = zip(met.items(), slopes, strict=True)
    shares = {n: s[:, :-1] * f[:, -1:].detach() for (n, f), s in fields if s is not None}
    axes, notes = rollup.program.axes, {s.node: s.note for s in rollup.plan.steps}
    # what carries part of the shares of the pool that reads it
    pooled = {n for n, f in notes.items() if isinstance(f, FieldNote) and f.weighed is not None}
    over = (n for n in reversed(shares) if _most(n, shares[n], axes.get(n, ())) > 1 + TOO_MUCH)
    return next((n for n in over if n not in pooled), None)


def _most(node: fx.Node, shares: Tensor, axes: Axes) -> float:
    """The most that stands at one place of a tensor, its features summed. ``shares``: (batch,
    parts, ...), as coarse as a field."""
    level, shape = level_of(axes), val(node).shape
    beside = [n for f in level.mixed for n, t in zip(f.sizes, f.tokens, strict=True) if not t]
    features = math.prod([*(shape[i] for i in level.plain), *beside])

    def means(of_part: Tensor) -> Tensor:
        fine = finer(of_part, shape)
        return levelled(torch.cat([fine, torch.ones_like(fine[:1])]), level)[:-1]

    each = features * math.prod(shares.shape[2:]) / max(math.prod(shape), 1)
    most: float = per_sample(means, shares).max().item() * each
    return most
