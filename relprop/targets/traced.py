"""A user's callable ``output of one sample -> scalar`` as a program of its own, which follows the
model's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from relprop.errors import RelpropError, TargetError, first_line
from relprop.operations import Kind, is_call, kind
from relprop.targets.outputs import has_batch_axis
from relprop.targets.start import Context
from relprop.tracer.assemble import assemble
from relprop.tracer.binding import Inputs
from relprop.tracer.capture import Capture, import_graph
from relprop.tracer.editing import aten, tensor_inputs, val
from relprop.tracer.facts import is_batched
from relprop.tracer.passes import canonicalise
from relprop.tracer.program import OutputTree, Program
from relprop.tracer.surroundings import TRACING

HOW_IT_IS_CALLED = (
    "it is called with the output of one sample (batch dimension 1) and must return a scalar by "
    "tensor operations; where relevance starts at it, without .item() or branches on values"
)


def traced(target: Callable[..., Tensor], context: Context, inputs: Inputs) -> Program:
    """The callable's program. Raises ``TargetError`` if it cannot be traced, or if its result is no
    scalar."""
    sample = [tensor[:1].detach() for tensor in inputs.tensors]
    with _failing("cannot be traced"), TRACING:
        call = _on_tensors(target, context)
        module = make_fx(call, tracing_mode="real", pre_dispatch=True)(*sample)
    then = "write it with other tensor operations, for example sums of products"
    with _failing("cannot be followed", then, str):
        graph, constants = import_graph(module, None)
        with TRACING:
            canonicalise(graph, sample[0].device, constants)
        capture = Capture(graph, constants, OutputTree(("target",), next), "concrete")
        both = zip(inputs.names, inputs.tensors, strict=True)
        program = assemble(capture, inputs.names, tuple(n for n, t in both if t.requires_grad))
    for node in program.graph.nodes:
        _refuse_choice(node)
    return program


def called(target: Callable[..., Tensor], context: Context, inputs: Inputs) -> Tensor:
    """What the callable says of every sample, (batch,), attached to autograd. Raises
    ``TargetError`` for what is no scalar, or if it fails."""
    call = _on_tensors(target, context)
    with _failing("fails on one sample's output"):
        return torch.cat([call(*inputs.samples(i, i + 1))[0] for i in range(inputs.batch)])


@contextmanager
def _failing(
    what: str, then: str = HOW_IT_IS_CALLED, says: Callable[[Exception], str] = first_line
) -> Iterator[None]:
    """What nobody foresaw in a callable as a ``TargetError`` that says ``what`` it does."""
    try:
        yield
    except RelpropError:
        raise
    except Exception as error:
        fact = f"the target callable {what}: {type(error).__name__}: {says(error)}"
        raise TargetError(fact, then=[then]) from error


def _on_tensors(target: Callable[..., Tensor], context: Context) -> Callable[..., tuple[Tensor]]:
    """The callable as a function of the model's output tensors, one after the other."""
    whole = [has_batch_axis(node) for node in context.program.output_nodes]

    def call(*tensors: Tensor) -> tuple[Tensor]:
        given = [t if has_row else t[0] for t, has_row in zip(tensors, whole, strict=True)]
        result = target(context.program.outputs(given))
        _refuse_no_scalar(result)
        return (result.reshape(1),)

    return call


def _refuse_no_scalar(result: object) -> None:
    if not isinstance(result, Tensor):
        raise TargetError(
            f"the target callable returned {type(result).__name__}, not a scalar tensor"
        )
    if result.numel() != 1 or not result.is_floating_point():
        dtype = str(result.dtype).removeprefix("torch.")
        raise TargetError(
            f"the target callable returned {dtype} {list(result.shape)} for one "
            "sample, not one floating scalar"
        )


def _refuse_choice(node: fx.Node) -> None:
    """How many elements a mask of values picks differs from sample to sample, so that no graph can
    hold it."""
    by_mask = kind(node) is Kind.INDEX and any(
        is_batched(i) and val(i).dtype == torch.bool for i in tensor_inputs(node)
    )
    if by_mask or is_call(node, aten.nonzero, aten.masked_select):
        fact = (
            "the target callable picks elements by their values: how many "
            "differs from sample to sample"
        )
        then = ["weigh them: torch.where(mask, values, 0).sum()"]
        raise TargetError(fact, then=then)
