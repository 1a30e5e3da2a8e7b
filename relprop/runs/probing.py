"""What a run gives of fixed numbers, as a part of its identity: an attribute, a hook, a ``forward``
or a method of the user's own decides the numbers of a run, and shows in no weight and no config.

In float64, from one sample: threads, devices and machines differ there by rounding alone, which is
far below any change that a map could show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from relprop.data import Sample
from relprop.errors import RelpropError, out_of_memory, quietly
from relprop.rules import PAPER
from relprop.runner.ask import ask
from relprop.runner.conditions import Conditions
from relprop.runner.question import Question
from relprop.runner.session import open_session
from relprop.tracer.binding import bind
from relprop.tracer.facts import is_batched
from relprop.tracer.run import execute
from relprop.tracer.surroundings import undisturbed
from relprop.tracer.trace import forget

#: By name: whether it is of float32 alone, a norm, and sums of the values times cosines.
Probe = Mapping[str, list[float]]
SUMS = 8
TRIED = 8  # samples, of which the first that can be read is taken
PICTURE, SCORES = "picture of sample ", "scores of "
#: How far two probes of one model may be apart, relative to the norm: outputs in float64, and on
#: devices that have no more than float32; scores; pictures, which not all machines read alike.
ALLOWED, ALLOWED_NARROW, ALLOWED_SCORES, ALLOWED_PICTURE = 1e-6, 1e-3, 1e-3, 0.05


def probe(
    model: nn.Module,
    samples: int,
    sample: Callable[[int], Sample],
    inputs: Callable[[Sample], Any],
    questions: Mapping[str, Question],
    how: Conditions,
) -> Probe | None:
    """What the model computes, and the questions are answered, of the first sample that can be
    read: ``inputs`` makes it what the model takes, its picture replaced by fixed numbers. Of the
    picture itself a rough number, which another transform would change.

    ``None`` where the call itself will tell why: no sample can be read, the model cannot be
    captured, or it draws random numbers.
    """
    for index in range(min(samples, TRIED)):
        try:
            with quietly(), undisturbed(model), torch.no_grad():
                one = sample(index)
                given = inputs(replace(one, inputs=_fixed(one.inputs)))
                found = _computed(model, given, questions, how)
        except (RelpropError, RuntimeError, MemoryError) as error:
            if not isinstance(error, RelpropError) and not out_of_memory(error):
                raise
            continue
        if found and isinstance(one.inputs, Tensor):
            found[f"{PICTURE}{index}"] = [0.0, *_sums(one.inputs)]
        return found
    return None


def _computed(
    model: nn.Module, inputs: Any, questions: Mapping[str, Question], how: Conditions
) -> dict[str, list[float]] | None:
    """The outputs of the model for one sample, and its scores by every question that is defined
    here."""
    one = bind(inputs).select(0, 1)
    narrow = any(t.device.type == "mps" for t in one.tensors)
    how = replace(how, precision="float32" if narrow else "float64")
    scores = {} if narrow else _scores(model, inputs, questions, how)
    if not scores:  # nothing has compared the graph that is kept with the model
        forget(model)
    program = open_session(model, one, PAPER, how).program
    if program.draws:
        return None
    values = execute(program, model, one, set(program.output_nodes))
    named = zip(program.outputs.names, program.output_nodes, strict=True)
    outputs = {name: values[n][0] if is_batched(n) else values[n] for name, n in named}
    return {name: [float(narrow), *_sums(value)] for name, value in (outputs | scores).items()}


def _scores(
    model: nn.Module, inputs: Any, questions: Mapping[str, Question], how: Conditions
) -> dict[str, Tensor]:
    """The scores of the sample's own prediction, by question and explained input."""
    plain = [replace(q, keep=frozenset(), ledger=False) for q in questions.values()]
    try:
        (found,) = ask(model, inputs, [None], plain, how, {})
    except RelpropError:  # of a model without classes, or one that is explained by its labels alone
        return {}
    named = zip(questions, found, strict=True)
    return {
        f"{SCORES}{label} for {name}": stream.scores
        for label, explanation in named
        if explanation is not None
        for name, stream in explanation.streams.items()
    }


def _fixed(inputs: Any) -> Any:
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return inputs
    drawn = torch.rand(
        inputs.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32
    )
    return drawn.to(inputs.device, inputs.dtype)


def _sums(value: Tensor) -> Iterator[float]:
    """The norm, and sums in which every element has a part, none the same part in all."""
    flat = value.detach().cpu().double().nan_to_num(0.0, 0.0, 0.0).reshape(-1)
    yield float(flat.norm())
    places = torch.arange(1, len(flat) + 1, dtype=torch.float64)
    yield from (float(flat @ (places * k).cos()) for k in range(1, SUMS + 1))


def is_probe(value: object) -> bool:
    """Whether this is what ``probe`` gives, or ``None``."""
    if value is None:
        return True
    rows = value.values() if isinstance(value, dict) else [None]
    return all(
        isinstance(row, list)
        and len(row) == 2 + SUMS
        and all(isinstance(n, (int, float)) for n in row)
        for row in rows
    )


def apart(mine: Probe | None, now: Probe | None) -> str:
    """What two probes differ in, in words; nothing where they are of one model, or one of them is
    not known."""
    if mine is None or now is None:
        return ""
    before, outputs = ([n for n in p if not n.startswith((PICTURE, SCORES))] for p in (mine, now))
    if sorted(before) != sorted(outputs):
        return f"its outputs were {', '.join(before)} and are {', '.join(outputs)}"
    for name in (n for n in mine if n in now):
        (narrow, norm, *sums), (other, length, *others) = mine[name], now[name]
        what, allowed = _allowed(name, bool(narrow or other))
        scale = max(norm, length)
        gap = max(abs(a - b) for a, b in zip((norm, *sums), (length, *others), strict=True))
        if not gap <= allowed * scale:
            return f"{what} off by {gap / scale:.2g} of the norm (rounding: at most {allowed:g})"
    return ""


def _allowed(name: str, narrow: bool) -> tuple[str, float]:
    """What a number of a probe is of, in words, and how far it may be off."""
    if name.startswith(PICTURE):
        return f"the {name} is", ALLOWED_PICTURE
    if name.startswith(SCORES):
        return f"the {name} are", ALLOWED_SCORES
    return f"its output {name!r} is", ALLOWED_NARROW if narrow else ALLOWED
