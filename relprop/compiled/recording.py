"""One run of the whole method, recorded as a graph: forward pass, gradient, relevance and roll-up,
for a batch of one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

from relprop.adapters import Prepared
from relprop.compiled.head import Head, start_at
from relprop.compiled.ledger_rows import LedgerRows
from relprop.compiled.tape import NotFlat, Tape, Writes
from relprop.errors import OptionError
from relprop.explanation.tokens import MAPS
from relprop.interpreter.forward import detached
from relprop.operations import Value
from relprop.operations.looking import recorded
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.describe import probabilities
from relprop.runner.input_study import InputStudy
from relprop.runner.needs import Needs
from relprop.runner.numbers import Numbers, at_input, over_attention
from relprop.runner.run import Described, Part, Run, forward_pass
from relprop.targets.outputs import class_output, has_batch_axis
from relprop.targets.start import Start
from relprop.tracer.binding import Inputs
from relprop.tracer.facts import is_floating
from relprop.tracer.surroundings import TRACING, unwarned

EXPLAIN = "relprop.explain(model, inputs, target, ...), which records nothing"
#: What a flat program gives, by name.
Outputs = dict[str, Tensor]


@dataclass(frozen=True)
class Recorded:
    """A recorded ``graph``, the tensors that it holds, and what it ``gave`` when it was recorded;
    how the ledger in that is to be read; the ``sizes`` of all tensors in it."""

    graph: fx.Graph
    held: dict[str, Tensor]
    rows: LedgerRows | None
    gave: Outputs
    sizes: set[int]


@dataclass(frozen=True)
class Recording:
    """What is recorded: the question's ``needs``, one element per sample of the output ``node``,
    which ``head`` describes, for inputs like ``inputs``, whose tokens are as ``described``."""

    needs: Needs
    node: fx.Node
    head: Head
    inputs: Inputs
    described: Described

    def at(self, batch: int, *, shorter: bool = True) -> Recorded:
        """The graph for any number of samples, recorded for ``batch``. Its inputs are the call's
        tensors, then which tokens of each explained input are content, (batch, tokens), then the
        index of what is explained: (batch,), or (batch, axes) of an output with several.

        Raises:
            OptionError: where the method looks at values, which cannot be recorded, or where an
                operation gives something else at every call.
        """
        given = self.given(batch)
        try:
            slow = unwarned("There is a performance drop")
            tape = Tape(given, batch, self.inputs.batched.index(True), shorter=shorter)
            with TRACING, torch.no_grad(), slow, recorded(), tape:
                outputs, rows = self._run(given, batch)
        except Writes:
            return self.at(batch, shorter=False)
        except NotFlat as error:
            raise not_flat(self.needs.question.method, str(error)) from error
        tape.finish(outputs)
        return Recorded(tape.graph, tape.held, rows, outputs, tape.sizes)

    def given(self, batch: int) -> list[Tensor]:
        """Inputs of ``batch`` samples, repeated from those that there are."""
        content = [one["content"] for one in self.described.values()]
        axes, where = len(self.head.axes), self.inputs.tensors[0].device
        size = (batch,) if axes == 1 else (batch, axes)
        index = torch.zeros(size, dtype=torch.long, device=where)
        repeated = [
            self._repeated(t, batch) if b else t.clone()
            for t, b in zip(self.inputs.tensors, self.inputs.batched, strict=True)
        ]
        return [*repeated, *(self._repeated(c, batch) for c in content), index]

    @staticmethod
    def _repeated(tensor: Tensor, batch: int) -> Tensor:
        return tensor[torch.arange(batch, device=tensor.device) % len(tensor)].contiguous()

    def _run(self, given: Sequence[Tensor], batch: int) -> tuple[Outputs, LedgerRows | None]:
        count = len(self.inputs.tensors)
        tensors, contents, index = given[:count], given[count:-1], given[-1]
        inputs = replace(self.inputs, tensors=tuple(tensors), batch=batch)
        known = zip(self.described.items(), contents, strict=True)
        described = {name: {**one, "content": content} for (name, one), content in known}
        done = forward_pass([self.needs], Part(inputs, Prepared(None), 0, batch), described)
        values, leading = done.forward.values, has_batch_axis(self.node)
        with torch.enable_grad():
            index = index[:, None] if index.dim() == 1 else index
            start, chosen = start_at(self.node, values[self.node], index, leading=leading)
        watch = self.needs.watch if self.needs.differentiates else ()
        scalars = done.explained(self.needs.session, self.needs.question, start)
        gradients = done.forward.gradients(scalars, watch, again=False) if watch else {}
        numbers = self._numbers(done, start, gradients)
        outputs = named(numbers) | {"output": start.scalars.detach(), "index": chosen}
        outputs |= self._of_model(values)
        if numbers.ledger is None:
            return outputs, None
        rows, amounts = LedgerRows.of(numbers.ledger)
        return outputs | {"ledger": amounts}, rows

    def _numbers(self, run: Run, start: Start, gradients: Mapping[fx.Node, Tensor]) -> Numbers:
        if self.needs.question.by.level == "attention":
            return over_attention(AttentionStudy(self.needs, run, None, start, gradients))
        return at_input(InputStudy(self.needs, run, None, start, gradients))

    def _of_model(self, values: Mapping[fx.Node, Value]) -> Outputs:
        """The model's own outputs, as it returns them, and the probabilities of its classes."""
        session, found = self.needs.session, Outputs()
        for name, node in explainable(self.needs).items():
            value = detached(values[node])
            found[f"model.{name}"] = value[:, 0] if has_batch_axis(node) else value
        if self.head.is_class_output and len(self.head.size) == 1:
            logits = found[f"model.{class_output(session.program).name}"]
            probable = probabilities(session.adapter, session.model, logits)
            found |= {} if probable is None else {"probabilities": probable}
        return found


def explainable(needs: Needs) -> dict[str, fx.Node]:
    """The floating outputs of the model that depend on what is explained, by name."""
    program, flow = needs.program, needs.session.flow
    both = zip(program.outputs.names, program.output_nodes, strict=True)
    return {name: n for name, n in both if n in flow.members and is_floating(n)}


def named(numbers: Numbers) -> Outputs:
    """The tensors of a method's numbers but the ledger's, by name."""
    found: dict[str, Tensor | None] = {}
    for name, (scores, identity) in numbers.pairs.items():
        found |= {f"{name}.scores": scores, f"{name}.identity": identity}
    found |= {f"{name}.input": t for name, t in numbers.inputs.items()}
    found |= {f"{name}.layers": t for name, t in numbers.layers.items()}
    found["matrix"] = numbers.matrix
    for i, block in enumerate(numbers.blocks or ()):
        found |= {f"blocks.{i}.{kind}": getattr(block, kind) for kind in MAPS}
    return {name: t for name, t in found.items() if t is not None}


def not_flat(method: str, why: str) -> OptionError:
    """What to say of a method that no program for all calls can hold."""
    fact = f"method {method!r} cannot be one flat program: {why}"
    return OptionError(fact, then=[EXPLAIN])
