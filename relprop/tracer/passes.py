"""The canonicalising passes, in order: from what the front ends record to few operators, each at the height of a rule.

After them there are no in-place ops, no checks, no dropout, no fused attention, no multi-output splits; products with a
parameter are ``linear``; ``einsum`` of two operands is a matrix product. Numbers do not change (a check against the model holds it).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from relprop.errors import CaptureError, message
from relprop.tracer.capture import is_inplace
from relprop.tracer.editing import argument, aten, depends_on_inputs, emit, is_tensor, name_of, rewrite, swap, val
from relprop.tracer.einsum import lower_einsum
from relprop.tracer.spellings import SPELLINGS

CHECKS = ("_assert", "sym_constrain", "_set_grad_enabled")
NO_OPS = frozenset("dropout dropout_ feature_dropout alpha_dropout alias lift_fresh lift_fresh_copy clone contiguous positive".split())


def canonicalise(graph: fx.Graph, device: torch.device) -> None:
    """Run every pass on ``graph``, in place; what the passes create lives on ``device``."""
    drop_checks(graph)
    inline_regions(graph)
    functionalise(graph)
    bound_slices(graph)
    drop_no_ops(graph)
    graph.eliminate_dead_code()
    rewrite(graph, SPELLINGS)
    rewrite(graph, TABLE | {"scaled_dot_product_attention": partial(split_attention, device=device)})
    project_parameters(graph)
    join_bias(graph)
    graph.eliminate_dead_code()
    graph.lint()


def drop_checks(graph: fx.Graph) -> None:
    """Assertions and gradient-mode switches carry no values."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and name_of(node).startswith(CHECKS):
            graph.erase_node(node)


def inline_regions(graph: fx.Graph) -> None:
    """Regions with their own sub-graph: gradient-mode regions are inlined; an inner autocast would change numbers and is refused."""
    for node in list(graph.nodes):
        name = name_of(node)
        if "autocast" in name:
            raise CaptureError(message(
                "the model enters an autocast region of its own, whose casts a graph does not record", at=str(node.meta["place"]),
                then=["explain the model without the inner autocast, for example in float32 throughout"],
            ))
        if name == "wrap_with_set_grad_enabled":
            _inline(node)


def _inline(node: fx.Node) -> None:
    body = node.args[1].meta["subgraph"].graph  # type: ignore[union-attr, index]
    env = dict(zip([n for n in body.nodes if n.op == "placeholder"], node.args[2:], strict=True))
    for inner in body.nodes:
        if inner.op == "call_function":
            with node.graph.inserting_before(node):
                new = node.graph.node_copy(inner, lambda n: env[n])
            new.meta = {"place": node.meta["place"], "val": torch.utils._pytree.tree_map(_to_meta, inner.meta.get("val"))}
            env[inner] = new
        elif inner.op == "output":
            results = [env[n] for n in inner.args[0]]
    for user in list(node.users):
        user.replace_all_uses_with(results[user.args[1]])
        node.graph.erase_node(user)
    node.graph.erase_node(node)


def _to_meta(value: Any) -> Any:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta") if isinstance(value, Tensor) else value


