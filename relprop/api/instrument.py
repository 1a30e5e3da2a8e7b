"""``instrument``: the hook interface. Values, gradients and relevances at any node of a model, and
hooks on relevance as it flows.

A node is named by its place: ``blocks.2.attn`` is the output of that module's call,
``blocks.2.attn:softmax`` the softmax computed in it (``:softmax#1`` the second one). Patterns are
those of a shell: ``blocks.*.attn:softmax``.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, fx, nn

from relprop.adapters import Prepared
from relprop.api.hooks import RelevanceHook, chain, tidy
from relprop.api.settings import PARTS, Places, applied, change_of
from relprop.api.why import Why, why
from relprop.door import guarded
from relprop.errors import OptionError, RelpropError, is_strict, message, nearest, strictly
from relprop.explanation import Explanation
from relprop.interpreter.forms import refuse_undefined
from relprop.interpreter.forward import Kept, forward
from relprop.interpreter.ledger import Ledger
from relprop.opening import check_devices
from relprop.opening.opening import open_model
from relprop.plan import Plan
from relprop.rules import RuleSet
from relprop.runner.ask import ask_once
from relprop.runner.conditions import Conditions
from relprop.runner.judging import Judge, judged
from relprop.runner.method import start_with_output
from relprop.runner.needing import forms_for_gradients
from relprop.runner.question import Question, balance_of
from relprop.runner.relevance import Relevance
from relprop.runner.run import Part, Run
from relprop.runner.session import Session, open_session
from relprop.targets import Start
from relprop.targets.resolve import compared_outputs
from relprop.tracer.binding import Inputs, bind
from relprop.tracer.changes import Change, changed
from relprop.tracer.follow import depending
from relprop.tracer.names import node_labels
from relprop.tracer.program import is_floating, role
from relprop.tracer.run import execute
from relprop.tracer.surroundings import undisturbed


@guarded
@dataclass(frozen=True)
class Handle:
    """What ``hook`` returns; ``remove()`` takes the hook away again."""

    probe: Instrument
    number: int

    def remove(self) -> None:
        """Take the hook away; what was computed with it is forgotten."""
        self.probe._hooks.pop(self.number, None)
        self.probe._forget()


@guarded
class Instrument:
    """A model under observation, for one target. Everything but the forward pass is computed when
    it is first asked for, once; a new hook starts it anew."""

    def __init__(self, session: Session, inputs: Inputs, target: Any) -> None:
        self.session, self.inputs, self.target = session, inputs, target
        self._labels = node_labels(session.program)
        self._own = session, inputs, self._labels
        #: What stands in place of each node of the program that was captured.
        self._now = {node: node for node in session.program.graph.nodes}
        self._hooks: dict[int, tuple[frozenset[fx.Node], RelevanceHook]] = {}
        self._count = 0
        self._closed = False
        self._warned = strictly if is_strict() else nullcontext
        self.may_differentiate: Callable[[], None] = lambda: None  # refuses gradients, if need be
        self._forget()

    def __enter__(self) -> Instrument:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._forget()
        self._hooks.clear()
        self._closed = True

    def _forget(self) -> None:
        self._done: tuple[Run, Start] | None = None
        self._by_rules: dict[RuleSet, tuple[Run, Start]] = {}
        self._relevance: dict[fx.Node, Tensor] | None = None
        self._books: Ledger | None = None
        self._plan: Plan | None = None

    def names(self, pattern: str = "*") -> list[str]:
        """The names of the nodes that ``pattern`` matches, in forward order."""
        if not isinstance(pattern, str):
            raise OptionError(
                f"{pattern!r} is no name of a node", then=["probe.names() lists all of them"]
            )
        return [name for name in self._labels if fnmatch.fnmatchcase(name, pattern)]

    def value(self, pattern: str) -> dict[str, Tensor]:
        """The values at every matching node, by name, batch first."""
        done, _ = self._forward()
        return {
            name: tidy(done.forward.values[node]).detach()
            for name, node in self._matching(pattern).items()
        }

    def gradient(self, pattern: str, *, gradient: RuleSet | str = "model") -> dict[str, Tensor]:
        """∂y_t/∂value at every matching node, batch first; zeros where the target does not depend
        on it. ``gradient``: as ``explain`` has it, the model's, the ``"balanced"`` one or that of a
        rule set."""
        found, rules = self._matching(pattern), balance_of(gradient)
        done, start = self._forward() if rules is None else self._balanced(rules)
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
        relevance = self._propagate()
        found = self._matching(pattern)
        done, _ = self._forward()
        values = done.forward.values
        return {
            name: tidy(relevance[n] if n in relevance else torch.zeros_like(values[n]))
            for name, n in found.items()
        }

    def ledger(self) -> Ledger:
        """The books of the whole pass, down to the explained inputs."""
        self._propagate()
        assert self._books is not None
        return self._books

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
        nodes = set(self._matching(name).values())
        if len(nodes) > 1:
            raise OptionError(f"{name!r} names {len(nodes)} nodes: give the name of one")
        relevance = self._propagate()
        assert self._plan is not None and self._books is not None
        values = self._forward()[0].detached()
        with undisturbed(self.session.model), torch.no_grad():
            return why(self._plan, self._books, values, relevance, nodes.pop())

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
        nodes = frozenset(self._own[2][name] for name in self._matching(pattern))
        self._hooks[self._count] = (nodes, function)
        self._forget()
        return Handle(self, self._count)

    def set(
        self,
        name: str,
        value: float | Tensor | Callable[[Tensor], Tensor],
        *,
        positions: Places = None,
        heads: Places = None,
        features: Places = None,
        samples: Places = None,
    ) -> None:
        """Let ``value`` stand at a node from now on: outputs, values, gradients, relevance and
        explanations are those of the changed run, until ``clear()`` or the end of the block. The
        model itself is left as it is.

        Args:
            name: one node, as ``names()`` has it. An attention map is set as it is: its rows are
                not normalised again.
            value: a number or a tensor that stretches to what it stands for; or a function that
                gets the value as the changed run has it, batch first, and returns one of its shape,
                each sample's by itself. Gradient and relevance end at a given value, and the ledger
                books there what arrives as ``set NAME``; a function they pass like any part of the
                model.
            positions, heads, features, samples: which part of the value alone: an integer, a list
                of them or a slice. Positions of an attention map are its queries.

        >>> import torch, relprop
        >>> from relprop.demo.model import digit_scene_model
        >>> with relprop.instrument(digit_scene_model(), torch.rand(2, 1, 32, 32), target=3) as probe:
        ...     before = probe.output()
        ...     probe.set("blocks.2.attn:heads", 0.0, heads=1)
        ...     changed = probe.output() - before
        """  # noqa: E501
        parts = {"positions": positions, "heads": heads, "features": features, "samples": samples}
        change = self._change(name, value, parts)
        self._keep_target()
        made = changed(self.session.program, self.inputs, change, self.session.model)
        self.session = replace(self.session, program=made.program).reading([self.target])
        self.inputs = made.inputs
        self._now = {node: made.nodes[now] for node, now in self._now.items()}
        self._labels = {n: self._now[node] for n, node in self._own[2].items()}
        self._forget()

    def _keep_target(self) -> None:
        """What was predicted is explained from now on, whatever is predicted with what is set."""
        label = self._forward()[1].label
        if self.target is None and all(isinstance(one, int | tuple) for one in label):
            self.target = list(label)

    def clear(self) -> None:
        """Take all that was ``set`` away again."""
        self.session, self.inputs, self._labels = self._own
        self._now = {node: node for node in self.session.program.graph.nodes}
        self._forget()

    def output(self) -> Tensor:
        """y_t of every sample, (batch,), with what is set."""
        return self._forward()[1].scalars.detach()

    def many(self, settings: Sequence[Mapping[str, Any]]) -> Tensor:
        """y_t of every sample for each of many settings, (settings, batch). A setting has the
        arguments of ``set`` by name: ``{"name": ..., "value": 0.0, "heads": 1}``. It is beside what
        is set already, and runs the graph from its node on alone."""
        done, start = self._forward()
        session, program = self.session, self.session.program
        held, rows = done.detached(), []
        assert start.again is not None
        known = {"name", "value", *PARTS}
        right = isinstance(settings, Sequence) and [
            isinstance(one, Mapping) and {"name", "value"} <= one.keys() <= known
            for one in settings
        ]
        if not right or not all(right):
            fact = f"many({settings!r:.200}): a list of settings, each with the arguments of set"
            then = ['[{"name": NAME, "value": 0.0, "heads": 1}, ...]']
            raise OptionError(message(fact, then=then))
        for setting in settings:
            parts = {part: setting.get(part) for part in PARTS}
            change = self._change(setting["name"], setting["value"], parts)
            below = depending(program.graph.nodes, [change.node])
            there = {n: v for n, v in held.items() if n not in below and n.op != "output"}
            there[change.node] = applied(change, held[change.node])
            outputs = set(program.ends)
            with undisturbed(session.model), torch.no_grad():
                found = execute(program, session.model, self.inputs, outputs, known=there)
                rows.append(start.again(found).detach())
        return torch.stack(rows)

    def _change(self, name: str, value: Any, parts: Mapping[str, Places]) -> Change:
        """What ``set`` is told, for the graph as it is now."""
        nodes = set(self._matching(name).values())
        if len(nodes) > 1:
            raise OptionError(f"{name!r} names {len(nodes)} nodes: give the name of one")
        node, own = nodes.pop(), self._forward()[0].detached()
        given = {part: at for part, at in parts.items() if at is not None}
        return change_of(self.session.program, node, name, own[node], value, given)

    def explanation(
        self, *, method: str = "transformer_attribution", **options: Any
    ) -> Explanation:
        """The token scores with the hooks in place."""
        hooks = self._hooks_by_node()
        ledger = None if options.get("average") is not None else True
        question = Question(method, options, hooks=hooks, ledger=ledger)
        with self._warned(), undisturbed(self.session.model), torch.no_grad():
            return ask_once(self.session, self.inputs, self.target, question)

    def _matching(self, pattern: str) -> dict[str, fx.Node]:
        found = {name: self._labels[name] for name in self.names(pattern)}
        if not found:
            near = [n for n in self._labels if pattern.split(":")[0].split("*")[0] in n][
                :5
            ] or list(self._labels)[:5]
            raise OptionError(
                message(
                    f"no node is called {pattern!r}",
                    then=[
                        *nearest(pattern, self._labels),
                        (
                            f"probe.names() lists all {len(self._labels)}; for example "
                            f"{', '.join(near)}"
                        ),
                    ],
                )
            )
        return found

    def _forward(self) -> tuple[Run, Start]:
        if self._closed:
            raise RelpropError("this instrument is closed: read it inside its with block")
        if self._done is None:
            session, program = self.session, self.session.program
            nodes = program.graph.nodes
            watched = {n for n in nodes if is_floating(n) and role(n) == "activation"}
            watched.update(self._labels.values())  # what is set is a constant
            part = Part(self.inputs, Prepared(None), 0, self.inputs.batch)
            with undisturbed(session.model):
                kept = Kept(set(nodes), watched)
                done = Run(part, forward(program, session.model, self.inputs, kept))
                self._done = done, done.start(session, self.target)
        return self._done

    def _balanced(self, rules: RuleSet) -> tuple[Run, Start]:
        """The forward pass with the gradient forms of a rule set."""
        plain, start = self._forward()
        if rules in self._by_rules:
            return self._by_rules[rules]
        session, program = self.session, self.session.program
        starts = tuple({n: None for term in start.terms for n in term.seeds})
        leaves = tuple(program.leaves.values())
        forms = forms_for_gradients(session, rules, starts, leaves, program.sites)
        kept = Kept(plain.forward.values.keys(), plain.forward.watched.keys())
        with undisturbed(session.model):
            done = forward(program, session.model, self.inputs, kept, forms=forms)
            run = Run(plain.part, done, forms=forms)
            self._by_rules[rules] = run, run.start(session, self.target)
        return self._by_rules[rules]

    def _propagate(self) -> dict[fx.Node, Tensor]:
        if self._relevance is None:
            done, start = self._forward()
            leaves = frozenset(self.session.program.leaves.values())
            starts = tuple({n: None for term in start.terms for n in term.seeds})
            named = frozenset(n for n in self._labels.values() if role(n) == "activation")
            plan = self.session.plan(starts, leaves | named)
            with self._warned():
                self.session.tell(self.session.notices(plan))
            hooks, terms = self._hooks_by_node(), start.begun
            if start_with_output(self.session.rules):
                terms = start.contributions(done.outputs(self.session.program))
            with undisturbed(self.session.model), torch.no_grad():
                passes = Relevance.at_terms(plan, terms, hooks)
                walk = passes.through(plan.order, done.detached())
            self._plan, self._books = plan, passes.ledger(walk)
            self._relevance = walk.found
        return self._relevance

    def _hooks_by_node(self) -> dict[fx.Node, Callable[[Tensor], Tensor | None]]:
        """For each hooked node, its hooks one after another."""
        by_node: dict[fx.Node, list[RelevanceHook]] = {}
        for nodes, function in self._hooks.values():
            for node in nodes:
                by_node.setdefault(self._now[node], []).append(function)
        return {node: chain(node, functions) for node, functions in by_node.items()}


@guarded
def instrument(
    model: nn.Module,
    inputs: Any,
    target: Any = None,
    *,
    rules: RuleSet | str = "paper",
    precision: str | torch.dtype | None = None,
    on_unknown: str = "generic",
    explain_inputs: Sequence[str | int] | str | None = None,
    verify: bool = True,
    processor: Any = None,
    strict: bool = False,
) -> Instrument:
    """Observe ``model`` on ``inputs`` for one ``target``; use it in a ``with`` block. Arguments as
    in ``explain``; ``strict`` holds for all that is asked later, too. The forward pass runs at
    once, and is compared with the model's own. Relevance starts with 1 at the target, or with y_t
    by the rules of a method that does so (``"attnlrp"``, ``"cp_lrp"``, ``"epsilon"``,
    ``"lrp_gamma"``), as it does in ``explain``.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> with relprop.instrument(digit_scene_model(), torch.rand(2, 1, 32, 32), target=3) as probe:
    ...     relevance = probe.relevance("blocks.2.mlp")["blocks.2.mlp"]
    >>> relevance.shape
    torch.Size([2, 65, 96])
    """
    model, inputs = open_model(model, inputs, processor=processor)
    with undisturbed(model), torch.no_grad():
        bound = bind(inputs)
        check_devices(model, bound)

        def call(bound: Inputs, judge: Judge) -> Instrument:
            judge.hear(bound)
            how = Conditions(None, explain_inputs, precision, on_unknown)
            session = open_session(model, bound, rules, how).reading([target])
            if session.program.input_specialised and bound.batch > 1:
                raise OptionError(
                    f"the model branches on values ({session.program.decisions[0]}): "
                    f"instrument one sample at a time, not {bound.batch}"
                )
            starts = compared_outputs(session.program, [target])
            probe = Instrument(session, bound, target)
            values = probe._forward()[0].forward.values
            heard = judge.heard(session.program, bound, starts)
            probe.may_differentiate = judge.compare(session, heard, values)
            return probe

        return judged(model, bound, verify, call)
