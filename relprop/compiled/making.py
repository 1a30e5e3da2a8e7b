"""From a model, inputs and a question to a flat program: what cannot be one is refused by name, the
rest is recorded and made good for any batch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from relprop.compiled.batches import prime_beside, sizes_of
from relprop.compiled.explainer import ProgramUsage, Shape
from relprop.compiled.head import ONE_ELEMENT, Head
from relprop.compiled.live import Live
from relprop.compiled.native import Functions, functions_of
from relprop.compiled.recording import EXPLAIN, Recorded, Recording, not_flat
from relprop.compiled.tape import is_mutable
from relprop.compiled.weights import ties, with_names
from relprop.errors import (
    CaptureError,
    InputError,
    OptionError,
    RollUpError,
    TargetError,
    first_line,
)
from relprop.layout import Layout
from relprop.rollup import Stream
from relprop.runner.answer import Made
from relprop.runner.conditions import Conditions
from relprop.runner.describe import described_by, layout_of
from relprop.runner.input_study import input_streams
from relprop.runner.needing import needs_of
from relprop.runner.needs import Heads, Needs
from relprop.runner.question import Question
from relprop.runner.run import Described, Part, run
from relprop.runner.session import Session, open_session
from relprop.runner.sites import reached_inputs
from relprop.targets.inside import reads_inside
from relprop.targets.outputs import ModelOutput, class_output_or_none
from relprop.targets.resolve import is_callable, possible_starts
from relprop.tracer.model_comparison import largest
from relprop.tracer.offloaded import is_offloaded
from relprop.tracer.program import Program

#: So many samples a program is tried with; fewer than any number that it is recorded for.
EXAMPLE = 3
#: For so many numbers of samples it is recorded, if the first ones are no good.
TRIALS = 3


def make_flat(
    model: nn.Module, part: Part, target: object, question: Question, how: Conditions
) -> tuple[ProgramUsage, Live]:
    """The program of a ``question`` about any element of the output that ``target`` names, for
    inputs like those of ``part``: how it is asked and read, and the model it is of, which holds it.

    Raises:
        OptionError: for what cannot be one program: methods that run the model several times, draw
            random numbers or look at values; models captured sample by sample, whose weights are
            offloaded or quantised.
        TargetError: for a target that is not one element of an output.
    """
    _refuse_method(question)
    _refuse_model(model)
    if reads_inside([target]):
        raise OptionError("the target is inside the model", then=[EXPLAIN])
    session = open_session(model, part.inputs, question.rule_set, how)
    _refuse_program(session)
    needs = _needs(session, question, target)
    session.warn_once(needs.notices)
    output, head = _output(session, target)
    layouts, described = _laid_out(needs, part, output.node)
    recording = Recording(needs, output.node, head, part.inputs, described)
    flat = _of_any_batch(recording, session.program, model)
    over_attention = question.by.level == "attention"
    usage = ProgramUsage(
        Shape.of(part.inputs),
        head,
        tuple(list(layouts)[i] for i in flat.left),
        layouts,
        over_attention,
        Made.by(needs),
        flat.recorded.rows,
        tuple(s.path for s in needs.chosen) if "blocks" in question.keep else None,
    )
    tied = ties(model, flat.weights)
    made = flat.module, flat.functions, flat.weights, tied, flat.example
    return usage, Live(needs, output.node, *made, model, how)


@dataclass(frozen=True)
class _Flat:
    """A program, ``recorded`` for some samples, as a ``module`` of those of the model's tensors
    that ``weights`` names; which of the inputs' contents are ``left`` in it, and an ``example`` of
    what it takes, with which it was tried; the functions for its operators."""

    recorded: Recorded
    left: tuple[int, ...]
    module: fx.GraphModule
    weights: tuple[str, ...]
    example: tuple[Tensor, ...]
    functions: Functions


def _of_any_batch(recording: Recording, program: Program, model: nn.Module) -> _Flat:
    """The program for any number of samples. It is tried for others than it was recorded for: what
    is as large by chance, as the rows of a ledger may be, is known to the next recording."""
    sizes = sizes_of(program)
    for _ in range(TRIALS):
        recorded = recording.at(size := prime_beside(sizes))
        count = len(recording.inputs.tensors)
        left = _without_unread(recorded.graph, count, count + len(recording.described))
        module, weights = with_names(recorded.graph, recorded.held, model)
        given = recording.given(EXAMPLE)
        example = (*given[:count], *(given[count + i] for i in left), given[-1])
        try:
            functions = _tried(module, example, recorded.gave, size)
        except CaptureError as error:
            refused = error
            sizes |= {size} | {n // size if n % size == 0 else n for n in recorded.sizes}
        else:
            return _Flat(recorded, left, module, weights, example, functions)
    raise refused


def _without_unread(graph: fx.Graph, first: int, last: int) -> tuple[int, ...]:
    """Take out of a graph what nobody reads, and those of its inputs from ``first`` to ``last``;
    which of these are left. What draws was refused; PyTorch takes for drawing, too, what only
    chooses a kernel for attention, which was chosen as the run was recorded."""
    graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output") or is_mutable(n.target))
    optional = graph.find_nodes(op="placeholder")[first:last]
    left = tuple(i for i, node in enumerate(optional) if node.users)
    for node in optional:
        if not node.users:
            graph.erase_node(node)
    graph.lint()
    return left


def _tried(
    module: fx.GraphModule, example: tuple[Tensor, ...], gave: Mapping[str, Tensor], size: int
) -> Functions:
    """The functions for the operators of a program. Raises ``CaptureError`` where it does not give
    for the few samples of an ``example`` what it ``gave`` for these among ``size``."""
    try:
        outputs, functions = functions_of(module, example)
    except Exception as error:  # any operator may refuse sizes, each by an error of its own
        raise _one_size(first_line(error)) from error
    for name, more in gave.items():
        found = outputs[name]
        shape = [n if n % size else n // size * EXAMPLE for n in more.shape]
        wanted = more[tuple(map(slice, shape))]
        if wanted.shape != found.shape or not _is_alike(found, wanted):
            raise _one_size(f"it gives another {name!r} of {tuple(found.shape)}")
    return functions


def _is_alike(found: Tensor, wanted: Tensor) -> bool:
    """Whether two tensors differ by no more than rounding, by √ε of the largest number."""
    if not wanted.is_floating_point():
        return torch.equal(found, wanted)
    allowed = torch.finfo(wanted.dtype).eps ** 0.5 * largest(wanted)
    return torch.allclose(found, wanted, rtol=0, atol=allowed, equal_nan=True)


def _one_size(fact: str) -> CaptureError:
    whole = f"a flat program of any batch size could not be made of one for some samples: {fact}"
    then = "relprop.explain, which records nothing, explains this model"
    return CaptureError(whole, then=[then])


def _laid_out(needs: Needs, part: Part, node: fx.Node) -> tuple[Mapping[str, Layout], Described]:
    """By explained input the layout of its tokens, for a target at the output ``node``, and what
    the tokens of ``part`` are."""
    done = run([needs], part)
    layouts = {s.name: layout_of(needs.session, done, s) for s in _streams(needs, node)}
    adapter, model = needs.session.adapter, needs.session.model
    return layouts, {n: described_by(adapter, model, part, n, at) for n, at in layouts.items()}


def _streams(needs: Needs, node: fx.Node) -> tuple[Stream, ...]:
    session = needs.session
    if needs.question.by.level == "input":
        return input_streams(session.program, reached_inputs(session, (node,)))
    _, streams = session.rollup((node,), needs.sites)
    if not streams:
        raise RollUpError(
            "the roll-up does not arrive: no explained input feeds the attention sites"
        )
    return streams


def _needs(session: Session, question: Question, target: object) -> Needs:
    """What the question needs where every attention map is whole, and relevance passes the end of
    the graph like everything else: which positions are read is known to no program."""
    needs = needs_of(session, question, [target], sys.maxsize)
    return replace(needs, backward=replace(needs.backward, heads=Heads()))


def _output(session: Session, target: object) -> tuple[ModelOutput, Head]:
    """The one output that the target names, and how one element of it is named."""
    if is_callable(target):
        raise TargetError("target is a callable", then=[ONE_ELEMENT])
    program = session.program
    nodes = possible_starts(program, [target])
    if len(nodes) != 1:
        fact = f"the target is of {len(nodes)} outputs"
        raise TargetError(fact, then=[ONE_ELEMENT])
    place = program.output_nodes.index(nodes[0])
    output = ModelOutput(program.outputs.names[place], nodes[0])
    classes = class_output_or_none(program)
    is_class = classes is not None and classes.node is output.node
    return output, Head(output.name, place, output.size, is_class)


def _refuse_method(question: Question) -> None:
    method = question.by
    if method.cost and not method.cheap:
        why = f"it runs the model several times ({method.cost} forward passes)"
        raise not_flat(method.name, why)
    if question.average is not None:
        fact = f"average={question.average}: a flat program runs the model once"
        raise OptionError(fact, then=[EXPLAIN])


def _refuse_model(model: nn.Module) -> None:
    if is_offloaded(model):
        fact = "weights are offloaded: a flat program holds all of them"
        raise InputError(fact, then=["load the whole model", EXPLAIN])
    for name, parameter in model.named_parameters():
        if is_traceable_wrapper_subclass(parameter):
            kind = type(parameter).__name__
            fact = f"parameter {name!r} is a {kind}, which a flat program cannot read"
            raise InputError(fact, then=["compile the model before quantisation", EXPLAIN])


def _refuse_program(session: Session) -> None:
    if session.program.input_specialised:
        raise OptionError(
            "the model is captured sample by sample, since values decide what it computes "
            f"({', '.join(session.program.decisions[:3])}): no program is for all inputs",
            then=[EXPLAIN],
        )
