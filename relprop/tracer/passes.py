"""The canonicalising passes, in order: from what the front ends record to few operators, each at
the height of a rule.

After them there are no in-place ops, no checks, no dropout, no fused attention, no multi-output
splits; products with a parameter are ``linear``; ``einsum`` of two operands is a matrix product.
Numbers do not change (a check against the model holds it).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import fx

from relprop.tracer.editing import (
    argument,
    aten,
    depends_on_inputs,
    emit,
    is_tensor,
    name_of,
    rewrite,
    swap,
    val,
)
from relprop.tracer.einsum import lower_einsum
from relprop.tracer.mutation import functionalise
from relprop.tracer.recurrent import CELLS, LAYERS, unroll, unroll_cell
from relprop.tracer.regions import inline_regions
from relprop.tracer.spellings import SPELLINGS
from relprop.tracer.weighted import join_softmax, lower_weighted_sums

CHECKS = ("_assert", "sym_constrain", "_set_grad_enabled")
NO_OPS = frozenset(
    (
        "dropout dropout_ feature_dropout alpha_dropout alias lift_fresh lift_fresh_copy "
        "clone contiguous positive"
    ).split()
)


def canonicalise(graph: fx.Graph, device: torch.device) -> None:
    """Run every pass on ``graph``, in place; what the passes create lives on ``device``."""
    inline_regions(graph, device)
    drop_checks(graph)
    functionalise(graph)
    bound_slices(graph)
    drop_no_ops(graph)
    graph.eliminate_dead_code()
    rewrite(graph, dict.fromkeys(LAYERS, unroll) | dict.fromkeys(CELLS, unroll_cell))
    rewrite(graph, SPELLINGS)
    rewrite(
        graph, TABLE | {"scaled_dot_product_attention": partial(split_attention, device=device)}
    )
    project_parameters(graph)
    scale_stored(graph)
    join_bias(graph)
    join_softmax(graph)
    lower_weighted_sums(graph)
    graph.eliminate_dead_code()
    graph.lint()


def drop_checks(graph: fx.Graph) -> None:
    """Assertions and gradient-mode switches carry no values."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and name_of(node).startswith(CHECKS):
            graph.erase_node(node)


def bound_slices(graph: fx.Graph) -> None:
    """Slices up to "the largest integer" say where they end: ``vmap`` of ``slice_scatter`` refuses
    that number."""
    for node in graph.nodes:
        tensors = {"slice": 1, "slice_scatter": 2}.get(name_of(node))
        if tensors is None:
            continue
        dim = argument(node, tensors, "dim", 0)
        start, end, step = (
            argument(node, tensors + i, name, default)
            for i, name, default in ((1, "start", None), (2, "end", None), (3, "step", 1))
        )
        if not any(isinstance(bound, fx.Node) for bound in (start, end, step)):
            node.args = (
                *node.args[:tensors],
                dim,
                *slice(start, end, step).indices(val(node.args[0]).shape[dim]),
            )
            node.kwargs = {}


def drop_no_ops(graph: fx.Graph) -> None:
    """Dropout in eval mode, copies, casts to the type that is there already; ``view`` →
    ``reshape``."""
    for node in list(graph.nodes):
        name = name_of(node)
        if name in NO_OPS or (
            name in ("to", "_to_copy", "type_as")
            and val(node.args[0]).dtype == val(node).dtype
            and is_tensor(node.args[0])
        ):
            swap(node, node.args[0])
        elif name in ("view", "_unsafe_view") and not isinstance(node.args[1], torch.dtype):
            node.target = aten.reshape.default


def split_attention(node: fx.Node, device: torch.device) -> fx.Node:
    """Fused attention → matmul, scale, mask, softmax, matmul, so that A is a node. Rows masked
    throughout give zeros, as the fused op does."""
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
        ones = emit(
            node, aten.ones.default, list(val(scores).shape[-2:]), dtype=torch.bool, device=device
        )
        mask = emit(node, aten.tril.default, ones)
    if is_tensor(mask) and val(mask).dtype == torch.bool:
        scores = emit(
            node,
            aten.masked_fill.Scalar,
            scores,
            emit(node, aten.logical_not.default, mask),
            float("-inf"),
        )
        softmax = aten._safe_softmax.default
    elif mask is not None:
        scores = emit(node, aten.add.Tensor, scores, mask)
        softmax = aten._safe_softmax.default
    return emit(node, aten.matmul.default, emit(node, softmax, scores, -1), v)


