"""Small tools for rewriting a graph: emit a node with its value's shape and its place, replace a
node, ask what it depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeGuard

import torch
from torch import Tensor, fx
from torch.fx.node import Argument
from torch.utils._pytree import tree_map

from relprop.operations import (
    Args,
    Kind,
    Kwargs,
    Operator,
    Value,
    argument,
    function_of,
    is_call,
    kind,
    operand,
)
from relprop.tracer.facts import Facts, decide_liveness, facts_of, know, place
from relprop.tracer.follow import reached

aten = torch.ops.aten


def val(x: object) -> Value:
    """The meta value of a node, or the thing itself."""
    return facts_of(x).value if isinstance(x, fx.Node) else x


def arguments(node: fx.Node) -> Args:
    """What a call is given, by place: the operator's schema says what each of them is."""
    return node.args


def joined(node: fx.Node) -> list[fx.Node]:
    """The tensors that a ``cat`` lays one after another."""
    return list(arguments(node)[0])


def applied(node: fx.Node, x: Tensor) -> Tensor:
    """What a call makes of another tensor in the place of its first."""
    made: Tensor = function_of(node)(x, *arguments(node)[1:], **node.kwargs)
    return made


def shape_of(x: object) -> list[int]:
    """The shape of a node's value."""
    return list(val(x).shape)


def rank(x: object) -> int:
    """How many axes a node's value has."""
    return int(val(x).dim())


def emit(like: fx.Node, op: Operator, *args: Argument, **kwargs: Argument) -> fx.Node:
    """A new node just before ``like``, at the same place in the user's model, its meta value
    computed."""
    graph = like.graph
    with graph.inserting_before(like):
        node = graph.call_function(op, args, kwargs)
    live = any(is_live(n) for n in node.all_input_nodes)
    know(node, Facts(without_numbers(op, args, kwargs), place(like), live))
    return node


#: What gives a tensor like its first, of real numbers: those at whose shapes PyTorch works longest.
_LIKE_FIRST = frozenset(
    {aten.layer_norm.default, aten.rms_norm.default, aten.gelu.default, aten.silu.default}
    | {aten.softmax.int, aten._safe_softmax.default, aten.relu.default, aten.tanh.default}
)


def without_numbers(op: Operator, args: Args, kwargs: Kwargs) -> Value:
    """What a call gives, as tensors on the meta device."""
    if op in _LIKE_FIRST and not any(isinstance(a, torch.dtype) for a in (*args, *kwargs.values())):
        first = val(args[0])
        if first.is_floating_point():
            return torch.empty(first.shape, dtype=first.dtype, device="meta")
    on_meta = {**kwargs, "device": "meta"} if "device" in kwargs else kwargs
    made = op(*tree_map(val, args), **tree_map(val, on_meta))
    return tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, made)


def reshaped(like: fx.Node, x: fx.Node, shape: Sequence[int]) -> fx.Node:
    """``x`` in another shape."""
    if shape_of(x) == list(shape):
        return x
    return emit(like, aten.reshape.default, x, list(shape))


def permuted(like: fx.Node, x: fx.Node, dims: Sequence[int]) -> fx.Node:
    """``x`` with its axes in another order."""
    if list(dims) == list(range(rank(x))):
        return x
    return emit(like, aten.permute.default, x, list(dims))


def before_reshapes(x: fx.Node, *, alone: bool = False) -> fx.Node:
    """What a tensor was before it was put into other shapes; ``alone``: of those, the ones that
    nothing else reads."""
    while kind(x) is Kind.RESHAPE and not (alone and len(x.users) != 1):
        x = operand(x)
    return x


def expanded(like: fx.Node, x: fx.Node, shape: Sequence[int]) -> fx.Node:
    """``x`` with axes of length 1 repeated."""
    if shape_of(x) == list(shape):
        return x
    return emit(like, aten.expand.default, x, list(shape))


def swap(old: fx.Node, new: fx.Node) -> None:
    """``new`` in place of ``old`` everywhere; ``old`` is erased."""
    if facts_of(old).live and not is_live(new):  # what depends on it may depend on no input now
        for one in list(reached([old], lambda node: [u for u in node.users if facts_of(u).live])):
            for user in one.users:
                decide_liveness(user, None)
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def made_after(first: fx.Node, last: fx.Node) -> set[fx.Node]:
    """``last`` and the nodes that it is made of, as far as they stand behind ``first``."""
    behind = reached([last], lambda one: [n for n in one.all_input_nodes if first < n])
    return {one for one in behind if first < one}


def drop_unused(graph: fx.Graph) -> None:
    """Erase what nobody reads. PyTorch's own way to do so checks the whole graph each time, which
    is done once, after all passes."""
    for node in reversed(graph.nodes):
        if not node.users and not node.is_impure():
            graph.erase_node(node)


