"""The table: one line for every operation that torch does not describe well enough itself.

An operation without a line is what torch says it is: elementwise by its tag, a view by its schema.
A rule for a new operation is one name in one of these lines.
"""

from __future__ import annotations

from dataclasses import dataclass

from relprop.operations.kinds import Kind


@dataclass(frozen=True)
class Operation:
    """What an operation is. ``axes``: over how many last axes its windows run. ``adaptive``: their
    size is worked out from that of the result. ``transposed``: a convolution's derivative."""

    kind: Kind
    axes: int = 0
    adaptive: bool = False
    transposed: bool = False


def _lines() -> dict[str, Operation]:
    table: dict[str, Operation] = {}

    def line(kind: Kind, names: str, **facts: int | bool) -> None:
        table.update(dict.fromkeys(names.split(), Operation(kind, **facts)))  # type: ignore[arg-type]

    line(
        Kind.IDENTITY,
        "alias clone contiguous positive lift_fresh lift_fresh_copy dropout feature_dropout "
        "alpha_dropout feature_alpha_dropout native_dropout resolve_conj resolve_neg pin_memory",
    )
    line(Kind.DETACH, "detach")
    line(Kind.CAST, "to _to_copy type_as")
    line(Kind.AFFINE, "neg rsub deg2rad rad2deg")
    line(
        Kind.FUNCTION,
        "abs acos acosh asin asinh atan atanh ceil celu clamp clamp_max clamp_min cos cosh "
        "digamma elu erf erfc erfinv exp exp2 expm1 float_power floor frac gelu hardshrink "
        "hardsigmoid hardswish hardtanh i0 leaky_relu lgamma log log10 log1p log2 log_sigmoid "
        "logit mish nan_to_num pow prelu reciprocal relu relu6 round rrelu rsqrt selu sgn "
        "sigmoid sign silu sin sinc sinh softplus softshrink sqrt square tan tanh threshold trunc "
        "atan2 copysign floor_divide fmod heaviside hypot ldexp logaddexp logaddexp2 nextafter "
        "remainder xlogy polygamma mvlgamma igamma igammac div.Tensor_mode div.Scalar_mode",
    )
    line(Kind.SUM, "add sub")
    line(Kind.PRODUCT, "mul")
    line(Kind.QUOTIENT, "div")
    line(Kind.CHOICE, "where masked_fill")
    line(Kind.EXTREMUM, "maximum minimum fmax fmin max.other min.other")
    line(
        Kind.TEST,
        "eq ne lt le gt ge logical_and logical_or logical_not logical_xor isnan isinf isfinite "
        "isneginf isposinf signbit bitwise_and bitwise_or bitwise_not bitwise_xor __and__ __or__ "
        "__xor__ bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ gcd lcm isin",
    )

    line(
        Kind.RESHAPE,
        "reshape view _unsafe_view flatten unflatten squeeze unsqueeze view_as reshape_as ravel",
    )
    line(
        Kind.PERMUTE,
        "permute transpose t numpy_T mT mH adjoint matrix_H movedim moveaxis swapaxes swapdims",
    )
    line(Kind.EXPAND, "expand expand_as broadcast_to")
    line(Kind.SELECT, "select")
    line(Kind.SLICE, "slice narrow")
    line(Kind.JOIN, "cat stack")
    line(Kind.SHIFT, "roll flip")
    line(Kind.REPEAT, "repeat tile repeat_interleave")
    line(Kind.VIEW, "as_strided unfold diagonal linalg_diagonal")
    line(Kind.WINDOWS, "im2col")
    line(Kind.INDEX, "index index_select take")
    line(Kind.GATHER, "gather take_along_dim")
    line(Kind.SHUFFLE, "pixel_shuffle pixel_unshuffle channel_shuffle")
    line(
        Kind.WRITE,
        "index_put index_copy index_fill scatter slice_scatter select_scatter diagonal_scatter "
        "as_strided_scatter masked_scatter",
    )
    line(Kind.PAD, "pad constant_pad_nd")
    line(Kind.FILL, "tril triu")
    line(
        Kind.SPLIT,
        "split split_with_sizes chunk unbind tensor_split hsplit vsplit dsplit unsafe_split "
        "unsafe_chunk unsafe_split_with_sizes broadcast_tensors",
    )

    line(Kind.LINEAR, "linear")
    for axes in (1, 2, 3):
        line(Kind.CONVOLUTION, f"conv{axes}d", axes=axes)
        line(Kind.CONVOLUTION, f"conv_transpose{axes}d", axes=axes, transposed=True)
        line(Kind.AVERAGE_POOL, f"avg_pool{axes}d", axes=axes)
        line(Kind.AVERAGE_POOL, f"adaptive_avg_pool{axes}d", axes=axes, adaptive=True)
        line(Kind.MAX_POOL, f"max_pool{axes}d", axes=axes)
        line(Kind.MAX_POOL, f"adaptive_max_pool{axes}d", axes=axes, adaptive=True)
        line(Kind.RESAMPLE, f"upsample_nearest{axes}d _upsample_nearest_exact{axes}d", axes=axes)
    line(Kind.RESAMPLE, "upsample_linear1d", axes=1)
    line(
        Kind.RESAMPLE,
        "upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
        axes=2,
    )
    line(Kind.RESAMPLE, "upsample_trilinear3d", axes=3)
    line(Kind.MATMUL, "matmul bmm mm mv dot")
    line(Kind.CONTRACTION, "einsum")
    line(Kind.TOTAL, "mean sum nansum")
    line(Kind.LARGEST, "amax amin max min")
    line(Kind.STATISTIC, "prod std var norm linalg_vector_norm logsumexp")
    line(Kind.SCAN, "cumsum")
    line(Kind.SAMPLE, "grid_sampler grid_sampler_2d grid_sampler_3d")
    line(Kind.INDEXED_SUM, "index_add scatter_add")
    line(Kind.FOLD, "col2im")
    line(
        Kind.PICK,
        "max.dim min.dim max.names_dim min.names_dim median mode sort topk kthvalue cummax cummin",
    )

    line(Kind.SOFTMAX, "softmax _softmax _safe_softmax")
    line(Kind.LOG_SOFTMAX, "log_softmax _log_softmax")
    line(Kind.NORM, "layer_norm rms_norm group_norm instance_norm")
    line(Kind.BATCH_NORM, "batch_norm")

    line(Kind.EMBEDDING, "embedding")
    line(
        Kind.COUNT,
        "argmax argmin argsort any all nonzero nonzero_numpy nonzero_static histc bincount "
        "one_hot bucketize searchsorted unique_dim _unique2 unique_consecutive count_nonzero",
    )
    line(
        Kind.FACTORY,
        "zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones "
        "new_full new_empty new_empty_strided empty_strided arange eye linspace logspace "
        "scalar_tensor tril_indices triu_indices hann_window sym_size sym_numel sym_stride",
    )
    line(
        Kind.RANDOM,
        "rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial "
        "normal uniform exponential poisson",
    )
    line(Kind.READ, "item _local_scalar_dense is_nonzero equal allclose")

    line(
        Kind.ATTENTION,
        "scaled_dot_product_attention _scaled_dot_product_attention_math "
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_fused_attention_overrideable _native_multi_head_attention "
        "_transformer_encoder_layer_fwd",
    )
    line(
        Kind.RECURRENT,
        "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    )
    line(
        Kind.COMPLEX,
        "view_as_complex view_as_real complex polar real imag conj _conj _conj_physical "
        "conj_physical angle",
    )
    return table


TABLE = _lines()
