"""Regions that a model enters on its way: gradient modes and autocast of its own. Each becomes part
of the graph, without a change of numbers.

A gradient mode changes no value, and neither does an autocast that is off, or on for another kind
of device. One that is on casts the operands of some operations: each operation is run on tensors
without values, once as in the region and once outside it, which shows the casts to write into the
graph."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from relprop.errors import CaptureError
from relprop.operations import Args, Kwargs, Operator, Value, function_of, is_call, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import arguments, aten, emit, is_tensor, tensor_inputs, val
from relprop.tracer.facts import Facts, facts_of, know, place, refusal
from relprop.tracer.recorded import recorded_place, recorded_value

Casts = dict[fx.Node, torch.dtype]

CASTS = torch.ops.higher_order.wrap_with_autocast


#: Where a region's operands begin among the arguments of its call; its body is the one before.
REGIONS: dict[Operator, int] = {torch.ops.higher_order.wrap_with_set_grad_enabled: 2, CASTS: 5}


def inline_regions(graph: fx.Graph, constants: Constants) -> None:
    """Put the nodes of every region into ``graph`` itself, whose values are where the constants
    are."""
    device = constants.device
    while (region := next((n for n in graph.nodes if is_call(n, *REGIONS)), None)) is not None:
        _inline(region, device)
    dtypes: list[torch.dtype | None] = [None]
    marks = []
    for node in list(graph.nodes):  # the concrete trace records where a region begins and ends
        if is_call(node, torch.amp.autocast_mode._enter_autocast):
            dtypes.append(_casts_to(node.args, device, dtypes[-1]))
            marks.append(node)
        elif is_call(node, torch.amp.autocast_mode._exit_autocast):
            dtypes.pop()
            marks.append(node)
        else:
            _cast_operands(node, device, dtypes[-1])
    for node in reversed(marks):
        graph.erase_node(node)


def _casts_to(
    arguments: Args, device: torch.device, outer: torch.dtype | None
) -> torch.dtype | None:
    """The type that an autocast region casts to on ``device``; ``None``: it casts nothing there."""
    kind, dtype, enabled = arguments[:3]
    if kind != device.type:
        return outer
    return (dtype or torch.get_autocast_dtype(kind)) if enabled else None


def _inline(region: fx.Node, device: torch.device) -> None:
    """The nodes of a region's own graph in place of its call. A region inside it is left for the
    next round, and remembers this one's casts."""
    dtype = facts_of(region).casts_to
    if is_call(region, CASTS):
        dtype = _casts_to(region.args, device, dtype)
    first = REGIONS[region.target]
    body = facts_of(operand(region, first - 1)).body
    assert isinstance(body, fx.GraphModule)
    entries = [n for n in body.graph.nodes if n.op == "placeholder"]
    env: dict[fx.Node, fx.Node] = dict(zip(entries, arguments(region)[first:], strict=True))
    for inner in body.graph.nodes:
        if inner.op == "output":
            for user in list(region.users):
                user.replace_all_uses_with(env[arguments(inner)[0][arguments(user)[1]]])
                region.graph.erase_node(user)
        elif inner.op != "placeholder":
            env[inner] = _copied(region, inner, body, env, dtype)
            if inner.op != "get_attr":
                _cast_operands(env[inner], device, dtype)
    region.graph.erase_node(region)


def _copied(
    region: fx.Node,
    inner: fx.Node,
    body: fx.GraphModule,
    env: dict[fx.Node, fx.Node],
    dtype: torch.dtype | None,
) -> fx.Node:
    """A node of a region's own graph, before its call."""
    with region.graph.inserting_before(region):
        new = region.graph.node_copy(inner, env.__getitem__)
    own = recorded_place(inner)
    held = getattr(body, str(inner.target)) if inner.op == "get_attr" else None
    at = own if own.modules else place(region)
    know(new, Facts(recorded_value(inner), at, body=held, casts_to=dtype))
    return new


