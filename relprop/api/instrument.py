"""``instrument``: the hook interface. Values, gradients and relevances at any node of a model,
hooks on relevance as it flows, and values that are set.

A node is named by its place: ``blocks.2.attn`` is what that module returns (of several tensors the
first, the others ``blocks.2.attn[1]``), ``blocks.2.attn:softmax`` the softmax computed in it
(``:softmax#1`` the second one). Patterns are those of a shell: ``blocks.*.attn:softmax``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from relprop.api.hooks import tidy
from relprop.api.many import outcomes
from relprop.api.observation import Handle, Observation
from relprop.api.settings import Parts, Places, at_parts, change_of, checked_settings, stand_in
from relprop.door import guarded
from relprop.errors import OptionError, SharedBatchWarning, warn
from relprop.explanation import Explanation
from relprop.opening import check_devices
from relprop.opening.opening import open_model
from relprop.rules import RuleSet
from relprop.runner.ask import ask_once
from relprop.runner.conditions import Conditions
from relprop.runner.judging import Judge, judged
from relprop.runner.method import method_named
from relprop.runner.question import Question, checked_keep
from relprop.runner.session import Session, open_session
from relprop.targets.resolve import compared_outputs
from relprop.tracer.binding import Inputs, bind
from relprop.tracer.changes import Change, changed
from relprop.tracer.names import named
from relprop.tracer.run import execute
from relprop.tracer.surroundings import undisturbed

__all__ = ["Handle", "Instrument", "instrument"]


@guarded
class Instrument(Observation):
    """A model under observation, for one target: what is read of the run, and values that are set
    in it."""

    def __init__(
        self,
        session: Session,
        inputs: Inputs,
        target: Any,
        rules: RuleSet | str | None,
        opened: Callable[[Any], tuple[Session, Inputs]],
    ) -> None:
        super().__init__(session, inputs, target)
        #: The rules that the user gave, and what makes a session of other inputs.
        self._rules, self._opened = rules, opened

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
        parts = Parts(positions=positions, heads=heads, features=features, samples=samples)
        change = self._change(name, value, parts)
        self._keep_target()
        made = changed(self.session.program, self.inputs, change, self.session.model)
        self.session = replace(self.session, program=made.program).reading(
            [self.target], made.inputs
        )
        self.inputs = made.inputs
        self._now = {node: made.nodes[now] for node, now in self._now.items()}
        self._forget()

    def ablate(
        self,
        name: str,
        by: str = "zero",
        *,
        reference: Any = None,
        seed: int = 0,
        **parts: Unpack[Parts],
    ) -> None:
        """Let what a node has to say about a sample be gone: ``set`` with a value that is the same
        for all, or another sample's. Gradient and relevance end there.

        Args:
            name: one node, as ``names()`` has it.
            by: ``"zero"``; ``"mean"``, over the samples of ``reference``; ``"resample"``, the value
                of a sample of ``reference`` drawn by chance (``seed``) for each.
            reference: inputs as the model takes them, with as many tokens. ``None``: the run's own
                samples, of which ``"resample"`` gives each the one before; what is found of a sample
                then depends on its batch, and a ``SharedBatchWarning`` says so.
            parts: ``positions``, ``heads``, ``features``, ``samples`` as for ``set``.

        >>> import torch, relprop
        >>> from relprop.demo.model import digit_scene_model
        >>> others = torch.rand(8, 1, 32, 32)
        >>> with relprop.instrument(digit_scene_model(), torch.rand(2, 1, 32, 32), target=3) as probe:
        ...     probe.ablate("blocks.2.attn:heads", "mean", reference=others, heads=1)
        ...     changed = probe.output()
        """  # noqa: E501
        node = self._one(name)
        own = tidy(self._forward()[0].detached()[node])
        others = own
        if by == "zero" and reference is not None:
            raise OptionError("ablate(by='zero'): reference= is for 'mean' and 'resample'")
        if reference is not None:
            others = self._of_others(name, reference)
        elif by != "zero":
            fact = f"ablate({name!r}, {by!r}) takes the run's own {len(own)} samples"
            then = ["reference=: other inputs, so that no sample's result depends on its batch"]
            with self._warned():
                warn(SharedBatchWarning(fact, then=then))
        whole = stand_in(name, by, own, others, seed, shared=reference is None)
        at = at_parts(self.session.program, node, name, own, parts)
        self.set(name, whole[at], **parts)

    def steer(
        self,
        name: str,
        direction: Tensor,
        strength: float = 1.0,
        **parts: Unpack[Parts],
    ) -> None:
        """Add ``strength`` times a ``direction`` to a node's value: ``(features,)``, or what
        stretches to the value. Gradient and relevance pass it; ``parts``: as for ``set``.

        >>> import torch, relprop
        >>> from relprop.demo.model import digit_scene_model
        >>> with relprop.instrument(digit_scene_model(), torch.rand(2, 1, 32, 32), target=3) as probe:
        ...     probe.steer("blocks.1", torch.ones(96), 0.1, positions=0)
        ...     changed = probe.output()
        """  # noqa: E501
        if not isinstance(direction, Tensor):
            raise OptionError(f"steer({name!r}, {direction!r:.80}): a tensor is needed")
        step = strength * direction.detach()
        self.set(name, lambda value: value + step.to(value), **parts)

    def clear(self) -> None:
        """Take all that was ``set`` away again."""
        self.session, self.inputs = self._own
        self._now = {node: node for node in self.session.program.graph.nodes}
        self._forget()

    def many(self, settings: Sequence[Mapping[str, Any]]) -> Tensor:
        """y_t of every sample for each of many settings, (settings, batch). A setting has the
        arguments of ``set`` by name: ``{"name": ..., "value": 0.0, "heads": 1}``. It is beside what
        is set already. The graph runs from its node on alone, for as many settings of one node at
        once as memory allows."""
        done, start = self._forward()
        assert start.again is not None
        changes = [self._change(**one) for one in checked_settings(settings)]
        return outcomes(self.session, self.inputs, done.detached(), changes, start.again)

    def explanation(
        self,
        *,
        method: str = "transformer_attribution",
        keep: str | Iterable[str] = (),
        **options: Any,
    ) -> Explanation:
        """The token scores of the run as it is now, by any method; ``keep`` and options as in
        ``explain``. A method that follows relevance rules follows those that ``instrument`` was
        given, else its own."""
        follows = "relevance" in method_named(method, level=None).needs
        question = Question(
            method,
            options,
            self._rules if follows else None,
            checked_keep(keep),
            hooks=self._hooks_by_node(),
            ledger=None if options.get("average") is not None else True,
        )
        session = self.session.under(question.rule_set)
        with self._warned(), undisturbed(session.model), torch.no_grad():
            return ask_once(session, self.inputs, self.target, question)

    def _keep_target(self) -> None:
        """What was predicted is explained from now on, whatever is predicted with what is set."""
        label = self._forward()[1].label
        if self.target is None and all(isinstance(one, int | tuple) for one in label):
            self.target = list(label)

    def _change(self, name: str, value: Any, parts: Parts) -> Change:
        """What ``set`` is told, for the graph as it is now."""
        node, own = self._one(name), self._forward()[0].detached()
        return change_of(self.session.program, node, name, own[node], value, parts)

    def _of_others(self, name: str, reference: Any) -> Tensor:
        """A node's value of other samples, the model as it is."""
        session, inputs = self._opened(reference)
        node = session.program.labels[name]
        with undisturbed(session.model), torch.no_grad():
            return tidy(execute(session.program, session.model, inputs, {node})[node])


