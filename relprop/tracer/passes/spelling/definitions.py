"""Operators taken apart by PyTorch's own definition of them."""

from __future__ import annotations

from typing import Any

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


class Definitions:
    """PyTorch's definitions on a device, each traced once for operands of one kind: the steps of a
    recurrent layer are one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._known: dict[str, fx.Graph | None] = {}

    def take_apart(self, node: fx.Node) -> fx.Node | None:
        """What PyTorch says the operator is made of, in place of ``node``, if it does; of several
        results each in place of its user."""
        operands = tensor_inputs(node)
        if not all(is_tensor(o) for o in operands):
            return None
        made = self._definition(node, operands)
        if made is None:
            return None
        placeholders = made.find_nodes(op="placeholder")
        env: dict[fx.Node, fx.Node] = dict(zip(placeholders, operands, strict=True))
        for inner in made.nodes:
            if inner.op == "call_function":
                with node.graph.inserting_before(node):
                    env[inner] = node.graph.node_copy(inner, env.__getitem__)
                know(env[inner], Facts(val(inner), place(node)))
        results = arguments(made.output_node())[0]
        if isinstance(results, fx.Node):
            return env[results]
        swap_results(node, [result and env[result] for result in results])
        return None

    def _definition(self, node: fx.Node, operands: tuple[fx.Node, ...]) -> fx.Graph | None:
        lie = [(tuple(val(o).shape), val(o).stride(), val(o).dtype) for o in operands]
        key = repr((node.target, fx.node.map_arg((node.args, node.kwargs), lambda _: None), lie))
        if key not in self._known:
            self._known[key] = _traced(node, operands, self.device)
        return self._known[key]


def _traced(node: fx.Node, operands: tuple[fx.Node, ...], device: torch.device) -> fx.Graph | None:
    """The definition of a call on tensors as the operands lie; then as if they lay in order, since
    a definition may ask for views that the operator itself does without. Nothing in it is written
    in place, and its inputs are the tensors in order of appearance."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    definition: Any = decomposition_table.get(target)
    definition = target.decompose if target._can_decompose() else definition

    def call(*tensors: Tensor) -> object:
        it = iter(tensors)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda _: next(it))
        made = definition(*plain(args), **plain(kwargs))
        return tuple(made) if isinstance(made, tuple) else made  # without the names of its results

    for lies in (torch.empty_strided, lambda shape, _, **options: torch.empty(shape, **options)):
        with FakeTensorMode(), torch.no_grad():
            given = [
                lies(val(o).shape, val(o).stride(), dtype=val(o).dtype, device=device)
                for o in operands
            ]
            try:
                made = make_fx(call)(*given).graph
            except Exception:  # no definition, or one that needs values, or the operator again
                continue
        if any(n.target is target or n.op == "get_attr" for n in made.nodes):
            return None
        for inner in made.nodes:
            know(inner, Facts(recorded_value(inner), place(node)))
        functionalise(made, Constants())
        return made
    return None
