"""One operation, many names: what PyTorch lets a model call by several operators becomes the one
that the rules know. What no line of the table knows is taken apart by PyTorch's own definition."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from relprop.operations import Kind, Operator, is_call, kind, packet
from relprop.tracer.constants import Constants
from relprop.tracer.editing import Rewrite, aten, swap
from relprop.tracer.passes.attention.fused import split_attention
from relprop.tracer.passes.spelling.arithmetic import (
    between,
    cosine,
    difference,
    exponential,
    products_added,
    step,
    sum_with_factor,
)
from relprop.tracer.passes.spelling.casts import (
    as_cast,
    as_full,
    as_operand,
    as_softmax,
    read_as_tensor,
)
from relprop.tracer.passes.spelling.definitions import Definitions
from relprop.tracer.passes.spelling.einsum import contracted, trilinear
from relprop.tracer.passes.spelling.extremes import (
    clamped,
    largest_of_stretches,
    of_all_axes,
    of_two,
    picked_values,
)
from relprop.tracer.passes.spelling.matmul import as_matmul, linear_of_matrix
from relprop.tracer.passes.spelling.padding import as_fill, as_padding
from relprop.tracer.passes.spelling.picking import rows_of_computed
from relprop.tracer.passes.spelling.recurrent import CELLS, unroll
from relprop.tracer.passes.spelling.statistics import (
    deviation,
    distances,
    native_norm,
    sum_of_sizes,
    with_mean,
)
from relprop.tracer.passes.spelling.views import VIEWS
from relprop.tracer.passes.writes.by_index import (
    copied,
    put_by_index,
    put_flat,
    rows_written,
    scatter_reduced,
    summed_by_index,
    written,
)


def respell(graph: fx.Graph, constants: Constants) -> None:
    """Every call in its one spelling; what that is made of, too."""
    done: set[fx.Node] = set()
    definitions = Definitions(constants.device)
    while waiting := [n for n in graph.nodes if n.op == "call_function" and n not in done]:
        for node in waiting:
            done.add(node)
            if not node._erased:
                _respell(node, definitions)


def _respell(node: fx.Node, definitions: Definitions) -> None:
    what, device = kind(node), definitions.device
    if (rewrite := SPELLINGS.get(packet(node)) or BY_KIND.get(what)) is not None:
        new = rewrite(node)
    elif what is Kind.ATTENTION:
        new = split_attention(node, device)
    elif is_call(node, aten.pad):
        new = as_padding(node, device)
    elif is_call(node, aten.tril, aten.triu):
        new = as_fill(node, device)
    elif what is Kind.FACTORY:
        new = as_full(node, device)
    elif what in (Kind.UNKNOWN, Kind.RECURRENT) or node.target in DEFINED:
        new = definitions.take_apart(node)
    else:
        return
    if new is not None and new is not node and not node._erased:
        swap(node, new)


#: What is of a kind that rules know, and better taken apart.
DEFINED = frozenset({aten.addcmul.default, aten.addcdiv.default})

BY_KIND: dict[Kind, Callable[[fx.Node], fx.Node | None]] = {
    **VIEWS,
    Kind.IDENTITY: as_operand,
    Kind.CAST: as_cast,
    Kind.SOFTMAX: as_softmax,
    Kind.LOG_SOFTMAX: as_softmax,
    Kind.PICK: picked_values,
    Kind.LARGEST: of_all_axes,
    Kind.EXTREMUM: of_two,
    Kind.MATMUL: as_matmul,
    Kind.CONTRACTION: contracted,
    Kind.LINEAR: linear_of_matrix,
}


SPELLINGS: dict[Operator, Rewrite] = {
    aten.add: sum_with_factor,
    aten.sub: sum_with_factor,
    aten.rsub: difference,
    aten.addbmm: products_added,
    **dict.fromkeys((aten.exp2, aten.pow), exponential),
    **dict.fromkeys(
        (aten.adaptive_max_pool1d, aten.adaptive_max_pool2d, aten.adaptive_max_pool3d),
        largest_of_stretches,
    ),
    **dict.fromkeys(CELLS, unroll),
    aten.item: read_as_tensor,
    **dict.fromkeys((aten.clamp, aten.clamp_min, aten.clamp_max), clamped),
    aten.lerp: between,
    aten._trilinear: trilinear,
    aten.heaviside: step,
    aten.cosine_similarity: cosine,
    aten.linalg_vector_norm: sum_of_sizes,
    **dict.fromkeys((aten.cdist, aten._cdist_forward, aten._euclidean_dist), distances),
    aten.std: deviation,
    aten.var_mean: with_mean,
    aten.std_mean: with_mean,
    **dict.fromkeys(
        (aten.native_layer_norm, aten.native_group_norm, aten.native_batch_norm), native_norm
    ),
    aten.embedding: rows_of_computed,
    aten.index_add: summed_by_index,
    aten.scatter_add: summed_by_index,
    aten.index_put: put_by_index,
    **dict.fromkeys((aten.index_copy, aten.scatter), rows_written),
    aten.put: put_flat,
    aten.scatter_reduce: scatter_reduced,
    aten.select_scatter: written,
    aten.slice_scatter: written,
    aten.copy: copied,
}