def drop_above(nodes: Iterable[fx.Node]) -> None:
    """Erase those of some nodes, and of what is above them, that nobody reads."""
    left = list(nodes)
    while left:
        node = left.pop()
        if not node._erased and not node.users and node.op == "call_function":
            left += node.all_input_nodes
            node.graph.erase_node(node)


def swap_results(old: fx.Node, results: Sequence[fx.Node]) -> None:
    """Each of several results in place of those that read it of ``old``, which is erased."""
    for user in list(old.users):
        swap(user, results[arguments(user)[1]])
    old.graph.erase_node(old)


def dims_of(node: fx.Node) -> list[int]:
    """The axes that a reduction runs over, counted from the first; of none given, all."""
    dims, wide = argument(node, "dim"), rank(node.args[0])
    given = [dims] if isinstance(dims, int) else list(dims or range(wide))
    return [d % wide for d in given]


def is_live(node: object) -> bool:
    """Whether a node depends on an input of the graph; parameters and constants do not."""
    if not isinstance(node, fx.Node):
        return False
    if (known := facts_of(node).live) is not None:
        return known
    for n in operands_first(node, lambda n: facts_of(n).live is not None):
        above = n.all_input_nodes
        decide_liveness(n, n.op == "placeholder" or any(facts_of(i).live for i in above))
    return bool(facts_of(node).live)


def is_picked(node: fx.Node) -> bool:
    """Whether a live tensor is parameters that were picked by what the model computes: the weights
    of each token's own expert. (Ids of the input pick words, which are what is explained.)"""
    while kind(node) in (Kind.RESHAPE, Kind.PERMUTE, Kind.EXPAND, Kind.SELECT, Kind.SLICE):
        node = operand(node)
    if kind(node) not in (Kind.INDEX, Kind.EMBEDDING, Kind.GATHER) or not is_float(node):
        return False
    table, *places = tensor_inputs(node)
    above = reached(places, lambda node: filter(is_live, node.all_input_nodes))
    return not is_live(table) and any(map(is_float, above))  # worked out from an activation


def rows_at(at: fx.Node, x: fx.Node, axis: int, places: fx.Node) -> fx.Node:
    """The rows of ``x`` that stand at ``places`` along an axis, one for each."""
    shape = [*shape_of(places), shape_of(x)[-1]]
    wide = expanded(at, reshaped(at, places, [*shape[:-1], 1]), shape)
    return emit(at, aten.gather.default, x, axis, wide)


def is_of_masks(w: fx.Node) -> bool:
    """Whether a tensor that is held still is made of truth values or whole numbers of an input, and
    of no parameter: it says which tokens are there, and is no weight."""
    above = [w] if is_live(w) else list(reached([w]))
    given = [n for n in above if n.op == "placeholder"]
    return bool(given) and not any(is_float(n) for n in above if n in given or n.op == "get_attr")


def holds_weights(x: fx.Node) -> bool:
    """Whether something of the model's is among the numbers that a tensor is made of; not where
    these only say which were picked."""
    above = reached([x], lambda node: filter(is_float, node.all_input_nodes))
    return any(n.op == "get_attr" for n in above if n is not x)


def operands_first(node: fx.Node, is_known: Callable[[fx.Node], bool]) -> Iterator[fx.Node]:
    """What is not known yet of a node and of all above it, however long the way: whoever asks
    makes each known before the next."""
    left = [node]
    while left:
        if is_known(left[-1]):
            left.pop()
        elif above := [n for n in left[-1].all_input_nodes if not is_known(n)]:
            left += above
        else:
            yield left[-1]


def tensor_inputs(node: fx.Node) -> tuple[fx.Node, ...]:
    """The tensors that enter a call, in order of appearance, repeats kept."""
    found: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), lambda n: found.append(n))
    return tuple(found)


def is_tensor(x: object) -> TypeGuard[fx.Node]:
    """Whether an argument is a node whose value is one tensor."""
    return isinstance(x, fx.Node) and isinstance(val(x), Tensor)


def is_float(x: object) -> TypeGuard[fx.Node]:
    """Whether an argument is a node whose value is one floating tensor."""
    return is_tensor(x) and bool(val(x).is_floating_point())


def is_number(x: object, value: float) -> bool:
    """Whether an argument is this number, or a tensor made to hold it everywhere."""
    while isinstance(x, fx.Node) and kind(x) in (Kind.EXPAND, Kind.RESHAPE, Kind.SLICE):
        x = x.args[0]
    if isinstance(x, (int, float)):
        return x == value
    if is_call(x, aten.zeros, aten.zeros_like, aten.new_zeros):
        return value == 0
    if is_call(x, aten.ones, aten.ones_like, aten.new_ones):
        return value == 1
    return is_call(x, aten.full, aten.full_like, aten.new_full) and is_number(
        argument(x, "fill_value"), value
    )


Rewrite = Callable[[fx.Node], "fx.Node | None"]