def functionalise(graph: fx.Graph) -> None:
    """``x.add_(y)`` → ``x = add(x, y)``: later uses of ``x`` read the new value."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not is_inplace(node):
            continue
        name = name_of(node)[:-1]
        base = node.args[0]
        if name == "copy":
            node.target, node.args = aten.expand.default, (node.args[1], list(val(base).shape))
            if val(node.args[0]).dtype != val(base).dtype:
                node.args = (emit(node, aten.to.dtype, node.args[0], val(base).dtype), node.args[1])
        elif name in ("fill", "zero"):
            value = 0 if name == "zero" else node.args[1]
            node.target, node.args = aten.full_like.default, (base, value)
        else:
            functional = getattr(getattr(aten, name, None), getattr(node.target, "_overloadname", "default"), None)
            if functional is None:
                raise CaptureError(message(f"no functional form of {node.target}", at=str(node.meta["place"])))
            node.target = functional
        later = {user for user in base.users if user is not node and node < user}  # type: ignore[union-attr]
        base.replace_all_uses_with(node, delete_user_cb=lambda user, later=later: user in later)  # type: ignore[union-attr]


def bound_slices(graph: fx.Graph) -> None:
    """Slices up to "the largest integer" say where they end: ``vmap`` of ``slice_scatter`` refuses that number."""
    for node in graph.nodes:
        tensors = {"slice": 1, "slice_scatter": 2}.get(name_of(node))
        if tensors is None:
            continue
        dim = argument(node, tensors, "dim", 0)
        start, end, step = (argument(node, tensors + i, name, default) for i, name, default in ((1, "start", None), (2, "end", None), (3, "step", 1)))
        if not any(isinstance(bound, fx.Node) for bound in (start, end, step)):
            node.args = (*node.args[:tensors], dim, *slice(start, end, step).indices(val(node.args[0]).shape[dim]))
            node.kwargs = {}


def drop_no_ops(graph: fx.Graph) -> None:
    """Dropout in eval mode, copies, casts to the type that is there already; ``view`` → ``reshape``."""
    for node in list(graph.nodes):
        name = name_of(node)
        if name in NO_OPS or (name in ("to", "_to_copy", "type_as") and val(node.args[0]).dtype == val(node).dtype and is_tensor(node.args[0])):
            swap(node, node.args[0])
        elif name in ("view", "_unsafe_view") and not isinstance(node.args[1], torch.dtype):
            node.target = aten.reshape.default


def split_attention(node: fx.Node, device: torch.device) -> fx.Node:
    """Fused attention → matmul, scale, mask, softmax, matmul, so that A is a node. Rows masked throughout give zeros, as the fused op does."""
    q, k, v = node.args[:3]
    mask, causal = argument(node, 3, "attn_mask"), argument(node, 5, "is_causal", False)
    scale = node.kwargs.get("scale") or 1 / math.sqrt(val(q).shape[-1])
    groups = val(q).shape[-3] // val(k).shape[-3] if val(q).dim() > 2 else 1
    if groups > 1:
        k, v = (_repeat_heads(node, x, groups) for x in (k, v))
    scores = emit(node, aten.matmul.default, q, emit(node, aten.transpose.int, k, -2, -1))
    scores = emit(node, aten.mul.Tensor, scores, float(scale))
    softmax = aten.softmax.int
    if causal:
        ones = emit(node, aten.ones.default, list(val(scores).shape[-2:]), dtype=torch.bool, device=device)
        mask = emit(node, aten.tril.default, ones)
    if is_tensor(mask) and val(mask).dtype == torch.bool:
        scores = emit(node, aten.masked_fill.Scalar, scores, emit(node, aten.logical_not.default, mask), float("-inf"))
        softmax = aten._safe_softmax.default
    elif mask is not None:
        scores = emit(node, aten.add.Tensor, scores, mask)
        softmax = aten._safe_softmax.default
    return emit(node, aten.matmul.default, emit(node, softmax, scores, -1), v)


def _repeat_heads(node: fx.Node, x: Any, groups: int) -> fx.Node:
    shape = list(val(x).shape)
    wide = emit(node, aten.expand.default, emit(node, aten.unsqueeze.default, x, -3), [*shape[:-2], groups, *shape[-2:]])
    return emit(node, aten.reshape.default, wide, [*shape[:-3], shape[-3] * groups, *shape[-2:]])


def _pieces(node: fx.Node) -> None:
    """split, chunk, unbind + getitem → one slice or select each."""
    name, x = name_of(node), node.args[0]
    dim = argument(node, 1 if name == "unbind" else 2, "dim", 0) % val(x).dim()
    sizes = [1] * val(x).shape[dim] if name == "unbind" else _piece_sizes(node, name, val(x).shape[dim])
    for user in list(node.users):
        if name_of(user) != "getitem":
            return
    for user in list(node.users):
        index = user.args[1] % len(sizes)  # type: ignore[operator]
        start = sum(sizes[:index])
        if name == "unbind":
            swap(user, emit(user, aten.select.int, x, dim, index))
        else:
            swap(user, emit(user, aten.slice.Tensor, x, dim, start, start + sizes[index]))


def _piece_sizes(node: fx.Node, name: str, length: int) -> list[int]:
    wanted = node.args[1] if len(node.args) > 1 else next(iter(node.kwargs.values()))
    if isinstance(wanted, (list, tuple)):
        return [int(w) for w in wanted]  # type: ignore[arg-type]
    size = -(-length // wanted) if name == "chunk" else int(wanted)  # type: ignore[operator, arg-type]
    return [min(size, length - start) for start in range(0, length, size)]


def _addmm(node: fx.Node) -> fx.Node | None:
    bias, x, weight = node.args
    if node.kwargs.get("beta", 1) != 1 or node.kwargs.get("alpha", 1) != 1:
        return None
    return emit(node, aten.add.Tensor, emit(node, aten.matmul.default, x, weight), bias)


def _baddbmm(node: fx.Node) -> fx.Node:
    extra, a, b = node.args
    product = emit(node, aten.bmm.default, a, b)
    if (alpha := node.kwargs.get("alpha", 1)) != 1:
        product = emit(node, aten.mul.Tensor, product, alpha)
    beta = node.kwargs.get("beta", 1)
    if beta == 0:
        return product
    return emit(node, aten.add.Tensor, extra if beta == 1 else emit(node, aten.mul.Tensor, extra, beta), product)


def _add(node: fx.Node) -> fx.Node | None:
    """``add(a, b, alpha=k)`` → ``a + k·b``; a Python number on the left moves to the right."""
    alpha = node.kwargs.get("alpha", 1)
    if alpha == 1 or not is_tensor(node.args[1]):
        return None
    return emit(node, node.target, node.args[0], emit(node, aten.mul.Tensor, node.args[1], alpha))


def _t(node: fx.Node) -> fx.Node:
    dims = list(range(val(node.args[0]).dim()))[::-1]
    return emit(node, aten.permute.default, node.args[0], dims)


TABLE: dict[str, Any] = {
    "einsum": lower_einsum, "addmm": _addmm, "baddbmm": _baddbmm,
    "add": _add, "sub": _add, "t": _t, "numpy_T": _t,
    "split": _pieces, "split_with_sizes": _pieces, "chunk": _pieces, "unbind": _pieces,
}


def project_parameters(graph: fx.Graph) -> None:
    """``matmul(x, P)`` with P computed from parameters alone → ``linear(x, Pᵀ)``: a sum with weights, not a mixture of activations."""
    live = depends_on_inputs(graph)
    for node in list(graph.nodes):
        if name_of(node) in ("matmul", "mm") and node.args[0] in live and node.args[1] not in live and val(node.args[1]).dim() == 2:
            swap(node, emit(node, aten.linear.default, node.args[0], emit(node, aten.transpose.int, node.args[1], 0, 1)))


def join_bias(graph: fx.Graph) -> None:
    """A separate last-axis ``+ b`` after a product with a parameter is that linear layer's bias."""
    live = depends_on_inputs(graph)
    for node in list(graph.nodes):
        if name_of(node) != "add" or len(node.args) < 2 or not all(is_tensor(a) for a in node.args[:2]):
            continue
        for product, bias in ((node.args[0], node.args[1]), (node.args[1], node.args[0])):
            fits = bias not in live and val(bias).dim() == 1 and val(bias).shape == val(node).shape[-1:]
            if name_of(product) == "linear" and len(product.users) == 1 and len(product.args) == 2 and product in live and fits:
                swap(node, emit(node, aten.linear.default, *product.args, bias))
                break
