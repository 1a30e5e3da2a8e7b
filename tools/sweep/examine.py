"""Everything the sweep wants to know about one subject. Columns are worked out one by one, so that
one failure hides no other."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

import relprop
from relprop.errors import NoAttentionError, RoundingError, TargetError, first_line
from relprop.explanation import Explanation
from relprop.tracer.binding import bind, flatten_output
from relprop.tracer.facts import is_batched
from relprop.tracer.model_comparison import difference
from relprop.tracer.program import Program
from relprop.tracer.run import execute
from relprop.tracer.surroundings import undisturbed
from tools.sweep.gradient import balanced_gradient, one_gradient
from tools.sweep.huggingface_inputs import along
from tools.sweep.record import (
    BALANCED_STAGE,
    EXPLAINED,
    FAILED,
    GRADIENT_STAGE,
    MEASURED,
    NO_ATTENTION,
    NOT_BUILT,
    Record,
)
from tools.sweep.reviewed import is_reviewed
from tools.sweep.snapshot import differences, snapshot
from tools.sweep.subject import Built, CannotBuild, Subject
from tools.sweep.subjects import build
from tools.sweep.targets import element

GRAPH, LEDGER, BATCH = (
    1e-4,
    1e-5,
    1e-6,
)  # relative errors that count as equal: float32 outputs, balanced books, float64 scores
Streams = dict[str, Explanation]


def examine(subject: Subject, gradient_alone: bool = False) -> Record:
    """The subject's record; of its columns those of gradients alone, if that is wanted. It never
    raises for what a model does."""
    record = Record(
        subject.name,
        subject.source,
        subject.family,
        subject.entry,
        list(subject.tasks),
        subject.named,
    )
    began = time.perf_counter()
    try:
        built = build(subject)
    except CannotBuild as reason:
        record.status, record.cause = NOT_BUILT, str(reason)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if gradient_alone:
                _gradients(built, record)
            else:
                _columns(built, record)
        if gradient_alone:
            record.status = FAILED if record.failures else MEASURED
            record.cause = ": ".join(record.failures[0]) if record.failures else ""
        else:
            _conclude(record, subject)
    record.seconds = round(time.perf_counter() - began, 2)
    return record


def _columns(built: Built, record: Record) -> None:
    model, inputs = built.model, built.inputs
    record.parameters, record.shrunk = sum(p.numel() for p in model.parameters()), built.shrunk
    record.inputs = {name: list(t.shape) for name, t in _named(inputs).items()}
    before = snapshot(model, inputs)
    program = _captured(built, record)
    if program is not None:
        together = _explained(built, record, program)
        if together is not None:
            with _stage(record, "batch-exactness"):
                record.batch_error = _batch_error(built, record)
        _gradients(built, record)
    with _stage(record, "model untouched"):
        changed = differences(before, snapshot(model, inputs))
        record.untouched = not changed
        if changed:
            raise AssertionError(f"{len(changed)} things changed: {', '.join(changed[:4])}")


def _gradients(built: Built, record: Record) -> None:
    for stage, measured in ((GRADIENT_STAGE, one_gradient), (BALANCED_STAGE, balanced_gradient)):
        with _stage(record, stage):
            measured(partial(_explain, built, record), _batch(built.inputs), record)


@contextmanager
def _stage(record: Record, stage: str) -> Iterator[None]:
    """Write down what goes wrong inside as this stage's failure."""
    try:
        yield
    except Exception as error:
        record.failures.append([stage, _reason(error)])


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    where = next((line for line in lines[1:] if line.startswith("at ")), "")
    return f"{type(error).__name__}: {lines[0] if lines else ''}{f'  {where}' if where else ''}"[
        :600
    ]


def _named(inputs: Any) -> dict[str, Tensor]:
    return inputs if isinstance(inputs, dict) else {"input_0": inputs}


def _call(model: nn.Module, inputs: Any) -> Any:
    with undisturbed(model), torch.no_grad():
        return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def _alone(inputs: Any, i: int) -> Any:
    return (
        {k: v[i : i + 1] for k, v in inputs.items()}
        if isinstance(inputs, dict)
        else inputs[i : i + 1]
    )


