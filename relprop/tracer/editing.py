"""Small tools for rewriting a graph: emit a node with its value's shape and its place, replace a
node, ask what it depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

aten = torch.ops.aten


def name_of(node: Any) -> str:
    """The operator packet's name of a call, ``""`` for anything else."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return ""
    return getattr(
        getattr(node.target, "overloadpacket", None),
        "__name__",
        getattr(node.target, "__name__", ""),
    )


def val(x: Any) -> Any:
    """The meta value of a node, or the thing itself."""
    return x.meta.get("val") if isinstance(x, fx.Node) else x


def emit(like: fx.Node, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A new node just before ``like``, at the same place in the user's model, its meta value
    computed."""
    graph = like.graph
    with graph.inserting_before(like):
        node = graph.call_function(op, args, kwargs)
    node.meta["place"] = like.meta["place"]
    on_meta = {**kwargs, "device": "meta"} if "device" in kwargs else kwargs
    node.meta["val"] = op(*tree_map(val, args), **tree_map(val, on_meta))
    return node


def swap(old: fx.Node, new: fx.Node) -> None:
    """``new`` in place of ``old`` everywhere; ``old`` is erased."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument wherever it was given."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def depends_on_inputs(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that depend on a placeholder."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder" or any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def tensor_inputs(node: fx.Node) -> tuple[fx.Node, ...]:
    """The tensors that enter a call, in order of appearance, repeats kept."""
    found: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), lambda n: found.append(n))
    return tuple(found)


def is_tensor(x: Any) -> bool:
    """Whether an argument is a node whose value is one tensor."""
    return isinstance(x, fx.Node) and isinstance(val(x), Tensor)


Rewrite = Callable[[fx.Node], "fx.Node | None"]


def rewrite(graph: fx.Graph, table: dict[str, Rewrite]) -> None:
    """Replace every call whose operator's name is in ``table`` by what its function returns
    (``None``: leave it)."""
    for node in list(graph.nodes):
        function = table.get(name_of(node))
        if function is not None and (new := function(node)) is not None and new is not node:
            swap(node, new)
