"""Spellings that are not recognised yet, each with the reason: what the suite holds to be wrong, so
that one that is mended must be taken out. By ``python -m tests.spellings.table``, all of it."""

EXPERTS = "the products with the experts' weights are one tensor here and one for each expert there"

OTHER_FORM = "not brought to the base's form"
OTHER_SUMS = "a sum, a join or a product is not brought to the base's form: a rule sees other terms"
REFUSED = "refused by the operation's name, where an answer could be had"
NOT_LOOKED_UP = "its ids are not found to be looked up: refused, though they are"

LEFT: dict[str, str] = {
    "choices-pool-lengths_in_python-padded": "each sample's sum is cut at its own length",
    "choices-experts-all_stacked_and_gathered-experts": EXPERTS,
    "transforms-experts-experts_by_vmap-experts": EXPERTS,
    "positions-position-RowAndColumn-plain": "a sum of two tables of positions is two terms",
    "writes-begin-read_between_writes-start": "a class token that is read between two writes",
}
LEFT |= dict.fromkeys(
    (
        "attentions-attend-heads_as_blocks_of_one_map-plain",
        "attentions-attend-queries_by_vmap-plain",
        "biases-attend-bias_as_a_factor-relative",
        "biases-hide-shifted-relative",
        "choices-pool-a_branch_without_padding-padded",
        "choices-pool-picked-padded",
        "choices-pool-picked_by_nonzero-padded",
        "choices-pool-split_by_lengths-padded",
        "loops-blocks-samples_twice-plain",
        "pools-pool-scatter_mean-plain",
        "positions-begin-matmul_of_both-start",
        "positions-begin-where-start",
        "positions-position-InTwoSteps-plain",
        "scores-scores-einsum_with_a_scale_per_feature-plain",
        "scores-scores-feature_by_feature-plain",
        "writes-position-index_add_onto_zeros-plain",
    ),
    OTHER_FORM,
)
LEFT |= dict.fromkeys(
    (
        "choices-experts-all_stacked_and_one_hot-experts",
        "choices-experts-dispatched_by_products-experts",
        "choices-experts-masks_of_floats-experts",
        "choices-experts-only_its_own_tokens-experts",
        "choices-experts-only_its_own_tokens_by_index_add-experts",
        "choices-experts-only_its_own_tokens_by_mask-experts",
        "choices-experts-sorted_shares-experts",
        "choices-experts-token_by_token-experts",
        "choices-experts-weights_gathered-experts",
        "choices-experts-weights_stacked-experts",
        "choices-experts-where_it_is_the_likeliest-experts",
    ),
    EXPERTS,
)
LEFT |= dict.fromkeys(
    (
        "contractions-contract-all_heads_with_all_heads-plain",
        "contractions-contract-convolution_by_weights-plain",
        "contractions-contract-product_and_cumsum-plain",
        "contractions-contract-product_and_nansum-plain",
        "cuts-attention-GroupsAsLongerSequences-grouped",
        "cuts-attention-GroupsByEinsum-grouped",
        "embeddings-embed-table_in_two-ids",
        "embeddings-embed-two_halves-ids",
        "projections-patch-conv1d_with_stride-plain",
        "projections-patch-conv2d_of_patches-plain",
        "projections-patch-reduced-plain",
        "projections-project-bilinear_with_one-plain",
        "projections-project-both_signs_turned-plain",
        "projections-project-conv1d_over_the_flattened_sequence-plain",
        "projections-project-conv1d_padded_kernel-plain",
        "projections-project-even_and_odd_inputs-plain",
        "projections-project-one_input_at_a_time-plain",
        "projections-project-output_scaled_and_back-plain",
        "projections-project-parts_of_the_outputs-plain",
        "projections-project-product_and_sum_bias_among_the_terms-plain",
        "projections-project-two_halves_of_the_inputs-plain",
        "residuals-block-Addmm-plain",
        "residuals-block-HeadsAddedOneByOne-plain",
        "residuals-block-StreamAmongTheInputs-plain",
        "residuals-residual-average_pool-plain",
        "residuals-residual-bilinear_in_two-plain",
        "residuals-residual-complex-plain",
        "residuals-residual-convolution-plain",
        "residuals-residual-cumsum-plain",
        "residuals-residual-cumsum_last-plain",
        "residuals-residual-differences-plain",
        "residuals-residual-einsum_with_ones-plain",
        "residuals-residual-features_apart-plain",
        "residuals-residual-flattened-plain",
        "residuals-residual-index_add-plain",
        "residuals-residual-index_add_alpha-plain",
        "residuals-residual-index_put-plain",
        "residuals-residual-joined_features_summed-plain",
        "residuals-residual-joined_tokens_summed-plain",
        "residuals-residual-nansum-plain",
        "residuals-residual-scatter_add-plain",
        "residuals-residual-scatter_add_onto_zeros-plain",
        "residuals-residual-tensordot_with_ones-plain",
        "weights-project-BlocksMultiplied-plain",
    ),
    OTHER_SUMS,
)
LEFT |= dict.fromkeys(
    (
        "cuts-share-kron-grouped",
        "maps-weigh-in_place-squared",
        "masks-hide-minimum-causal",
        "scores-scores-convolution_by_keys-plain",
        "writes-position-a_row_at_an_index_tensor-plain",
        "writes-position-added_through_as_real_of_complex-plain",
        "writes-position-added_through_expand_as_itself-plain",
        "writes-position-copied_through_as_real_of_complex-plain",
        "writes-position-copied_through_expand_as_itself-plain",
        "writes-position-imaginary_part-plain",
        "writes-position-put-plain",
        "writes-position-transpose-plain",
    ),
    REFUSED,
)
LEFT |= dict.fromkeys(
    (
        "embeddings-embed-bag_of_one-ids",
        "embeddings-embed-ids_of_doubles-ids",
        "embeddings-embed-index_of_the_flat_table-ids",
        "embeddings-embed-index_of_the_transposed-ids",
        "embeddings-embed-masks_of_every_word-ids",
        "embeddings-embed-take-ids",
        "embeddings-embed-where_of_every_word-ids",
    ),
    NOT_LOOKED_UP,
)
