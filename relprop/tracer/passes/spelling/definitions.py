"""Operators taken apart by PyTorch's own definition of them; functions of tensors written out."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from relprop.operations import operand
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
        target, operands = node.target, tensor_inputs(node)
        if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
            return None
        definition: Any = decomposition_table.get(target)
        definition = target.decompose if target._can_decompose() else definition

        def call(*tensors: fx.node.Argument) -> object:
            it = iter(tensors)
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda _: next(it))
            made = definition(*plain(args), **plain(kwargs))
            return tuple(made) if isinstance(made, tuple) else made  # without names of its results

        if not all(is_tensor(o) for o in operands):
            return None
        results = self.written(node, call, operands, without=target)
        if results is None or isinstance(results, fx.Node):
            return results
        swap_results(node, results)
        return None

    def written(
        self,
        node: fx.Node,
        function: Callable[..., object],
        operands: tuple[fx.Node, ...],
        form: Hashable = None,
        without: object = None,
    ) -> Any:
        """What ``function`` makes of tensors, written before ``node``, whose arguments it knows:
        one node, or several as it gives them; ``None`` where it can't be traced, or calls
        ``without``. ``form``: what else it depends on."""
        lie = [(tuple(val(o).shape), val(o).stride(), val(o).dtype) for o in operands]
        given = fx.node.map_arg((node.args, node.kwargs), lambda _: None)
        key = repr((node.target, given, lie, form))
        if key not in self._known:
            self._known[key] = _traced(node, function, operands, self.device)
        made = self._known[key]
        if made is None or any(n.target is without for n in made.nodes):
            return None
        placeholders = made.find_nodes(op="placeholder")
        env: dict[fx.Node, fx.Node] = dict(zip(placeholders, operands, strict=True))
        for inner in made.nodes:
            if inner.op == "call_function":
                with node.graph.inserting_before(node):
                    env[inner] = node.graph.node_copy(inner, env.__getitem__)
                know(env[inner], Facts(val(inner), place(node)))
        return fx.node.map_arg(arguments(made.output_node())[0], env.__getitem__)


def _traced(
    node: fx.Node,
    function: Callable[..., object],
    operands: tuple[fx.Node, ...],
    device: torch.device,
) -> fx.Graph | None:
    """A function of tensors as the operands lie; then as if they lay in order, since a definition
    may ask for views that the operator itself does without. Nothing in it is written in place, and
    its inputs are the tensors in order of appearance."""
    for lies in (torch.empty_strided, lambda shape, _, **options: torch.empty(shape, **options)):
        with FakeTensorMode(), torch.no_grad():
            given = [
                lies(val(o).shape, val(o).stride(), dtype=val(o).dtype, device=device)
                for o in operands
            ]
            try:
                made = make_fx(function)(*given).graph
            except Exception:  # no definition, or one that needs values, or the operator again
                continue
        if made.find_nodes(op="get_attr"):
            return None
        for cut in made.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
            cut.replace_all_uses_with(operand(cut))  # the operator itself has a gradient
            made.erase_node(cut)
        for inner in made.nodes:
            know(inner, Facts(recorded_value(inner), place(node)))
        functionalise(made, Constants())
        return made
    return None