def _explain(built: Built, record: Record, sample: int | None = None, **options: Any) -> Any:
    """The explanation for the default target, or, where the model has nothing that is one, for an
    element of its output; the target is kept. Of all samples, or of one alone."""
    inputs = built.inputs if sample is None else _alone(built.inputs, sample)
    try:
        explanation = relprop.explain(built.model, inputs, built.target, **options)
    except RoundingError:  # what is picked by value is explained in double
        record.another_in_double = True
        return _explain(built, record, sample, **options | {"precision": "float64"})
    except TargetError:
        if built.target is not None:
            raise
        built.target = element(
            _call(built.model, _alone(built.inputs, 0)), next(iter(built.pads.values()), None)
        )
        explanation = relprop.explain(built.model, inputs, built.target, **options)
    record.target = (
        "the default"
        if built.target is None
        else str(getattr(built.target, "__name__", built.target))
    )
    return explanation


def _batch(inputs: Any) -> int:
    return int(next(iter(_named(inputs).values())).shape[0])


def _captured(built: Built, record: Record) -> Program | None:
    """The program, with the columns that are read off it; each sample's own where the graph holds
    for one input only."""
    program: Program | None = None
    with _stage(record, "capture"):
        began = time.perf_counter()
        program = relprop.trace(built.model, built.inputs)
        record.capture_seconds = round(time.perf_counter() - began, 3)
        record.front_end, record.decisions = program.front_end, len(program.decisions)
        seen = dict.fromkeys(s.softmax for s in program.sites)
        record.sites, record.softmaxes = len(program.sites), len(seen) + len(program.no_sites)
        record.softmaxes_without_site = program.softmaxes_without_site
    if program is None:
        return None
    with _stage(record, "graph equals model"):
        record.graph_error = _graph_error(program, built.model, _alone(built.inputs, 0))
        _need(record.graph_error, GRAPH, "the graph differs from the model")
    with _stage(record, "graph equals model on another input"):
        other = _alone(built.another, 1)
        again = relprop.trace(built.model, other) if program.input_specialised else program
        record.graph_error_another = _graph_error(again, built.model, other)
        if (
            record.graph_error_another > GRAPH
        ):  # rounding may decide between near ties: what is picked by value is compared in double
            record.graph_error_another = _graph_error(
                replace(again, dtype=torch.float64),
                copy.deepcopy(built.model).double(),
                _double(other),
            )
            record.another_in_double = True
        _need(
            record.graph_error_another, GRAPH, "the graph differs from the model on another input"
        )
    return program


def _graph_error(program: Program, model: nn.Module, inputs: Any) -> float:
    """The largest relative difference of any output."""
    with undisturbed(model), torch.no_grad():
        bound = bind(inputs)
        values = execute(program, model, bound, keep=set(program.output_nodes))
    worst = 0.0
    for node, eager in zip(
        program.output_nodes, flatten_output(_call(model, inputs))[0], strict=True
    ):
        error, scale = difference(values[node][0] if is_batched(node) else values[node], eager)
        worst = max(worst, error / scale if scale else error)
    return worst


def _double(inputs: Any) -> Any:
    return torch.utils._pytree.tree_map_only(
        Tensor, lambda t: t.double() if t.is_floating_point() else t, inputs
    )


def _need(value: float, limit: float, fact: str) -> None:
    if not value <= limit:
        raise AssertionError(f"{fact}: {value:.1e}, more than {limit:.0e}")


def _explained(built: Built, record: Record, program: Program) -> Streams | None:
    """The explanation in the model's own precision, and the columns of its scores; ``None`` where
    there is none."""
    if not program.sites:
        _without_attention(built, record)
        return None
    streams: Streams | None = None
    with _stage(record, "explain"):
        explanation = _explain(built, record)
        streams = _streams(explanation)
        record.streams = {name: list(s.scores.shape) for name, s in streams.items()}
        record.generic = sorted(set(explanation.facts.get("generic", ())))
        ledger = explanation.ledger
        record.ledger_error = None if ledger is None else ledger.worst()
    if streams is None:
        return None
    with _stage(record, "roll-up"):
        missing = [
            name
            for name, leaf in program.leaves.items()
            if name not in streams and _feeds_attention(program, leaf)
        ]
        if missing:
            raise AssertionError(
                f"no scores for {', '.join(missing)}; there are {', '.join(streams)}"
            )
    with _stage(record, "ledger"):
        if record.ledger_error is None:
            raise AssertionError("the explanation has no ledger")
        _need(record.ledger_error, LEDGER, "the books do not balance")
    with _stage(record, "scores"):
        _scores(streams, explanation.output, built, record)
    return streams


