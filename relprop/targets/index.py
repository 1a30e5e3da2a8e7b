"""Targets that name one element of the output: an index, one per sample, a label, or the prediction. Relevance starts with 1 there."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from relprop.adapters import Adapter
from relprop.errors import RelpropWarning, TargetError, message
from relprop.rules import RuleSet
from relprop.tracer.attention import SOFTMAX
from relprop.tracer.binding import Inputs
from relprop.tracer.editing import name_of
from relprop.tracer.program import Program, is_floating, shape


@dataclass(frozen=True)
class Term:
    """One part of a target: relevance ``seeds`` (per output node, batch first) explained by itself, then times ``coefficient``."""

    coefficient: float
    seeds: Mapping[fx.Node, Tensor]


@dataclass(frozen=True)
class Start:
    """A target worked out: y_t of every sample (``scalars``, attached to autograd), the terms of its relevance, and the roll-up's field."""

    label: tuple[Any, ...]
    scalars: Tensor
    terms: tuple[Term, ...]
    field: Mapping[fx.Node, Tensor]


@dataclass(frozen=True)
class Context:
    """What a target is resolved against: the program, its outputs' values (batch first, attached), and who knows labels."""

    program: Program
    model: nn.Module
    adapter: Adapter
    inputs: Inputs
    outputs: Mapping[fx.Node, Tensor]
    rules: RuleSet


def class_output(program: Program) -> tuple[str, fx.Node]:
    """The output named ``logits``, else the only floating one; otherwise an error that lists the outputs."""
    floating = {n: node for n, node in zip(program.outputs.names, program.output_nodes, strict=True) if is_floating(node)}
    name = "logits" if "logits" in floating else next(iter(floating)) if len(floating) == 1 else None
    if name is None:
        raise TargetError(message(
            f"the model returns {len(floating)} floating outputs and none is named 'logits': {_listed(program)}",
            then=["choose with a callable: target=lambda output: output[...]  # the output of one sample, batch dimension 1 -> a scalar"],
        ))
    return name, floating[name]


def _listed(program: Program) -> str:
    return ", ".join(f"{n} {list(shape(node))}" for n, node in zip(program.outputs.names, program.output_nodes, strict=True))


def resolve_index(target: Any, context: Context) -> Start:
    """The start of a target that names one element of the output. Raises ``TargetError`` naming what was given and what the output has."""
    name, node = class_output(context.program)
    size = shape(node)
    if size[:1] != (1,):
        raise TargetError(f"output {name!r} has no batch axis (shape {list(size)} for one sample): choose with a callable target")
    _warn_if_probability(name, node)
    indices = _indices(target, context, name, node)
    seed = torch.zeros(len(indices), *size, dtype=torch.promote_types(context.outputs[node].dtype, torch.float32), device=context.outputs[node].device)
    where: tuple[Any, ...] = (torch.arange(len(indices)), 0, *torch.tensor(indices).unbind(1))
    seed[where] = 1.0
    scalars = (context.outputs[node] * seed).flatten(1).sum(1)
    labels = tuple(index[0] if len(index) == 1 else index for index in indices)
    return Start(labels, scalars, (Term(1.0, {node: seed}),), {node: field_of(seed)})


def field_of(seed: Tensor) -> Tensor:
    """The roll-up's start: 1 wherever relevance starts."""
    marks = (seed != 0).to(seed.dtype)
    return torch.stack([marks, marks], 1)


def _warn_if_probability(name: str, node: fx.Node) -> None:
    source = node
    while name_of(source) in ("reshape", "squeeze", "unsqueeze", "to", "select", "slice") and isinstance(source.args[0], fx.Node):
        source = source.args[0]
    if name_of(source) in (*SOFTMAX, "sigmoid", "log_softmax", "_log_softmax"):
        warnings.warn(
            f"output {name!r} ends in a {name_of(source).strip('_')}: the explained value is a probability, the method's paper code explains the logit before it",
            RelpropWarning, stacklevel=2,
        )


def _indices(target: Any, context: Context, name: str, node: fx.Node) -> list[tuple[int, ...]]:
    size, batch = shape(node)[1:], context.inputs.batch
    if target is None:
        return _predicted(context, name, node)
    given = _parse(target, batch, context)
    last = context.adapter.last_position(context.inputs, size[0]).tolist() if context.adapter.is_causal(context.model) and len(size) == 2 else None
    found = []
    for i, index in enumerate(given):
        if last is not None and len(index) == 1:
            index = (int(last[i]), *index)
        if len(index) != len(size):
            raise TargetError(message(
                f"target {target!r} has {len(index)} indices, output {name!r} has {len(size)} axes per sample: {list(size)}",
                then=["a tuple indexes one element: (position, class); a list or a tensor gives one target per sample"],
            ))
        for axis, (k, n) in enumerate(zip(index, size, strict=True)):
            if not -n <= k < n:
                raise TargetError(f"target {k} is out of range: axis {axis} of output {name!r} has {n} elements")
        found.append(tuple(k % n for k, n in zip(index, size, strict=True)))
    return found


def _predicted(context: Context, name: str, node: fx.Node) -> list[tuple[int, ...]]:
    value = context.outputs[node].detach()[:, 0]
    if value.dim() == 2:
        return [(int(k),) for k in value.argmax(1)]
    if value.dim() == 3 and context.adapter.is_causal(context.model):
        positions = context.adapter.last_position(context.inputs, value.shape[1]).tolist()
        return [(int(p), int(value[i, p].argmax())) for i, p in enumerate(positions)]
    raise TargetError(message(
        f"target=None needs a class head; output {name!r} is {list(shape(node))} for one sample (outputs: {_listed(context.program)})",
        then=["give a tuple (position, class), or a callable: target=lambda output: ...  # one sample's output -> a scalar"],
    ))


def _parse(target: Any, batch: int, context: Context) -> list[tuple[int, ...]]:
    """One index tuple per sample from any accepted form."""
    if hasattr(target, "__array__") and not isinstance(target, Tensor) and not isinstance(target, (int, float)):
        target = torch.as_tensor(target)
    if isinstance(target, Tensor):
        if target.is_floating_point() or target.dtype == torch.bool or target.dim() > 2:
            raise TargetError(f"target is a {str(target.dtype).removeprefix('torch.')} tensor of shape {list(target.shape)}; indices are integers, shape [], [batch] or [batch, axes]")
        target = target.tolist() if target.dim() else int(target)
        if isinstance(target, list):
            target = [tuple(t) if isinstance(t, list) else t for t in target]
    if isinstance(target, list):
        if len(target) != batch:
            raise TargetError(f"target has {len(target)} entries for a batch of {batch}")
        return [_one(t, context) for t in target]
    return [_one(target, context)] * batch


def _one(target: Any, context: Context) -> tuple[int, ...]:
    if isinstance(target, str):
        index = context.adapter.label_index(context.model, target)
        if index is None:
            known = context.adapter.labels(context.model)
            raise TargetError(f"target {target!r} is no label of the model; " + (f"it has {', '.join(known[:20])}" if known else "it has no labels: give an index"))
        return (index,)
    items = target if isinstance(target, tuple) else (target,)
    try:
        if not items or any(isinstance(k, (bool, str)) for k in items):
            raise TypeError
        return tuple(operator.index(k) for k in items)
    except TypeError:
        raise TargetError(message(
            f"target {target!r} is {type(target).__name__}",
            then=["give None, an int, a list or tensor with one int per sample, a tuple of ints, a label, or a callable"],
        )) from None
