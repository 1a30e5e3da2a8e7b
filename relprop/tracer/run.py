"""Run a program's graph: once what depends on no input, and per sample, under ``vmap``, everything else. Knows no rule.

Values that depend on an input have the batch first, then the sample's own shape (which starts with 1). Every operation is one
call for the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, fx, nn

from relprop.errors import InputError, message
from relprop.tracer.binding import Inputs
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.program import Program, describe
from relprop.tracer.surroundings import normal

Values = dict[fx.Node, Any]
Visit = Callable[[fx.Node, Any], Any]


def execute(program: Program, model: nn.Module | None, inputs: Inputs, keep: Collection[fx.Node], visit: Visit | None = None, *, attached: bool = False) -> Values:
    """The values of the nodes in ``keep``, for all samples. ``visit(node, value)`` may replace a value as it is made.

    Parameters are read from ``model`` now, detached, and so are inputs unless ``attached``. Values are freed after their last use unless kept.
    """
    kept, values = set(keep), {}
    last = _last_uses(program.graph)
    stacked = iter(inputs.stacked())
    for node in program.graph.nodes:
        if node.op == "output":
            break
        if node.op == "placeholder":
            value = next(stacked) if attached else normal(next(stacked))
        elif node.op == "get_attr":
            value = normal(_parameter(program, model, str(node.target)))
        else:
            value = _call(node, values, program.dtype)
        if program.dtype is not None and node.op in ("placeholder", "get_attr") and value.is_floating_point():
            value = value.to(program.dtype)
        values[node] = visit(node, value) if visit is not None else value
        for done in last.get(node, ()):
            if done not in kept:
                del values[done]
    return values


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for used in (node, *tensor_inputs(node)):
            last[used] = node
    gone: dict[fx.Node, list[fx.Node]] = {}
    for used, user in last.items():
        gone.setdefault(user, []).append(used)
    return gone


def _parameter(program: Program, model: nn.Module | None, target: str) -> Tensor:
    if target in program.constants:
        return program.constants[target]
    found: Any = model
    for part in target.removeprefix("model.").split("."):
        found = getattr(found, part)
    return found


def template(node: fx.Node, dtype: torch.dtype | None = None) -> tuple[tuple[fx.Node, ...], Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]]:
    """The nodes that enter a call, in order of appearance, and a function that puts tensors in their places.

    ``dtype``: every floating dtype the model wrote down becomes this one.
    """
    operands = tensor_inputs(node)

    def rebuild(*tensors: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        it = iter(tensors)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda _: next(it))
        return _plain(args, dtype), _plain(kwargs, dtype)

    return operands, rebuild


def _plain(x: Any, dtype: torch.dtype | None) -> Any:
    """fx's immutable containers as ordinary ones, which operators insist on."""
    if isinstance(x, dict):
        return {k: _plain(v, dtype) for k, v in x.items()}
    if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
        return (list if isinstance(x, list) else tuple)(_plain(v, dtype) for v in x)
    return dtype if dtype is not None and isinstance(x, torch.dtype) and x.is_floating_point else x


def _call(node: fx.Node, values: Values, dtype: torch.dtype | None) -> Any:
    operands, rebuild = template(node, dtype)
    tensors = [values[n] for n in operands]

    def function(*given: Any) -> Any:
        args, kwargs = rebuild(*given)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    try:
        if not node.meta["batched"]:
            return function(*tensors)
        dims = tuple(0 if n.meta["batched"] else None for n in operands)
        if all(d is None for d in dims):
            return function(*tensors)
        return torch.func.vmap(function, in_dims=dims, randomness="same")(*tensors)
    except RuntimeError as error:
        raise InputError(message(f"{node.target} failed: {str(error).splitlines()[0]}", at=describe(node))) from error
