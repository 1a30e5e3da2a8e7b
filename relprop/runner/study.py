"""A Study: what any method may ask of one run for one target. What only methods over attention, or
at the input, may ask is in files of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, fx

from relprop.interpreter.forms import Undefined
from relprop.interpreter.forward import detached
from relprop.numerics import is_finite
from relprop.runner.method import Options
from relprop.runner.needs import Needs
from relprop.runner.run import Run
from relprop.runner.sweep import Gradients, Sweep
from relprop.runner.values import not_asked, wide, with_leading_one
from relprop.targets.start import Start
from relprop.tracer.facts import is_batched
from relprop.tracer.run import execute


class Study:
    """A question, the run that answers it, and where the target's relevance starts. ``gradients``:
    ∂y_t/∂ at the run's watched nodes, if they were asked for and the graph is not cut."""

    def __init__(
        self, needs: Needs, run: Run, target: object, start: Start, gradients: Gradients
    ) -> None:
        self.needs, self.run, self.target, self.start = needs, run, target, start
        self.session, self.program = needs.session, needs.program
        self.settings: Options = {
            name: run.part.cut(value) for name, value in needs.question.settings.items()
        }
        self.sweep = Sweep(needs, run, start, gradients)

    def require(self, read: str, *needs: str) -> None:
        """Raises ``OptionError`` where the method reads what it said none of the ``needs`` of."""
        if self.needs.question.needs.isdisjoint(needs):
            raise not_asked(needs[0], read)

    @property
    def home(self) -> torch.device:
        """The device of y_t: methods find all tensors there, wherever the model computed them."""
        return self.start.scalars.device

    def relevance(self, node: fx.Node) -> Tensor | None:
        """Relevance at a node, batch first; zeros where none arrived (the target does not depend on
        it), ``None`` if it was not asked for."""
        if self.needs.backward.by_gradient:
            return self._by_gradient(node)
        if self.needs.backward.plan is None:
            return None
        found = self.sweep.found(node)
        if found is None:
            held = self.run.forward.watched.get(node)
            found = torch.zeros_like(wide(self.run.forward.values[node]) if held is None else held)
        return found.to(self.home)

    def _by_gradient(self, node: fx.Node) -> Tensor:
        """Relevance at a watched node, where it is value ⊙ gradient. Raises ``Undefined``, but
        where the run is recorded: then whoever reads the outputs must look."""
        gradient = self.gradient(node)
        assert gradient is not None
        found = wide(self.value(node)) * gradient
        if self.run.described is None and not is_finite(found):
            raise Undefined
        return found

    def gradient(self, node: fx.Node) -> Tensor | None:
        """∂y_t/∂ at a watched node, batch first; ``None`` if it was not asked for."""
        found = self.sweep.gradient(node)
        return None if found is None else wide(found).to(self.home)

    def value(self, node: fx.Node) -> Tensor:
        """A kept value, batch first where it depends on an input."""
        value: Tensor = detached(self.run.values(self.session, [node])[node])
        return value.to(self.home)

    def of_each(self, node: fx.Node) -> Tensor:
        """A kept value of every sample, batch first, also where it is the same for all."""
        value = self.value(node)
        return value if is_batched(node) else value.expand(self.run.inputs.batch, *value.shape)

    def output_at(self, leaves: Sequence[fx.Node], values: Iterable[Tensor]) -> Tensor:
        """y_t of every sample, (batch,), if ``values`` stood at ``leaves``; attached to autograd
        where they are."""
        tensors = tuple(values)
        if any(t.requires_grad for t in tensors):
            self.run.may_differentiate()
        given = {n: with_leading_one(t, n) for n, t in zip(leaves, tensors, strict=True)}
        outputs = set(self.program.ends)
        model, inputs, forms = self.session.model, self.run.inputs, self.run.forms
        found = execute(self.program, model, inputs, outputs, known=given, forms=forms)
        # 0, with a derivative (0) at every input, also where y_t does not depend on it
        untouched = [t.flatten(1)[:, :0].sum(1) for t in tensors]
        return torch.stack([self.scalar(found), *untouched]).sum(0)

    def scalar(self, values: Mapping[fx.Node, Tensor]) -> Tensor:
        """y_t of every sample from the outputs' values, for the very index that the start names,
        also where the prediction is another."""
        assert self.start.again is not None
        return self.start.again(values)
