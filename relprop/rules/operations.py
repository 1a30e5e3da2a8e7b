"""Which operator belongs to which family: the written lists. What is in none of them is unknown,
and named by an error or a warning.

The names are ATen packets of the canonical graph (see ``relprop.tracer.passes``). Rule sets are
tables over these lists.
"""

from __future__ import annotations

from typing import Any

import torch


def packets(names: str) -> tuple[Any, ...]:
    """ATen operator packets by name; names this PyTorch does not have are left out."""
    return tuple(
        getattr(torch.ops.aten, name) for name in names.split() if hasattr(torch.ops.aten, name)
    )


#: One element in, one element out (or a norm): relevance unchanged.
CARRY = packets(
    "softmax _softmax _safe_softmax log_softmax _log_softmax gelu relu relu6 silu mish "
    "elu selu celu leaky_relu prelu tanh sigmoid "
    "log_sigmoid hardswish hardsigmoid hardtanh softplus softsign clamp clamp_min "
    "clamp_max abs neg exp expm1 log log1p log2 sqrt rsqrt square "
    "reciprocal pow sin cos erf sign layer_norm rms_norm group_norm instance_norm "
    "batch_norm native_layer_norm native_group_norm "
    "to _to_copy type_as detach round floor ceil nan_to_num rsub"
)
#: Divisions and products: by one activation they carry, by two they mix.
PRODUCT = packets("mul div multiply divide true_divide")
#: Matrix products of two activations.
MATMUL = packets("matmul bmm mm mv dot")
#: u + v and u − v.
ADD = packets("add")
SUBTRACT = packets("sub")
#: Sums of many inputs with weights or with w ≥ 0.
LINEAR = packets("linear")
CONV2D = packets("conv2d")
CONV = packets("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")
SHARE = packets(
    "conv1d conv3d conv_transpose1d conv_transpose2d conv_transpose3d mean sum cumsum "
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
    "adaptive_avg_pool2d adaptive_avg_pool3d col2im upsample_bilinear2d "
    "upsample_nearest2d upsample_linear1d upsample_nearest1d "
    "upsample_bicubic2d upsample_trilinear3d upsample_nearest3d upsample_nearest_exact1d "
    "_upsample_nearest_exact2d _upsample_bilinear2d_aa "
    "_upsample_bicubic2d_aa"
)
#: Several numbers become one, whatever the formula (to the roll-up alone).
REDUCE = packets("mean sum prod std var norm linalg_vector_norm logsumexp nansum")
#: Sums of what an index brings to one place, onto zeros.
GATHERED_SUM = packets("index_add scatter_add")
#: Values read between positions: weights that come from the second operand, which receives nothing.
SAMPLE = packets("grid_sampler grid_sampler_2d grid_sampler_3d")
#: Values only change place.
RESHAPE = packets(
    "reshape view _unsafe_view flatten unflatten squeeze unsqueeze view_as reshape_as"
)
PERMUTE = packets("permute")
TRANSPOSE = packets("transpose swapaxes")
EXPAND = packets("expand expand_as")
SELECT = packets("select")
SLICE = packets("slice")
CAT = packets("cat")
MOVE = packets(
    "stack roll flip index index_select gather repeat repeat_interleave tile narrow "
    "select_scatter slice_scatter "
    "index_put split split_with_sizes chunk unbind tensor_split unfold col2im "
    "pixel_shuffle pixel_unshuffle "
    "movedim t numpy_T adjoint as_strided diagonal take_along_dim broadcast_to clone "
    "contiguous alias take channel_shuffle"
)
FILL = packets("masked_fill where pad constant_pad_nd tril triu masked_scatter scatter im2col")
ROUTE = packets(
    "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d amax amin "
    "max min maximum minimum sort topk fmax fmin"
)
#: Nothing flows here, whatever enters: shapes, comparisons, indices, noise.
STOP = packets(
    "eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and "
    "bitwise_or bitwise_not __and__ __or__ isnan isinf "
    "isfinite argmax argmin argsort any all nonzero zeros_like ones_like full_like "
    "empty_like rand_like randn_like new_zeros new_ones "
    "new_full new_empty arange zeros ones full eye floor_divide remainder histc "
    "bernoulli multinomial embedding one_hot item "
    "_local_scalar_dense is_nonzero sym_size scalar_tensor bucketize searchsorted "
    "unique_dim _unique2 count_nonzero"
)

#: Positions picked by an index, element by element (a move, too).
GATHER = packets("gather")
#: Features become tokens (a move, too).
SHUFFLE = packets("pixel_shuffle")

MOVES = (*RESHAPE, *PERMUTE, *TRANSPOSE, *EXPAND, *SELECT, *SLICE, *CAT, *MOVE)