@guarded
def instrument(
    model: nn.Module,
    inputs: Any,
    target: Any = None,
    *,
    rules: RuleSet | str | None = None,
    precision: str | torch.dtype | None = None,
    on_unknown: str = "generic",
    explain_inputs: Sequence[str | int] | str | None = None,
    verify: bool = True,
    processor: Any = None,
    strict: bool = False,
) -> Instrument:
    """Observe ``model`` on ``inputs`` for one ``target``; use it in a ``with`` block. Arguments as
    in ``explain``; ``strict`` holds for all that is asked later, too. The forward pass runs at
    once, and is compared with the model's own. ``rules=None``: those of ``"paper"``, and in
    ``explanation`` the method's own. Relevance starts with 1 at the target, or with y_t by the
    rules of a method that does so (``"attnlrp"``, ``"cp_lrp"``, ``"epsilon"``, ``"lrp_gamma"``), as
    it does in ``explain``.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> with relprop.instrument(digit_scene_model(), torch.rand(2, 1, 32, 32), target=3) as probe:
    ...     relevance = probe.relevance("blocks.2.mlp")["blocks.2.mlp"]
    >>> relevance.shape
    torch.Size([2, 65, 96])
    """
    model, inputs = open_model(model, inputs, processor=processor)
    how = Conditions(None, explain_inputs, precision, on_unknown)

    def session_of(bound: Inputs) -> Session:
        session = open_session(model, bound, rules or "paper", how)
        if session.program.input_specialised and bound.batch > 1:
            raise OptionError(
                f"the model branches on values ({session.program.decisions[0]}): "
                f"instrument one sample at a time, not {bound.batch}"
            )
        return replace(session, program=named(session.program, model, bound))

    def opened(others: Any) -> tuple[Session, Inputs]:
        with undisturbed(model), torch.no_grad():
            bound = bind(open_model(model, others, processor=processor)[1])
            check_devices(model, bound)
            return session_of(bound), bound

    with undisturbed(model), torch.no_grad():
        bound = bind(inputs)
        check_devices(model, bound)

        def call(bound: Inputs, judge: Judge) -> Instrument:
            judge.hear(bound)
            session = session_of(bound).reading([target], bound)
            starts = compared_outputs(session.program, [target])
            probe = Instrument(session, bound, target, rules, opened)
            values = probe._forward()[0].forward.values
            heard = judge.heard(session.program, bound, starts)
            probe.may_differentiate = judge.compare(session, heard, values)
            return probe

        return judged(model, bound, verify, call)