def _repeat_heads(node: fx.Node, x: Any, groups: int) -> fx.Node:
    shape = list(val(x).shape)
    wide = emit(
        node,
        aten.expand.default,
        emit(node, aten.unsqueeze.default, x, -3),
        [*shape[:-2], groups, *shape[-2:]],
    )
    return emit(node, aten.reshape.default, wide, [*shape[:-3], shape[-3] * groups, *shape[-2:]])


def _pieces(node: fx.Node) -> None:
    """split, chunk, unbind + getitem → one slice or select each."""
    name, x = name_of(node), node.args[0]
    dim = argument(node, 1 if name == "unbind" else 2, "dim", 0) % val(x).dim()
    sizes = (
        [1] * val(x).shape[dim] if name == "unbind" else _piece_sizes(node, name, val(x).shape[dim])
    )
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
    return emit(
        node,
        aten.add.Tensor,
        extra if beta == 1 else emit(node, aten.mul.Tensor, extra, beta),
        product,
    )


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
    "einsum": lower_einsum,
    "addmm": _addmm,
    "baddbmm": _baddbmm,
    "add": _add,
    "sub": _add,
    "t": _t,
    "numpy_T": _t,
    "split": _pieces,
    "split_with_sizes": _pieces,
    "chunk": _pieces,
    "unbind": _pieces,
}


def project_parameters(graph: fx.Graph) -> None:
    """``matmul(x, P)`` with P computed from parameters alone → ``linear(x, Pᵀ)``: a sum with
    weights, not a mixture of activations."""
    live = depends_on_inputs(graph)
    for node in list(graph.nodes):
        if (
            name_of(node) in ("matmul", "mm")
            and node.args[0] in live
            and node.args[1] not in live
            and val(node.args[1]).dim() == 2
        ):
            swap(
                node,
                emit(
                    node,
                    aten.linear.default,
                    node.args[0],
                    emit(node, aten.transpose.int, node.args[1], 0, 1),
                ),
            )


def scale_stored(graph: fx.Graph) -> None:
    """A product with a matrix stored as integers, then one factor per output → a product with the
    scaled matrix, which is the one that was meant."""
    live = depends_on_inputs(graph)
    for node in list(graph.nodes):
        product, scale = (*node.args, None, None)[:2] if name_of(node) == "mul" else (None, None)
        if (
            name_of(product) != "linear"
            or len(product.args) != 2
            or len(product.users) != 1
            or product.args[1] in live
            or not is_tensor(scale)
            or scale in live
        ):
            continue
        if val(scale).shape == val(product).shape[-1:] and _stored_as_integers(product.args[1]):
            weight = emit(
                node,
                aten.mul.Tensor,
                product.args[1],
                emit(node, aten.unsqueeze.default, scale, -1),
            )
            swap(node, emit(node, aten.linear.default, product.args[0], weight))


def _stored_as_integers(node: fx.Node) -> bool:
    """Whether a floating matrix is another spelling of an integer parameter."""
    while (
        len(node.all_input_nodes) == 1
        and node.op == "call_function"
        and val(node).is_floating_point()
    ):
        node = node.all_input_nodes[0]
    return not val(node).is_floating_point()


def join_bias(graph: fx.Graph) -> None:
    """A separate last-axis ``+ b`` after a product with a parameter, reshaped or not, is that
    linear layer's bias."""
    live = depends_on_inputs(graph)
    for node in list(graph.nodes):
        if (
            name_of(node) != "add"
            or len(node.args) < 2
            or not all(is_tensor(a) for a in node.args[:2])
        ):
            continue
        for top, bias in ((node.args[0], node.args[1]), (node.args[1], node.args[0])):
            fits = (
                bias not in live
                and val(bias).dim() == 1
                and val(bias).shape == val(node).shape[-1:]
                and val(top).shape == val(node).shape
            )
            product = top
            while (
                name_of(product) in ("reshape", "flatten", "unflatten")
                and len(product.users) == 1
                and val(product).shape[-1:] == val(product.args[0]).shape[-1:]
            ):
                product = product.args[0]
            if (
                fits
                and name_of(product) == "linear"
                and len(product.users) == 1
                and len(product.args) == 2
                and product in live
            ):
                joined = emit(node, aten.linear.default, *product.args, bias)
                swap(
                    node,
                    joined
                    if product is top
                    else emit(node, aten.reshape.default, joined, list(val(node).shape)),
                )
                break
