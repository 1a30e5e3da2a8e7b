"""From a model, inputs and a question to a flat program: what cannot be one is refused by name, the
rest is recorded and made good for any batch."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from torch import Tensor, fx, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from relprop.compiled.batches import SIZES, of_any_batch
from relprop.compiled.explainer import Manual, Shape
from relprop.compiled.head import ONE_ELEMENT, Head
from relprop.compiled.layout import laid_out
from relprop.compiled.live import Live
from relprop.compiled.recording import Recording
from relprop.compiled.tidying import EXPLAIN, tidied
from relprop.compiled.views import without_idle_calls
from relprop.compiled.weights import ties, with_names
from relprop.errors import InputError, OptionError, TargetError, message
from relprop.runner.answer import Made
from relprop.runner.conditions import Conditions
from relprop.runner.needing import needs_of
from relprop.runner.needs import Heads, Needs
from relprop.runner.question import Question
from relprop.runner.run import Part
from relprop.runner.session import Session, open_session
from relprop.targets.inside import reads_inside
from relprop.targets.outputs import ModelOutput, class_output_or_none
from relprop.targets.resolve import is_callable, possible_starts
from relprop.tracer.offloaded import is_offloaded


@dataclass(frozen=True)
class Flat:
    """A flat program of a model: the graph, how it is asked and read, and the model it is of."""

    module: fx.GraphModule
    manual: Manual
    live: Live


def make_flat(
    model: nn.Module, part: Part, target: object, question: Question, how: Conditions
) -> Flat:
    """The program of a ``question`` about any element of the output that ``target`` names, for
    inputs like those of ``part``.

    Raises:
        OptionError: for what cannot be one program: methods that run the model several times, draw
            random numbers or look at values; models captured sample by sample, whose weights are
            offloaded or quantised.
        TargetError: for a target that is not one element of an output.
    """
    _refuse_method(question)
    _refuse_model(model)
    if reads_inside([target]):
        raise OptionError(message("the target is inside the model", then=[EXPLAIN]))
    session = open_session(model, part.inputs, question.rule_set, how)
    _refuse_program(session)
    needs = _needs(session, question, target)
    session.warn_once(needs.notices)
    output = _output(session, target)
    head = _head(session, output)
    layouts, described = laid_out(needs, part, output.node)
    recording = Recording(needs, output.node, head, part.inputs, described)
    small, rows = recording.at(SIZES[0])
    large, _ = recording.at(SIZES[1])
    without_idle_calls(small, large)
    given = small.graph.find_nodes(op="placeholder")
    batched = part.inputs.batched.index(True)
    module = of_any_batch(small, large, given[batched])
    count = len(part.inputs.tensors)
    module, left = tidied(module, count, count + len(layouts))
    module, weights = with_names(module, model)
    over_attention = question.by.level == "attention"
    manual = Manual(
        Shape.of(part.inputs),
        head,
        tuple(list(layouts)[i] for i in left),
        layouts,
        over_attention,
        Made.by(needs),
        rows,
        tuple(s.path for s in needs.chosen) if "blocks" in question.keep else None,
    )
    example = _example(recording, left)
    tied = ties(model, weights)
    return Flat(module, manual, Live(needs, output.node, module, weights, tied, example, model))


def _example(recording: Recording, left: tuple[int, ...]) -> tuple[tuple[Tensor, bool], ...]:
    """Tensors of several samples, of which those are left that the program takes."""
    count, given = len(recording.inputs.tensors), recording.given(SIZES[1])
    contents = [given[count + i] for i in left]
    own = zip(given[:count], recording.inputs.batched, strict=True)
    return (*own, *((t, True) for t in (*contents, given[-1])))


def _needs(session: Session, question: Question, target: object) -> Needs:
    """What the question needs where every attention map is whole, and relevance passes the end of
    the graph like everything else: which positions are read is known to no program."""
    needs = needs_of(session, question, [target], sys.maxsize)
    return replace(needs, backward=replace(needs.backward, heads=Heads()))


def _output(session: Session, target: object) -> ModelOutput:
    """The one output that the target names."""
    if is_callable(target):
        raise TargetError(message("target is a callable", then=[ONE_ELEMENT]))
    nodes = possible_starts(session.program, [target])
    if len(nodes) != 1:
        fact = f"the target is of {len(nodes)} outputs"
        raise TargetError(message(fact, then=[ONE_ELEMENT]))
    names = session.program.outputs.names
    return ModelOutput(names[session.program.output_nodes.index(nodes[0])], nodes[0])


def _head(session: Session, output: ModelOutput) -> Head:
    classes = class_output_or_none(session.program)
    place = session.program.outputs.names.index(output.name)
    is_class = classes is not None and classes.node is output.node
    return Head(output.name, place, output.size, is_class)


def _refuse_method(question: Question) -> None:
    method = question.by
    if method.cost and not method.cheap:
        fact = (
            f"method {method.name!r} cannot be one flat program: it runs the model several times "
            f"({method.cost} forward passes)"
        )
        raise OptionError(message(fact, then=[EXPLAIN]))
    if question.average is not None:
        fact = f"average={question.average}: a flat program runs the model once"
        raise OptionError(message(fact, then=[EXPLAIN]))


def _refuse_model(model: nn.Module) -> None:
    if is_offloaded(model):
        fact = "weights are offloaded: a flat program holds all of them"
        raise InputError(message(fact, then=["load the whole model", EXPLAIN]))
    for name, parameter in model.named_parameters():
        if is_traceable_wrapper_subclass(parameter):
            kind = type(parameter).__name__
            fact = f"parameter {name!r} is a {kind}, which a flat program cannot read"
            raise InputError(message(fact, then=["compile the model before quantisation", EXPLAIN]))


def _refuse_program(session: Session) -> None:
    if session.program.input_specialised:
        raise OptionError(
            message(
                "the model is captured sample by sample, since values decide what it computes "
                f"({', '.join(session.program.decisions[:3])}): no program is for all inputs",
                then=[EXPLAIN],
            )
        )