def _cast_operands(node: fx.Node, device: torch.device, dtype: torch.dtype | None) -> None:
    """Write down the casts that autocast to ``dtype`` makes of the operands of ``node``."""
    if dtype is None or node.op != "call_function" or is_call(node, *REGIONS):
        return
    if not any(is_tensor(n) for n in tensor_inputs(node)):
        return
    casts, types = _explained(node, device, dtype)
    for given, wanted in casts.items():
        node.replace_input_with(given, emit(node, aten.to.dtype, given, wanted))
    node.kwargs = {**node.kwargs, **types}


def _explained(
    node: fx.Node, device: torch.device, dtype: torch.dtype
) -> tuple[Casts, dict[str, torch.dtype]]:
    """The casts of operands, and the type that a call is told, with which it does outside of an
    autocast region what it does inside."""
    inside = _run(node, device, {}, dtype)
    if inside is None:
        raise _refused(node, dtype)
    # some operations are told a type to compute in; their operands stay
    typed = {"dtype": val(node).dtype} if is_tensor(node) else {}
    ways: list[tuple[Casts, dict[str, torch.dtype]]] = [
        ({}, {}),
        (inside.casts, {}),
        (inside.casts, typed),
    ]
    for casts, types in ways:
        outside = _run(node, device, casts, None, types)
        if outside is None or outside.done != inside.done:
            continue
        if {**casts, **outside.casts} == inside.casts:
            return casts, types
    raise _refused(node, dtype)


def _refused(node: fx.Node, dtype: torch.dtype) -> CaptureError:
    what = f"autocast region to {str(dtype).removeprefix('torch.')}"
    fact = f"the model enters an {what}, and what it casts inside {node.target} cannot be written"
    then = "explain the model without the inner autocast, for example in float32 throughout"
    return refusal(node, f"{fact} down", then)


def _run(
    node: fx.Node,
    device: torch.device,
    casts: Casts,
    dtype: torch.dtype | None,
    types: dict[str, torch.dtype] | None = None,
) -> _Record | None:
    """What ``node`` does with operands without values, under autocast to ``dtype`` if given;
    ``None`` if it refuses them."""
    with FakeTensorMode(), torch.no_grad():
        values = {n: _without_numbers(n, device, casts.get(n)) for n in tensor_inputs(node)}
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
        tensors = {n: t for n, t in values.items() if isinstance(t, Tensor)}
        record = _Record({t.untyped_storage()._cdata: n for n, t in tensors.items()})
        try:
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None), record:
                function_of(node)(*args, **{**kwargs, **(types or {})})
        except (RuntimeError, TypeError):
            return None
        return record


def _without_numbers(x: fx.Node, device: torch.device, dtype: torch.dtype | None) -> Value:
    """The value of a node on ``device``, without its numbers, cast to ``dtype`` if given."""

    def empty(t: object) -> object:
        if not isinstance(t, Tensor):
            return t
        return torch.empty_strided(t.shape, t.stride(), dtype=dtype or t.dtype, device=device)

    return tree_map(empty, val(x))


class _Record(TorchDispatchMode):
    """The operations that one operation is made of: ``casts`` of its operands before anything else,
    then all that compute (``done``)."""

    def __init__(self, operands: dict[int, fx.Node]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operands = operands
        self.casts: dict[fx.Node, torch.dtype] = {}
        self.done: list[tuple[Operator, tuple[torch.dtype, ...]]] = []

    def __torch_dispatch__(
        self, func: Operator, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> Value:
        result = func(*args, **(kwargs or {}))
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        storages = [t.untyped_storage()._cdata for t in given]
        if func.namespace == "prim" or (
            isinstance(result, Tensor) and result.untyped_storage()._cdata in storages
        ):
            return result  # a question, or a view
        source = self.operands.get(storages[0]) if storages else None
        if func is aten._to_copy.default and source is not None and not self.done:
            self.casts[source] = result.dtype
            self.operands[result.untyped_storage()._cdata] = source
        else:
            self.done.append((func, tuple(t.dtype for t in given)))
        return result
