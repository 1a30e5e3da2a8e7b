"""A captured graph must equal the model it came from, on the sample it was captured with; where it
does not, the error says which of the model's habits no graph can hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn

from relprop.errors import CaptureError, RelpropError, message
from relprop.tracer.binding import Inputs
from relprop.tracer.calls import Values
from relprop.tracer.draws import numbers_of
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.facts import describe, is_floating, role
from relprop.tracer.model_comparison import (
    KEEP_STEADY,
    UNSTEADY,
    Gap,
    expected,
    gaps,
    rounding_decides,
    unsteady,
)
from relprop.tracer.program import Program
from relprop.tracer.readout import Indices, whole_index
from relprop.tracer.run import execute
from relprop.tracer.surroundings import other_chance

#: By how much closer a graph that was not captured must be to the model than a captured one.
CLOSER = 16.0
#: Under which key a program remembers that it was compared.
COMPARED = "compared with the model"


def verify(
    program: Program,
    model: nn.Module,
    inputs: Inputs,
    eager: Sequence[Tensor],
    random_calls: tuple[str, ...] = (),
) -> None:
    """The canonical graph's outputs against the model's own (``eager``), on the captured sample.
    ``random_calls``: where the model draws numbers that the graph does not hold."""
    with other_chance(model, 1):  # what the graph still draws it draws otherwise than the model
        values = execute(program, model, inputs, keep=set(program.output_nodes))
    found = _gaps(program, values, eager)
    if found and random_calls:
        fact = "the model draws by chance in eval mode, by numbers that it works out of its inputs"
        raise CaptureError(message(fact, at=random_calls[0], then=_KEEP_DRAWS))
    if found and (habit := _habit(program, model, inputs, eager)) is not None:
        raise habit
    # where no two ways to add up agree, the call's verifier says so, or refuses
    if found and not rounding_decides(program, model, inputs, values, _whole(program)):
        fact = (
            f"the captured graph differs from the model: output {found[0].output!r} by "
            f"{found[0].apart:.2e} where its largest value is {found[0].largest:.2e}"
        )
        node = program.output_nodes[program.outputs.names.index(found[0].output)]
        then = ["report this model: a captured graph must equal the model it came from"]
        raise CaptureError(message(fact, at=describe(node), then=then))
    program.memo.cache(COMPARED, lambda: True)


def agrees(program: Program, model: nn.Module, inputs: Inputs, eager: Sequence[Tensor]) -> bool:
    """Whether a graph that was not captured from the model gives its outputs all the same: more
    closely than a captured one must, since nothing else says that it is the model's."""
    try:
        values = execute(program, model, inputs, keep=set(program.output_nodes))
        found = _gaps(program, values, eager, CLOSER)
    except (RelpropError, RuntimeError):  # its numbers do not fit
        return False
    return not found and program.memo.cache(COMPARED, lambda: True)


def _gaps(
    program: Program, values: Values, outputs: Sequence[Tensor], closer: float = 1.0
) -> list[Gap]:
    """The outputs of a graph that are not the model's."""
    if len(outputs) != len(program.output_nodes):
        fact = f"the model returns {len(outputs)} tensors, its graph {len(program.output_nodes)}"
        raise CaptureError(fact, then=KEEP_STEADY)
    return gaps(program, values, expected(program, outputs, _whole(program)), 1, closer)


def _whole(program: Program) -> Indices:
    return {n: whole_index(n) for n in program.output_nodes}


def _habit(
    program: Program, model: nn.Module, inputs: Inputs, eager: Sequence[Tensor]
) -> CaptureError | None:
    """Why a model differs from its graph through no fault of the graph, if that is so: it draws
    anew in every run, counts its calls, or rounds activations."""
    if unsteady(model, inputs, eager, numbers_of(program.constants)):
        return CaptureError(message(UNSTEADY, then=KEEP_STEADY))
    rounded = next((n for n in program.graph.nodes if _rounds(n)), None)
    if rounded is None:
        return None
    fact = (
        f"{rounded.target} rounds activations to small integers: that "
        "has no relevance, and no two runs round alike"
    )
    return CaptureError(message(fact, at=describe(rounded), then=_KEEP_WIDE))


_KEEP_DRAWS = [
    "switch it off: training=self.training for a dropout",
    "or draw from a shape alone, torch.rand_like(p) < p for torch.bernoulli(p): the numbers of the "
    "model's own run are kept, and it is said if others change its output",
]
_KEEP_WIDE = [
    "explain the model before quantisation",
    "or quantise weights only, so that activations stay as they are",
]


def _rounds(node: fx.Node) -> bool:
    """Whether a call turns activations into integers of one byte."""
    made = val(node)
    results = made if isinstance(made, (tuple, list)) else [made]
    small = any(isinstance(v, Tensor) and v.dtype in (torch.int8, torch.uint8) for v in results)
    active = any(is_floating(i) and role(i) == "activation" for i in tensor_inputs(node))
    return small and node.op == "call_function" and active
