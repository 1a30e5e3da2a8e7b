"""Operators that no table knows, taken apart by PyTorch's own definition of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from relprop.tracer.constants import Constants
from relprop.tracer.editing import arguments, is_tensor, swap_results, tensor_inputs, val
from relprop.tracer.facts import Facts, know, place
from relprop.tracer.passes.trials.recipes import plain
from relprop.tracer.passes.writes.inplace import functionalise
from relprop.tracer.recorded import recorded_value


def taken_apart(node: fx.Node, device: torch.device) -> fx.Node | None:
    """What PyTorch says the operator is made of, in place of ``node``, if it does."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    if target._can_decompose():
        definition: Callable[..., object] = target.decompose
    elif target in decomposition_table:
        definition = decomposition_table[target]
    else:
        return None
    operands = tensor_inputs(node)
    if not all(is_tensor(o) for o in operands):
        return None

    def call(*tensors: Tensor) -> object:
        it = iter(tensors)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda _: next(it))
        made = definition(*plain(args), **plain(kwargs))
        return tuple(made) if isinstance(made, tuple) else made  # without the names of its results

    made = _traced(call, operands, device)
    if made is None or any(n.target is target for n in made.graph.nodes):
        return None
    return _inlined(node, made, operands)


def _traced(
    call: Callable[..., object], operands: Sequence[fx.Node], device: torch.device
) -> fx.GraphModule | None:
    """``call`` on tensors as the operands lie; then as if they lay in order, since a definition may
    ask for views that the operator itself does without."""
    for lies in (torch.empty_strided, lambda shape, _, **options: torch.empty(shape, **options)):
        with FakeTensorMode(), torch.no_grad():
            given = [
                lies(val(o).shape, val(o).stride(), dtype=val(o).dtype, device=device)
                for o in operands
            ]
            try:
                return make_fx(call)(*given)
            except Exception:  # a definition that needs values, or the operator itself again
                continue
    return None


def _inlined(node: fx.Node, made: fx.GraphModule, operands: tuple[fx.Node, ...]) -> fx.Node | None:
    """The nodes of ``made`` in place of ``node``; of several results each in place of its user."""
    for inner in made.graph.nodes:
        know(inner, Facts(recorded_value(inner), place(node)))
    functionalise(made.graph, Constants())
    env = dict(zip(made.graph.find_nodes(op="placeholder"), operands, strict=True))
    for inner in made.graph.nodes:
        if inner.op == "get_attr":
            return None
        if inner.op == "call_function":
            with node.graph.inserting_before(node):
                env[inner] = node.graph.node_copy(inner, env.__getitem__)
            know(env[inner], Facts(val(inner), place(node)))
    results = arguments(made.graph.output_node())[0]
    if isinstance(results, fx.Node):
        return env[results]
    swap_results(node, [result and env[result] for result in results])
    return None
