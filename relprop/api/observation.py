"""What is read of a run by name: values, gradients and relevance at any node of a model, and hooks
on relevance as it flows."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from relprop.adapters import Prepared
from relprop.api.settings import tidy
from relprop.api.why import Why, why
from relprop.error_boundary import guarded
from relprop.errors import OptionError, RelpropError, is_strict, nearest, strictly
from relprop.interpreter.forms import refuse_undefined
from relprop.interpreter.forward import Kept, forward
from relprop.interpreter.ledger import Ledger
from relprop.plan import Plan
from relprop.rules import RuleSet
from relprop.runner.method import start_with_output
from relprop.runner.needing import forms_for_gradients
from relprop.runner.question import balance_of
from relprop.runner.relevance import Relevance
from relprop.runner.run import Part, Run
from relprop.runner.session import Session
from relprop.targets.start import Start
from relprop.tracer.binding import Inputs
from relprop.tracer.forms import PLAIN
from relprop.tracer.program import is_floating, place, role
from relprop.tracer.surroundings import undisturbed

RelevanceHook = Callable[[Tensor], Tensor | None]


@guarded
@dataclass(frozen=True)
class Handle:
    """What ``hook`` returns; ``remove()`` takes the hook away again."""

    probe: Observation
    number: int

    def remove(self) -> None:
        """Take the hook away; what was computed with it is forgotten."""
        self.probe._hooks.pop(self.number, None)
        self.probe._forget()


@guarded
class Observation:
    """A run of a model, for one target. Everything but the forward pass is computed when it is
    first asked for, once; a new hook starts it anew."""

    def __init__(self, session: Session, inputs: Inputs, target: Any) -> None:
        self.session, self.inputs, self.target = session, inputs, target
        self._hooks: dict[int, tuple[tuple[str, ...], RelevanceHook]] = {}
        self._count = 0
        self._closed = False
        self._warned = strictly if is_strict() else nullcontext
        self.may_differentiate: Callable[[], None] = lambda: None  # refuses gradients, if need be
        self._forget()

    def _forget(self) -> None:
        self._runs: dict[RuleSet | None, tuple[Run, Start]] = {}
        self._passed: tuple[Plan, Ledger, dict[fx.Node, Tensor]] | None = None

    def names(self, pattern: str = "*") -> list[str]:
        """The names of the nodes that ``pattern`` matches, in forward order."""
        if not isinstance(pattern, str):
            raise OptionError(
                f"{pattern!r} is no name of a node", then=["probe.names() lists all of them"]
            )
        labels = self.session.program.labels
        return [n for n in labels if n == pattern or fnmatch.fnmatchcase(n, pattern)]

    def value(self, pattern: str) -> dict[str, Tensor]:
        """The values at every matching node, by name, batch first."""
        values = self._forward()[0].forward.values
        return {name: tidy(values[n]).detach() for name, n in self._matching(pattern).items()}

    def output(self) -> Tensor:
        """y_t of every sample, (batch,), with what is set."""
        return self._forward()[1].scalars.detach()

    def gradient(self, pattern: str, *, gradient: RuleSet | str = "model") -> dict[str, Tensor]:
        """∂y_t/∂value at every matching node, batch first; zeros where the target does not depend
        on it. ``gradient``: as ``explain`` has it, the model's, the ``"balanced"`` one or that of a
        rule set."""
        found, rules = self._matching(pattern), balance_of(gradient)
        done, start = self._forward(rules)
        if rules is None:
            self.may_differentiate()
        with undisturbed(self.session.model):
            gradients = done.forward.gradients(start.scalars, found.values(), again=True)
        if rules is not None:
            for node in found.values():
                refuse_undefined(gradients[node])
        return {name: tidy(gradients[node]) for name, node in found.items()}

    def relevance(self, pattern: str) -> dict[str, Tensor]:
        """Relevance at every matching node, batch first; zeros where none arrives."""
        _, _, relevance = self._propagate()
        values = self._forward()[0].forward.values
        return {
            name: tidy(relevance[n] if n in relevance else torch.zeros_like(values[n]))
            for name, n in self._matching(pattern).items()
        }

    def ledger(self) -> Ledger:
        """The books of the whole pass, down to the explained inputs."""
        return self._propagate()[1]

    def why(self, name: str) -> Why:
        """Why a node got its relevance: who handed it down, by which rule it goes on, each
        operand's share, and its books; print it. ``name`` names one node.

        >>> import torch, relprop
        >>> from relprop.demo.model import digit_scene_model
        >>> with relprop.instrument(digit_scene_model(), torch.rand(1, 1, 32, 32), target=3) as probe:
        ...     found = probe.why("blocks.3.attn:softmax")
        >>> found.rule
        'carry'
        """  # noqa: E501
        node, (plan, ledger, relevance) = self._one(name), self._propagate()
        values = self._forward()[0].detached()
        with undisturbed(self.session.model), torch.no_grad():
            return why(plan, ledger, values, relevance, node)

    def hook(self, pattern: str, function: RelevanceHook) -> Handle:
        """Call ``function(relevance)`` when relevance passes a matching node (batch first); what it
        returns, if anything, flows on instead.

        >>> import torch, relprop
        >>> from relprop.demo.model import digit_scene_model
        >>> with relprop.instrument(digit_scene_model(), torch.rand(1, 1, 32, 32), target=3) as probe:
        ...     _ = probe.hook("blocks.3.attn:softmax", lambda r: r * torch.tensor([0.0, 1, 1, 1]).view(1, 4, 1, 1))  # silence head 0
        ...     float(probe.relevance("blocks.3.attn:softmax")["blocks.3.attn:softmax"][:, 0].abs().sum())
        0.0
        """  # noqa: E501
        if not callable(function):
            raise OptionError(f"hook({pattern!r}, {function!r}): a function is needed")
        self._count += 1
        self._hooks[self._count] = (tuple(self._matching(pattern)), function)
        self._forget()
        return Handle(self, self._count)

    def _one(self, name: str) -> fx.Node:
        """The node that a name names. Raises ``OptionError`` where these are several."""
        nodes = set(self._matching(name).values())
        if len(nodes) > 1:
            raise OptionError(f"{name!r} names {len(nodes)} nodes: give the name of one")
        return nodes.pop()

    def _matching(self, pattern: str) -> dict[str, fx.Node]:
        labels = self.session.program.labels
        found = {name: labels[name] for name in self.names(pattern)}
        if not found:
            begin = pattern.split("*")[0].split(":")[0]
            near = [n for n in labels if begin in n][:5] or list(labels)[:5]
            then = [
                *nearest(pattern, labels),
                f"probe.names() lists all {len(labels)}; for example {', '.join(near)}",
                "a module has a name where the graph has what it returns (not so for dropout)",
            ]
            raise OptionError(f"no node is called {pattern!r}", then=then)
        return found

    def _forward(self, rules: RuleSet | None = None) -> tuple[Run, Start]:
        """The forward pass, with the gradient forms of a rule set if there is one."""
        if self._closed:
            raise RelpropError("this instrument is closed: read it inside its with block")
        if rules not in self._runs:
            session, program = self.session, self.session.program
            if rules is None:
                nodes = program.graph.nodes
                watched = {n for n in nodes if is_floating(n) and role(n) == "activation"}
                watched.update(program.labels.values())  # what is set is a constant
                part = Part(self.inputs, Prepared(None), 0, self.inputs.batch)
                forms, kept = PLAIN, Kept(set(nodes), watched)
            else:
                plain, start = self._forward()
                part, leaves = plain.part, tuple(program.leaves.values())
                forms = forms_for_gradients(session, rules, _starts(start), leaves, program.sites)
                kept = Kept(plain.forward.values.keys(), plain.forward.watched.keys())
            with undisturbed(session.model):
                made = forward(program, session.model, self.inputs, kept, forms=forms)
                run = Run(part, made, forms=forms)
                self._runs[rules] = run, run.start(session, self.target)
        return self._runs[rules]

    def _propagate(self) -> tuple[Plan, Ledger, dict[fx.Node, Tensor]]:
        if self._passed is None:
            done, start = self._forward()
            program = self.session.program
            named = {n for n in program.labels.values() if role(n) == "activation"}
            wanted = frozenset(named.union(program.leaves.values()))
            plan = self.session.plan(_starts(start), wanted)
            with self._warned():
                self.session.warn_once(self.session.notices(plan))
            hooks, terms = self._hooks_by_node(), start.begun
            if start_with_output(self.session.rules):
                terms = start.contributions(done.outputs(program))
            with undisturbed(self.session.model), torch.no_grad():
                passes = Relevance.at_terms(plan, terms, hooks)
                walk = passes.through(plan.order, done.detached())
            self._passed = plan, passes.ledger(walk), walk.found
        return self._passed

    def _hooks_by_node(self) -> dict[fx.Node, Callable[[Tensor], Tensor | None]]:
        """For each hooked node, its hooks one after another."""
        by_node: dict[fx.Node, list[RelevanceHook]] = {}
        for names, function in self._hooks.values():
            for node in {self.session.program.labels[name] for name in names}:
                by_node.setdefault(node, []).append(function)
        return {node: _chain(node, functions) for node, functions in by_node.items()}


def _starts(start: Start) -> tuple[fx.Node, ...]:
    """The outputs at which relevance starts."""
    return tuple({n: None for term in start.terms for n in term.seeds})


def _chain(node: fx.Node, functions: list[RelevanceHook]) -> Callable[[Tensor], Tensor]:
    """The hooks at a node, one after another. Raises ``RelpropError`` for what is no relevance."""

    def call(relevance: Tensor) -> Tensor:
        for function in functions:
            shown = tidy(relevance)
            replaced = function(shown)
            if replaced is None:
                continue
            if not isinstance(replaced, Tensor) or replaced.shape != shown.shape:
                found = getattr(replaced, "shape", None)
                got = type(replaced).__name__ if found is None else list(found)
                raise RelpropError(
                    f"a relevance hook at {place(node).call!r} returned {got}; the "
                    f"relevance there is {list(shown.shape)}"
                )
            relevance = replaced.to(relevance.dtype).reshape(relevance.shape)
        return relevance

    return call
