"""The table: one line for every operation that torch does not describe well enough itself.

An operation without a line is what torch says it is: elementwise by its tag, a view by its schema.
A rule for a new operation is one name in one of these lines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from relprop.operations.kinds import Kind


@dataclass(frozen=True)
class Operation:
    """What an operation is. ``axes``: over how many last axes its windows run. ``adaptive``: their
    size is worked out from that of the result. ``transposed``: a convolution's derivative.
    ``routed``: each row has a matrix of its own, one of a few."""

    kind: Kind
    axes: int = 0
    adaptive: bool = False
    transposed: bool = False
    routed: bool = False


#: What each name is, of those that no window runs over.
_LINES: dict[Kind, str] = {
    Kind.IDENTITY: (
        "alias clone contiguous positive lift_fresh lift_fresh_copy dropout feature_dropout "
        "alpha_dropout feature_alpha_dropout native_dropout resolve_conj resolve_neg pin_memory"
    ),
    Kind.DETACH: "detach",
    Kind.CAST: "to _to_copy type_as",
    Kind.AFFINE: "neg rsub deg2rad rad2deg",
    Kind.FUNCTION: (
        "abs acos acosh asin asinh atan atanh ceil celu clamp clamp_max clamp_min cos cosh "
        "digamma elu erf erfc erfinv exp exp2 expm1 float_power floor frac gelu hardshrink "
        "hardsigmoid hardswish hardtanh i0 leaky_relu lgamma log log10 log1p log2 log_sigmoid "
        "logit mish nan_to_num pow prelu reciprocal relu relu6 round rrelu rsqrt selu sgn "
        "sigmoid sign silu sin sinc sinh softplus softshrink sqrt square tan tanh threshold "
        "trunc atan2 copysign floor_divide fmod heaviside hypot ldexp logaddexp logaddexp2 "
        "nextafter remainder xlogy polygamma mvlgamma igamma igammac div.Tensor_mode "
        "div.Scalar_mode"
    ),
    Kind.SUM: "add sub",
    Kind.PRODUCT: "mul",
    Kind.QUOTIENT: "div",
    Kind.CHOICE: "where masked_fill",
    Kind.EXTREMUM: "maximum minimum fmax fmin max.other min.other",
    Kind.TEST: (
        "eq ne lt le gt ge logical_and logical_or logical_not logical_xor isnan isinf isfinite "
        "isneginf isposinf signbit bitwise_and bitwise_or bitwise_not bitwise_xor __and__ __or__ "
        "__xor__ bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ gcd lcm isin"
    ),
    Kind.RESHAPE: (
        "reshape view _unsafe_view flatten unflatten squeeze unsqueeze view_as reshape_as ravel"
    ),
    Kind.PERMUTE: (
        "permute transpose t numpy_T mT mH adjoint matrix_H movedim moveaxis swapaxes swapdims"
    ),
    Kind.EXPAND: "expand expand_as broadcast_to",
    Kind.SELECT: "select",
    Kind.SLICE: "slice narrow",
    Kind.JOIN: "cat stack",
    Kind.SHIFT: "roll flip",
    Kind.REPEAT: "repeat tile repeat_interleave",
    Kind.VIEW: "as_strided unfold diagonal linalg_diagonal",
    Kind.WINDOWS: "im2col",
    Kind.INDEX: "index index_select take",
    Kind.GATHER: "gather take_along_dim",
    Kind.SHUFFLE: "pixel_shuffle pixel_unshuffle channel_shuffle",
    Kind.WRITE: (
        "index_put index_copy index_fill scatter slice_scatter select_scatter diagonal_scatter "
        "as_strided_scatter masked_scatter"
    ),
    Kind.PAD: "pad constant_pad_nd",
    Kind.FILL: "tril triu",
    Kind.SPLIT: (
        "split split_with_sizes chunk unbind tensor_split hsplit vsplit dsplit unsafe_split "
        "unsafe_chunk unsafe_split_with_sizes broadcast_tensors"
    ),
    Kind.LINEAR: "linear",
    Kind.MATMUL: "matmul bmm mm mv dot",
    Kind.CONTRACTION: "einsum",
    Kind.TOTAL: "mean sum nansum",
    Kind.LARGEST: "amax amin max min",
    Kind.STATISTIC: "prod std var norm linalg_vector_norm logsumexp",
    Kind.SCAN: "cumsum",
    Kind.SAMPLE: "grid_sampler grid_sampler_2d grid_sampler_3d",
    Kind.INDEXED_SUM: "index_add scatter_add",
    Kind.FOLD: "col2im",
    Kind.PICK: (
        "max.dim min.dim max.names_dim min.names_dim median mode sort topk kthvalue cummax cummin"
    ),
    Kind.SOFTMAX: "softmax _softmax _safe_softmax",
    Kind.LOG_SOFTMAX: "log_softmax _log_softmax",
    Kind.NORM: "layer_norm rms_norm group_norm instance_norm",
    Kind.BATCH_NORM: "batch_norm",
    Kind.EMBEDDING: "embedding",
    Kind.COUNT: (
        "argmax argmin argsort any all nonzero nonzero_numpy nonzero_static histc bincount "
        "one_hot bucketize searchsorted unique_dim _unique2 unique_consecutive count_nonzero"
    ),
    Kind.FACTORY: (
        "zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones "
        "new_full new_empty new_empty_strided empty_strided arange eye linspace logspace "
        "scalar_tensor tril_indices triu_indices hann_window sym_size sym_numel sym_stride"
    ),
    Kind.RANDOM: (
        "rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial "
        "normal uniform exponential poisson"
    ),
    Kind.READ: "item _local_scalar_dense is_nonzero equal allclose",
    Kind.ATTENTION: (
        "scaled_dot_product_attention _scaled_dot_product_attention_math "
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_fused_attention_overrideable _native_multi_head_attention "
        "_transformer_encoder_layer_fwd"
    ),
    Kind.RECURRENT: "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    Kind.COMPLEX: (
        "view_as_complex view_as_real complex polar real imag conj _conj _conj_physical "
        "conj_physical angle"
    ),
}
#: Operators whose windows run over as many axes as the operation says, or over 1, 2 or 3: their
#: names, {} where the number stands.
_OVER_WINDOWS: tuple[tuple[Operation, str], ...] = (
    (Operation(Kind.CONVOLUTION), "conv{}d"),
    (Operation(Kind.CONVOLUTION, transposed=True), "conv_transpose{}d"),
    (Operation(Kind.AVERAGE_POOL), "avg_pool{}d"),
    (Operation(Kind.AVERAGE_POOL, adaptive=True), "adaptive_avg_pool{}d"),
    (Operation(Kind.MAX_POOL), "max_pool{}d"),
    (Operation(Kind.MAX_POOL, adaptive=True), "adaptive_max_pool{}d"),
    (Operation(Kind.RESAMPLE), "upsample_nearest{}d _upsample_nearest_exact{}d"),
    (Operation(Kind.RESAMPLE, axes=1), "upsample_linear1d"),
    (Operation(Kind.RESAMPLE, axes=2), "upsample_bilinear2d _upsample_bilinear2d_aa"),
    (Operation(Kind.RESAMPLE, axes=2), "upsample_bicubic2d _upsample_bicubic2d_aa"),
    (Operation(Kind.RESAMPLE, axes=3), "upsample_trilinear3d"),
)

TABLE: dict[str, Operation] = {
    **{name: Operation(kind) for kind, names in _LINES.items() for name in names.split()},
    **{
        name.format(axes): replace(operation, axes=axes)
        for operation, names in _OVER_WINDOWS
        for name in names.split()
        for axes in ([operation.axes] if operation.axes else (1, 2, 3))
    },
}