def _feeds_attention(program: Program, leaf: fx.Node) -> bool:
    """Whether the values of some attention site come from an input: a convolutional tower beside a
    transformer has no token scores."""
    below = {leaf}
    for node in program.graph.nodes:
        if any(i in below for i in node.all_input_nodes):
            below.add(node)
    return any(s.values in below for s in program.sites)


def _streams(explanation: Any) -> Streams:
    found: Mapping[str, Any] | None = getattr(explanation, "streams", None)
    return dict(found) if found else {explanation.stream: explanation}


def _scores(streams: Streams, output: Tensor, built: Built, record: Record) -> None:
    pads = built.pads
    record.finite = all(bool(torch.isfinite(s.scores).all()) for s in streams.values())
    record.largest_score = max(float(s.scores.abs().max()) for s in streams.values())
    padded = {
        n: s.scores[pads[n]]
        for n, s in streams.items()
        if n in pads and pads[n].shape == s.scores.shape
    }
    record.pads_zero = all(bool((p == 0).all()) for p in padded.values()) if padded else None
    if not record.finite:
        raise AssertionError("scores are not finite")
    empty = [name for name, s in streams.items() if not float(s.scores.abs().max()) > 0]
    if empty:
        raise AssertionError(f"all scores of {', '.join(empty)} are 0")
    if record.pads_zero is False and _reads_padding(built, output):
        record.pads_zero, record.reads_padding = None, True
    if record.pads_zero is False:
        worst = max(float(p.abs().max()) for p in padded.values() if p.numel())
        raise AssertionError(
            f"padding has scores, up to {worst:.1e} where the largest is {record.largest_score:.1e}"
        )


def _reads_padding(built: Built, output: Tensor) -> bool:
    """Whether what is explained depends on the tokens that the mask hides: some models convolve or
    pool over them. Asked of the model, not of the explanation."""
    inputs = dict(_named(built.inputs))
    for name, hidden in built.pads.items():
        given = inputs[name]
        other = (
            torch.ones_like(given)
            if given.is_floating_point()
            else given[torch.arange(len(hidden)), (~hidden).long().argmax(1)].unsqueeze(1)
        )  # the first real token
        inputs[name] = torch.where(along(hidden, given), other, given)
    error, scale = difference(relprop.explain(built.model, inputs, built.target).output, output)
    return error > 1e-4 * scale


def _batch_error(built: Built, record: Record) -> float:
    """The largest difference between a sample explained with others and alone, in float64, relative
    to the largest score."""
    together = _streams(
        relprop.explain(built.model, built.inputs, built.target, precision="float64")
    )
    worst = 0.0
    for i in range(_batch(built.inputs)):
        one = _streams(
            relprop.explain(built.model, _alone(built.inputs, i), built.target, precision="float64")
        )
        for name, stream in one.items():
            error, scale = difference(together[name].scores[i], stream.scores[0])
            worst = max(worst, error / scale if scale else error)
    _need(worst, BATCH, "a sample in a batch differs from the sample alone")
    return worst


def _without_attention(built: Built, record: Record) -> None:
    """A model without token attention: the default method says so, and relevance at the input is
    tried instead."""
    with _stage(record, "default method says what to use"):
        try:
            _explain(built, record)
        except NoAttentionError as refusal:
            record.says = first_line(refusal)
        else:
            raise AssertionError("the default method explained a model without attention sites")
    with _stage(record, "lrp"):
        streams = _streams(_explain(built, record, method="lrp"))
        record.streams = {name: list(s.scores.shape) for name, s in streams.items()}
        record.finite = all(bool(torch.isfinite(s.scores).all()) for s in streams.values())
        record.lrp = "finite" if record.finite else "not finite"
        if not record.finite:
            raise AssertionError("lrp scores are not finite")


def _conclude(record: Record, subject: Subject) -> None:
    """The status: from the first failure, and from softmaxes that end in no site unless a person
    looked at them."""
    unexplained = [s for s in record.softmaxes_without_site if not is_reviewed(subject, s)]
    if unexplained and not any(f[0] == "capture" for f in record.failures):
        record.failures.append(
            ["softmax without site", f"{len(unexplained)} of {record.softmaxes}: {unexplained[0]}"]
        )
    if record.failures:
        record.status, record.cause = FAILED, ": ".join(record.failures[0])
    else:
        record.status = EXPLAINED if record.sites else NO_ATTENTION
