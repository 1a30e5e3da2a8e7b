"""One operation, many names: what PyTorch lets a model call by several operators becomes the one
that the rules know. What no line of the table knows is taken apart by PyTorch's own definition.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from relprop.operations import Kind, argument, is_call, kind, packet
from relprop.operations.vocabulary import Held
from relprop.tracer.editing import (
    Rewrite,
    aten,
    emit,
    expanded,
    is_float,
    is_live,
    is_number,
    is_tensor,
    rank,
    reshaped,
    shape_of,
    swap,
    tensor_inputs,
    val,
)
from relprop.tracer.facts import Facts, know, place
from relprop.tracer.passes.attention import split_attention
from relprop.tracer.passes.fourier import TRANSFORMS
from relprop.tracer.passes.indices import (
    copied,
    put_by_index,
    put_flat,
    scatter_reduced,
    summed_by_index,
    written,
)
from relprop.tracer.passes.maxima import largest_of_stretches
from relprop.tracer.passes.missing import mean_of_numbers, sum_of_numbers
from relprop.tracer.passes.products import as_matmul, contracted, linear_of_matrix, trilinear
from relprop.tracer.passes.recurrent import unroll
from relprop.tracer.passes.views import VIEWS
from relprop.tracer.recorded import recorded_value


def respell(graph: fx.Graph, device: torch.device) -> None:
    """Every call in its one spelling; what that is made of, too. New tensors are on ``device``."""
    done: set[fx.Node] = set()
    while waiting := [n for n in graph.nodes if n.op == "call_function" and n not in done]:
        for node in waiting:
            done.add(node)
            if not node._erased:
                _respell(node, device)
    graph.eliminate_dead_code()


def _respell(node: fx.Node, device: torch.device) -> None:
    what = kind(node)
    if (rewrite := SPELLINGS.get(packet(node)) or BY_KIND.get(what)) is not None:
        new = rewrite(node)
    elif what is Kind.ATTENTION:
        new = split_attention(node, device)
    elif is_call(node, aten.pad):
        new = _pad(node, device)
    elif (transform := TRANSFORMS.get(packet(node))) is not None:
        new = transform(node, device)
    elif what is Kind.FACTORY:
        new = _made(node, device)
    elif what is Kind.UNKNOWN:
        new = _taken_apart(node, device)
    else:
        return
    if new is not None and new is not node and not node._erased:
        swap(node, new)


def _taken_apart(node: fx.Node, device: torch.device) -> fx.Node | None:
    """What PyTorch says the operator is made of, in place of ``node``, if it does."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    if target._can_decompose():
        definition: Callable[..., Any] = target.decompose
    elif target in decomposition_table:
        definition = decomposition_table[target]
    else:
        return None
    operands = tensor_inputs(node)
    if not all(is_tensor(o) for o in operands):
        return None

    def call(*tensors: Tensor) -> Any:
        it = iter(tensors)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda _: next(it))
        return definition(*_plain(args), **_plain(kwargs))

    made = next(_traced(call, operands, device), None)
    if made is None or any(n.target is target for n in made.graph.nodes):
        return None
    return _inlined(node, made, operands)


def _traced(
    call: Callable[..., Any], operands: Sequence[fx.Node], device: torch.device
) -> Iterator[fx.GraphModule]:
    """``call`` on tensors as the operands lie; then as if they lay in order, since a definition may
    ask for views that the operator itself does without."""
    for lies in (torch.empty_strided, lambda shape, _, **options: torch.empty(shape, **options)):
        with FakeTensorMode(), torch.no_grad():
            given = [
                lies(val(o).shape, val(o).stride(), dtype=val(o).dtype, device=device)
                for o in operands
            ]
            try:
                yield make_fx(call)(*given)
            except Exception:  # a definition that needs values, or the operator itself again
                continue


