"""Values that are set in a run; gradients and relevance are those of the changed run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor

from relprop.adapters.masks import is_padded
from relprop.api.many import outcomes
from relprop.api.observation import Observation
from relprop.api.settings import (
    Parts,
    Places,
    at_parts,
    change_of,
    checked_settings,
    stand_in,
    step_of,
    tidy,
)
from relprop.error_boundary import guarded
from relprop.errors import OptionError, PartlySetWarning, SharedBatchWarning, warn
from relprop.explanation import Explanation
from relprop.rules import RuleSet
from relprop.runner.ask import ask_once
from relprop.runner.method import method_named
from relprop.runner.question import Question, checked_keep
from relprop.runner.session import Session
from relprop.tracer.binding import Inputs
from relprop.tracer.changes import Change, changed, read_past
from relprop.tracer.facts import describe
from relprop.tracer.run import execute
from relprop.tracer.surroundings import undisturbed


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
        self._own = session, inputs
        #: The rules that the user gave, and what makes a session of other inputs.
        self._rules, self._opened = rules, opened

    def __enter__(self) -> Instrument:
        return self

    def __exit__(self, *error: object) -> None:
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
        self.target = self._fixed_target()
        self.session, self.inputs = self._with(change)
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
        at = at_parts(self.session.program, name, own, parts)
        self.set(name, whole[at], **parts)

    def steer(
        self,
        name: str,
        direction: Tensor,
        strength: float = 1.0,
        **parts: Unpack[Parts],
    ) -> None:
        """Add ``strength`` times a ``direction`` to a node's value: ``(features,)``, or what
        stretches to one sample's value. Gradient and relevance pass it; ``parts``: as for ``set``.

        >>> import torch, relprop
        >>> from relprop.demo.model import digit_scene_model
        >>> with relprop.instrument(digit_scene_model(), torch.rand(2, 1, 32, 32), target=3) as probe:
        ...     probe.steer("blocks.1", torch.ones(96), 0.1, positions=0)
        ...     changed = probe.output()
        """  # noqa: E501
        own = tidy(self._forward()[0].detached()[self._one(name)])
        step = step_of(name, direction, strength, own)
        self.set(name, lambda value: value + step.to(value), **parts)

    def clear(self) -> None:
        """Take all that was ``set`` away again."""
        self.session, self.inputs = self._own
        self._forget()

    def many(self, settings: Sequence[Mapping[str, Any]]) -> Tensor:
        """y_t of every sample for each of many settings, (settings, batch). A setting has the
        arguments of ``set`` by name: ``{"name": ..., "value": 0.0, "heads": 1}``. It is beside what
        is set already. The graph runs from its node on alone, for as many settings of one node at
        once as memory allows."""
        done, start = self._forward()
        assert start.again is not None
        changes = [self._change(**one) for one in checked_settings(settings)]
        found = {
            i: Observation(*self._with(change), self._fixed_target()).output()
            for i, change in enumerate(changes)
            if read_past(self.session.program, change)  # another graph
            or not all(map(change.is_read_by, change.node.users))
        }
        others = [i for i in range(len(changes)) if i not in found]
        some = [changes[i] for i in others]
        rows = outcomes(self.session, self.inputs, done.detached(), some, start.again)
        found |= dict(zip(others, rows, strict=True))
        return torch.stack([found[i] for i in range(len(changes))])

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

    def _fixed_target(self) -> Any:
        """The target; in place of ``None`` what was predicted, whatever is predicted with what is
        set."""
        label = self._forward()[1].label
        if self.target is None and all(isinstance(one, int | tuple) for one in label):
            return list(label)
        return self.target

    def _change(self, name: str, value: Any, parts: Parts) -> Change:
        """What ``set`` is told, for the graph as it is now."""
        node, own = self._one(name), self._forward()[0].detached()
        return change_of(self.session.program, node, name, own[node], value, parts)

    def _with(self, change: Change) -> tuple[Session, Inputs]:
        """The run with one change more."""
        made = changed(self.session.program, self.inputs, change, self.session.model)
        if made.past:
            fact = f"{change.name!r} is set, and what it is made of is read elsewhere, too"
            then = ["compare with a forward hook, or set a value behind it"]
            with self._warned():
                warn(PartlySetWarning(fact, at=describe(made.past[0]), then=then))
        session = replace(self.session, program=made.program)
        return session.reading([self.target], made.inputs), made.inputs

    def _of_others(self, name: str, reference: Any) -> Tensor:
        """A node's value of other samples, the model as it is."""
        session, inputs = self._opened(reference)
        if is_padded(dict(zip(inputs.names, inputs.tensors, strict=True))):
            fact = "reference= holds padded texts, whose padding would stand in for tokens"
            raise OptionError(fact, then=["give it texts of one length"])
        node = session.program.labels[name]
        with undisturbed(session.model), torch.no_grad():
            return tidy(execute(session.program, session.model, inputs, {node})[node])
