"""The forward pass next to autograd: the values the rules read, the attention maps, and the
gradient of each sample's target at them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from relprop.errors import RelpropError, first_line, out_of_memory
from relprop.operations import Value
from relprop.tracer.binding import Inputs
from relprop.tracer.calls import Values
from relprop.tracer.forms import PLAIN, Forms
from relprop.tracer.program import Program
from relprop.tracer.run import execute


@dataclass
class Forward:
    """Values of the kept nodes, batch first; ``watched`` ones are still attached to autograd's
    graph."""

    values: Values
    watched: dict[fx.Node, Tensor]

    def gradients(
        self, scalars: Tensor, nodes: Iterable[fx.Node], *, again: bool
    ) -> dict[fx.Node, Tensor]:
        """∂ scalars[i]/∂ value[i] at every watched node of ``nodes``, batch first; zeros where the
        target does not depend on it.

        ``scalars`` is (batch,): samples do not mix, so one pass serves the whole batch. ``again``:
        another target will follow.
        """
        wanted = [n for n in nodes if n in self.watched]
        tensors = [self.watched[n] for n in wanted]
        found = pulled([scalars], tensors, [torch.ones_like(scalars)], again=again)
        return dict(zip(wanted, filled(found, tensors), strict=True))


def pulled(
    outputs: Sequence[Tensor],
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    again: bool,
) -> list[Tensor | None]:
    """The gradients at ``tensors``, from those at ``outputs``; ``None`` where nothing depends on
    one. Raises ``RelpropError`` where an operator has no derivative."""
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
    if not tensors or not pairs:
        return [None for _ in tensors]
    ends, arrived = zip(*pairs, strict=True)
    try:
        found = torch.autograd.grad(ends, tensors, arrived, retain_graph=again, allow_unused=True)
        return list(found)
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        then = [
            "give the operator a derivative (torch.library.register_autograd)",
            "or do without: use_gradient=False, method='rollout'",
        ]
        if "fork" in str(error):  # autograd's threads are not there in a process that was forked
            then = ["start the process otherwise: multiprocessing.get_context('spawn')"]
        fact = f"the gradient cannot be taken: {first_line(error)}"
        raise RelpropError(fact, then=then) from error


def filled(gradients: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """These gradients, zeros in place of ``None``."""
    both = zip(gradients, tensors, strict=True)
    return [torch.zeros_like(t) if g is None else g for g, t in both]


@dataclass(frozen=True)
class Kept:
    """The nodes whose values outlive a forward pass, those of them at which gradients are taken,
    ``watched``, and those that autograd goes on from (``ends``; ``None``: the outputs)."""

    nodes: Collection[fx.Node]
    watched: Collection[fx.Node]
    ends: Collection[fx.Node] | None = None


def forward(
    program: Program,
    model: nn.Module,
    inputs: Inputs,
    kept: Kept,
    known: Values | None = None,
    forms: Forms = PLAIN,
) -> Forward:
    """Run the program for all samples, with autograd from the first watched node on, or from what
    is ``known`` and requires grad. Nothing in the model requires grad meanwhile. ``forms``: what
    stands in place of some calls."""
    moved = {n: v for n, v in inputs.moved.items() if n in kept.watched and n not in (known or {})}
    watched = {n: v.detach().requires_grad_() for n, v in moved.items()}
    known = {**watched, **(known or {})} if watched else known

    def visit(node: fx.Node, value: Tensor) -> Tensor:
        watched[node] = value if value.requires_grad else value.detach().requires_grad_()
        return watched[node]

    with torch.enable_grad():
        values = execute(
            program, model, inputs, kept.nodes, kept.watched, visit, known=known, forms=forms
        )
    ends = set(program.ends if kept.ends is None else kept.ends)
    return Forward({n: v if n in ends else detached(v) for n, v in values.items()}, watched)


def detached(value: Value) -> Value:
    """A value without its history."""
    return value.detach() if isinstance(value, Tensor) else value