def _plain(value: Any) -> Any:
    """fx's immutable containers as ordinary ones."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return (
            type(value)(_plain(v) for v in value)
            if type(value) is tuple
            else [_plain(v) for v in value]
        )
    return value


def _inlined(node: fx.Node, made: fx.GraphModule, operands: tuple[fx.Node, ...]) -> fx.Node | None:
    """The nodes of ``made`` in place of ``node``; of several results each in place of its user."""
    env: dict[fx.Node, Any] = {}
    given = iter(operands)
    for inner in made.graph.nodes:
        if inner.op == "placeholder":
            env[inner] = next(given)
        elif inner.op == "output":
            results = inner.args[0]
        elif inner.op == "get_attr":
            return None
        else:
            with node.graph.inserting_before(node):
                env[inner] = new = node.graph.node_copy(inner, lambda n: env[n])
            know(new, Facts(recorded_value(inner), place(node)))
    if isinstance(results, fx.Node):
        return env[results]
    for user in list(node.users):
        if kind(user) is Kind.OUTPUT:
            swap(user, env[results[user.args[1]]])
    return None


def _pad(node: fx.Node, device: torch.device) -> fx.Node | None:
    """Padding with a number, whichever operator does it; with the tensor's own values → positions
    picked."""
    mode = argument(node, "mode")
    if mode not in (None, "constant"):
        return _padded_by_itself(node, mode, device)
    value = argument(node, "value")
    return emit(node, aten.constant_pad_nd.default, *node.args[:2], 0 if value is None else value)


def _padded_by_itself(node: fx.Node, mode: str, device: torch.device) -> fx.Node:
    x: Any = node.args[0]
    amounts = list(node.args[1])  # type: ignore[arg-type]
    for i, around in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        axis = rank(x) - 1 - i
        if any(around):
            own = torch.arange(shape_of(x)[axis], dtype=torch.float64)
            places = torch.nn.functional.pad(own[None, None], around, mode)[0, 0].long()
            held = emit(node, Held(places.to(device)))
            x = emit(node, aten.index.Tensor, x, [*[None] * axis, held])
    return x  # type: ignore[no-any-return]


# ---- by kind


def _same(node: fx.Node) -> fx.Node | None:
    """Copies, dropout in eval mode."""
    x = node.args[0]
    if isinstance(val(node), (tuple, list)):
        for user in [u for u in node.users if u.args[1] == 0]:
            swap(user, x)  # type: ignore[arg-type]
        return None
    return x if val(x).dtype == val(node).dtype else emit(node, aten.to.dtype, x, val(node).dtype)  # type: ignore[return-value]


def _cast(node: fx.Node) -> fx.Node | None:
    """To another type, or to none; ``type_as`` reads nothing of its second operand but its type."""
    x, dtype = node.args[0], val(node).dtype
    if not is_tensor(x) or val(x).dtype == dtype:
        return x  # type: ignore[return-value]
    if node.target is aten.to.dtype and len(node.args) == 2 and not node.kwargs:
        return None
    return emit(node, aten.to.dtype, x, dtype)


def _softmax(node: fx.Node) -> fx.Node | None:
    """A softmax along an axis counted from 0, in the type of its operand; a type to compute in is a
    cast before it."""
    x, dim, dtype = node.args[0], argument(node, "dim"), val(node).dtype
    dim = dim % rank(x) if rank(x) else 0
    x = x if val(x).dtype == dtype else emit(node, aten.to.dtype, x, dtype)
    op = {aten._safe_softmax: aten._safe_softmax.default}.get(packet(node))
    if op is None:
        op = aten.softmax.int if kind(node) is Kind.SOFTMAX else aten.log_softmax.int
    if node.target is op and node.args == (x, dim) and not node.kwargs:
        return None
    return emit(node, op, x, dim)


def _picked(node: fx.Node) -> None:
    """The values of sort, topk and their like → ``gather`` at their indices: picked values only
    change place. Those of max and min are the largest and the smallest."""
    x, indices = node.args[0], [u for u in node.users if kind(u) is Kind.OUTPUT]
    if not indices or len(indices) != len(node.users):
        return
    ends = {aten.max: aten.amax.default, aten.min: aten.amin.default}
    if (op := ends.get(packet(node))) is not None:
        for user in [u for u in indices if u.args[1] == 0]:
            dim, keepdim = argument(node, "dim"), bool(argument(node, "keepdim"))
            swap(user, emit(user, op, x, [dim], keepdim))
        return
    dim = argument(node, "dim")
    dim = -1 if dim is None else dim
    dropped = rank(indices[0]) < rank(x)
    for user in [u for u in indices if u.args[1] == 0]:
        with node.graph.inserting_before(user):
            where = node.graph.call_function(operator.getitem, (node, 1))
        know(where, Facts(val(node)[1], place(node)))
        if dropped:
            where = emit(user, aten.unsqueeze.default, where, dim)
        picked = emit(user, aten.gather.default, x, dim % max(rank(x), 1), where)
        swap(user, reshaped(user, picked, shape_of(user)))


def _largest(node: fx.Node) -> fx.Node | None:
    """The largest of all elements → along all axes."""
    if packet(node) not in (aten.max, aten.min):
        return None
    op = aten.amax.default if is_call(node, aten.max) else aten.amin.default
    return emit(node, op, node.args[0], list(range(rank(node.args[0]))))


def _extremum(node: fx.Node) -> fx.Node | None:
    """``max(a, b)`` → ``maximum``."""
    if packet(node) not in (aten.max, aten.min):
        return None
    op = aten.maximum.default if is_call(node, aten.max) else aten.minimum.default
    return emit(node, op, *node.args)


def _clamped(node: fx.Node) -> fx.Node | None:
    """``clamp(x, low, high)`` by tensors → ``minimum(maximum(x, low), high)``."""
    bounds = {op: argument(node, n) for n, op in (("min", aten.maximum), ("max", aten.minimum))}
    if not any(is_tensor(bound) for bound in bounds.values()):
        return None
    x = node.args[0]
    for op, bound in bounds.items():
        x = x if bound is None else emit(node, op.default, x, bound)
    return x  # type: ignore[return-value]


def _made(node: fx.Node, device: torch.device) -> fx.Node | None:
    """``zeros_like(x)`` and its kin read nothing of x but its shape."""
    number = {aten.zeros_like: 0, aten.new_zeros: 0, aten.ones_like: 1, aten.new_ones: 1}
    value = number.get(packet(node), argument(node, "fill_value"))
    made = val(node)
    if value is None or not isinstance(node.args[0], fx.Node) or not isinstance(made, Tensor):
        return None
    if isinstance(value, fx.Node):
        return expanded(node, value, list(made.shape))
    return emit(node, aten.full.default, list(made.shape), value, dtype=made.dtype, device=device)


# ---- sums and products


def _add(node: fx.Node) -> fx.Node | None:
    """``add(a, b, alpha=k)`` → ``a + k·b``."""
    alpha = argument(node, "alpha")
    if alpha in (None, 1) or not is_tensor(node.args[1]):
        return None
    return emit(node, node.target, node.args[0], emit(node, aten.mul.Tensor, node.args[1], alpha))


def _rsub(node: fx.Node) -> fx.Node | None:
    """``rsub(a, b)`` of two tensors is b − a."""
    x, other, alpha = node.args[0], node.args[1], argument(node, "alpha")
    if not is_tensor(other):
        return None
    x = x if alpha in (None, 1) else emit(node, aten.mul.Tensor, x, alpha)
    return emit(node, aten.sub.Tensor, other, x)


def _scaled(node: fx.Node, x: Any, factor: Any) -> Any:
    return x if factor in (None, 1) else emit(node, aten.mul.Tensor, x, factor)


def _fused_product(node: fx.Node) -> fx.Node:
    """``addmm`` and its kin: β·c + α·(a @ b)."""
    extra, a, b = node.args[:3]
    product = emit(node, aten.matmul.default, a, b)
    if is_call(node, aten.addbmm):
        product = emit(node, aten.sum.dim_IntList, product, [0])
    product = _scaled(node, product, argument(node, "alpha"))
    beta = argument(node, "beta")
    if beta == 0:
        return product
    return emit(node, aten.add.Tensor, _scaled(node, extra, beta), product)


def _addr(node: fx.Node) -> fx.Node:
    """β·c + α·(a ⊗ b)."""
    extra, a, b = node.args[:3]
    product = emit(node, aten.mul.Tensor, reshaped(node, a, [-1, 1]), reshaped(node, b, [1, -1]))  # type: ignore[arg-type]
    product = _scaled(node, product, argument(node, "alpha"))
    return emit(node, aten.add.Tensor, _scaled(node, extra, argument(node, "beta")), product)


def _addc(node: fx.Node) -> fx.Node:
    """``addcmul(x, a, b, value=k)`` → ``x + k·(a·b)``; likewise ``addcdiv``."""
    x, a, b = node.args
    op = aten.mul.Tensor if is_call(node, aten.addcmul) else aten.div.Tensor
    change = _scaled(node, emit(node, op, a, b), argument(node, "value"))
    return emit(node, aten.add.Tensor, x, change)


def _lerp(node: fx.Node) -> fx.Node:
    """``lerp(a, b, w)`` → (1 − w)·a + w·b; of a tensor with itself, that tensor."""
    a, b, weight = node.args
    if a is b:
        return a  # type: ignore[return-value]
    if not is_tensor(weight):
        parts = (_scaled(node, a, 1 - weight), _scaled(node, b, weight))  # type: ignore[operator]
        return emit(node, aten.add.Tensor, *parts)
    rest = emit(node, aten.rsub.Scalar, weight, 1)
    parts = (emit(node, aten.mul.Tensor, a, rest), emit(node, aten.mul.Tensor, b, weight))
    return emit(node, aten.add.Tensor, *parts)


def _glu(node: fx.Node) -> fx.Node:
    """``glu(x)`` → first half · sigmoid(second half)."""
    x, dim = node.args[0], argument(node, "dim") % rank(node)
    half = shape_of(x)[dim] // 2
    first, second = (
        emit(node, aten.slice.Tensor, x, dim, i * half, (i + 1) * half, 1) for i in (0, 1)
    )
    return emit(node, aten.mul.Tensor, first, emit(node, aten.sigmoid.default, second))


def _step(node: fx.Node) -> fx.Node:
    """``heaviside(x, y)`` → whether x > 0, and y where it is 0: comparisons, of which PyTorch has
    no derivative."""
    x, middle = node.args[:2]
    test = aten.ge.Scalar if is_number(middle, 1) else aten.gt.Scalar
    above = emit(node, aten.to.dtype, emit(node, test, x, 0), val(node).dtype)
    if is_number(middle, 0) or is_number(middle, 1):
        return above
    return emit(node, aten.where.self, emit(node, aten.eq.Scalar, x, 0), middle, above)


def _cosine(node: fx.Node) -> fx.Node | None:
    """``cosine_similarity(x, y)`` → Σ x/max(‖x‖, ε) · y/max(‖y‖, ε): two norms and a product."""
    pair, dim, eps = node.args[:2], argument(node, "dim"), argument(node, "eps")
    width, units = rank(node) + 1, []
    for x in pair:
        x = reshaped(node, x, [1] * (width - rank(x)) + shape_of(x))  # type: ignore[arg-type]
        size = emit(node, aten.linalg_vector_norm.default, x, 2, [dim], True)
        units.append(emit(node, aten.div.Tensor, x, emit(node, aten.clamp_min.default, size, eps)))
    return emit(node, aten.sum.dim_IntList, emit(node, aten.mul.Tensor, *units), [dim])


# ---- statistics


def _spread(node: fx.Node, x: Any, like: fx.Node) -> fx.Node:
    """The variance or the deviation that a call, which may also give the mean, gives. A deviation
    stays one: torch's has a slope of 0 where all values are equal, the root of a variance has
    none."""
    dims = argument(like, "dim")
    dims = None if isinstance(dims, bool) else dims
    correction, unbiased = argument(like, "correction"), argument(like, "unbiased")
    if unbiased is not None:
        correction = int(unbiased)
    correction = 1 if correction is None else correction
    op = aten.std.correction if is_call(like, aten.std, aten.std_mean) else aten.var.correction
    keepdim = bool(argument(like, "keepdim"))
    return emit(node, op, x, dims, correction=correction, keepdim=keepdim)


def _deviation(node: fx.Node) -> fx.Node | None:
    """``std`` in its one overload."""
    return None if node.target is aten.std.correction else _spread(node, node.args[0], node)


def _with_mean(node: fx.Node) -> None:
    """``var_mean``, ``std_mean`` → one call for each that is used."""
    x, dims = node.args[0], argument(node, "dim")
    dims = list(range(rank(x))) if dims is None or isinstance(dims, bool) else dims
    for user in list(node.users):
        if user.args[1] == 1:
            swap(user, emit(user, aten.mean.dim, x, dims, bool(argument(node, "keepdim"))))
        else:
            swap(user, _spread(user, x, node))


def _native_norm(node: fx.Node) -> None:
    """``native_layer_norm`` and its kin, of which usually the first result alone is used."""
    x = node.args[0]
    for user in list(node.users):
        if user.args[1] != 0:
            continue
        if is_call(node, aten.native_layer_norm):
            swap(user, emit(user, aten.layer_norm.default, *node.args))
        elif is_call(node, aten.native_group_norm):
            weight, bias, groups, eps = (
                argument(node, n) for n in ("weight", "bias", "group", "eps")
            )
            swap(user, emit(user, aten.group_norm.default, x, groups, weight, bias, eps))
        elif not argument(node, "training"):
            names = ("weight", "bias", "running_mean", "running_var")
            given = [argument(node, n) for n in names]
            rest = (False, argument(node, "momentum"), argument(node, "eps"), False)
            swap(user, emit(user, aten.batch_norm.default, x, *given, *rest))


def _sum_of_sizes(node: fx.Node) -> fx.Node | None:
    """‖x‖₁ is Σ |x|."""
    if argument(node, "ord") != 1 or argument(node, "dtype") is not None:
        return None
    x, dim = node.args[0], argument(node, "dim")
    dims = [dim] if isinstance(dim, int) else dim or list(range(rank(x)))
    size = emit(node, aten.abs.default, x)
    return emit(node, aten.sum.dim_IntList, size, dims, bool(argument(node, "keepdim")))


def _number(node: fx.Node) -> None:
    """A number that Python reads from a tensor, where an operator would take the tensor as well."""
    source = node.args[0]
    if not is_float(source):
        return
    for user in list(node.users):
        if not isinstance(user.target, torch._ops.OpOverload):
            continue
        tensors = [a.name for a in user.target._schema.arguments if "Tensor" in str(a.type)]
        if any(argument(user, name) is node for name in tensors):
            held = reshaped(user, source, [])
            held = emit(user, aten.detach.default, held) if is_live(held) else held
            user.replace_input_with(node, held)


BY_KIND: dict[Kind, Callable[[fx.Node], fx.Node | None]] = {
    **VIEWS,
    Kind.IDENTITY: _same,
    Kind.CAST: _cast,
    Kind.SOFTMAX: _softmax,
    Kind.LOG_SOFTMAX: _softmax,
    Kind.PICK: _picked,
    Kind.LARGEST: _largest,
    Kind.EXTREMUM: _extremum,
    Kind.MATMUL: as_matmul,
    Kind.CONTRACTION: contracted,
    Kind.LINEAR: linear_of_matrix,
    Kind.RECURRENT: unroll,
}

SPELLINGS: dict[Any, Rewrite] = {
    aten.add: _add,
    aten.sub: _add,
    aten.rsub: _rsub,
    **dict.fromkeys((aten.addmm, aten.addmv, aten.baddbmm, aten.addbmm), _fused_product),
    aten.addr: _addr,
    **dict.fromkeys(
        (aten.adaptive_max_pool1d, aten.adaptive_max_pool2d, aten.adaptive_max_pool3d),
        largest_of_stretches,  # type: ignore[dict-item]
    ),
    aten.item: _number,
    **dict.fromkeys((aten.clamp, aten.clamp_min, aten.clamp_max), _clamped),
    aten.addcmul: _addc,
    aten.addcdiv: _addc,
    aten.lerp: _lerp,
    aten._trilinear: trilinear,
    aten.glu: _glu,
    aten.heaviside: _step,
    aten.nanmean: mean_of_numbers,
    aten.nansum: sum_of_numbers,
    aten.cosine_similarity: _cosine,
    aten.linalg_vector_norm: _sum_of_sizes,
    aten.std: _deviation,
    aten.var_mean: _with_mean,  # type: ignore[dict-item]
    aten.std_mean: _with_mean,  # type: ignore[dict-item]
    **dict.fromkeys(
        (aten.native_layer_norm, aten.native_group_norm, aten.native_batch_norm), _native_norm
    ),  # type: ignore[dict-item]
    aten.index_add: summed_by_index,
    aten.scatter_add: summed_by_index,
    aten.index_put: put_by_index,
    aten.put: put_flat,
    aten.scatter_reduce: scatter_reduced,
    aten.select_scatter: written,
    aten.slice_scatter: written,
    aten.copy: copied,
}
